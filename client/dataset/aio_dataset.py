"""The asynchronous form of `Dataset`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ..rpc.info import DatasetInfo
from .aio_stream import AsyncDatasetStream


class AsyncDataset:
    """The asynchronous form of `Dataset`: each method that reads opens a new stream.

    `AsyncClient.dataset` returns it.

    Parameters
    ----------
    read : callable
        The method `read` of the client, which must stay open while the dataset is used.
    info : DatasetInfo
        The description of the dataset, as `AsyncClient.info` returned it.
    """

    def __init__(self, read: Callable[..., AsyncDatasetStream], info: DatasetInfo) -> None:
        self._read = read
        self.info = info
        """The description of the dataset at the time of the lookup."""

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.info.name

    @property
    def schema(self) -> pa.Schema:
        """The schema of the dataset."""
        return self.info.schema

    def read(self, **options: Any) -> AsyncDatasetStream:
        """Open the dataset for reading; the options are those of `Client.read`."""
        return self._read(self.name, **options)

    async def head(self, rows: int = 5, **options: Any) -> pa.Table:
        """Return the first rows as a table; the options are those of `Client.read`."""
        async with self.read(limit=rows, **options) as stream:
            return await stream.read_all()

    async def to_arrow(self, **options: Any) -> pa.Table:
        """Read into a ``pyarrow.Table``; the options are those of `Client.read`."""
        async with self.read(**options) as stream:
            return await stream.read_all()

    async def to_pandas(self, **options: Any) -> Any:
        """Read into a ``pandas.DataFrame``; the options are those of `Client.read`."""
        async with self.read(**options) as stream:
            return await stream.to_pandas()

    async def to_polars(self, **options: Any) -> Any:
        """Read into a ``polars.DataFrame``; the options are those of `Client.read`."""
        async with self.read(**options) as stream:
            return await stream.to_polars()

    async def to_numpy(self, **options: Any) -> dict[str, Any]:
        """Read into NumPy arrays by column; the options are those of `Client.read`."""
        async with self.read(**options) as stream:
            return await stream.to_numpy()

    async def read_tensor(self, **options: Any) -> AnyTensor:
        """Return the only tensor of the dataset; the options are those of `Client.read`."""
        async with self.read(**options) as stream:
            return await stream.read_tensor()

    async def to_duckdb(self, connection: Any = None, **options: Any) -> Any:
        """Read into a table, and return a DuckDB relation; see `BatchStream.to_duckdb`."""
        async with self.read(**options) as stream:
            return await stream.to_duckdb(connection)

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        async with self.read() as stream:
            async for batch in stream:
                yield batch

    def __len__(self) -> int:
        if self.info.rows is None:
            raise TypeError(
                f"the server does not know the number of rows of {self.name!r}; read it to count"
            )
        return self.info.rows

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return repr(self.info).replace("DatasetInfo", "AsyncDataset", 1)

    def _repr_html_(self) -> str:
        return self.info._repr_html_()  # pyright: ignore[reportPrivateUsage]
