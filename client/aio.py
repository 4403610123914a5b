"""The asynchronous stream, for asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType

import anyio
import pyarrow as pa
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ..errors import ClosedError, SplitArrowError, TransportError
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.uri import DataUri
from ..transport import aio as driver
from ..transport.certificates import TlsOptions
from ..transport.registry import transport_for
from .ahead import TaskAhead
from .decoder import checked_validation
from .reader import Reader, ReadOptions, resolve


class AsyncStream:
    """A dataset being read: an async context manager and an async iterator of batches.

    Made by `splitarrow.aio.open`; it connects when the context is entered. The batches belong
    to the caller: they own the memory that they arrived in, and stay valid after the stream is
    closed. A read that is cancelled loses nothing: the next one goes on where it stopped.
    """

    def __init__(self, uris: list[DataUri], options: ReadOptions) -> None:
        self._reader = Reader(uris, options)
        self._options = options
        self._cancelled = False
        self._ahead: TaskAhead | None = None
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> AsyncStream:
        reader, options = self._reader, self._options
        try:
            for uri in reader.uris:
                channel = await to_thread.run_sync(
                    transport_for(uri, options.tls).connect,
                    uri,
                    options.limits,
                    options.connect_timeout,
                )
                await driver.send(channel, [reader.attach(channel, uri)], options.stall_timeout)
            reader.requested()
            while reader.schema is None:
                reader.check()
                await self._receive()
        except BaseException:
            reader.close()
            raise
        if options.prefetch_bytes:
            self._ahead = TaskAhead(reader, self._receive, options.prefetch_bytes)
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._group.start_soon(self._ahead.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if self._group is not None:
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream.

        Raises
        ------
        ClosedError
            Before the stream's context is entered.
        """
        schema = self._reader.schema
        if schema is None:
            raise ClosedError("the stream is not open yet: use 'async with'")
        return schema

    @property
    def transport(self) -> str:
        """The scheme that the stream comes by."""
        return self._reader.uris[0].scheme

    @property
    def rows_received(self) -> int:
        """How many rows have been received and decoded."""
        return self._reader.rows

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived, headers included."""
        return self._reader.bytes_received

    async def _receive(self) -> None:
        kind, channel = self._reader.wanted()
        try:
            frames = await driver.receive(channel, self._options.stall_timeout)
        except SplitArrowError as error:
            if self._cancelled and isinstance(error, TransportError):
                error = ClosedError("the stream was cancelled")
            self._reader.fail(error)
        else:
            self._reader.take(kind, frames)

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopAsyncIteration
            At the proven end of the stream, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream breaks. Everything returned before is good, and not the whole.
        """
        reader = self._reader
        if not reader.has_batches:
            await checkpoint()
        while (batch := reader.pop()) is None:
            if self._ahead is not None:
                batch = await self._ahead.next()
                if batch is not None:
                    break
            if not reader.check():
                raise StopAsyncIteration
            if self._ahead is None:
                await self._receive()
        if self._ahead is not None:
            self._ahead.tell()
        return batch

    async def read_all(self) -> pa.Table:
        """Return what is left of the stream as one table."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    def cancel(self) -> None:
        """Stop a read that another task waits in: it raises `ClosedError`."""
        self._cancelled = True
        for channel in self._reader.channels.values():
            channel.interrupt()

    def close(self) -> None:
        """Close the connection. Batches already handed out stay valid. Idempotent."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<splitarrow.AsyncStream {self._reader.name!r} {self._reader.state.value}>"


def open(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float | None = 30.0,
    prefetch_bytes: int = 0,
    require_transport: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsOptions | None = None,
) -> AsyncStream:
    """Open a dataset for reading; the arguments are those of `splitarrow.open`.

    Returns
    -------
    AsyncStream
        To be entered with ``async with``; that connects, and raises what `splitarrow.open`
        raises.
    """
    uris = resolve(
        uri, ticket, columns=columns, limit=limit, batch_rows=batch_rows, compression=compression
    )
    options = ReadOptions(
        validate=None if validate is None else checked_validation(validate),
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        prefetch_bytes=prefetch_bytes,
        require_transport=require_transport,
        limits=limits,
        tls=tls,
    )
    return AsyncStream(uris, options)
