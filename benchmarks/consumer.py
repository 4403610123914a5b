"""The consumer of a read: it treats the batches of every backend in the same way."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidDataError
from .dataset import SCHEMA, Dataset
from .options import Consume, Read


class Consumer:
    """Counts the batches of one read, and records the time of the first one.

    `check`: Such a read is not timed.

    Attributes
    ----------
    rows, batches : int
        The numbers of rows and batches received. Of a table, the chunks of its first column
        count as batches.
    first_at : float or None
        The time at which the first batch arrived (`time.monotonic`, seconds); None for a table.
    reads_table : bool
        Whether the backend must pass one table.
    """

    def __init__(
        self,
        dataset: Dataset,
        consume: Consume = "count",
        read: Read = "iterate",
        check: bool = False,
    ) -> None:
        self.dataset = dataset
        self.reads_table = read == "all"
        self.check = check
        self.rows = 0
        self.batches = 0
        self.first_at: float | None = None
        self._process: Callable[[pa.RecordBatch], None] | None = None
        if check:
            self._file = pa.ipc.open_file(pa.memory_map(dataset.path))
            self._compared = 0
            self._process = self._compare
        elif consume != "count":
            self._process = _sum_columns if consume == "sum" else _sum_arrays

    def consume_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Process every batch and drop it."""
        iterator = iter(batches)
        batch = next(iterator, None)
        if batch is None:
            return
        self.first_at = time.monotonic()
        process = self._process
        if process is not None:
            process(batch)
        rows, count = batch.num_rows, 1
        # Two loops: the measured loop does nothing for a batch that it need not do.
        if process is None:
            for batch in iterator:
                rows += batch.num_rows
                count += 1
        else:
            for batch in iterator:
                process(batch)
                rows += batch.num_rows
                count += 1
        self.rows += rows
        self.batches += count

    async def consume_batches_async(self, batches: AsyncIterable[pa.RecordBatch]) -> None:
        """Process every batch and drop it."""
        process = self._process
        rows = count = 0
        async for batch in batches:
            if not count:
                self.first_at = time.monotonic()
            if process is not None:
                process(batch)
            rows += batch.num_rows
            count += 1
        self.rows += rows
        self.batches += count

    def consume_table(self, table: pa.Table) -> None:
        """Process all batches of a table."""
        if self._process is not None:
            for batch in table.to_batches():
                self._process(batch)
        self.rows += table.num_rows
        self.batches += table.column(0).num_chunks

    def verify(self) -> None:
        """Check that the numbers of rows and batches are those of the file.

        Raises `InvalidDataError` if they differ.
        """
        dataset = self.dataset
        if (self.rows, self.batches) != (dataset.rows, dataset.batches):
            raise InvalidDataError(
                f"the client received {self.rows} rows in {self.batches} batches; "
                f"the file has {dataset.rows} rows in {dataset.batches} batches"
            )

    def _compare(self, batch: pa.RecordBatch) -> None:
        index = self._compared
        if index >= self.dataset.batches:
            raise InvalidDataError(f"the client received more batches than the file has, {index}")
        if not batch.schema.equals(SCHEMA) or not batch.equals(self._file.get_batch(index)):
            raise InvalidDataError(f"batch {index} differs from that of the file")
        self._compared += 1


def _sum_columns(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        pc.sum(column)


def _sum_arrays(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        column.to_numpy().sum()
