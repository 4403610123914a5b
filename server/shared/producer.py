"""From the messages of a source to stretches of memory that hold their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...formats.arrow.message import encapsulate
from ...protocol.splitter import SourceMessage
from ...transport.regions import FileRegion
from ...transport.shm.memory import MemoryWriter, SealedMemory
from ..catalog.base import Source

FIRST_BYTES = 8 << 20
"""How large the first chunk of a stream is, in bytes: its reader waits for that much."""
MOST_BYTES = 256 << 20
"""How large a chunk becomes; each is twice as large as the one before."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of messages whose bodies lie in one piece of sealed memory."""

    messages: list[SourceMessage]
    """The messages; the body of each is one region of `memory`."""
    memory: SealedMemory
    """Where the bodies lie."""

    nbytes: int
    """How much memory they take, in bytes."""


class Producer:
    """Writes what a source yields into memory, chunk by chunk.

    Parameters
    ----------
    source : Source
        It is closed with the producer.
    label : str
        The dataset, for errors.
    start : int
        Where the first body may lie: no two bodies of a stream share an offset.
    """

    def __init__(self, source: Source, label: str, start: int = 0) -> None:
        self._source = source
        self._messages = self._iterate(source)
        self._label = label
        self._start = start
        self._target = FIRST_BYTES
        self.made = 0
        """How many chunks have been made."""

    @staticmethod
    def _iterate(source: Source) -> Iterator[SourceMessage]:
        for group in source:
            yield from group

    def skip(self, count: int) -> None:
        """Pass over messages that the reader has already."""
        for _ in range(count):
            next(self._messages, None)

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk; None at the end.

        Raises
        ------
        DatasetError
            If the source cannot be read.
        ExhaustedError
            If there is no memory left.
        """
        writer = MemoryWriter(self._label, self._start)
        places: list[tuple[SourceMessage, int]] = []
        try:
            for message in self._messages:
                if message.body is None:
                    places.append((message, -1))
                    continue
                # The parts may be views of the source's: nothing of them is kept.
                metadata = bytes(message.metadata)
                at = writer.append(encapsulate(metadata), message.body, message.body_length)
                places.append((message._replace(metadata=metadata, body=()), at))
                if writer.nbytes >= self._target:
                    break
            if not places:
                return None
            nbytes, memory = writer.nbytes, writer.seal()
        finally:
            writer.close()
        self._target = min(2 * self._target, MOST_BYTES)
        self.made += 1
        self._start = memory.size
        messages = [
            message
            if at < 0
            else message._replace(body=(FileRegion(memory, at, message.body_length),))
            for message, at in places
        ]
        return Chunk(messages, memory, nbytes)

    def close(self) -> None:
        """Close the source."""
        self._source.close()
