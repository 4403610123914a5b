"""The order of a mixture: from which dataset each row of an epoch is, and which row it is.

A mixture is one sequence of rows for all ranks. It is drawn in *chunks*: the weights determine how
many rows of a chunk are from each part, and the seed their places. The rows of a part come in turn
from its lanes, as contiguous shares of the part's own epoch. A step takes the next rows of the
sequence, `batch_rows` for each rank, so a position is a number of rows, whatever the ranks are.

This module does no I/O.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UsageError
from ..formats.arguments import check_integer, list_items, refuse
from .order import EpochOrder, Even, Span, draw_permutation

Stop = Literal["first", "all", "repeat"]
"""When the epoch of a mixture ends."""
Unit = Literal["steps", "rows"]
"""What a schedule counts."""
Numbers = Any
"""A NumPy array of int64."""
_CHUNK_ROWS = 1024


def check_weights(weights: Any, parts: int) -> tuple[float, ...]:
    """Return one weight for each part, of which the sum is 1; raise `UsageError` if that fails."""
    try:
        values = tuple(map(float, list_items("weights", weights, "numbers")))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        refuse("weights", weights, "numbers")
    total = sum(values)
    if len(values) != parts:
        raise UsageError(f"there are {len(values)} weights for {parts} datasets")
    if not all(value >= 0 for value in values) or not 0 < total < float("inf"):
        refuse("weights", values, "positive numbers, or 0 for some")
    return tuple(value / total for value in values)


class Weights(NamedTuple):
    """Weights from some step or row on."""

    start: int
    """The first step or row of the epoch with these weights."""
    weights: tuple[float, ...]
    """The weight of each part. Their sum is 1."""


def make_schedule(weights: Any, schedule: Any, parts: int) -> tuple[Weights, ...]:
    """Return a schedule in ascending order; raise `UsageError` if it is not one.

    `schedule` is a mapping or a sequence of pairs, of starts and weights, or None.
    """
    expected = "pairs such as (1000, [0.5, 0.5])"
    points: Any = schedule.items() if isinstance(schedule, Mapping) else schedule
    found = {0: check_weights(weights, parts)}
    for point in [] if points is None else list_items("schedule", points, expected):
        try:
            start, values = point
        except (TypeError, ValueError):
            refuse("an item of schedule", point, expected)
        found[check_integer("a start in schedule", start, 0)] = check_weights(values, parts)
    return tuple(Weights(start, found[start]) for start in sorted(found))


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an epoch in which the schedule and the rows of a step did not change."""

    row: int
    """The first row."""
    step: int
    """The first step."""
    step_rows: int
    """The rows of a step, of all ranks."""
    unit: Unit
    """What the schedule counts."""
    schedule: tuple[Weights, ...]
    """The weights."""

    def row_of(self, start: int) -> int:
        """Return the row at which weights of the schedule begin."""
        return start if self.unit == "rows" else self.row + (start - self.step) * self.step_rows

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> Segment:
        """Return the segment that a dict describes."""
        fields: dict[str, Any] = dict(values)
        schedule = tuple(Weights(start, tuple(each)) for start, each in fields.pop("schedule"))
        return cls(**fields, schedule=schedule)


@dataclass(frozen=True, slots=True)
class MixPosition:
    """A position in an epoch of a mixture. All ranks have delivered the same number of batches."""

    epoch: int
    """The number of the epoch."""
    segments: tuple[Segment, ...]
    """The segments so far; the last one is the current one."""
    steps: int
    """The number of steps in the epoch."""

    earlier = 0
    """Steps are counted from the beginning of the epoch, whatever the segments are."""

    @property
    def rows(self) -> int:
        """The number of rows that all ranks together have delivered."""
        last = self.segments[-1]
        return last.row + (self.steps - last.step) * last.step_rows

    def after(self, steps: int) -> MixPosition:
        """Return the position after some steps of the epoch, in the current segment."""
        return MixPosition(self.epoch, self.segments, steps)

    def at(self, step: int) -> MixPosition:
        """Return the position in the segment that has a step of the epoch."""
        index = bisect_right(self.segments, step, key=lambda segment: segment.step)
        return MixPosition(self.epoch, self.segments[: max(1, index)], step)

    def continued(self, step_rows: int, unit: Unit, schedule: tuple[Weights, ...]) -> MixPosition:
        """Return the same position, from which another schedule or size of a step applies."""
        last = self.segments[-1]
        if (step_rows, unit, schedule) == (last.step_rows, last.unit, last.schedule):
            return self
        earlier = self.segments if self.steps > last.step else self.segments[:-1]
        added = Segment(self.rows, self.steps, step_rows, unit, schedule)
        return MixPosition(self.epoch, (*earlier, added), self.steps)

    def encode(self) -> dict[str, Any]:
        """Return the position as a dict of plain values, for checkpoints."""
        segments = [
            {
                **asdict(segment),
                "schedule": [[start, list(each)] for start, each in segment.schedule],
            }
            for segment in self.segments
        ]
        return {"epoch": self.epoch, "steps": self.steps, "segments": segments}

    @classmethod
    def decode(cls, state: Mapping[str, Any]) -> MixPosition:
        """Return the position that a dict describes."""
        segments = tuple(Segment.decode(values) for values in state["segments"])
        return cls(state["epoch"], segments, state["steps"])


class PartOrder:
    """The order in which a mixture takes the rows of one part, in one pass through it.

    The epoch of the part is divided into cells of consecutive rows, and these into lanes. The cells
    come from all lanes in turn.
    """

    def __init__(self, order: EpochOrder, lanes: int, cell_rows: int) -> None:
        self.order = order
        """The epoch of the part."""
        self._cell_rows = cell_rows
        cells = -(-len(order) // cell_rows)
        self.lanes = max(1, min(lanes, cells))
        """The number of lanes."""
        # The last lanes have a cell more, so that the last cell, which may be short, comes last.
        self._rounds, longer = divmod(cells, self.lanes)
        self._shorter = self.lanes - longer

    def place(self, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the lanes of some rows, and their positions in the epoch of the part."""
        cells, offsets = np.divmod(rows, self._cell_rows)
        rounds, lanes = np.divmod(cells, self.lanes)
        last = rounds >= self._rounds
        lanes = np.where(last, lanes + self._shorter, lanes)
        places = lanes * self._rounds + np.maximum(0, lanes - self._shorter) + rounds
        return lanes, places * self._cell_rows + offsets

    def list_blocks(self, spans: Iterable[Span], rank: int = 0, ranks: int = 1) -> list[int]:
        """Return the blocks of a rank's lanes, in the order in which some rows need them.

        A block is there for each lane that needs it. A rank also reads the lanes beside its own,
        because steps do not end with a lane.
        """
        lanes = rank * self.lanes // ranks - 1, -(-(rank + 1) * self.lanes // ranks) + 1
        found: dict[tuple[int, int], int] = {}
        for begin, end in spans:
            for lane in range(max(0, lanes[0]), min(lanes[1], self.lanes)):
                cells = lane * self._rounds + max(0, lane - self._shorter)
                start = cells * self._cell_rows
                place, last = (start + self._count(lane, row) for row in (begin, end))
                for piece in self.order.locate([(place, last)]):
                    found.setdefault((lane, piece.block), self._find_row(lane, place - start))
                    place += piece.end - piece.begin
        return [block for _, block in sorted(found, key=found.__getitem__)]

    def _count(self, lane: int, row: int) -> int:
        """Return how many rows of a lane come before a row."""
        cells, offset = divmod(row, self._cell_rows)
        rounds, index = divmod(cells, self.lanes)
        lane -= self._shorter if rounds == self._rounds else 0
        more = self._cell_rows if lane < index else offset if lane == index else 0
        return rounds * self._cell_rows + (more if lane >= 0 else 0)

    def _find_row(self, lane: int, number: int) -> int:
        """Return the row that is the one with a number in a lane."""
        rounds, offset = divmod(number, self._cell_rows)
        lane -= self._shorter if rounds == self._rounds else 0
        return (rounds * self.lanes + lane) * self._cell_rows + offset


Plan = list[tuple[int, tuple[float, ...]]]
"""The weights from some rows on, in ascending order."""


def _plan(segment: Segment) -> Plan:
    plan = [(segment.row_of(start), weights) for start, weights in segment.schedule]
    return _from(plan, segment.row)


def _from(plan: Plan, row: int) -> Plan:
    """Return what of a plan applies from a row on."""
    found: Plan = []
    for start, weights in plan:
        if start <= row or not found:
            found = [(row, weights)]
        elif found[-1][1] != weights:
            found.append((start, weights))
    return found


def apportion(
    weights: Sequence[float], carried: Sequence[float], count: int
) -> tuple[list[int], list[float]]:
    """Divide a number of rows by weights, and return what rounding owes each part afterwards.

    Examples
    --------
    >>> apportion([0.75, 0.25], [0.0, 0.0], 2)
    ([2, 0], [-0.5, 0.5])
    """
    quotas = [owed + weight * count for owed, weight in zip(carried, weights, strict=True)]
    given = [max(0, int(quota)) for quota in quotas]
    live = [part for part, weight in enumerate(weights) if weight]
    while sum(given) < count:
        given[max(live, key=lambda part: quotas[part] - given[part])] += 1
    while sum(given) > count:
        reducible = (part for part in live if given[part])
        given[min(reducible, key=lambda part: quotas[part] - given[part])] -= 1
    return given, [quota - rows for quota, rows in zip(quotas, given, strict=True)]


class _Chunk(NamedTuple):
    """Rows of the mixture that are drawn together."""

    row: int
    """The first row."""
    taken: tuple[int, ...]
    """The rows of each part that come before."""
    carried: tuple[float, ...]
    """The rows that rounding owes each part."""
    exhausted: frozenset[int]
    """The parts whose rows have all been delivered once."""


class MixOrder:
    """The sequence of rows of an epoch: which part each one is of, and which row of it.

    Any thread may use it.
    """

    def __init__(
        self,
        part_rows: Sequence[int],
        segments: Sequence[Segment],
        key: tuple[int | str, ...],
        stop: Stop,
    ) -> None:
        self._part_rows = tuple(part_rows)
        self._key = key
        self._stop = stop
        # A segment that changes no weights, because only the ranks have changed, is not one here.
        self._plans: list[tuple[int, Plan]] = []
        for segment in segments:
            plan = _plan(segment)
            if not self._plans or _from(self._plans[-1][1], segment.row) != plan:
                self._plans.append((segment.row, plan))
        parts = len(self._part_rows)
        empty = frozenset(part for part in range(parts) if not part_rows[part])
        self._chunks = [_Chunk(0, (0,) * parts, (0.0,) * parts, empty)]
        self._end: int | None = None
        self._lock = threading.Lock()
        self._draw = lru_cache(maxsize=8)(self._draw_chunk)

    def __len__(self) -> int:
        """Return the number of rows in the epoch. It takes about a second for 100 million."""
        while True:
            with self._lock:  # not all the time: an announcement must not delay reads
                if self._end is not None:
                    return self._end
                self._extend()

    def has(self, row: int) -> bool:
        """Return whether the epoch has a row."""
        with self._lock:
            while self._end is None and self._chunks[-1].row <= row:
                self._extend()
            return self._end is None or row < self._end

    def rows(self, begin: int, end: int) -> tuple[Numbers, Numbers]:
        """Return the part of each row between two rows, and its number in all passes of the part.

        There are fewer if the epoch ends before.
        """
        parts: list[Numbers] = [np.empty(0, np.int64)]
        numbers: list[Numbers] = [np.empty(0, np.int64)]
        while begin < end and self.has(begin):
            chunk, *drawn = self._draw(self._find(begin))
            last = min(end - chunk.row, len(drawn[0]))
            parts.append(drawn[0][begin - chunk.row : last])
            numbers.append(drawn[1][begin - chunk.row : last])
            begin = chunk.row + last
        return np.concatenate(parts), np.concatenate(numbers)

    def taken(self, row: int) -> list[int]:
        """Return how many rows of each part come before a row of the epoch, or before its end."""
        row = row if self.has(row) else len(self)
        chunk, parts, _ = self._draw(self._find(row))
        counts = np.bincount(parts[: row - chunk.row], minlength=len(self._part_rows))
        return [int(count) for count in counts + chunk.taken]

    def _find(self, row: int) -> int:
        return bisect_right(self._chunks, row, key=lambda chunk: chunk.row) - 1

    def _extend(self) -> None:
        """Add the chunk after the last one, or the end of the epoch."""
        chunk = self._chunks[-1]
        weights, count, cut = self._measure(chunk)
        if not count or (
            self._stop == "repeat" and self._list_weighted(chunk.row) <= chunk.exhausted
        ):
            self._end = chunk.row
            return
        given, carried = apportion(weights, chunk.carried, count)
        rooms = [rows - taken for rows, taken in zip(self._part_rows, chunk.taken, strict=True)]
        exhausted, ends = set(chunk.exhausted), False
        if cut < count or any(
            0 <= room <= more != 0 for room, more in zip(rooms, given, strict=True)
        ):
            labels = self._label(chunk.row, given)
            ended: list[int] = []
            for part, room in enumerate(rooms):
                places = np.flatnonzero(labels == part)
                if self._stop == "repeat":
                    if part not in exhausted and 0 < room <= len(places):
                        exhausted.add(part)
                        ended.append(int(places[room - 1]) + 1)
                elif room < len(places) and places[room] < cut:
                    cut, ends = int(places[room]), self._stop == "first"
            if ended and self._list_weighted(chunk.row) <= exhausted and max(ended) <= cut:
                cut, ends = max(ended), True
            given = np.bincount(labels[:cut], minlength=len(rooms)).tolist()
        if ends:
            self._end = chunk.row + cut
            return
        taken = tuple(before + more for before, more in zip(chunk.taken, given, strict=True))
        if self._stop != "repeat":
            rows = zip(taken, self._part_rows, strict=True)
            exhausted = {part for part, (done, most) in enumerate(rows) if done == most}
        owed = tuple(carried) if cut == count else (0.0,) * len(rooms)
        if not cut:
            self._chunks.pop()
        self._chunks.append(_Chunk(chunk.row + cut, taken, owed, frozenset(exhausted)))

    def _list_weighted(self, row: int) -> set[int]:
        """Return the parts that have a weight at a row, or at a later one."""
        index = bisect_right(self._plans, row, key=lambda each: each[0]) - 1
        plans = [_from(plan, row) for _, plan in self._plans[index:]]
        weights = [each for plan in plans for _, each in plan]
        return {part for each in weights for part, weight in enumerate(each) if weight}

    def _measure(self, chunk: _Chunk) -> tuple[Sequence[float], int, int]:
        """Return the weights of a chunk, its rows, and how many of them have these weights."""
        index = bisect_right(self._plans, chunk.row, key=lambda each: each[0]) - 1
        plan, end = _from(self._plans[index][1], chunk.row), chunk.row + _CHUNK_ROWS
        if len(plan) > 1:
            end = min(end, plan[1][0])
        for _, weights in plan:
            live = [
                0.0 if self._is_over(part, chunk) else weight for part, weight in enumerate(weights)
            ]
            if total := sum(live):
                most = end
                if index + 1 < len(self._plans):
                    most = min(end, self._plans[index + 1][0])
                return [weight / total for weight in live], end - chunk.row, most - chunk.row
        return (), 0, 0

    def _is_over(self, part: int, chunk: _Chunk) -> bool:
        if self._stop == "all":
            return part in chunk.exhausted
        return self._stop == "repeat" and not self._part_rows[part]

    def _label(self, row: int, given: Sequence[int]) -> Numbers:
        """Return the part of each row of the chunk at a row."""
        labels = np.repeat(np.arange(len(given)), given)
        return labels[draw_permutation(len(labels), *self._key, row).to_numpy().astype(np.int64)]

    def _draw_chunk(self, index: int) -> tuple[_Chunk, Numbers, Numbers]:
        """Return a chunk, and of each row its part and its number in all passes of the part."""
        chunk = self._chunks[index]
        weights, count, _ = self._measure(chunk)
        if not count:
            return chunk, np.empty(0, np.int64), np.empty(0, np.int64)
        given, _ = apportion(weights, chunk.carried, count)
        labels = self._label(chunk.row, given)
        numbers = np.empty(count, np.int64)
        for part, taken in enumerate(chunk.taken):
            numbers[labels == part] = np.arange(taken, taken + given[part])
        end = self._chunks[index + 1].row if index + 1 < len(self._chunks) else self._end
        assert end is not None
        return chunk, labels[: end - chunk.row], numbers[: end - chunk.row]


@lru_cache(maxsize=4)
def find_order(
    part_rows: tuple[int, ...],
    segments: tuple[Segment, ...],
    key: tuple[int | str, ...],
    stop: Stop,
) -> MixOrder:
    """Return an order that was made before: checkpoints need what batches have drawn."""
    return MixOrder(part_rows, segments, key, stop)


class Group(NamedTuple):
    """Rows that follow each other in one lane of a part."""

    part: int
    """The part."""
    turn: int
    """The pass through the part."""
    lane: int
    """The lane."""
    begin: int
    """The position of the first row in the epoch of the part."""
    end: int
    """The position after the last row."""


class Places(NamedTuple):
    """Where some rows of a mixture are, as arrays of equal lengths."""

    parts: Numbers
    """The part of each row."""
    turns: Numbers
    """The pass through the part."""
    lanes: Numbers
    """The lane of the part."""
    positions: Numbers
    """The position in the epoch of the part."""

    def take(self, indices: Numbers) -> Places:
        """Return some of the rows."""
        return Places(*(each[indices] for each in self))

    def group(self) -> tuple[list[Group], Numbers]:
        """Return the rows in groups, and for each row its index among the rows of all groups."""
        by_place = np.lexsort((self.positions, self.lanes, self.turns, self.parts))
        parts, turns, lanes, positions = self.take(by_place)
        breaks = np.flatnonzero(
            (np.diff(parts) != 0)
            | (np.diff(turns) != 0)
            | (np.diff(lanes) != 0)
            | (np.diff(positions) != 1)
        )
        firsts = np.concatenate([[0], breaks + 1])[: len(parts)].astype(np.int64)
        counts = np.diff(firsts, append=len(parts)).tolist()
        columns = [each[firsts].tolist() for each in (parts, turns, lanes, positions)]
        groups = [
            Group(part, turn, lane, begin, begin + count)
            for part, turn, lane, begin, count in zip(*columns, counts, strict=True)
        ]
        return groups, np.argsort(by_place)


class RowFinder:
    """Finds the rows of a mixture in the epochs of its parts."""

    def __init__(
        self, order: MixOrder, part_rows: Sequence[int], make_part: Callable[[int, int], PartOrder]
    ) -> None:
        self.order = order
        """The sequence of rows."""
        self._part_rows = np.maximum(1, part_rows)
        self.part_order = lru_cache(maxsize=None)(make_part)
        """Returns the order of a part in one pass through it."""

    def place(self, begin: int, end: int) -> tuple[Places, Numbers]:
        """Return where the rows between two rows are, and their lanes as fractions of all lanes."""
        parts, numbers = self.order.rows(begin, end)
        turns, rows = np.divmod(numbers, self._part_rows[parts])
        lanes, positions = np.empty_like(rows), np.empty_like(rows)
        fractions = np.empty(len(rows))
        for part, turn in set(zip(parts.tolist(), turns.tolist(), strict=True)):
            chosen = (parts == part) & (turns == turn)
            order = self.part_order(part, turn)
            lanes[chosen], positions[chosen] = order.place(rows[chosen])
            fractions[chosen] = lanes[chosen] / order.lanes
        return Places(parts, turns, lanes, positions), fractions


def divide_step(fractions: Numbers, step_rows: int, ranks: int, even: Even, rank: int) -> Numbers:
    """Return which rows of a step a rank delivers, in ascending order.

    A rank gets the rows of neighboring lanes, so that it reads few blocks that others read, too.
    `fractions` has fewer rows than `step_rows` in the last step, where `even` decides.
    """
    count = len(fractions)
    begin, end = share_rows(count, step_rows, ranks, even, rank)
    by_lane = np.argsort(fractions, kind="stable")
    return np.sort(by_lane[np.arange(begin, end) % max(1, count)])


def share_rows(count: int, step_rows: int, ranks: int, even: Even, rank: int) -> tuple[int, int]:
    """Return which rows of a step belong to a rank. With ``pad``, they may exceed `count`."""
    if count == step_rows or even != "uneven":
        each = -(-count // ranks) if even == "pad" else count // ranks
        return rank * each, (rank + 1) * each
    each, more = divmod(count, ranks)
    begin = rank * each + min(rank, more)
    return begin, begin + each + (rank < more)
