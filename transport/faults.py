"""A wrapper around any transport that makes what a reader receives go wrong, repeatably.

For tests: of this project, and of programs that want to see what a bad network does to them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import ConnectionLostError
from ..protocol.frames import Incoming, Outgoing, PlacedBody, ReceivedBody, TaggedReceived, Untagged
from ..protocol.limits import Limits
from ..protocol.messages import single_frames
from ..protocol.uri import DataUri
from . import registry
from .base import Capabilities, Channel, Listener, Transport

_WINDOW_SECONDS = 0.005
"""How long a window for reordering waits for more frames."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and how often. The same seed makes the same faults."""

    seed: int = 0
    """Where the random numbers begin."""
    reorder: int = 0
    """Within how many frames the order is shuffled; 0 keeps it."""
    duplicate: float = 0.0
    """The share of frames that come twice."""
    delay: float = 0.0
    """The longest time that a read is held back, in seconds."""
    drop: float = 0.0
    """The share of frames that never come."""
    corrupt: float = 0.0
    """The share of frames that have one bit flipped."""
    cut_after: int | None = None
    """After how many frames the connection breaks; None: never."""


class FaultyChannel:
    """A channel whose received frames suffer `Faults`; everything else passes through."""

    def __init__(self, channel: Channel, faults: Faults) -> None:
        self._channel = channel
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._held: list[Incoming] = []
        self._passed = 0
        self._lost: ConnectionLostError | None = None
        self.wake_at: float | None = None
        self.capabilities = Capabilities(
            ordered=not faults.reorder,
            regions=channel.capabilities.regions,
            body_types=channel.capabilities.body_types,
            fetches=channel.capabilities.fetches,
        )

    @property
    def peer(self) -> str:
        """The other end."""
        return self._channel.peer

    @property
    def is_local(self) -> bool:
        """Always false: what comes through faults is not to be trusted."""
        return False

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished message has arrived."""
        return self._channel.at_boundary

    @property
    def bytes_sent(self) -> int:
        """How many bytes have been handed over."""
        return self._channel.bytes_sent

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived."""
        return self._channel.bytes_received

    @property
    def send_waits_readable(self) -> bool:
        """As the channel's."""
        return self._channel.send_waits_readable

    def fileno(self) -> int:
        """Return the channel's descriptor."""
        return self._channel.fileno()

    def send_fileno(self) -> int:
        """Return the channel's descriptor for sending."""
        return self._channel.send_fileno()

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent."""
        self._channel.queue(frames)

    def send_some(self) -> bool:
        """Send what was queued."""
        return self._channel.send_some()

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived, after the faults."""
        faults, draw = self._faults, self._random
        arrived: list[Untagged | TaggedReceived] = []
        if self.wake_at is not None:
            if time.monotonic() < self.wake_at:
                return []
            self.wake_at = None
        elif faults.delay:
            self.wake_at = time.monotonic() + draw.uniform(0, faults.delay)
            return []
        if self._lost is None:
            try:
                arrived = list(single_frames(self._channel.receive_some()))
            except ConnectionLostError as error:
                self._lost = error
            for frame in arrived:
                if draw.random() < faults.drop:
                    continue
                if draw.random() < faults.corrupt:
                    frame = _flipped(frame, draw)
                self._held.append(frame)
                if draw.random() < faults.duplicate:
                    self._held.append(frame)
        if arrived and self._lost is None and len(self._held) < faults.reorder:
            self.wake_at = time.monotonic() + _WINDOW_SECONDS
            return []
        return self._release()

    def _release(self) -> list[Incoming]:
        faults = self._faults
        window = faults.reorder
        released: list[Incoming] = []
        if window:
            start = 0
            while start < len(self._held):
                part = self._held[start : start + window]
                self._random.shuffle(part)
                released += part
                start += window
        else:
            released = self._held
        self._held = []
        if faults.cut_after is not None and self._passed + len(released) >= faults.cut_after:
            released = released[: faults.cut_after - self._passed]
            self._lost = ConnectionLostError(f"the connection with {self.peer} was cut on purpose")
            self._channel.abort()
        self._passed += len(released)
        if not released and self._lost is not None:
            raise self._lost
        return released

    def interrupt(self) -> None:
        """Make a wait end."""
        self._channel.interrupt()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def abort(self) -> None:
        """Close the channel at once."""
        self._channel.abort()


def _flipped(frame: Untagged | TaggedReceived, draw: random.Random) -> Untagged | TaggedReceived:
    data = bytearray(frame.payload if isinstance(frame, Untagged) else bytes(frame.body))
    if not data:
        return frame
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if isinstance(frame, Untagged):
        return Untagged(bytes(data))
    body = ReceivedBody.copy_of(bytes(data), frame.body.start)
    if isinstance(frame.body, PlacedBody):
        body = PlacedBody(body, frame.body.region)
    return TaggedReceived(frame.tag, body)


class FaultyTransport:
    """A transport whose connections suffer faults on the reader's side.

    Parameters
    ----------
    inner : Transport
        The transport to spoil.
    faults : Faults
        What goes wrong, on every connection alike.
    """

    def __init__(self, inner: Transport, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.scheme = inner.scheme
        self.capabilities = inner.capabilities

    def listen(self, uri: DataUri, limits: Limits) -> Listener:
        """Listen as ever: the faults are the reader's."""
        return self._inner.listen(uri, limits)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> FaultyChannel:
        """Connect, and spoil the channel."""
        return FaultyChannel(self._inner.connect(uri, limits, timeout), self._faults)


@contextmanager
def injected(scheme: str, faults: Faults) -> Generator[None]:
    """Spoil every new connection of a scheme while the context lasts."""
    inner = registry.transport_for(DataUri(scheme=scheme))
    with registry.replaced(FaultyTransport(inner, faults)):
        yield
