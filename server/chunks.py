"""Chunks: the messages of a stream that a worker thread prepares together, for DoGet and HTTP.

A stream sends one chunk while a worker thread prepares the next one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa

from ..errors import remote_error
from ..protocol.request import Request
from ..protocol.splitter import PackedRun, SourceMessage
from ..transport.memory.files import FileSpan
from .catalog.dataset import Encoding, Source
from .context import ServerContext
from .prefetch import Prefetch
from .streams import Outcome, ReadSlot, RunningStream

if TYPE_CHECKING:
    from .spans import StreamSpan

Buffers = Sequence[bytes | memoryview]
"""What is sent, one after the other. Each is a buffer of bytes."""

_PIECE_BYTES = 1 << 20
"""The bytes of a file that are read at a time."""
_TOTAL_BYTES = 8 << 20
_MAX_CHUNK_BYTES = 2 << 20
"""The largest size of a chunk, each of which costs a switch between threads."""
_MIN_CHUNK_BYTES = 64 << 10
"""The size of the first chunk, and of those of slow readers."""
_MIN_SHARE_BYTES = 512 << 10
_MAX_STREAMS_AHEAD = 4
_TOTAL_AHEAD_BYTES = 32 << 20


class ReadAhead:
    """Divides 8 MiB among the streams that a service sends now.

    Each of a few streams holds two chunks of messages: it sends one while a worker thread prepares
    the other. Each of many, and that of a slow reader, holds one.

    Examples
    --------
    >>> read_ahead = ReadAhead()
    >>> with read_ahead.stream():
    ...     read_ahead.chunk_bytes
    2097152
    """

    def __init__(self) -> None:
        self._streams = 0

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is complete, in bytes: at least 512 KiB.

        Any thread may read it.
        """
        share = _TOTAL_BYTES // max(1, self._streams)
        return min(max(share, _MIN_SHARE_BYTES), _MAX_CHUNK_BYTES)

    def allows(self, nbytes: int) -> bool:
        """Return whether each stream may prepare a message of this size ahead."""
        few = self._streams <= _MAX_STREAMS_AHEAD  # many keep threads and the event loop busy
        return few and nbytes * self._streams <= _TOTAL_AHEAD_BYTES

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream while the context lasts."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


_CHUNK_SECONDS = 0.01
_SLOW_SECONDS = 0.5
"""The time after which a reader that has not taken a chunk is slow."""


class Pace:
    """The size of a stream's chunks, which grows while its reader takes them promptly."""

    def __init__(self, read_ahead: ReadAhead) -> None:
        self._read_ahead = read_ahead
        self._grown_bytes = _MIN_CHUNK_BYTES

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is complete, in bytes. Any thread may read it."""
        return min(self._grown_bytes, self._read_ahead.chunk_bytes)

    def adapt(self, encoding: Encoding) -> Encoding:
        """Return an encoding that reads from files at the pace of the stream."""
        return replace(encoding, find_group_bytes=lambda: self.chunk_bytes)

    def is_ahead(self, chunk: Chunk, seconds: float) -> bool:
        """Record the time to send a chunk; return whether others may be prepared ahead of it."""
        if seconds >= _SLOW_SECONDS:
            self._grown_bytes = _MIN_CHUNK_BYTES
            return False
        self._grown_bytes = min(2 * self._grown_bytes, _MAX_CHUNK_BYTES)
        return self._read_ahead.allows(chunk.nbytes)


class Chunk:
    """Messages that are ready to be sent."""

    __slots__ = ("_full_bytes", "_started", "buffers", "count", "nbytes", "rows")

    def __init__(self, full_bytes: int) -> None:
        self.buffers = deque[bytes | memoryview]()
        self.count = self.rows = self.nbytes = 0
        self._full_bytes = full_bytes
        self._started = time.monotonic()

    def add(self, *buffers: bytes | memoryview, rows: int = 0, count: int = 1) -> None:
        """Add messages, as they are sent, in buffers of bytes. A chunk may end in a message."""
        self.buffers += buffers
        self.count += count
        self.rows += rows
        self.nbytes += sum(map(len, buffers))

    @property
    def is_full(self) -> bool:
        """Whether the chunk has its size."""
        return self.nbytes >= self._full_bytes

    @property
    def is_late(self) -> bool:
        """Whether the chunk should be sent although it is small."""
        return time.monotonic() - self._started > _CHUNK_SECONDS


def build_chunks(
    source: Source,
    pace: Pace,
    encode: Callable[[SourceMessage], Iterable[bytes | memoryview]],
    encode_run: Callable[[PackedRun], Buffers] | None = None,
) -> Iterator[Chunk]:
    """Yield the messages of a source in chunks. They are encoded one by one, or runs at once.

    Prefetching them pays for every source, even for one that does not block: reading files and
    copying bodies takes as long as sending them. A chunk of a slow source is sent after a short
    time, even if it is small.
    """
    chunk = Chunk(pace.chunk_bytes)
    for group in source:
        if encode_run is not None and isinstance(group, PackedRun):
            chunk.add(*encode_run(group), rows=len(group) * group.rows, count=len(group))
        else:
            for message in group:
                for buffer in encode(message):
                    if chunk.is_full:
                        yield chunk
                        chunk = Chunk(pace.chunk_bytes)
                    chunk.add(buffer, count=0)
                chunk.rows += message.rows
                chunk.count += 1
        if chunk.is_full or chunk.is_late:
            yield chunk
            chunk = Chunk(pace.chunk_bytes)
    if chunk.buffers:
        yield chunk


def iter_buffers(head: bytes, message: SourceMessage) -> Iterator[bytes | memoryview]:
    """Yield `head` and the body of a message. What is in memory is not copied.

    Parts of files are read in pieces, each when it is needed. Raises `DatasetError` if one cannot
    be read, or has changed.
    """
    yield head
    for part in message.body or ():
        if isinstance(part, FileSpan):
            for begin in range(0, part.nbytes, _PIECE_BYTES):
                nbytes = min(_PIECE_BYTES, part.nbytes - begin)
                buffer: Any = pa.allocate_buffer(nbytes)
                view = memoryview(buffer).cast("B")
                FileSpan(part.file, part.offset + begin, nbytes).read_into(view)
                yield view
        else:
            yield memoryview(part).cast("B")


@contextmanager
def run_stream(
    server: ServerContext,
    request: Request,
    *,
    principal: str,
    peer: str,
    transport: str,
    signed_ticket: bytes | None,
    is_lost: Callable[[BaseException], bool],
    span: StreamSpan | None = None,
) -> Generator[RunningStream]:
    """Register a stream while the context lasts, and count how it ends.

    `is_lost` returns whether the client has disconnected, if an error ends the stream. The span
    ends with it. Raises
    `ExhaustedError` as `StreamRegistry.begin` does, and `RemoteError` (ABORTED) at the end of a
    context that was cancelled by `RunningStream.cancel`.
    """
    scope = anyio.CancelScope()
    stream = server.streams.begin(
        dataset=request.dataset,
        principal=principal,
        peer=peer,
        transport=transport,
        cancel=scope.cancel,
        signed_ticket=signed_ticket,
    )
    metrics = server.metrics
    metrics.streams += 1
    metrics.streams_total += 1
    try:
        with scope, server.reads.stream(request):
            yield stream
        if scope.cancelled_caught:
            stream.outcome = Outcome.CANCELLED
            # Not CANCELLED, which pyarrow raises as a KeyboardInterrupt.
            raise remote_error("ABORTED", "the stream was cancelled", stream=request.dataset)
        stream.outcome = Outcome.COMPLETE
    except Exception as error:
        if not is_lost(error):
            metrics.failures += 1
            if stream.outcome is not Outcome.CANCELLED:
                stream.outcome = Outcome.FAILED
        raise
    finally:
        metrics.streams -= 1
        server.streams.end(stream)
        if span is not None:
            span.end(stream)


async def send_chunks(
    server: ServerContext,
    chunks: Iterator[Chunk],
    close: Callable[[], object],
    pace: Pace,
    stream: RunningStream,
    slot: ReadSlot,
    write: Callable[[Chunk], Awaitable[None]],
    *,
    first_idle_seconds: float | None = None,
    idle_seconds: float | None = None,
    on_idle: Callable[[], Awaitable[float | None]] | None = None,
) -> None:
    """Send chunks by `write`, and count them.

    `close` is called once, when no thread uses the chunks any more. If the first chunk takes longer
    than `first_idle_seconds`, or a further one longer than `idle_seconds`, `on_idle` is called. It
    returns the time until its next call.
    """

    async def rest() -> None:
        if on_idle is not None:
            prefetched.idle_seconds = await on_idle()

    async with anyio.create_task_group() as tasks:
        with Prefetch(
            chunks,
            close,
            tasks,
            server.threads,
            slot,
            memory=server.memory.share(stream.principal),
            measure=lambda chunk: chunk.nbytes,
            idle_seconds=idle_seconds if first_idle_seconds is None else first_idle_seconds,
            on_idle=rest,
        ) as prefetched:
            prefetched.is_ahead = False
            async for chunk in prefetched:
                prefetched.idle_seconds = idle_seconds
                began = time.monotonic()
                stream.messages += chunk.count
                await write(chunk)
                prefetched.is_ahead = pace.is_ahead(chunk, time.monotonic() - began)
                stream.rows += chunk.rows
                if chunk.rows and stream.first_rows_seconds is None:
                    stream.record_first_rows()
