"""Packed bodies: each body travels through the connection, behind its metadata.

The server compresses them while that pays. `CompressionChoice` decides from measurements of the
link and reads no clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from anyio import CapacityLimiter, to_thread

from ...errors import ProtocolError
from ...fbs import arrow_generated as fbs
from ...formats.arrow.batch_rewriter import BatchRewriter, read_layout
from ...formats.arrow.message import CODECS, read_batch_header
from ...formats.arrow.schema import find_schema
from ...protocol.request import AUTO, Request
from ...protocol.splitter import SourceMessage
from ..catalog.dataset import GeneratorSource, ServedDataset, Source
from ..catalog.files.file_dataset import FileDataset
from ..catalog.vortex_encoding import VortexDataset, read_body
from .connection import BodySender, Connection

WINDOW_BYTES = 4 << 20
"""The data after which a measurement counts, in bytes before compression."""
WINDOW_SECONDS = 0.25
"""The time after which a measurement counts, even of less data."""
_MIN_GAIN = 1.25
"""How many times faster an estimate must be for a trial."""
_MIN_PROVEN_GAIN = 1.05
"""How many times faster a trial must be for the codec to stay."""
_FASTEST_LINK = 1e9
"""The rate in bytes per second at which no codec can pay, so that no sample is taken."""
_FIRST_DWELL = 1
"""The windows that pass before the choice is made again."""
_LONGEST_DWELL = 256
_MIN_BYTES = 4 << 10
"""The smallest body to compress."""
_SAMPLES, _SAMPLE_BYTES = 4, 256 << 10
"""The number and the size of the parts of a body that a sample consists of."""


@dataclass(frozen=True, slots=True)
class CodecSample:
    """What a codec made of a sample of the data."""

    codec: str
    """The codec."""
    ratio: float
    """The compressed size divided by the size before."""
    bytes_per_second: float
    """The bytes before compression that it takes in a second."""


class CompressionChoice:
    """Chooses the compression of one stream, again and again.

    The caller calls `record` after each group of messages. If `wants_samples` is true, it passes
    samples to `choose`.
    """

    def __init__(self) -> None:
        self.codec: str | None = None
        """The codec to use now; None does not compress."""
        self.wants_samples = False
        """Whether a decision needs samples of the data."""
        self._dwell = _FIRST_DWELL
        self._windows = 0
        self._is_trial = False
        self._sample: CodecSample | None = None
        self._plain_rate = 0.0
        self._link_rate = 0.0
        self._clear()

    def _clear(self) -> None:
        self._raw_bytes = self._sent_bytes = 0
        self._send_seconds = self._seconds = 0.0

    def record(self, raw_bytes: int, sent_bytes: int, send_seconds: float, seconds: float) -> None:
        """Record a group of messages that was sent."""
        self._raw_bytes += raw_bytes
        self._sent_bytes += sent_bytes
        self._send_seconds += send_seconds
        self._seconds += seconds
        is_full = self._raw_bytes >= WINDOW_BYTES or self._seconds >= WINDOW_SECONDS
        if is_full and self._raw_bytes:
            self._end_window()

    def _end_window(self) -> None:
        rate = self._raw_bytes / max(self._seconds, 1e-9)
        self._link_rate = self._sent_bytes / max(self._send_seconds, 1e-9)
        self._clear()
        self._windows += 1
        if self.codec is None:
            self._plain_rate = rate
            is_slow = self._link_rate < _FASTEST_LINK
            self.wants_samples = is_slow and self._windows >= self._dwell
        elif self._is_trial:
            if self._windows == 1:
                return  # what was buffered before is in it
            self._is_trial = False
            if rate < _MIN_PROVEN_GAIN * self._plain_rate:
                self._stop()
        elif self._windows >= self._dwell:
            self._windows = 0
            if self._sample is not None and self._estimate_gain(self._sample) < 1:
                self._stop()  # the link has become faster

    def _stop(self) -> None:
        self.codec, self._windows = None, 0
        self._dwell = min(2 * self._dwell, _LONGEST_DWELL)

    def _estimate_gain(self, sample: CodecSample) -> float:
        """Return how many times faster data would get through with a codec."""
        plain = 1 / max(self._link_rate, 1.0)
        return plain / (1 / max(sample.bytes_per_second, 1.0) + sample.ratio * plain)

    def choose(self, samples: list[CodecSample]) -> None:
        """Decide from samples of the data whether to try a codec; without any, wait for a while."""
        self.wants_samples = False
        self._windows = 0
        best = max(samples, key=self._estimate_gain, default=None)
        if best is not None and self._estimate_gain(best) > _MIN_GAIN:
            self.codec, self._sample, self._is_trial = best.codec, best, True
        else:
            self._dwell = min(2 * self._dwell, _LONGEST_DWELL)


class AdaptiveCompression:
    """Compresses the messages of one stream while that makes the stream faster."""

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
        """Record that messages were sent."""
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
    return read_batch_header(message.metadata).codec is None


def _compress_message(rewriter: BatchRewriter, message: SourceMessage) -> SourceMessage:
    """Return a compressed message; the message itself if it is small or compressed already."""
    try:
        if not _is_compressible(message):
            return message
        body = memoryview(cast(Any, read_body(message, 0, message.body_length))).cast("B")
        metadata, parts, length = rewriter.rewrite(message.metadata, body)
    except ProtocolError:
        return message  # the reader reports what is wrong with it
    padded = metadata + bytes(-len(metadata) % 8)
    return message._replace(metadata=padded, body=parts, body_length=length)


def _take_samples(messages: Sequence[SourceMessage]) -> list[CodecSample] | None:
    """Compress parts of the largest message. None if there is none to compress."""
    largest = max(messages, key=lambda message: message.body_length)
    if not _is_compressible(largest):
        return None
    step = max(largest.body_length // _SAMPLES, 1)
    parts = [
        read_body(largest, begin, min(begin + _SAMPLE_BYTES, largest.body_length))
        for begin in range(0, largest.body_length, step)[:_SAMPLES]
    ]
    data = b"".join(memoryview(cast(Any, part)) for part in parts)
    samples: list[CodecSample] = []
    for name in CODECS.values():
        codec: Any = pa.Codec(name)  # pyright: ignore[reportArgumentType]
        started = time.perf_counter()
        compressed = codec.compress(data)
        seconds = time.perf_counter() - started
        samples.append(
            CodecSample(name, compressed.size / len(data), len(data) / max(seconds, 1e-9))
        )
    return samples


class PackedBodySender(BodySender):
    """Sends the bodies of a stream packed."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._adaptive: AdaptiveCompression | None = None

    @property
    def compression(self) -> str | None:
        """What ``auto`` has chosen, ``none`` or a codec; None if it was not requested."""
        return None if self._adaptive is None else self._adaptive.codec or "none"

    def open_at_once(self, dataset: ServedDataset, request: Request) -> Source | None:
        """Open a file without a thread, if the request lets it be sent as it is stored."""
        encoding = self._connection.encoding
        if not isinstance(dataset, FileDataset) or request.compression or encoding.compression:
            return None
        return dataset.open_at_once(request, encoding)

    async def open(self, dataset: ServedDataset, request: Request) -> Source:
        """Open a dataset, encoded by the server's defaults."""
        connection = self._connection
        if isinstance(dataset, VortexDataset):
            return await to_thread.run_sync(
                _open_compressed, dataset, request, connection, limiter=connection.threads
            )
        streams = connection.uri.stream
        if (request.compression or connection.encoding.compression) == AUTO and (
            streams.carries_metadata and streams.carries_bodies
        ):
            self._adaptive = AdaptiveCompression(connection.threads)
        return await to_thread.run_sync(
            dataset.open, request, connection.packed_encoding, limiter=connection.threads
        )

    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send a group of messages in one go."""
        adaptive = self._adaptive
        if adaptive is None:
            await self._send(self._splitter.split(messages))
            return
        prepared = await adaptive.prepare(messages)
        started = time.monotonic()
        await self._send(self._splitter.split(prepared))
        adaptive.record(messages, prepared, time.monotonic() - started)


def _open_compressed(dataset: VortexDataset, request: Request, connection: Connection) -> Source:
    """Open a dataset that is compressed once for all its readers, in memory that they share."""
    if request.batch_rows is None:
        request = replace(request, batch_rows=connection.encoding.batch_rows)
    stored = dataset.open_stored(request)
    if stored is not None:
        return stored
    shared = connection.regions.open(dataset, request)
    source = GeneratorSource((group for group in shared), blocking=shared.blocking)
    source.call_on_close(shared.release)
    source.call_on_close(shared.close)
    return source
