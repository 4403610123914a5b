"""What a client does with what it receives: the same for every backend."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidDataError
from .dataset import SCHEMA, Dataset
from .options import Consume, Read


class Consumer:
    """Takes the batches of one read, counts them, and notes when the first one came.

    Parameters
    ----------
    dataset : Dataset
        What is read.
    consume : {"count", "sum"}
        What happens to each batch.
    read : {"iterate", "all"}
        Whether the backend is to hand over batch after batch, or one table.
    check : bool
        Whether each batch is compared with the file instead. Such a read is not timed.

    Attributes
    ----------
    rows, batches : int
        How many came. A table counts the batches of its first column.
    first_at : float or None
        When the first batch came (time.monotonic(), seconds); None for a table.
    """

    def __init__(
        self,
        dataset: Dataset,
        consume: Consume = "count",
        read: Read = "iterate",
        check: bool = False,
    ) -> None:
        self.dataset = dataset
        self.whole = read == "all"
        self.check = check
        self.rows = 0
        self.batches = 0
        self.first_at: float | None = None
        self._use: Callable[[pa.RecordBatch], None] | None = None
        if check:
            self._file = pa.ipc.open_file(pa.memory_map(dataset.path))
            self._compared = 0
            self._use = self._compare
        elif consume == "sum":
            self._use = _sum

    def drain(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take every batch and drop it."""
        iterator = iter(batches)
        batch = next(iterator, None)
        if batch is None:
            return
        self.first_at = time.monotonic()
        use = self._use
        if use is not None:
            use(batch)
        rows, count = batch.num_rows, 1
        if use is None:
            for batch in iterator:
                rows += batch.num_rows
                count += 1
        else:
            for batch in iterator:
                use(batch)
                rows += batch.num_rows
                count += 1
        self.rows += rows
        self.batches += count

    async def drain_async(self, batches: AsyncIterable[pa.RecordBatch]) -> None:
        """Take every batch and drop it."""
        use = self._use
        rows = count = 0
        async for batch in batches:
            if not count:
                self.first_at = time.monotonic()
            if use is not None:
                use(batch)
            rows += batch.num_rows
            count += 1
        self.rows += rows
        self.batches += count

    def table(self, table: pa.Table) -> None:
        """Take the whole as one table."""
        if self._use is not None:
            for batch in table.to_batches():
                self._use(batch)
        self.rows += table.num_rows
        self.batches += table.column(0).num_chunks

    def verify(self) -> None:
        """Check that what was taken is as much as the file holds.

        Raises
        ------
        InvalidDataError
            If it is not.
        """
        dataset = self.dataset
        if (self.rows, self.batches) != (dataset.rows, dataset.batches):
            raise InvalidDataError(
                f"{self.rows} rows in {self.batches} batches came; "
                f"the file has {dataset.rows} in {dataset.batches}"
            )

    def _compare(self, batch: pa.RecordBatch) -> None:
        index = self._compared
        if index >= self.dataset.batches:
            raise InvalidDataError(f"more than {index} batches came")
        if not batch.schema.equals(SCHEMA) or not batch.equals(self._file.get_batch(index)):
            raise InvalidDataError(f"batch {index} differs from the file's")
        self._compared += 1


def _sum(batch: pa.RecordBatch) -> None:
    for column in batch.columns:
        pc.sum(column)
