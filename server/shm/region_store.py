"""Streams in sealed memory: written chunk by chunk for one reader, and shared with others."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import ClosedError
from ...formats.arrow.message import encapsulate
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan
from ...transport.memory.sealed import SealedMemory, SealedMemoryWriter
from ..catalog.dataset import ServedDataset, Source
from ..catalog.decoding_shares import DecodingCancelledError
from ..metrics import CacheUses


class ChunkSizes(NamedTuple):
    """The sizes of the chunks of a stream. Each chunk is twice as large as the one before."""

    first_bytes: int = 1 << 20
    """The size of the first chunk in bytes. The reader waits until it is written."""
    most_bytes: int = 256 << 20
    """The size of the largest chunk in bytes."""


DEFAULT_SIZES = ChunkSizes()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive messages whose bodies are in one piece of sealed memory."""

    messages: list[SourceMessage]
    """The messages. The body of each is one span of `memory`."""
    memory: SealedMemory
    """The memory that holds the bodies."""
    nbytes: int
    """The size of the memory in bytes."""


class ChunkWriter:
    """Writes the messages of a source into chunks, and closes the source.

    `start` is the least offset of the first body, in bytes. No two bodies of a stream share an
    offset, so that the offset alone identifies a lease.
    """

    def __init__(
        self, source: Source, label: str, start: int = 0, sizes: ChunkSizes = DEFAULT_SIZES
    ) -> None:
        self._source = source
        self._messages = (message for group in source for message in group)
        self._label = label
        self._start = start
        self._target, self._most_bytes = sizes
        self.chunk_count = 0
        """The number of chunks written so far."""

    def skip(self, count: int) -> None:
        """Skip messages that the reader has received."""
        for _ in range(count):
            next(self._messages, None)

    def next_chunk(self) -> Chunk | None:
        """Write and return the next chunk; return None at the end of the source.

        Raises `DatasetError` if the source cannot be read, and `ExhaustedError` if the host has no
        memory left.
        """
        writer = SealedMemoryWriter(self._label, self._start)
        written: list[tuple[SourceMessage, int]] = []
        try:
            for message in self._messages:
                if message.body is None:
                    written.append((message, -1))
                    continue
                # The source may reuse the memory behind a message for the next one.
                metadata = bytes(message.metadata)
                prefix = encapsulate(metadata)
                offset = writer.append(prefix, message.body, message.body_length)
                written.append((message._replace(metadata=metadata, body=()), offset))
                if writer.nbytes >= self._target:
                    break
            if not written:
                return None
            nbytes, memory = writer.nbytes, writer.seal()
        finally:
            writer.close()
        self._target = min(2 * self._target, self._most_bytes)
        self.chunk_count += 1
        self._start = memory.size
        messages = [
            message
            if offset < 0
            else message._replace(body=(FileSpan(memory, offset, message.body_length),))
            for message, offset in written
        ]
        return Chunk(messages, memory, nbytes)

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class SharedStream:
    """The chunks of one stream, written once for all its readers. Made by `RegionStore`.

    The store owns it. Its lock comes before the store's lock: whoever holds the store's lock may
    take this one only where no reader can hold it.
    """

    def __init__(self, store: RegionStore, label: str) -> None:
        self._store = store
        self._open_source: Callable[[], Source] | None = None
        self._label = label
        self._lock = threading.Lock()
        self._writer: ChunkWriter | None = None
        self._chunks: list[Chunk] = []
        self._written = 0
        self._ended = False
        self._error: BaseException | None = None
        self.readers = 0
        """The number of streams that read it or hold leases on it. The store counts them."""
        self.nbytes = 0
        """The memory that the store accounts for it, in bytes."""
        self.chunk_count = 0
        """The chunks that the store accounts for it."""
        self.is_kept = True
        """Whether new readers may join it."""

    def chunk(self, index: int, start: int) -> Chunk | ChunkWriter | None:
        """Return a chunk, which is written first if necessary, or None behind the last one.

        A stream that has grown beyond the store's capacity is no longer shared: the caller gets
        its own `ChunkWriter` instead. It continues at chunk `index` if its `chunk_count` is
        `index`, and otherwise starts at the first message.

        `start` is the end of the chunk before it, in bytes. Errors are those of
        `ChunkWriter.next_chunk`, the same for all readers, and `ClosedError` if the store was
        closed.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if index < len(self._chunks):
                return self._chunks[index]
            if len(self._chunks) < self._written:
                return self._private_writer(index, start)
            if self._ended:
                return None
            try:
                if self._writer is None:
                    self._writer = self._open_writer(start)
                    self._writer.skip(sum(len(each.messages) for each in self._chunks))
                    self._writer.chunk_count = index
                chunk = self._writer.next_chunk()
            except DecodingCancelledError:
                self._close_writer()
                self._written = len(self._chunks) + 1  # so that each other reader writes the rest
                self._store.forget(self)
                raise
            except BaseException as error:
                self._fail(error)
                self._store.forget(self)
                raise
            if chunk is None:
                self._ended = True
                self._close_writer()
                if len(self._chunks) == self._written:
                    self._open_source = None  # it would keep a removed dataset, and so this stream
                return None
            self._written += 1
            self._chunks.append(chunk)
            if not self._store.reserve(self, chunk.nbytes):
                self._chunks.clear()
                self._store.forget(self)
            return chunk

    def _private_writer(self, index: int, start: int) -> ChunkWriter:
        writer = self._writer
        if writer is not None and writer.chunk_count == index:
            self._writer = None
            return writer
        return self._open_writer(start)

    def _open_writer(self, start: int = 0) -> ChunkWriter:
        assert self._open_source is not None
        return ChunkWriter(self._open_source(), self._label, start, self._store.chunk_sizes)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._chunks.clear()
        self._close_writer()

    def join(self, open_source: Callable[[], Source]) -> None:
        """Take the source of a reader, which may have to write the rest."""
        self._open_source = open_source

    def pause(self) -> None:
        """Drop the source while the stream has no reader: it keeps the dataset. The chunks stay."""
        if self._lock.acquire(blocking=False):  # a cancelled reader may still write a chunk
            try:
                self._close_writer()
                self._open_source = None
            finally:
                self._lock.release()

    def close(self) -> None:
        """Release the chunks. A reader that asks for one gets `ClosedError`."""
        with self._lock:
            self._fail(ClosedError("the server no longer shares the dataset"))


class RegionStore:
    """Keeps streams in sealed memory while they are read, and afterwards while there is room.

    The least recently read stream is dropped first. A stream that alone exceeds the capacity, in
    bytes, is not kept at all. The chunks are limited too: each has a descriptor. Safe to use from
    several threads.
    """

    def __init__(
        self, capacity: int, max_chunks: int, chunk_sizes: ChunkSizes = DEFAULT_SIZES
    ) -> None:
        self.chunk_sizes = chunk_sizes
        """The sizes of the chunks of each stream."""
        self._capacity = capacity
        self._max_chunks = max_chunks
        self._chunks = 0
        self.uses = CacheUses()
        """How often a reader found a stream in memory, or did not."""
        self._lock = threading.Lock()
        self._streams: OrderedDict[tuple[int, Hashable], SharedStream] = OrderedDict()
        self._nbytes = 0
        self._datasets: set[int] = set()
        self._collected: deque[int] = deque()  # filled by finalizers, which may take no lock

    @property
    def nbytes(self) -> int:
        """The bytes that are kept."""
        with self._lock:
            self._drop_collected()
            return self._nbytes

    def acquire(
        self, dataset: ServedDataset, key: Hashable, open_source: Callable[[], Source], label: str
    ) -> SharedStream:
        """Return the shared stream of a key and count one more reader; undone by `release`.

        The streams of a dataset are dropped when it is garbage collected.
        """
        with self._lock:
            self._drop_collected()
            whole_key = (id(dataset), key)
            stream = self._streams.get(whole_key)
            self.uses.count(is_hit=stream is not None)
            if stream is None:
                stream = self._streams[whole_key] = SharedStream(self, label)
                if id(dataset) not in self._datasets:
                    self._datasets.add(id(dataset))
                    weakref.finalize(dataset, self._collected.append, id(dataset)).atexit = False
            self._streams.move_to_end(whole_key)
            stream.join(open_source)
            stream.readers += 1
            return stream

    def release(self, stream: SharedStream) -> None:
        """Count one reader less."""
        with self._lock:
            stream.readers -= 1
            if not stream.readers:
                stream.pause() if stream.is_kept else stream.close()
            self._drop_collected()
            self._evict()

    def reserve(self, stream: SharedStream, nbytes: int) -> bool:
        """Account for a chunk of a stream; return whether it fits, after evicting others."""
        with self._lock:
            if not stream.is_kept:
                return False
            self._nbytes += nbytes
            stream.nbytes += nbytes
            self._chunks += 1
            stream.chunk_count += 1
            self._drop_collected()
            self._evict()
            return self._fits()

    def forget(self, stream: SharedStream) -> None:
        """Stop sharing a stream with new readers and accounting for its memory."""
        with self._lock:
            for key in [key for key, other in self._streams.items() if other is stream]:
                self._forget(key)

    def close(self) -> None:
        """Release every stream that has no readers."""
        with self._lock:
            for key in list(self._streams):
                self._forget(key)

    def _fits(self) -> bool:
        return self._nbytes <= self._capacity and self._chunks <= self._max_chunks

    def _evict(self) -> None:
        for key in list(self._streams):
            if self._fits():
                return
            if not self._streams[key].readers:
                self._forget(key)

    def _drop_collected(self) -> None:
        while self._collected:
            collected = self._collected.popleft()
            self._datasets.discard(collected)
            for key in [key for key in self._streams if key[0] == collected]:
                self._forget(key)

    def _forget(self, key: tuple[int, Hashable]) -> None:
        stream = self._streams.pop(key)
        self._nbytes -= stream.nbytes
        self._chunks -= stream.chunk_count
        stream.nbytes = stream.chunk_count = 0
        stream.is_kept = False
        if not stream.readers:
            stream.close()
