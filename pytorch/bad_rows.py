"""Rows that cannot be delivered: they are left out, and others fill their batches.

A batch is filled with the next rows of its lane, so that all ranks keep the number of their
batches. The *shift* of a lane is the number of its rows that were left out so far: its next batch
begins so many rows later than planned. A checkpoint holds the shifts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from ..errors import DatasetError, UsageError
from .blocks import BatchPlan, Rows
from .order import Even
from .record_batches import join_batches
from .tensors import torch

OnError = Literal["raise", "skip"]
"""What happens to rows that cannot be delivered."""
Report = Callable[[int, Exception, str], None]
"""Counts rows that are left out, given the error and their place; raises if they are too many."""
_logger = logging.getLogger(__name__)
_MAX_WORKERS = 64


class ErrorLog:
    """The rows that were left out, in memory that the workers of a loader share.

    Each worker writes lines of its own: the batch that went on without some rows, and their number.
    """

    def __init__(self, max_errors: int, batches: int) -> None:
        self._max_errors = max_errors
        shape = (_MAX_WORKERS, min(max_errors, batches), 2)
        self._lines = torch.zeros(shape, dtype=torch.int64).share_memory_()
        self._counts = torch.zeros((_MAX_WORKERS, 2), dtype=torch.int64).share_memory_()

    def start(self, worker: int, workers: int) -> None:
        """Begin an iteration of a worker of so many; raise `UsageError` if they are too many."""
        if workers > _MAX_WORKERS:
            raise UsageError(f"on_error='skip' allows {_MAX_WORKERS} workers, not {workers}")
        self._counts[worker] = 0
        if not worker:
            self._counts[workers:] = 0  # those of an iteration with more workers

    def count(self, worker: int, rows: int, error: Exception, place: str) -> None:
        """Count rows that are left out; raise `DatasetError` if they are too many by now."""
        self._counts[worker, 1] += rows
        _logger.warning("left out %s: %s", place, error)
        if self.rows > self._max_errors:
            raise DatasetError(
                f"{self.rows} rows were left out, more than max_errors={self._max_errors}, at last "
                f"{place}: {error}"
            ) from error

    def add(self, worker: int, number: int, rows: int) -> None:
        """Note that a batch went on without some rows."""
        index = int(self._counts[worker, 0])
        self._lines[worker, index] = torch.tensor([number, rows])
        self._counts[worker, 0] = index + 1

    @property
    def rows(self) -> int:
        """The number of rows that were left out in this iteration."""
        return int(self._counts[:, 1].sum())

    def list_lines(self) -> list[tuple[int, int]]:
        """Return the batches of this iteration that went on without rows, and how many."""
        found = [
            (int(number), int(rows))
            for lines, count in zip(self._lines, self._counts[:, 0].tolist(), strict=True)
            for number, rows in lines[:count]
        ]
        return sorted(found)


class Target(NamedTuple):
    """What a batch should have."""

    lane: int
    """The lane that its rows come from."""
    rows: int
    """The number of rows."""


class Stretch(NamedTuple):
    """Rows of a batch that can be delivered."""

    left_out: int
    """The rows before them that cannot."""
    batch: pa.RecordBatch
    """The rows."""


class Tested(NamedTuple):
    """A planned batch after the attempt to make it."""

    plan: BatchPlan
    """The plan. Its detail is a `Target`."""
    stretches: list[Stretch]
    """Its rows."""
    left_out: int
    """The rows after the last stretch that cannot be delivered."""
    result: Any
    """What the dataset yields, if nothing was left out."""


@dataclass(slots=True)
class RowTester:
    """Makes batches, and finds the rows for which that fails."""

    make: Callable[[pa.RecordBatch], Any]
    """Makes what the dataset yields of a record batch."""
    report: Report
    """Counts rows that are left out."""
    earlier: int = 0
    """The steps of the epoch before the first batch with the number 0."""

    def test(self, plan: BatchPlan, rows: Rows) -> Tested:
        """Return the rows that can be delivered."""
        stretches: list[Stretch] = []
        result, left_out, offset = None, 0, 0
        groups = [Rows([part]) for part in rows.parts] if rows.gaps else [rows]
        for index, group in enumerate(groups if rows.parts else []):
            left_out += rows.gaps.get(index, 0)
            offset += rows.gaps.get(index, 0)
            batch = group.to_record_batch()
            try:
                result = self.make(batch)
                found = iter([batch])
            except Exception as error:
                found = self._divide(batch, error, plan.number, offset)
            offset += batch.num_rows
            for good in found:
                if good is None:
                    left_out += 1
                else:
                    stretches.append(Stretch(left_out, good))
                    left_out = 0
        left_out += rows.gaps.get(len(rows.parts), 0)
        is_whole = len(groups) == len(stretches) == 1 and not left_out and not stretches[0].left_out
        return Tested(plan, stretches, left_out, result if is_whole else None)

    def _divide(
        self, batch: pa.RecordBatch, error: Exception, number: int, offset: int
    ) -> Iterator[pa.RecordBatch | None]:
        """Yield the rows that do not fail, and None for each one that does."""
        if batch.num_rows == 1:
            self.report(1, error, f"row {offset} of step {number + self.earlier}")
            yield None
            return
        half = batch.num_rows // 2
        for begin, part in ((offset, batch.slice(0, half)), (offset + half, batch.slice(half))):
            try:
                self.make(part)
            except Exception as inner:
                yield from self._divide(part, inner, number, begin)
            else:
                yield part


class _Lane:
    """The rows of a lane that are ready."""

    def __init__(self) -> None:
        self.stretches: deque[Stretch] = deque()
        self.rows = 0
        self.left_out = 0
        """The rows left out after the last stretch."""

    def add(self, tested: Tested) -> None:
        for left_out, batch in tested.stretches:
            self.stretches.append(Stretch(left_out + self.left_out, batch))
            self.rows += batch.num_rows
            self.left_out = 0
        self.left_out += tested.left_out

    def take(self, count: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the next rows, and the number of those left out before or among them."""
        found: list[pa.RecordBatch] = []
        skipped = 0
        while count and self.stretches:
            left_out, batch = self.stretches.popleft()
            skipped += left_out
            if batch.num_rows > count:
                self.stretches.appendleft(Stretch(0, batch.slice(count)))
                batch = batch.slice(0, count)
            found.append(batch)
            count -= batch.num_rows
            self.rows -= batch.num_rows
        return found, skipped


def fill_batches(
    tested: Iterator[Tested],
    make: Callable[[pa.RecordBatch], Any],
    note: Callable[[int, int], None],
    even: Even,
) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, the rows and the result of each planned batch, in order.

    `note` receives the number of a batch, and how many rows its lane left out for it. When a lane
    runs out of rows, its last batches have fewer; one without rows is left out with ``uneven``,
    and otherwise repeats rows, as all are with ``pad``.
    """
    lanes: dict[int, _Lane] = {}
    waiting: deque[Tested] = deque()
    last: pa.RecordBatch | None = None
    while True:
        if not waiting:
            found = next(tested, None)
            if found is None:
                return
            _receive(found, lanes, waiting)
        first = waiting.popleft()
        lane, target = lanes[first.plan.detail.lane], first.plan.detail.rows
        while lane.rows < target and (found := next(tested, None)) is not None:
            _receive(found, lanes, waiting)
        batches, skipped = lane.take(target)
        if skipped:
            note(first.plan.number, skipped)
        is_whole = first.result is not None and len(batches) == 1
        if is_whole and batches[0] is first.stretches[0].batch:  # the lane is as planned
            last = batches[0]
            yield first.plan.number, last.num_rows, first.result
            continue
        rows = sum(batch.num_rows for batch in batches)
        if rows < target and even != "uneven" and (even == "pad" or not rows):
            source = join_batches(batches) if rows else last
            if source is None:
                raise DatasetError("no row of the dataset can be delivered")
            batches += _repeat(source, target - rows)
        if batches:
            last = join_batches(batches)
            yield first.plan.number, last.num_rows, make(last)


def _receive(tested: Tested, lanes: dict[int, _Lane], waiting: deque[Tested]) -> None:
    lanes.setdefault(tested.plan.detail.lane, _Lane()).add(tested)
    waiting.append(tested)


def _repeat(batch: pa.RecordBatch, count: int) -> Iterator[pa.RecordBatch]:
    while count > 0:
        part = batch.slice(0, count)
        yield part
        count -= part.num_rows
