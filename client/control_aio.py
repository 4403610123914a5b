"""The asynchronous client of a control plane, for asyncio and trio: threads do the waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa
from anyio import CancelScope, to_thread

from ..errors import ClosedError
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .control import Client
from .control import connect as connect_blocking
from .described import DatasetInfo, Stored
from .parallel import DatasetStream

_T = TypeVar("_T")


class AsyncDatasetStream:
    """A dataset being read: an async context manager and an async iterator of batches.

    Made by `AsyncClient.read`; it connects when the context is entered. A read that is cancelled
    loses nothing: the next one goes on where it stopped. See `DatasetStream`.
    """

    def __init__(self, open_stream: Callable[[], DatasetStream]) -> None:
        self._open = open_stream
        self._stream: DatasetStream | None = None
        self._lock = threading.Lock()
        self._pulled: deque[pa.RecordBatch | None] = deque()

    async def __aenter__(self) -> AsyncDatasetStream:
        self._stream = await _opened(self._open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)

    @property
    def _entered(self) -> DatasetStream:
        if self._stream is None:
            raise ClosedError("the stream is not open yet: use 'async with'")
        return self._stream

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._entered.schema

    @property
    def transport(self) -> str:
        """How it comes; see `DatasetStream.transport`."""
        return self._entered.transport

    @property
    def rows_received(self) -> int:
        """How many rows have been received and decoded."""
        return self._entered.rows_received

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived, headers included."""
        return self._entered.bytes_received

    @property
    def resumed(self) -> int:
        """How many times the reading went on over a new connection."""
        return self._entered.resumed

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    def _pull(self) -> None:
        """See to it that there is a batch, also one that an abandoned call has waited for."""
        with self._lock:
            if not self._pulled:
                self._pulled.append(next(self._entered, None))

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `DatasetStream` does."""
        await to_thread.run_sync(self._pull, abandon_on_cancel=True)
        batch = self._pulled.popleft()
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def read_all(self) -> pa.Table:
        """Return what is left of the stream as one table."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    def cancel(self) -> None:
        """Stop a read that another task waits in: it raises `ClosedError`."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Close all connections. Batches already handed out stay valid. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()
            with self._lock:  # a call that was abandoned is over
                self._stream.close()

    def __repr__(self) -> str:
        return repr(self._stream or "<splitarrow.DatasetStream, not open yet>").replace(
            "DatasetStream", "AsyncDatasetStream"
        )


class AsyncClient:
    """A connection to a control plane: an async context manager. Made by `connect`."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._client: Client | None = None

    async def __aenter__(self) -> AsyncClient:
        self._client = await _opened(self._make)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            self._client.close()

    @property
    def _entered(self) -> Client:
        if self._client is None:
            raise ClosedError("the client is not connected yet: use 'async with'")
        return self._client

    @property
    def uri(self) -> str:
        """The address of the control plane."""
        return self._entered.uri

    async def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """Return what the server has; see `Client.datasets`."""
        return await _waited(self._entered.datasets, glob)

    async def info(self, name: str) -> DatasetInfo:
        """Return what the server tells of a dataset; see `Client.info`."""
        return await _waited(self._entered.info, name)

    async def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""
        return await _waited(self._entered.schema, name)

    def read(self, name: str, **options: Any) -> AsyncDatasetStream:
        """Open a dataset for reading; the arguments are those of `Client.read`.

        Returns
        -------
        AsyncDatasetStream
            To be entered with ``async with``; that connects, and raises what `Client.read` does.
        """
        return AsyncDatasetStream(partial(self._entered.read, name, **options))

    async def put(self, name: str, data: Any, *, schema: pa.Schema | None = None) -> Stored:
        """Upload a dataset; see `Client.put`."""
        return await _waited(partial(self._entered.put, name, data, schema=schema))

    async def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded."""
        await _waited(self._entered.drop, name)

    async def status(self) -> dict[str, Any]:
        """Return what the server counts; see `Client.status`."""
        return await _waited(self._entered.status)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._client is not None:
            self._client.close()

    def __repr__(self) -> str:
        where = "not connected yet" if self._client is None else f"of {self._client.uri}"
        return f"<splitarrow.AsyncClient {where}>"


def connect(
    uri: str | DataUri | Sequence[str | DataUri],
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> AsyncClient:
    """Connect to a control plane; the arguments are those of `splitarrow.connect`.

    Returns
    -------
    AsyncClient
        To be entered with ``async with``; that connects, and raises what `splitarrow.connect`
        does.
    """
    return AsyncClient(
        partial(
            connect_blocking, uri, token, tls=tls, connect_timeout=connect_timeout, timeout=timeout
        )
    )


async def _waited(work: Callable[..., _T], *arguments: Any) -> _T:
    """Do something on a thread; who is cancelled does not wait for it."""
    return await to_thread.run_sync(work, *arguments, abandon_on_cancel=True)


async def _opened(make: Callable[[], Any]) -> Any:
    """Make something on a thread that has to be closed, also where nobody waits for it any more."""
    lock = threading.Lock()
    abandoned = False
    made: list[Any] = []

    def work() -> None:
        thing = make()
        with lock:
            if not abandoned:
                made.append(thing)
                return
        thing.close()

    try:
        await to_thread.run_sync(work, abandon_on_cancel=True)
    except BaseException:
        with lock:
            abandoned = True
        for thing in made:
            thing.close()
        raise
    return made[0]
