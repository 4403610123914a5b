"""The asynchronous stream, for asyncio and trio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import anyio
import pyarrow as pa
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    SplitArrowError,
    TransportError,
)
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ...protocol.uri import DataUri
from ...representation import describe_object
from ...transport import aio as async_driver
from ...transport.base import ConnectOptions
from ...transport.registry import find_transport
from .async_batch_stream import AsyncBatchStream
from .custom_metadata import CustomMetadata
from .options import ReadOptions
from .prefetch import TaskPrefetcher
from .reader import Reader
from .second_attempts import allows_second_attempt
from .uris import request_schema, resolve_uris

ChooseFormat = Callable[[list[DataUri], ReadOptions], "str | None"]
"""Returns the format to request."""


class AsyncStream(AsyncBatchStream):
    """A data stream being read: an async context manager and an async iterator of record batches.

    `splitarrow.aio.open` returns it. It connects when the context is entered. A cancelled read
    loses no rows: the next read returns them. The caller owns the batches, as with `Stream`.

    Parameters
    ----------
    uris : list of DataUri
        The URIs, as `resolve_uris` returns them.
    options : ReadOptions
        How to read.
    filter : str, tuples, or expression, optional
        The rows to read. A first connection reads the schema that it refers to.
    choose_format : callable, optional
        Returns the format to request for the URIs, after first connections.
    """

    def __init__(
        self,
        uris: list[DataUri],
        options: ReadOptions,
        filter: Any = None,
        choose_format: ChooseFormat | None = None,
    ) -> None:
        self._reader = Reader(uris, options)
        self._options = options
        self._filter = filter
        self._choose_format = choose_format
        self._cancelled = False
        self._prefetcher: TaskPrefetcher | None = None
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> AsyncStream:
        try:
            if self._choose_format is not None:
                await self._resolve_format(self._choose_format)
            if self._filter is not None:
                await self._resolve_filter(self._filter)
            try:
                await self._open(self._options.connect_options)
            except (ConnectError, ConnectionLostError):
                if not allows_second_attempt(self._reader):
                    raise
                self._reader = Reader(self._reader.uris, self._options)
                await self._open(replace(self._options.connect_options, reuse=False))
        except BaseException as error:
            self._reader.close(error)
            raise
        if self._options.window_bytes:
            self._prefetcher = TaskPrefetcher(self._read, self._options.window_bytes)
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._prefetcher.run)
        return self

    async def _resolve_format(self, choose: ChooseFormat) -> None:
        """Add the format to the ticket."""
        uris = self._reader.uris
        chosen = await to_thread.run_sync(choose, uris, self._options)
        self._reader = Reader(resolve_uris(uris, format=chosen), self._options)

    async def _resolve_filter(self, filter: Any) -> None:
        """Add the filter to the ticket."""
        from .filters import serialize_filter

        uris = self._reader.uris
        options = replace(self._options, prefetch_bytes=0)
        async with AsyncStream(request_schema(uris), options) as stream:
            text = serialize_filter("the dataset", stream.schema, filter)
        self._reader = Reader(resolve_uris(uris, filter=text), self._options)

    async def _open(self, options: ConnectOptions) -> None:
        """Connect, and receive the schema."""
        await self._connect(options)
        while self._reader.schema is None:
            self._reader.expects_more()
            await self._receive()

    async def _connect(self, options: ConnectOptions) -> None:
        """Connect the channels and send the requests."""
        reader, stall_timeout = self._reader, self._options.stall_timeout
        reader.begin()
        for uri in reader.uris:
            channel = await to_thread.run_sync(find_transport(uri).connect, uri, options)
            await async_driver.send(channel, reader.attach(channel, uri), stall_timeout)
        reader.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream.

        Raises
        ------
        ClosedError
            Before the context is entered.
        """
        schema = self._reader.schema
        if schema is None:
            raise ClosedError("the stream is not open; enter it with 'async with'")
        return schema

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""
        return self._reader.is_exhausted

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer; see `BatchStream.footer_metadata`."""
        return self._reader.footer_metadata

    @property
    def format(self) -> str:
        """The format of the record batches that arrive: ``arrow`` or ``vortex``."""
        return self._reader.format

    @property
    def transport(self) -> str:
        """The scheme in use, with the lanes if it has several: ``tcp``, ``ucx (cma/memory)``."""
        return self._reader.transport

    @property
    def rows_received(self) -> int:
        """The number of rows received and decoded so far."""
        return self._reader.rows

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        return self._reader.bytes_received

    async def _receive(self) -> None:
        """Wait for frames and pass them to the reader, which records errors."""
        stream, channel = self._reader.next_channel()
        try:
            frames = await async_driver.receive(channel, self._options.stall_timeout)
        except SplitArrowError as error:
            if self._cancelled and isinstance(error, TransportError):
                error = ClosedError("the stream was cancelled")
            self._reader.fail(error)
        else:
            self._reader.feed(stream, frames)

    async def _read(self) -> pa.RecordBatch | None:
        """Wait for the next batch and return it, or None at the end."""
        reader = self._reader
        while (batch := reader.take()) is None and reader.expects_more():
            await self._receive()
        return batch

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopAsyncIteration
            At the proven end of the stream, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream fails. All batches returned before are valid, but the data is incomplete.
        ClosedError
            If the stream was closed or cancelled.
        """
        if self._prefetcher is not None:
            batch = await self._next_prefetched(self._prefetcher)
        elif self._reader.batches:
            return self._reader.batches.popleft()
        else:
            await checkpoint()
            batch = await self._read()
        if batch is None:
            self._reader.finish()
            raise StopAsyncIteration
        return batch

    async def _next_prefetched(self, prefetcher: TaskPrefetcher) -> pa.RecordBatch | None:
        batch = await prefetcher.next()
        if batch is None:
            self._reader.expects_more()  # raises if the stream was closed
        return batch

    async def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the proven end of the stream.

        Raises
        ------
        ProtocolError, RemoteError, TransportError
            If the stream fails. All tensors returned before are valid.
        ClosedError
            If the stream was closed or cancelled.
        """
        reader = self._reader
        if reader.is_exhausted:
            return None
        while (tensor := reader.take_item()) is None and reader.expects_more():
            await self._receive()
        if tensor is None:
            reader.finish()
        return tensor

    async def next_array(self) -> Any:
        """Return the next ``vortex.Array``, or None at the proven end; raises as `next_tensor`."""
        reader = self._reader
        if reader.is_exhausted:
            return None
        while (array := reader.take_item()) is None and reader.expects_more():
            await self._receive()
        if array is None:
            reader.finish()
        else:
            reader.rows += len(array)
        return array

    def cancel(self) -> None:
        """Interrupt a read that waits in another task: it raises `ClosedError`.

        A stream that was read to its end keeps the connection over which its batches are leased.
        """
        self._cancelled = True
        if not self.is_exhausted:
            for channel in self._reader.channels.values():
                channel.interrupt()

    def close(self) -> None:
        """Close the connection. Batches that were returned stay valid. Idempotent."""
        self._reader.close()

    def __repr__(self) -> str:
        schema = () if self._reader.schema is None else self._reader.schema
        return describe_object(f"AsyncStream {self._reader.name!r}", schema, self._reader.facts())
