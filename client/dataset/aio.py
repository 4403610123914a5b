"""The asynchronous client of one control plane, its datasets and their streams.

Worker threads make the calls of the blocking client. A cancelled task does not wait for them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

import pyarrow as pa
from anyio import CancelScope, to_thread

from ...errors import ClosedError, SplitArrowError
from ...formats.arrow.tensors.tensor import AnyTensor
from ..arguments import ReadArguments, find_allocator
from ..stream.batch_stream import AsyncBatchStream, AsyncContext
from ..stream.device_stream import wrap_for_device
from .client import BaseClient, Client
from .dataset import BaseDataset, DatasetStream

T = TypeVar("T")
P = ParamSpec("P")


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


class AsyncDatasetStream(AsyncBatchStream):
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
    def _known(self) -> DatasetStream:
        if self._stream is None:
            raise ClosedError("the stream is not open; enter it with 'async with'")
        return self._stream

    @property
    def error(self) -> SplitArrowError | None:
        """The error that ended the stream; None if there was none."""
        return self._known.error

    @property
    def resumed(self) -> int:
        """The number of times that the read continued over a new connection."""
        return self._known.resumed

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
                    fetched.append(read(self._known))

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


class AsyncDataset(BaseDataset):
    """The asynchronous form of `Dataset`: each method that reads opens a new stream.

    `AsyncClient.dataset` returns it. The schema, the length and the other facts are those of the
    lookup; a new lookup returns those of a newer version.

    Parameters
    ----------
    read : callable
        The method `read` of the client, which must stay open while the dataset is used.
    info : DatasetInfo
        The description of the dataset, as `AsyncClient.info` returned it.
    """

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

    async def to_table(self, **arguments: Unpack[ReadArguments]) -> pa.Table:
        """Read into a ``pyarrow.Table``, as `to_arrow` does."""
        return await self.to_arrow(**arguments)

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


ClientT = TypeVar("ClientT", bound=BaseClient)


def _same(client: ClientT) -> ClientT:
    return client


def _in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[AsyncBaseClient[Any], P], Coroutine[Any, Any, T]]:
    """Return the asynchronous form of a method of the blocking client."""

    @wraps(method)
    async def call(self: AsyncBaseClient[Any], *args: P.args, **kwargs: P.kwargs) -> T:
        client = self._entered  # pyright: ignore[reportPrivateUsage]
        return await run_in_thread(partial(getattr(client, method.__name__), *args, **kwargs))

    return call


class AsyncBaseClient(AsyncContext, Generic[ClientT]):
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

    datasets = _in_thread(BaseClient.datasets)
    """List the datasets that the caller may read; see `Client.datasets`."""
    describe = _in_thread(BaseClient.describe)
    """Describe the selection of a dataset that a request makes; see `Client.describe`."""
    info = _in_thread(BaseClient.info)
    """Describe a dataset; see `Client.info`."""
    schema = _in_thread(BaseClient.schema)
    """Return the schema of a dataset; see `Client.schema`."""
    count_rows = _in_thread(BaseClient.count_rows)
    """Count the rows of each stored record batch; see `Client.count_rows`."""
    list_lengths = _in_thread(BaseClient.list_lengths)
    """List the lengths of the lists in a column; see `Client.list_lengths`."""
    sql = _in_thread(BaseClient.sql)
    """Return the result of a SELECT statement over datasets; see `Client.sql`."""
    drop = _in_thread(BaseClient.drop)
    """Remove a dataset that was uploaded or published; see `Client.drop`."""
    status = _in_thread(BaseClient.status)
    """Return the figures of the server; see `Client.status`."""

    async def dataset(self, name: str) -> AsyncDataset:
        """Look up a dataset; see `Client.dataset`."""
        return AsyncDataset(self.read, await self.info(name))

    async def __aiter__(self) -> AsyncIterator[str]:
        for info in await self.datasets():
            yield info.name

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

    put = _in_thread(Client.put)
    """Upload a dataset; see `Client.put`."""
    put_shard = _in_thread(Client.put_shard)
    """Upload a shard of a dataset; see `Client.put_shard`."""
    publish = _in_thread(Client.publish)
    """Commit the shards of a job as a version of the dataset; see `Client.publish`."""
    discard = _in_thread(Client.discard)
    """Remove the shards of a job that was not published; see `Client.discard`."""
    announce = _in_thread(Client.announce)
    """Announce the order in which a reader opens shards; see `Client.announce`."""
    act = _in_thread(Client.act)
    """Perform an action of the Flight service; see `Client.act`."""
