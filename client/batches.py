"""What every blocking stream of batches can do, whatever it is read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


class BatchStream(ABC):
    """An iterator of record batches of one schema."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the stream."""

    @abstractmethod
    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def read_all(self) -> pa.Table:
        """Return what is left of the stream as one table."""
        return pa.Table.from_batches(list(self), self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a ``pyarrow.RecordBatchReader`` over what is left of the stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Export the stream through the Arrow C stream interface, batch by batch."""
        return self.to_reader().__arrow_c_stream__(requested_schema)
