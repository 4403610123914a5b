"""Writing the messages of a source into sealed memory, one chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...formats.arrow.framing import encapsulate
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan
from ...transport.memory.sealed import SealedMemory, SealedMemoryWriter
from ..catalog.dataset import Source


class ChunkSizes(NamedTuple):
    """The sizes of the chunks of a stream. Each chunk is twice as large as the one before."""

    first_bytes: int = 8 << 20
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
    """Writes the messages of a source into chunks.

    Parameters
    ----------
    source : Source
        The messages. The writer closes it.
    label : str
        The dataset, for errors.
    start : int
        The least offset of the first body, in bytes. No two bodies of a stream share an offset,
        so that the offset alone identifies a lease.
    sizes : ChunkSizes
        The sizes of the chunks.
    """

    def __init__(
        self, source: Source, label: str, start: int = 0, sizes: ChunkSizes = DEFAULT_SIZES
    ) -> None:
        self._source = source
        self._messages = self._iterate(source)
        self._label = label
        self._start = start
        self._target, self._most_bytes = sizes
        self.chunk_count = 0
        """The number of chunks written so far."""

    @staticmethod
    def _iterate(source: Source) -> Iterator[SourceMessage]:
        for group in source:
            yield from group

    def skip(self, count: int) -> None:
        """Skip messages that the reader has received."""
        for _ in range(count):
            next(self._messages, None)

    def next_chunk(self) -> Chunk | None:
        """Write and return the next chunk; return None at the end of the source.

        Raises
        ------
        DatasetError
            If the source cannot be read.
        ExhaustedError
            If the host has no memory left.
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
