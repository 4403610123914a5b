"""The streams that a client reads from URIs: `Stream`, and `AsyncStream` for asyncio and trio.

Each drives the reader that an `Opening` returns, over the connections of a transport.
"""

from __future__ import annotations

from functools import cached_property, partial
from types import TracebackType
from typing import Any

import anyio
import pyarrow as pa
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ...errors import SplitArrowError
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.text import describe_object
from ...protocol.memory import DEFAULT_ALLOCATOR
from ...protocol.uri import DataUri
from ...transport import aio
from ..arguments import Read, StreamOptions
from .batch_stream import AsyncBatchStream, BatchStream
from .format_choice import choose_for_uris
from .opening import Opening, open_reader, open_reader_async
from .read_ahead import (
    WINDOW_BYTES,
    Pace,
    ReadAhead,
    ReaderSource,
    Run,
    TaskPrefetcher,
    ThreadPrefetcher,
    has_second_core,
)
from .reader import Reader


class Stream(BatchStream):
    """A data stream being read: a context manager and an iterator of record batches.

    `splitarrow.open` returns it. Iteration ends only after the server has proven the end of the
    stream; a stream that breaks raises an error.

    The caller owns the batches. They keep the memory that they arrived in alive, and stay valid
    after the stream is closed. One thread at a time may read; any thread may call `cancel`.

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

    def __init__(self, opening: Opening) -> None:
        options = opening.options
        self._reader = open_reader(opening)
        self._window_bytes = options.window_bytes
        self._prefetcher: ThreadPrefetcher[pa.RecordBatch] | None = None
        self._run = Run()
        self._read_ahead: ReadAhead | None = None

    @property
    def _known(self) -> Reader:
        return self._reader

    @cached_property
    def _source(self) -> ReaderSource:
        return ReaderSource(self._reader)

    def _start_reading(self) -> ReadAhead:
        """Return what reads ahead where that pays.

        Over shared memory, nothing is received. Devices have streams of their own.
        """
        options = self._reader.options
        may_pay = (
            options.prefetch_bytes is None
            and options.allocator is DEFAULT_ALLOCATOR
            and not self._reader.accepts_offsets
            and has_second_core()
        )
        window = min(WINDOW_BYTES, options.max_decoded_bytes)
        return ReadAhead(self._source, window, Pace() if may_pay else None)

    @property
    def schema_metadata(self) -> bytes:
        """The FlatBuffer of the schema message, as it arrived."""
        return self._reader.schema_metadata

    def keep_messages(self) -> None:
        """Keep the encapsulated messages of the batches that are read from now on.

        `client.stream.decoders.find_messages` returns those of a batch.
        """
        self._reader.keep_messages()

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopIteration
            At the proven end of the stream, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream fails. All batches returned before are valid, but the data is incomplete.
        ClosedError
            If the stream was closed or cancelled.
        """
        if self._run:
            return self._run.popleft()
        batch = self._next_prefetched() if self._window_bytes else self._next_of_run()
        if batch is None:
            self._reader.finish()
            raise StopIteration
        return batch

    def _next_of_run(self) -> pa.RecordBatch | None:
        if self._read_ahead is None:
            self._read_ahead = self._start_reading()
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
        while (item := reader.take_item()) is None and reader.expects_more():
            self._source.receive()
        if item is None:
            reader.finish()
        return item

    def next_array(self) -> Any:
        """Return the next ``vortex.Array``, or None at the proven end; raises as `next_tensor`."""
        return self.next_tensor()

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`.

        A stream that was read to its end keeps the connection over which its batches are leased.
        """
        self._reader.cancel()

    def close(self) -> None:
        """Close the connection. Batches that were returned stay valid. Idempotent."""
        if self._prefetcher is not None:
            self.cancel()
            self._prefetcher.stop()
        if self._read_ahead is not None:
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


class AsyncStream(AsyncBatchStream):
    """A data stream being read: an async context manager and an async iterator of record batches.

    `splitarrow.aio.open` returns it. It connects when the context is entered. A cancelled read
    loses no rows: the next read returns them. The caller owns the batches, as with `Stream`.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._reader = opening.reader
        self._prefetcher: TaskPrefetcher | None = None
        self._tasks: TaskGroup | None = None

    @property
    def _known(self) -> Reader:
        return self._reader

    async def __aenter__(self) -> AsyncStream:
        self._reader = await open_reader_async(self._opening)
        window_bytes = self._opening.options.window_bytes
        if window_bytes:
            self._prefetcher = TaskPrefetcher(self._read, window_bytes)
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._prefetcher.run)
        return self

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

    async def _receive(self) -> None:
        """Wait for frames and pass them to the reader, which records errors."""
        reader = self._reader
        stream, channel = reader.next_channel()
        try:
            frames = await aio.receive(channel, reader.options.stall_timeout)
        except SplitArrowError as error:
            reader.fail_receiving(error)
        else:
            reader.feed(stream, frames)

    async def _read(self) -> pa.RecordBatch | None:
        """Wait for the next batch and return it, or None at the end."""
        reader = self._reader
        while (batch := reader.take()) is None and reader.expects_more():
            await self._receive()
        return batch

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `Stream` does."""
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
        """Return the next tensor, or None at the proven end of the stream; see `Stream`."""
        reader = self._reader
        if reader.is_exhausted:
            return None
        while (item := reader.take_item()) is None and reader.expects_more():
            await self._receive()
        if item is None:
            reader.finish()
        return item

    async def next_array(self) -> Any:
        """Return the next ``vortex.Array``, or None at the proven end; raises as `next_tensor`."""
        return await self.next_tensor()

    def cancel(self) -> None:
        """Interrupt a read that waits in another task; see `Stream.cancel`."""
        self._reader.cancel()

    def close(self) -> None:
        """Close the connection. Batches that were returned stay valid. Idempotent."""
        self._reader.close()

    def __repr__(self) -> str:
        schema = self.schema if self._reader.has_schema else ()
        return describe_object(f"AsyncStream {self._reader.name!r}", schema, self._reader.facts())


def plan_opening(uris: list[DataUri], read: Read) -> Opening:
    """Return the opening of a data stream with the URIs of `resolve_uris`."""
    choose = partial(choose_for_uris, _open_probe) if read.chooses_format else None
    return Opening(uris, read.options, filter=read.filter, choose_format=choose)


def _open_probe(uris: list[DataUri], options: StreamOptions) -> Stream:
    return Stream(Opening(uris, options))
