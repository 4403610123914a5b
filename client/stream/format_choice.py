"""The choice of a format for a peer: Vortex where the link is slower than decoding.

It applies to a stream of a URI and to a dataset of a control plane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError, MissingExtraError, RemoteError
from ...protocol.request import SIGNED_PREFIX, Request
from ...protocol.uri import DataUri
from ..arguments import Read, StreamOptions
from ..uris import UNKNOWN_NAME, select
from .batch_stream import BatchStream

_ARROW, _VORTEX = "arrow", "vortex"
_LOCAL = ("shm", "inproc")
_MIN_GAIN = 1.1
"""How many times faster Vortex must be."""
_PROBE_BYTES, _PROBE_SECONDS = 4 << 20, 0.25
_LEAST_BYTES, _LEAST_SECONDS = 128 << 10, 0.02
"""The bytes and the time, in seconds, after which a measurement counts."""
_MAX_PEERS = 1024
_SAMPLE_ROWS, _SAMPLE_SECONDS = 1 << 16, 0.05


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format, and why it was chosen."""

    format: str
    """The format: ``arrow`` or ``vortex``."""
    reason: str
    """The reason, for people."""
    link_rate: float | None = None
    """The rate at which the peer delivers Arrow, in bytes per second; None if not measured."""
    decoding_rate: float | None = None
    """The rate at which this process decodes arrays, in bytes of Arrow per second."""
    ratio: float | None = None
    """The size of the data as Vortex divided by its size as Arrow; None if not measured."""


def is_faster_as_vortex(link_rate: float, decoding_rate: float, ratio: float) -> bool:
    """Return whether a stream is faster as Vortex. Rates are in bytes of Arrow per second.

    Examples
    --------
    >>> [is_faster_as_vortex(125e6, 1e9, ratio) for ratio in (0.3, 1.0)]
    [True, False]
    """
    return min(decoding_rate, link_rate / max(ratio, 1e-6)) > _MIN_GAIN * link_rate


OpenStream = Callable[[str, int | None], BatchStream]
"""Opens a dataset in a format, with at most so many rows."""


class FormatChooser:
    """Chooses formats, and keeps the measurements. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link_rates: dict[str, float] = {}
        self._decoding_rate: float | None = None

    def measure_decoding(self) -> float:
        """Return the rate of decoding; it is measured once."""
        if self._decoding_rate is None:
            rate = _measure_decoding()
            with self._lock:
                self._decoding_rate = self._decoding_rate or rate
        return self._decoding_rate

    def choose(self, peer: str, open_stream: OpenStream) -> FormatChoice:
        """Choose the format of a dataset. The link to `peer` is measured once."""
        try:
            decoding_rate = self.measure_decoding()
        except MissingExtraError as error:
            return FormatChoice(_ARROW, error.message)
        rate = self._link_rates.get(peer)
        if rate is None:
            with open_stream(_ARROW, None) as stream:  # pyright: ignore[reportGeneralTypeIssues]
                if stream.transport in _LOCAL:
                    return FormatChoice(_ARROW, "the server shares its memory")
                rate = _measure_link(stream)
            if rate is None:
                return FormatChoice(_ARROW, "the dataset is too small to measure the link")
            self._keep(peer, rate)
        link, decoding = (f"{each / 1e6:,.0f} MB/s" for each in (rate, decoding_rate))
        rates = f"the link delivers {link} of Arrow, and arrays decode at {decoding}"
        if rate * _MIN_GAIN > decoding_rate:
            return FormatChoice(_ARROW, rates, rate, decoding_rate)
        try:
            with open_stream(_VORTEX, None) as stream:  # pyright: ignore[reportGeneralTypeIssues]
                ratio = _measure_ratio(stream)
        except (InvalidRequestError, RemoteError) as error:
            return FormatChoice(_ARROW, error.message, rate, decoding_rate)
        is_faster = is_faster_as_vortex(rate, decoding_rate, ratio)
        reason = f"Vortex takes {ratio:.0%} of the bytes, {rates}"
        return FormatChoice(_VORTEX if is_faster else _ARROW, reason, rate, decoding_rate, ratio)

    def _keep(self, peer: str, rate: float) -> None:
        with self._lock:
            while len(self._link_rates) >= _MAX_PEERS:
                del self._link_rates[next(iter(self._link_rates))]
            self._link_rates[peer] = rate


CHOOSER = FormatChooser()
"""The measurements of this process."""


def choose_for_uris(
    open_probe: Callable[[list[DataUri], StreamOptions], BatchStream],
    uris: list[DataUri],
    options: StreamOptions,
) -> str | None:
    """Return the format to request for a data stream.

    Return None for a signed ticket, which states the format and may be valid only once.
    """
    if any((uri.ticket or b"").startswith(SIGNED_PREFIX) for uri in uris):
        return None
    options = options.for_preparation()

    def open_stream(data_format: str, limit: int | None) -> BatchStream:
        request = Request(UNKNOWN_NAME, format=data_format, limit=limit)
        return open_probe(select(uris, request), options)

    return CHOOSER.choose(" ".join(uri.address for uri in uris), open_stream).format


def choose_for_dataset(
    uri: str, open_read: Callable[[Read], BatchStream], read: Read
) -> FormatChoice:
    """Choose the format of a dataset of the control plane `uri`."""
    plan = replace(read.plan, parallel=1, options=read.options.for_preparation())
    probe = replace(read, plan=plan, filter=None, chooses_format=False, memory=None)

    def open_stream(data_format: str, limit: int | None) -> BatchStream:
        return open_read(probe.selecting(format=data_format, limit=limit))

    return CHOOSER.choose(f"{uri} {read.plan.transport}", open_stream)


def _measure_link(stream: BatchStream) -> float | None:
    """Return the rate at which a stream arrives, in bytes per second; None if it is too short."""
    source: Any = stream
    first, started = source.bytes_received, perf_counter()
    received, seconds = 0, 0.0
    for _ in stream:
        received, seconds = source.bytes_received - first, perf_counter() - started
        if received >= _PROBE_BYTES or (seconds >= _PROBE_SECONDS and received >= _LEAST_BYTES):
            break
    is_long = received >= _PROBE_BYTES or seconds >= _LEAST_SECONDS
    return received / max(seconds, 1e-9) if is_long and received >= _LEAST_BYTES else None


def _measure_ratio(stream: BatchStream) -> float:
    """Return the size of the first batches divided by their size as Arrow."""
    source: Any = stream
    first, started, nbytes = source.bytes_received, perf_counter(), 0
    for batch in stream:
        nbytes += batch.nbytes
        # Of a few batches, what has arrived of the next ones would be a large part.
        if nbytes >= _PROBE_BYTES or perf_counter() - started >= _PROBE_SECONDS:
            break
    return (source.bytes_received - first) / max(nbytes, 1)


def _measure_decoding() -> float:
    """Decode a sample of usual columns for a while, and return the rate."""
    from ...formats.vortex.decoder import ArrayDecoder
    from ...formats.vortex.encoder import ArrayEncoder

    rows = range(_SAMPLE_ROWS)
    columns = {
        "number": pa.array([row * 7919 % 10_000 for row in rows], pa.int64()),
        "price": pa.array([row * 7919 % 100_000 / 100 for row in rows]),
        "time": pa.array([row * 1_000_003 for row in rows], pa.timestamp("us")),
        "text": pa.array([f"category {row % 37}" for row in rows]),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    encoder = ArrayEncoder(batch.schema)
    message = encoder.encode(batch)
    decoder = ArrayDecoder(encoder.dtype_message)
    data_type: Any = pa.struct(list(encoder.storage_schema))
    decoder.decode_arrow(message, data_type)  # what happens once
    count, started, seconds = 0, perf_counter(), 0.0
    while seconds < _SAMPLE_SECONDS:
        decoder.decode_arrow(message, data_type)
        count += 1
        seconds = perf_counter() - started
    return count * batch.nbytes / seconds
