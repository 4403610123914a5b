"""The registry of running streams, over every transport.

A stream counts what it sends and how long it waits for its reader. While it reads its dataset, it
holds a thread of its principal (`ReadSlots`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from weakref import WeakValueDictionary

from anyio import CapacityLimiter

from ..errors import ExhaustedError
from ..protocol.request import Request
from .metrics import LabelCap, Labelled, Metrics
from .shares import ThreadShares
from .usage import Usage


class ReaderWaits:
    """Measures how long a stream cannot go on until its reader or the network takes data.

    A wait costs two readings of the clock. Data that is taken at once costs nothing.
    """

    __slots__ = ("_seconds", "_since")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time of all waits, the current one included, in seconds. Any thread may read it."""
        since = self._since
        return self._seconds if since is None else self._seconds + time.monotonic() - since

    def begin(self) -> None:
        """Begin a wait."""
        self._since = time.monotonic()

    def end(self) -> None:
        """End the wait."""
        if self._since is not None:
            self._seconds += time.monotonic() - self._since
            self._since = None


class ReadSlot:
    """What a stream holds while a worker thread reads its dataset. It may be entered repeatedly."""

    __slots__ = ("_limiter", "_principal", "_threads")

    def __init__(
        self, threads: ThreadShares, principal: str, limiter: CapacityLimiter | None
    ) -> None:
        self._threads = threads
        self._principal = principal
        self._limiter = limiter

    async def __aenter__(self) -> None:
        if self._limiter is not None:
            await self._limiter.acquire()
        try:
            await self._threads.acquire(self._principal)
        except BaseException:
            if self._limiter is not None:
                self._limiter.release()
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        self._threads.release(self._principal)
        if self._limiter is not None:
            self._limiter.release()


class ReadSlots:
    """Shares worker threads among principals, and bounds the filters that each evaluates at a time.

    A stream with a filter waits for a filter of its principal to end before it takes a thread.
    """

    def __init__(self, filters: int, threads: ThreadShares) -> None:
        self._filters = filters
        self._threads = threads
        self._limiters: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    def slot_for(self, request: Request, principal: str) -> ReadSlot:
        """Return the slot that a stream has to hold while it reads its dataset."""
        self._threads.record(principal)
        if request.filter is None:
            return ReadSlot(self._threads, principal, None)
        limiter = self._limiters.get(principal)
        if limiter is None:
            limiter = self._limiters[principal] = CapacityLimiter(self._filters)
        return ReadSlot(self._threads, principal, limiter)


def _do_nothing() -> None:
    """Cancel a stream that has ended."""


MAX_DATASETS = 100
"""The number of datasets whose names are labels of metrics. The others share one."""
TOTALS = ("sent_bytes", "mapped_bytes", "sent_rows", "reader_wait_seconds")
"""The metrics to which every stream adds, in the order of `RunningStream.figures`."""


class Outcome(StrEnum):
    """How a stream ended."""

    COMPLETE = "complete"
    FAILED = "failed"
    """The server could not send it to its end, and reported that to the reader."""
    CANCELLED = "cancelled"
    DISCONNECTED = "disconnected"
    """The reader left, or the server disconnected it."""


@dataclass(slots=True, eq=False)
class RunningStream:
    """A stream that the server is sending. `update` brings the figures up to date.

    Messages may be as many as ten thousands in a second, so a sender keeps no figure that can be
    read from elsewhere when somebody asks for it.
    """

    number: int
    """Identifies the stream while the server runs, in all of its processes."""
    dataset: str
    """The dataset's name."""
    principal: str
    """The name of the principal that its ticket was issued to."""
    peer: str
    """The reader's address."""
    transport: str
    """The scheme of the transport; ``flight`` for DoGet."""
    cancel: Callable[[], None]
    """Ends the stream early. Call it on the event loop."""
    ticket_digest: bytes
    """The SHA-256 of a signed ticket; empty for an unsigned one."""
    started: float = field(default_factory=time.monotonic)
    """When it began, in seconds on the monotonic clock."""
    rows: int = 0
    """Rows sent so far."""
    writing_since: float | None = None
    """When the message that DoGet now writes was begun, on the monotonic clock; None between
    messages."""
    nbytes: int = 0
    """Bytes sent so far, framing included, and bytes of bodies that the reader mapped."""
    mapped_bytes: int = 0
    """Those of `nbytes` that are of bodies that the reader mapped or read remotely."""
    waits: ReaderWaits = field(default_factory=ReaderWaits)
    """The waits for the reader: those of its connection, where streams share one."""
    waited_before: float = 0.0
    """The time of `waits` when the stream began, in seconds."""
    first_rows_seconds: float | None = None
    """The time until the first rows were sent, in seconds; None before that."""
    messages: int = 0
    """Messages sent so far."""
    source: Callable[[RunningStream], None] | None = None
    """Sets `messages`, `nbytes`, `mapped_bytes` and `compression`, from any thread. None if the
    sender itself keeps them up to date."""
    outcome: Outcome = Outcome.DISCONNECTED
    """How the stream ended, for `StreamRegistry.end`."""
    compression: str | None = None
    """What the compression ``auto`` has chosen for now; None if it was not requested."""

    @property
    def seconds(self) -> float:
        """The stream's age, in seconds."""
        return time.monotonic() - self.started

    def record_first_rows(self) -> None:
        """Record that the first rows were sent."""
        self.first_rows_seconds = self.seconds

    def renew_write(self) -> None:
        """Record that the reader takes what is being written. Any thread may call this."""
        self.writing_since = time.monotonic()

    def update(self) -> None:
        """Bring the figures up to date."""
        if self.source is not None:
            self.source(self)

    def figures(self) -> tuple[float, ...]:
        """Return what the stream adds to `TOTALS`."""
        self.update()
        waited = self.waits.seconds - self.waited_before
        return self.nbytes - self.mapped_bytes, self.mapped_bytes, self.rows, waited


class StreamRegistry:
    """The streams that a server is sending, over data transports and by DoGet alike."""

    def __init__(
        self,
        metrics: Metrics,
        max_per_principal: Callable[[], float] = lambda: math.inf,
        usage: Usage | None = None,
    ) -> None:
        self._metrics = metrics
        self._labels = LabelCap(MAX_DATASETS)
        self._max_per_principal = max_per_principal
        self._usage = Usage() if usage is None else usage
        self._streams: dict[int, RunningStream] = {}
        self.ended = 0
        """The number of streams that have ended."""
        metrics.add_collector(self._collect)

    def begin(
        self,
        *,
        dataset: str,
        principal: str,
        peer: str,
        transport: str,
        cancel: Callable[[], None],
        signed_ticket: bytes | None = None,
    ) -> RunningStream:
        """Register a stream; see `RunningStream`. It keeps only the digest of a signed ticket.

        Raises `ExhaustedError` if the principal of a signed ticket reads too many streams.
        """
        limit = self._max_per_principal()
        if signed_ticket is not None and not self._usage.streams.take(principal, limit):
            raise ExhaustedError(
                f"the principal {principal!r} has reached its limit of {limit:g} concurrent "
                "streams; retry later"
            )
        digest = b"" if signed_ticket is None else sha256(signed_ticket).digest()
        number = self._usage.make_number()
        stream = RunningStream(number, dataset, principal, peer, transport, cancel, digest)
        self._streams[number] = stream
        self._metrics.started_streams[self._labels_of(stream)] += 1
        return stream

    def end(self, stream: RunningStream) -> None:
        """Remove a stream that has ended, whether or not it succeeded."""
        with self._metrics.moving():
            self._count(stream)
            stream.source = None  # its connection may carry another stream
            stream.cancel = _do_nothing  # so that the two do not keep each other alive
            del self._streams[stream.number]
        self.ended += 1
        if stream.ticket_digest:
            self._usage.streams.release(stream.principal)

    def label_of(self, dataset: str) -> str:
        """Return the label of a dataset in metrics."""
        return self._labels.find(dataset)

    def _count(self, stream: RunningStream) -> None:
        """Add the figures of a stream that ends to the metrics."""
        metrics, labels, transport = self._metrics, self._labels_of(stream), (stream.transport,)
        for name, value in zip(TOTALS, stream.figures(), strict=True):
            getattr(metrics, name)[labels] += value
        metrics.messages += stream.messages
        metrics.rows += stream.rows
        metrics.ended_streams[*labels, stream.outcome.value] += 1
        metrics.stream_seconds[transport].observe(stream.seconds)
        if stream.first_rows_seconds is not None:
            metrics.first_batch_seconds[transport].observe(stream.first_rows_seconds)

    def _labels_of(self, stream: RunningStream) -> tuple[str, str]:
        return self.label_of(stream.dataset), stream.transport

    def _collect(self) -> dict[str, float | Labelled]:
        """Return the figures of the streams that run, for the metrics."""
        running = dict[tuple[str, ...], float].fromkeys(self._metrics.started_streams, 0)
        totals = {name: Counter[tuple[str, ...]]() for name in TOTALS}
        messages = rows = 0
        for stream in self:
            labels = self._labels_of(stream)
            running[labels] = running.get(labels, 0) + 1
            for name, value in zip(TOTALS, stream.figures(), strict=True):
                totals[name][labels] += value  # pyright: ignore[reportArgumentType]
            messages += stream.messages
            rows += stream.rows
        return {"running_streams": running, "messages": messages, "rows": rows, **totals}

    def __iter__(self) -> Iterator[RunningStream]:
        """Iterate over the streams that run now, the oldest first. Any thread may call this."""
        return iter(list(self._streams.values()))

    def cancel(self, number: int, principal: str | None) -> bool:
        """Cancel a stream, and return whether it exists and belongs to the principal, if given."""
        stream = self._streams.get(number)
        if stream is None or principal not in (None, stream.principal):
            return False
        stream.cancel()
        return True

    def cancel_ticket(self, ticket: bytes, principal: str) -> bool:
        """Cancel a principal's streams of one signed ticket, and return whether there are any."""
        digest = sha256(ticket).digest()
        streams = [
            stream
            for stream in self
            if (stream.ticket_digest, stream.principal) == (digest, principal)
        ]
        for stream in streams:
            stream.cancel()
        return bool(streams)
