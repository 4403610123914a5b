"""The interface that all asynchronous streams of record batches share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pyarrow as pa
from anyio import to_thread

from ...errors import UsageError
from ...formats.arrow.numpy_arrays import columns_to_numpy
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from .batch_stream import (
    check_tensor_content,
    check_unread,
    refuse_arrays,
    refuse_several_tensors,
    refuse_tensors,
)
from .conversions import first_rows, table_to_duckdb, table_to_pandas, to_polars
from .custom_metadata import BatchWithMetadata, CustomMetadata, find_metadata


class AsyncBatchStream(ABC):
    """An asynchronous iterator of record batches that have one schema."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of the stream."""

    @property
    @abstractmethod
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""

    @property
    @abstractmethod
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer; see `BatchStream.footer_metadata`."""

    @property
    def format(self) -> str:
        """The format of the record batches that arrive; see `BatchStream.format`."""
        return "arrow"

    @abstractmethod
    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch."""

    @abstractmethod
    def close(self) -> None:
        """Close the stream."""

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def batches_with_metadata(self) -> AsyncIterator[BatchWithMetadata]:
        """Iterate over the rest of the stream; see `BatchStream.batches_with_metadata`."""
        async for batch in self:
            yield BatchWithMetadata(batch, find_metadata(batch))

    async def read_all(self) -> pa.Table:
        """Read the rest of the stream into one table; see `BatchStream.read_all`."""
        check_unread(self.is_exhausted)
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    async def to_arrow(self) -> pa.Table:
        """Read the rest of the stream into one table, as `read_all` does."""
        return await self.read_all()

    async def to_pandas(self, **options: Any) -> Any:
        """Read the rest of the stream into a data frame; see `BatchStream.to_pandas`."""
        table = await self.read_all()
        return await to_thread.run_sync(partial(table_to_pandas, table, **options))

    async def to_polars(self) -> Any:
        """Read the rest of the stream into a data frame; see `BatchStream.to_polars`."""
        return await to_thread.run_sync(to_polars, await self.read_all())

    async def to_numpy(self) -> dict[str, Any]:
        """Read the rest of the stream into NumPy arrays; see `BatchStream.to_numpy`."""
        return await to_thread.run_sync(columns_to_numpy, await self.read_all())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """Read the rest of the stream into a relation; see `BatchStream.to_duckdb`."""
        return table_to_duckdb(await self.read_all(), connection)

    async def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; see `BatchStream.next_tensor`."""
        raise refuse_tensors()

    async def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; see `BatchStream.next_array`."""
        raise refuse_arrays()

    async def arrays(self) -> AsyncIterator[Any]:
        """Iterate over the arrays of the stream undecoded; see `BatchStream.arrays`."""
        if self.format != "vortex":
            raise refuse_arrays()
        while (array := await self.next_array()) is not None:
            yield array

    async def tensors(self) -> AsyncIterator[AnyTensor]:
        """Iterate over the tensors of the stream; see `BatchStream.tensors`."""
        check_tensor_content(self.schema)
        while (tensor := await self.next_tensor()) is not None:
            yield tensor

    async def read_tensor(self) -> AnyTensor:
        """Return the only tensor of the stream; see `BatchStream.read_tensor`."""
        check_tensor_content(self.schema)
        check_unread(self.is_exhausted)
        tensor = await self.next_tensor()
        if tensor is None:
            raise UsageError("the dataset holds no tensors")
        if await self.next_tensor() is not None:
            self.close()
            raise refuse_several_tensors()
        return tensor

    async def head(self, rows: int = 5) -> pa.Table:
        """Return the next rows as a table, and close the stream; see `BatchStream.head`."""
        check_unread(self.is_exhausted)
        taken: list[pa.RecordBatch] = []
        while sum(batch.num_rows for batch in taken) < rows:
            try:
                taken.append(await self.__anext__())
            except StopAsyncIteration:
                break
        self.close()
        return first_rows(taken, self.schema, rows)
