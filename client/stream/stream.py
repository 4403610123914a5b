"""The streams that a client reads from URIs: `Stream`, and `AsyncStream` for asyncio and trio.

Each drives a `Reader` over the connections of a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.text import describe_object
from ...protocol.limits import DEFAULT_LIMITS, Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator
from ...protocol.uri import DataUri
from ...transport import aio as async_driver
from ...transport import blocking as driver
from ...transport.base import ConnectOptions
from ...transport.registry import find_transport
from ...transport.tls_options import TlsOptions
from ..arguments import ReadOptions, check_validation
from ..uris import request_schema, resolve_uris
from .batch_stream import AsyncBatchStream, BatchStream, CustomMetadata
from .format_choice import AUTO_FORMAT, choose_for_uris
from .read_ahead import (
    WINDOW_BYTES,
    Pace,
    ReadAhead,
    Run,
    TaskPrefetcher,
    ThreadPrefetcher,
    has_second_core,
)
from .reader import Reader, allows_second_attempt


class ReaderSource:
    """Drives the connections of a reader.

    One thread at a time uses it: that of the consumer, or the one that reads ahead.

    `stall_timeout` is the longest wait for data from the server, in seconds.
    """

    def __init__(self, reader: Reader, stall_timeout: float | None) -> None:
        self.reader = reader
        self.is_cancelled = False
        self._stall_timeout = stall_timeout

    def receive(self) -> None:
        """Wait for frames and pass them to the reader, which records errors."""
        stream, channel = self.reader.next_channel()
        try:
            frames = driver.receive(channel, self._stall_timeout)
        except SplitArrowError as error:
            if self.is_cancelled and isinstance(error, TransportError):
                error = ClosedError("the stream was cancelled")
            self.reader.fail(error)
        else:
            self.reader.feed(stream, frames)

    def read(self) -> pa.RecordBatch | None:
        """Wait for the next batch and return it, or None at the end."""
        reader = self.reader
        while (batch := reader.take()) is None and reader.expects_more():
            self.receive()
        return batch

    def read_run(self) -> Run:
        """Wait for the next batch and return it with those decoded with it; empty at the end."""
        batch = self.read()
        if batch is None:
            return Run()
        run = self.reader.batches
        if not run:
            return Run((batch,))
        self.reader.batches = Run()
        run.appendleft(batch)
        return run

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.reader.close()

    def interrupt(self) -> None:
        """Let a thread that waits for the server fail."""
        self.is_cancelled = True
        for channel in self.reader.channels.values():
            channel.interrupt()


class Stream(BatchStream):
    """A data stream being read: a context manager and an iterator of record batches.

    `splitarrow.open` returns it. Iteration ends only after the server has proven the end of the
    stream; a stream that breaks raises an error.

    The caller owns the batches. They keep the memory that they arrived in alive, and stay valid
    after the stream is closed. One thread at a time may read; any thread may call `cancel`.

    Parameters
    ----------
    uris : list of DataUri
        The URIs, as `resolve_uris` returns them.
    options : ReadOptions
        How to read.

    Examples
    --------
    Read batch by batch:

    >>> import pyarrow, splitarrow
    >>> batches = pyarrow.table({"n": [1, 2, 3]}).to_batches(max_chunksize=2)
    >>> server = splitarrow.serve({"numbers": pyarrow.Table.from_batches(batches)})
    >>> with server, splitarrow.open(server.uri("numbers")) as stream:
    ...     stream.schema.names
    ...     for batch in stream:
    ...         print(batch.to_pydict())
    ['n']
    {'n': [1, 2]}
    {'n': [3]}

    A stream is also an Arrow C stream, which other libraries import directly:

    >>> server = splitarrow.serve({"numbers": pyarrow.table({"n": [1, 2, 3]})})
    >>> with server, splitarrow.open(server.uri("numbers")) as stream:
    ...     pyarrow.table(stream).num_rows
    3
    """

    def __init__(self, uris: list[DataUri], options: ReadOptions) -> None:
        self._use_reader(uris, options)
        self._window_bytes = options.window_bytes
        self._prefetcher: ThreadPrefetcher | None = None
        self._run = Run()
        try:
            try:
                self._open(uris, options.connect_options)
            except (ConnectError, ConnectionLostError):
                if not allows_second_attempt(self._reader):
                    raise
                self._use_reader(uris, options)
                self._open(uris, replace(options.connect_options, reuse=False))
        except BaseException as error:
            self._reader.close(error)
            raise
        window = min(WINDOW_BYTES, options.max_decoded_bytes)
        self._read_ahead = ReadAhead(self._source, window, self._choose_pace(options))

    def _use_reader(self, uris: list[DataUri], options: ReadOptions) -> None:
        self._reader = Reader(uris, options)
        self._source = ReaderSource(self._reader, options.stall_timeout)

    def _choose_pace(self, options: ReadOptions) -> Pace | None:
        """Return what decides whether to read ahead; None if a thread can gain nothing.

        Over shared memory, nothing is received. Devices have streams of their own.
        """
        may_pay = (
            options.prefetch_bytes is None
            and options.allocator is DEFAULT_ALLOCATOR
            and not self._reader.accepts_offsets
            and has_second_core()
        )
        return Pace() if may_pay else None

    def _open(self, uris: list[DataUri], options: ConnectOptions) -> None:
        """Connect, and receive the schema."""
        self._connect(uris, options)
        while self._reader.schema is None:
            self._reader.expects_more()
            self._source.receive()

    def _connect(self, uris: list[DataUri], options: ConnectOptions) -> None:
        """Connect the channels and send the requests."""
        self._reader.begin()
        for uri in uris:
            channel = find_transport(uri).connect(uri, options)
            frames = self._reader.attach(channel, uri)
            driver.send(channel, frames, self._reader.options.stall_timeout)
        self._reader.start()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        schema = self._reader.schema
        assert schema is not None
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

    @property
    def schema_metadata(self) -> bytes:
        """The FlatBuffer of the schema message, as it arrived."""
        return self._reader.schema_metadata

    def keep_messages(self) -> None:
        """Keep the encapsulated messages of the batches that are read from now on.

        `client.stream.kept_messages.find_messages` returns those of a batch.
        """
        self._reader.keep_messages()

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises `StopIteration`: At the proven end of the stream, and only there. Raises
        `ProtocolError`, `RemoteError`, `TransportError` if the stream fails. All batches returned
        before are valid, but the data is incomplete. Raises `ClosedError` if the stream was closed
        or cancelled.
        """
        if self._run:
            return self._run.popleft()
        batch = self._next_prefetched() if self._window_bytes else self._next_of_run()
        if batch is None:
            self._reader.finish()
            raise StopIteration
        return batch

    def _next_of_run(self) -> pa.RecordBatch | None:
        self._run = self._read_ahead.next_run()
        if self._run:
            return self._run.popleft()
        self._reader.expects_more()  # raises if the stream was closed
        return None

    def _next_prefetched(self) -> pa.RecordBatch | None:
        if self._prefetcher is None:
            self._prefetcher = ThreadPrefetcher(self._source.read, self._window_bytes)
        batch = self._prefetcher.next()
        if batch is None:
            self._reader.expects_more()  # raises if the stream was closed
        return batch

    def next_tensor(self) -> AnyTensor | None:
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
            self._source.receive()
        if tensor is None:
            reader.finish()
        return tensor

    def next_array(self) -> Any:
        """Return the next ``vortex.Array``, or None at the proven end; raises as `next_tensor`."""
        reader = self._reader
        if reader.is_exhausted:
            return None
        while (array := reader.take_item()) is None and reader.expects_more():
            self._source.receive()
        if array is None:
            reader.finish()
        else:
            reader.rows += len(array)
        return array

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`.

        A stream that was read to its end keeps the connection over which its batches are leased.
        """
        self._source.is_cancelled = True
        if not self.is_exhausted:
            self._source.interrupt()

    def close(self) -> None:
        """Close the connection. Batches that were returned stay valid. Idempotent."""
        if self._prefetcher is not None:
            self.cancel()
            self._prefetcher.stop()
        self._read_ahead.close()
        self._run.clear()
        self._reader.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _facts(self) -> list[str]:
        return self._reader.facts()

    def _title(self) -> str:
        return f"Stream {self._reader.name!r}"


def open(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: str | Sequence[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
    format: str | None = None,
    batches: tuple[int, int] | None = None,
    rows: tuple[int, int] | None = None,
    validate: str | None = None,
    connect_timeout: float = 10.0,
    stall_timeout: float | None = 30.0,
    prefetch_bytes: int | None = None,
    max_decoded_bytes: int = 1 << 30,
    require_transport: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsOptions | None = None,
    allocator: Allocator = DEFAULT_ALLOCATOR,
) -> Stream:
    """Open the data stream of a ``want_data`` URI; see `splitarrow.open`."""
    if format == AUTO_FORMAT:
        chosen = ReadOptions(
            connect_timeout=connect_timeout, stall_timeout=stall_timeout, limits=limits, tls=tls
        )
        format = choose_for_uris(Stream, resolve_uris(uri, ticket), chosen)
    text = None
    if filter is not None:
        from ..filters import serialize_filter

        schema_options = ReadOptions(
            connect_timeout=connect_timeout, stall_timeout=stall_timeout, limits=limits, tls=tls
        )
        with Stream(request_schema(resolve_uris(uri, ticket)), schema_options) as stream:
            text = serialize_filter("the dataset", stream.schema, filter)
    uris = resolve_uris(
        uri,
        ticket,
        columns=columns,
        filter=text,
        limit=limit,
        batch_rows=batch_rows,
        compression=compression,
        format=format,
        batches=batches,
        rows=rows,
    )
    options = ReadOptions(
        validate=check_validation(validate),
        connect_timeout=connect_timeout,
        stall_timeout=stall_timeout,
        prefetch_bytes=prefetch_bytes,
        max_decoded_bytes=max_decoded_bytes,
        require_transport=require_transport,
        limits=limits,
        tls=tls,
        allocator=allocator,
    )
    return Stream(uris, options)


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
        from ..filters import serialize_filter

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

        Raises `StopAsyncIteration`: At the proven end of the stream, and only there. Raises
        `ProtocolError`, `RemoteError`, `TransportError` if the stream fails. All batches returned
        before are valid, but the data is incomplete. Raises `ClosedError` if the stream was closed
        or cancelled.
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
