"""Packed bodies: each body travels through the connection, behind its metadata.

The server compresses them while that pays. `CompressionChoice` decides from measurements of the
link and reads no clock.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
from anyio import to_thread

from ...errors import ProtocolError
from ...fbs import arrow_generated as fbs
from ...formats.arrow.batch_rewriter import BatchRewriter, read_layout
from ...formats.arrow.message import CODECS, read_batch_header
from ...formats.arrow.schema import find_schema
from ...protocol.request import AUTO, Request
from ...protocol.splitter import SourceMessage
from ...transport.base import Channel
from ..catalog.dataset import GeneratorSource, MessageGroups, ServedDataset, Source
from ..catalog.files.file_dataset import FileDataset
from ..catalog.vortex_encoding import VortexDataset, read_body
from .connection import BodySender, Connection

WINDOW_BYTES = 4 << 20
"""The data that a peer acknowledges after which a measurement counts, in bytes."""
WINDOW_SECONDS = 0.1
"""The time after which a measurement counts, even of less data."""
_MIN_GAIN = 1.1
"""How many times faster an estimate must be for a trial."""
_MIN_BLOCKED = 0.3
"""The share of the time in which a link makes a stream wait whose speed it limits."""
_MIN_PROVEN_GAIN = 1.05
"""How many times faster a trial must be for the codec to stay."""
_FASTEST_LINK = 1e9
"""The rate in bytes per second at which no codec can pay, so that no sample is taken."""
_MAX_CHANGE = 2.0
"""The change of the link's rate after which the choice is made again at once."""
_FIRST_DWELL = 1
"""The windows that pass before the choice is made again."""
_LONGEST_DWELL, _LONGEST_USE = 256, 16
"""The windows after which the choice is made again at the latest, without and with a codec."""
_TRIAL_WINDOWS = 4
"""The windows within which a trial has to be faster."""
_MIN_BYTES = 4 << 10
"""The smallest body to compress."""
_SAMPLES, _SAMPLE_BYTES = 4, 256 << 10
"""The number and the size of the parts of a body that a sample consists of."""
_TCP_INFO_BYTES, _BYTES_ACKED, _BUSY_TIME = 192, 120, 168
"""The size of ``struct tcp_info``, and the offsets of two of its counters."""
_COUNTER = struct.Struct("@Q")


@dataclass(frozen=True, slots=True)
class CodecSample:
    """What a codec made of a sample of the data."""

    codec: str
    """The codec."""
    ratio: float
    """The compressed size divided by the size before."""
    bytes_per_second: float
    """The bytes before compression that it takes in a second."""


def estimate_rate(link_rate: float, sample: CodecSample) -> float:
    """Return the bytes before compression that get through in a second with a codec.

    The next messages are compressed while the kernel sends those before.
    """
    return min(sample.bytes_per_second, link_rate / max(sample.ratio, 1e-6))


def choose_codec(link_rate: float, samples: Sequence[CodecSample]) -> CodecSample | None:
    """Return the codec that makes a stream fastest, or None if no codec pays.

    Examples
    --------
    >>> lz4, zstd = CodecSample("lz4", 0.5, 600e6), CodecSample("zstd", 0.3, 200e6)
    >>> [choose_codec(rate, [lz4, zstd]) for rate in (12e6, 125e6, 800e6)] == [zstd, lz4, None]
    True
    """
    best = max(samples, key=partial(estimate_rate, link_rate), default=None)
    if best is None or estimate_rate(link_rate, best) < _MIN_GAIN * link_rate:
        return None
    return best


@dataclass(slots=True)
class LinkCounters:
    """What has gone over a link so far."""

    acked_bytes: float
    """The bytes that the peer has received."""
    busy_seconds: float
    """The time in which data was on its way, in seconds."""


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
        self._plain_rate = 0.0
        self._link_rate = self._decided_rate = self._expected_speed = 0.0
        self._slowdown = 1.0
        self._link = LinkCounters(0, 0)
        self._clear()

    def _clear(self) -> None:
        self._raw_bytes = self._sent_bytes = 0
        self._seconds = self._send_seconds = 0.0
        self._first = replace(self._link)

    def record(
        self,
        raw_bytes: int,
        sent_bytes: int,
        send_seconds: float,
        seconds: float,
        link: LinkCounters,
    ) -> None:
        """Record a group of messages that was sent, and what has gone over the link since."""
        self._send_seconds += send_seconds
        self._raw_bytes += raw_bytes
        self._sent_bytes += sent_bytes
        self._seconds += seconds
        self._link = link
        is_full = (
            link.acked_bytes - self._first.acked_bytes >= WINDOW_BYTES
            or self._seconds >= WINDOW_SECONDS
        )
        if is_full and self._sent_bytes and link.busy_seconds > self._first.busy_seconds:
            self._end_window()

    def _end_window(self) -> None:
        acked = self._link.acked_bytes - self._first.acked_bytes
        link_rate = acked / (self._link.busy_seconds - self._first.busy_seconds)
        # The kernel takes data long before the link has carried it.
        rate = acked / max(self._seconds, 1e-9) * self._raw_bytes / self._sent_bytes
        if self.codec is None or self._send_seconds > _MIN_BLOCKED * self._seconds:
            self._link_rate = link_rate
        else:  # The link waits for the codec, and could carry more.
            self._link_rate = max(link_rate, 0.95 * self._link_rate)
            if self._expected_speed:
                self._slowdown = min(1.0, rate / self._expected_speed)
        self._clear()
        self._windows += 1
        if self.codec is None:
            self._plain_rate = rate
        elif self._is_trial:
            if self._windows == 1:
                return  # the groups before the first compressed one are in it
            if rate < _MIN_PROVEN_GAIN * self._plain_rate:
                if self._windows < _TRIAL_WINDOWS:
                    return  # other work on this machine may have delayed it
                self.codec = None
                self._wait_longer()
            self._is_trial = False
            return
        is_slow = self._link_rate < _FASTEST_LINK
        change = self._link_rate / max(self._decided_rate, 1.0)
        is_due = self._windows >= self._dwell or not 1 / _MAX_CHANGE < change < _MAX_CHANGE
        self.wants_samples = is_due and (is_slow or self.codec is not None)

    def _wait_longer(self) -> None:
        self._windows = 0
        longest = _LONGEST_DWELL if self.codec is None else _LONGEST_USE
        self._dwell = min(2 * self._dwell, longest)

    def choose(self, samples: Sequence[CodecSample]) -> None:
        """Decide from samples of the data whether to try a codec; without any, wait for a while."""
        self.wants_samples = False
        self._decided_rate = self._link_rate
        # The processors may have other work, also for this stream, than in a sample.
        samples = [
            replace(each, bytes_per_second=each.bytes_per_second * self._slowdown)
            for each in samples
        ]
        if self.codec is None:
            self._slowdown = min(1.0, 2 * self._slowdown)  # the other work may have ended
        best = choose_codec(self._link_rate, samples)
        codec = None if best is None else best.codec
        if codec == self.codec:
            self._wait_longer()
            return
        current = next((each for each in samples if each.codec == self.codec), None)
        if best is not None and current is not None:
            gain = estimate_rate(self._link_rate, best) / estimate_rate(self._link_rate, current)
            if gain < _MIN_GAIN:
                self._wait_longer()
                return
        self._expected_speed = 0.0 if best is None else best.bytes_per_second / self._slowdown
        self._is_trial = self.codec is None
        self.codec, self._windows = codec, 0


class _LinkMeter:
    """Counts what a connection carries: as the kernel does for TCP, otherwise by waiting sends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._counters = LinkCounters(0, 0)

    def count(self, sent_bytes: int, send_seconds: float) -> LinkCounters:
        """Return the counters after a group of messages was sent."""
        found = self._ask_kernel()
        if found is None:
            counters = self._counters
            counters.acked_bytes += sent_bytes
            counters.busy_seconds += send_seconds
            found = replace(counters)
        return found

    def _ask_kernel(self) -> LinkCounters | None:
        try:
            with socket.socket(fileno=os.dup(self._channel.fileno())) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return None  # no TCP, or closed
        if len(info) < _TCP_INFO_BYTES:
            return None  # Linux before 4.10
        (acked,), (busy,) = (
            _COUNTER.unpack_from(info, offset) for offset in (_BYTES_ACKED, _BUSY_TIME)
        )
        return LinkCounters(acked, busy / 1e6)


class AdaptiveCompression:
    """Compresses the messages of one stream while that makes the stream faster."""

    def __init__(self, channel: Channel) -> None:
        self._meter = _LinkMeter(channel)
        self._choice = CompressionChoice()
        self._schema_metadata: bytes | None = None
        self._rewriters: dict[str, BatchRewriter] = {}
        self._is_possible = True
        self._raw_bytes = deque[int]()
        """The sizes before compression of the groups that are to be sent."""
        self._samples: list[CodecSample] | None = None
        self._last = time.monotonic()

    @property
    def codec(self) -> str | None:
        """The compression in use; None if there is none."""
        return self._choice.codec

    def prepare(self, source: Source) -> Source:
        """Return a source of the same messages, compressed if that pays.

        A worker thread compresses a group while the one before it is sent.
        """
        prepared = GeneratorSource(self._prepare(source), blocking=True)
        prepared.call_on_close(source.close)
        return prepared

    def _prepare(self, source: Source) -> MessageGroups:
        for messages in source:
            if self._schema_metadata is None:
                self._schema_metadata = bytes(messages[0].metadata)
                message: Any = fbs.Message.GetRootAs(self._schema_metadata, 0)
                # Readers of earlier versions look for a compression elsewhere.
                self._is_possible = message.Version() == fbs.MetadataVersion.V5
            codec = self._choice.codec if self._is_possible else None
            if self._is_possible and self._choice.wants_samples and self._samples is None:
                self._samples = _take_samples(messages)
            self._raw_bytes.append(_count_bytes(messages))
            yield messages if codec is None else self._compress(codec, messages)

    def record(self, sent: Sequence[SourceMessage], send_seconds: float) -> None:
        """Record that the next messages of the source were sent."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        sent_bytes = _count_bytes(sent)
        link = self._meter.count(sent_bytes, send_seconds)
        raw_bytes = self._raw_bytes.popleft()
        self._choice.record(raw_bytes, sent_bytes, send_seconds, seconds, link)
        if self._samples is not None:
            self._choice.choose(self._samples)
            self._samples = None

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
    samples: list[CodecSample] = []
    for name in CODECS.values():
        codec: Any = pa.Codec(name)  # pyright: ignore[reportArgumentType]
        size = nbytes = 0
        rate = 0.0
        for part in parts:
            data = memoryview(cast(Any, part))
            started = time.perf_counter()
            size += codec.compress(data).size
            # The fastest part is the one that other threads have not interrupted.
            rate = max(rate, data.nbytes / max(time.perf_counter() - started, 1e-9))
            nbytes += data.nbytes
        samples.append(CodecSample(name, size / nbytes, rate))
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
            self._adaptive = AdaptiveCompression(connection.channel)
        source = await to_thread.run_sync(
            dataset.open, request, connection.packed_encoding, limiter=connection.threads
        )
        return source if self._adaptive is None else self._adaptive.prepare(source)

    async def send(self, messages: Sequence[SourceMessage]) -> None:
        """Send a group of messages in one go."""
        started = time.monotonic()
        await self._send(self._splitter.split(messages))
        if self._adaptive is not None:
            self._adaptive.record(messages, time.monotonic() - started)


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
