"""Compression of packed bodies that is used while it pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from anyio import CapacityLimiter, to_thread

from ...errors import ProtocolError
from ...fbs import arrow_generated as fbs
from ...formats.arrow.headers import CODECS, read_header
from ...formats.arrow.writing.batches import BatchRewriter
from ...formats.arrow.writing.layouts import read_layout
from ...formats.arrow.writing.schemas import find_schema
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan
from .compression_choice import CompressionChoice, Sample

_MIN_BYTES = 4 << 10
"""The smallest body to compress."""
_SAMPLES, _SAMPLE_BYTES = 4, 256 << 10
"""The number and the size of the parts of a body that a sample consists of."""


class AdaptiveCompression:
    """Compresses the messages of one stream while that makes the stream faster.

    Parameters
    ----------
    threads : CapacityLimiter
        The worker threads to compress on.
    """

    def __init__(self, threads: CapacityLimiter) -> None:
        self._threads = threads
        self._choice = CompressionChoice()
        self._schema_metadata: bytes | None = None
        self._rewriters: dict[str, BatchRewriter] = {}
        self._is_possible = True
        self._last = time.monotonic()

    @property
    def codec(self) -> str | None:
        """The compression in use; None if there is none."""
        return self._choice.codec

    async def prepare(self, messages: Sequence[SourceMessage]) -> Sequence[SourceMessage]:
        """Return the next messages to send, compressed if that pays."""
        if self._schema_metadata is None:
            self._schema_metadata = bytes(messages[0].metadata)
            message: Any = fbs.Message.GetRootAs(self._schema_metadata, 0)
            # Readers of earlier versions look for a compression elsewhere.
            self._is_possible = message.Version() == fbs.MetadataVersion.V5
        if not self._is_possible:
            return messages
        if self._choice.wants_samples:
            samples = await to_thread.run_sync(_take_samples, messages, limiter=self._threads)
            if samples is not None:
                self._choice.choose(samples)
        codec = self._choice.codec
        if codec is None:
            return messages
        return await to_thread.run_sync(self._compress, codec, messages, limiter=self._threads)

    def record(
        self, before: Sequence[SourceMessage], sent: Sequence[SourceMessage], send_seconds: float
    ) -> None:
        """Record that messages were sent.

        Parameters
        ----------
        before, sent : sequence of SourceMessage
            The messages that `prepare` was given, and those that it returned.
        send_seconds : float
            The time that sending took.
        """
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._choice.record(_count_bytes(before), _count_bytes(sent), send_seconds, seconds)

    def _compress(self, codec: str, messages: Sequence[SourceMessage]) -> list[SourceMessage]:
        if codec not in self._rewriters:
            layout = read_layout(find_schema(self._schema_metadata or b""))
            self._rewriters[codec] = BatchRewriter(layout, compression=codec)
        rewriter = self._rewriters[codec]
        return [_compress_message(rewriter, message) for message in messages]


def _count_bytes(messages: Sequence[SourceMessage]) -> int:
    return sum(message.body_length for message in messages)


def _is_compressible(message: SourceMessage) -> bool:
    if message.body is None or message.body_length < _MIN_BYTES:
        return False
    return read_header(message.metadata).codec is None


def _compress_message(rewriter: BatchRewriter, message: SourceMessage) -> SourceMessage:
    """Return a compressed message; the message itself if it is small or compressed already."""
    try:
        if not _is_compressible(message):
            return message
        body = _read(message, 0, message.body_length)
        metadata, parts, length = rewriter.rewrite(message.metadata, memoryview(body))
    except ProtocolError:
        return message  # the reader reports what is wrong with it
    return message._replace(metadata=_pad(metadata), body=parts, body_length=length)


def _pad(metadata: bytes) -> bytes:
    return metadata + bytes(-len(metadata) % 8)


def _take_samples(messages: Sequence[SourceMessage]) -> list[Sample] | None:
    """Compress parts of the largest message. None if there is none to compress."""
    largest = max(messages, key=lambda message: message.body_length)
    if not _is_compressible(largest):
        return None
    step = max(largest.body_length // _SAMPLES, 1)
    parts = [
        _read(largest, begin, min(begin + _SAMPLE_BYTES, largest.body_length))
        for begin in range(0, largest.body_length, step)[:_SAMPLES]
    ]
    data = b"".join(parts)
    samples: list[Sample] = []
    for name in CODECS.values():
        codec: Any = pa.Codec(name)  # pyright: ignore[reportArgumentType]
        started = time.perf_counter()
        compressed = codec.compress(data)
        seconds = time.perf_counter() - started
        samples.append(Sample(name, compressed.size / len(data), len(data) / max(seconds, 1e-9)))
    return samples


def _read(message: SourceMessage, begin: int, end: int) -> bytearray:
    """Return a part of the body of a message, from memory and from files."""
    found = bytearray()
    position = 0
    for part in message.body or ():
        size = part.nbytes if isinstance(part, FileSpan) else memoryview(part).nbytes
        first, last = max(begin - position, 0), min(end - position, size)
        if first < last:
            if isinstance(part, FileSpan):
                piece = bytearray(last - first)
                FileSpan(part.file, part.offset + first, last - first).read_into(memoryview(piece))
                found += piece
            else:
                found += memoryview(part).cast("B")[first:last]
        position += size
    return found
