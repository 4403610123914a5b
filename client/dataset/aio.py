"""The asynchronous client of one control plane, its datasets and their streams.

Worker threads make the calls of the blocking client. A cancelled task does not wait for them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import pyarrow as pa
from anyio import CancelScope, to_thread

from ...errors import ClosedError, SplitArrowError
from ...formats.arrow.tensors.tensor import AnyTensor
from ...protocol.request import Request
from ..arguments import ReadArguments, find_allocator
from ..rpc.info import DatasetInfo, PublishResult, ShardUploadResult, UploadResult
from ..rpc.upload import Progress
from ..stream.batch_stream import AsyncBatchStream, StreamFacts
from ..stream.device_stream import wrap_for_device
from .client import BaseClient, Client
from .dataset import DatasetStream

T = TypeVar("T")


class _Closable(Protocol):
    def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=_Closable)


async def run_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a worker thread. A task that is cancelled does not wait for it."""
    return await to_thread.run_sync(function, abandon_on_cancel=True)


async def open_in_thread(open_resource: Callable[[], ClosableT]) -> ClosableT:
    """Open a resource in a worker thread.

    If the task is cancelled, it does not wait, and the thread closes the resource.
    """
    lock = threading.Lock()
    abandoned = False
    opened: list[ClosableT] = []

    def open_or_close() -> None:
        resource = open_resource()
        with lock:
            if not abandoned:
                opened.append(resource)
                return
        resource.close()

    try:
        await run_in_thread(open_or_close)
    except BaseException:
        with lock:
            abandoned = True
        for resource in opened:
            resource.close()
        raise
    return opened[0]


class AsyncDatasetStream(StreamFacts, AsyncBatchStream):
    """A dataset being read: an async context manager and an async iterator of record batches.

    `AsyncClient.read` returns it. It connects when the context is entered. A cancelled read loses
    no rows: the next read returns them. See `DatasetStream` for the rest.
    """

    def __init__(self, open_stream: Callable[[], DatasetStream]) -> None:
        self._open_stream = open_stream
        self._stream: DatasetStream | None = None
        self._lock = threading.Lock()
        self._fetched: defaultdict[str, deque[Any]] = defaultdict(deque)

    async def __aenter__(self) -> AsyncDatasetStream:
        self._stream = await open_in_thread(self._open_stream)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)

    @property
    def _entered(self) -> DatasetStream:
        if self._stream is None:
            raise ClosedError("the stream is not open; enter it with 'async with'")
        return self._stream

    @property
    def _known(self) -> DatasetStream:
        return self._entered

    @property
    def error(self) -> SplitArrowError | None:
        """The error that ended the stream; None if there was none."""
        return self._entered.error

    @property
    def resumed(self) -> int:
        """The number of times that the read continued over a new connection."""
        return self._entered.resumed

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `DatasetStream` does."""
        batch = await self._fetch("batches", lambda stream: next(stream, None))
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; raises as `DatasetStream` does."""
        return await self._fetch("tensors", DatasetStream.next_tensor)

    async def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; raises as `DatasetStream` does."""
        return await self._fetch("arrays", DatasetStream.next_array)

    async def _fetch(self, kind: str, read: Callable[[DatasetStream], Any]) -> Any:
        """Return the next item, or the one that the thread of a cancelled read has left."""
        fetched = self._fetched[kind]

        def fetch() -> None:
            with self._lock:
                if not fetched:
                    fetched.append(read(self._entered))

        await run_in_thread(fetch)
        return fetched.popleft()

    def cancel(self) -> None:
        """Interrupt a read that waits in another task: it raises `ClosedError`."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Close all connections. Batches that were returned stay valid. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()
            with self._lock:  # the thread of a cancelled read may still use the stream
                self._stream.close()

    def __repr__(self) -> str:
        if self._stream is None:
            return "<splitarrow.AsyncDatasetStream, not open>"
        return repr(self._stream).replace("DatasetStream", "AsyncDatasetStream")


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

    def read(self, **arguments: Unpack[ReadArguments]) -> AsyncDatasetStream:
        """Open the dataset for reading; see `ReadArguments`."""
        return self._read(self.name, **arguments)

    async def head(self, rows: int = 5, **arguments: Any) -> pa.Table:
        """Return the first rows as a table; see `ReadArguments`."""
        async with self.read(limit=rows, **arguments) as stream:
            return await stream.read_all()

    async def to_arrow(self, **arguments: Unpack[ReadArguments]) -> pa.Table:
        """Read into a ``pyarrow.Table``; see `ReadArguments`."""
        async with self.read(**arguments) as stream:
            return await stream.read_all()

    async def to_pandas(self, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a ``pandas.DataFrame``; see `ReadArguments`."""
        async with self.read(**arguments) as stream:
            return await stream.to_pandas()

    async def to_polars(self, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a ``polars.DataFrame``; see `ReadArguments`."""
        async with self.read(**arguments) as stream:
            return await stream.to_polars()

    async def to_numpy(self, **arguments: Unpack[ReadArguments]) -> dict[str, Any]:
        """Read into NumPy arrays by column; see `ReadArguments`."""
        async with self.read(**arguments) as stream:
            return await stream.to_numpy()

    async def read_tensor(self, **arguments: Unpack[ReadArguments]) -> AnyTensor:
        """Return the only tensor of the dataset; see `ReadArguments`."""
        async with self.read(**arguments) as stream:
            return await stream.read_tensor()

    async def to_duckdb(self, connection: Any = None, **arguments: Unpack[ReadArguments]) -> Any:
        """Read into a table, and return a DuckDB relation; see `BatchStream.to_duckdb`."""
        async with self.read(**arguments) as stream:
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


ClientT = TypeVar("ClientT", bound=BaseClient)


def _same(client: ClientT) -> ClientT:
    """Return a client that is connected already."""
    return client


class AsyncBaseClient(Generic[ClientT]):
    """The asynchronous form of `BaseClient`: an async context manager.

    Parameters
    ----------
    connect : callable
        Returns the blocking client, when the context is entered.
    """

    def __init__(self, connect: Callable[[], ClientT]) -> None:
        self._connect = connect
        self._client: ClientT | None = None

    async def __aenter__(self) -> Self:
        self._client = await open_in_thread(self._connect)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _entered(self) -> ClientT:
        if self._client is None:
            raise ClosedError("the client is not connected; enter it with 'async with'")
        return self._client

    @property
    def uri(self) -> str:
        """The address of the control plane; several are separated by commas."""
        return self._entered.uri

    async def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets that the caller may read; see `Client.datasets`."""
        return await run_in_thread(partial(self._entered.datasets, glob))

    async def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes; see `Client.describe`."""
        return await run_in_thread(partial(self._entered.describe, request))

    async def info(self, name: str) -> DatasetInfo:
        """Describe a dataset; see `Client.info`."""
        return await run_in_thread(partial(self._entered.info, name))

    async def dataset(self, name: str) -> AsyncDataset:
        """Look up a dataset; see `Client.dataset`."""
        return AsyncDataset(self.read, await self.info(name))

    async def __aiter__(self) -> AsyncIterator[str]:
        for info in await self.datasets():
            yield info.name

    async def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset; see `Client.schema`."""
        return await run_in_thread(partial(self._entered.schema, name))

    async def count_rows(
        self,
        name: str,
        *,
        filter: Any = None,
        version: str | None = None,
        timeout: float = 600.0,
    ) -> dict[int, list[int]]:
        """Count the rows of each stored record batch; see `Client.count_rows`."""
        count = self._entered.count_rows
        return await run_in_thread(
            partial(count, name, filter=filter, version=version, timeout=timeout)
        )

    def read(
        self, name: str | None = None, **arguments: Unpack[ReadArguments]
    ) -> AsyncDatasetStream:
        """Open a dataset for reading; see `Client.read`.

        Returns
        -------
        AsyncDatasetStream
            A stream that connects when it is entered with ``async with``. Entering it raises the
            errors of `Client.read`.
        """
        memory = arguments.get("memory")
        if memory is not None:
            arguments["memory"] = find_allocator(memory)
        stream = AsyncDatasetStream(partial(self._entered.read, name, **arguments))
        return wrap_for_device(stream, memory)

    async def sql(self, query: str) -> pa.Table:
        """Return the result of a SELECT statement over datasets; see `Client.sql`."""
        return await run_in_thread(partial(self._entered.sql, query))

    async def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published; see `Client.drop`."""
        await run_in_thread(partial(self._entered.drop, name))

    async def status(self) -> dict[str, Any]:
        """Return the figures of the server; see `Client.status`."""
        return await run_in_thread(self._entered.status)

    def close(self) -> None:
        """Close all connections to control planes. Idempotent."""
        if self._client is not None:
            self._client.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments. The copy connects when its context is entered."""
        return type(self), (self._connect,)

    def __repr__(self) -> str:
        state = "not connected" if self._client is None else f"of {self._client.uri}"
        return f"<splitarrow.{type(self).__name__} {state}>"


class AsyncClient(AsyncBaseClient[Client]):
    """The asynchronous form of `Client`: an async context manager.

    `splitarrow.aio.connect` returns it. It connects when the context is entered.
    """

    @classmethod
    def of(cls, client: Client) -> AsyncClient:
        """Return the asynchronous form of a client that is connected."""
        wrapper = cls(partial(_same, client))
        wrapper._client = client
        return wrapper

    async def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> UploadResult:
        """Upload a dataset; see `Client.put`."""
        return await run_in_thread(
            partial(self._entered.put, name, data, schema=schema, progress=progress)
        )

    async def put_shard(
        self,
        name: str,
        data: Any,
        *,
        job: str,
        ordinal: int,
        schema: pa.Schema | None = None,
        compression: str | None = None,
        progress: Progress | None = None,
    ) -> ShardUploadResult:
        """Upload a shard of a dataset; see `Client.put_shard`."""
        return await run_in_thread(
            partial(
                self._entered.put_shard,
                name,
                data,
                job=job,
                ordinal=ordinal,
                schema=schema,
                compression=compression,
                progress=progress,
            )
        )

    async def publish(
        self,
        name: str,
        *,
        job: str,
        ordinals: Iterable[int],
        shards_total: int | None = None,
        snapshot: str | None = None,
        mode: str = "overwrite",
        schema: pa.Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Commit the shards of a job as a version of the dataset; see `Client.publish`."""
        return await run_in_thread(
            partial(
                self._entered.publish,
                name,
                job=job,
                ordinals=ordinals,
                shards_total=shards_total,
                snapshot=snapshot,
                mode=mode,
                schema=schema,
                properties=properties,
            )
        )

    async def discard(self, name: str, job: str) -> None:
        """Remove the shards of a job that was not published; see `Client.discard`."""
        await run_in_thread(partial(self._entered.discard, name, job))

    async def act(self, action: str, body: bytes = b"", *, dataset: str | None = None) -> bytes:
        """Perform an action of the Flight service; see `Client.act`."""
        return await run_in_thread(partial(self._entered.act, action, body, dataset=dataset))
