"""A wrapper around any transport that injects faults into the frames that a reader receives.

It is for tests, of this package and of programs that use it. The faults are reproducible.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from splitarrow.errors import ConnectionLostError
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import expand_frames
from splitarrow.protocol.regions import RemoteBody
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import registry
from splitarrow.transport.base import (
    Channel,
    ConnectOptions,
    Diagnosis,
    Listener,
    ListenOptions,
    Transport,
)

_WINDOW_SECONDS = 0.005
"""The time that frames wait for others to be reordered with, in seconds."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults to inject, and their rates. A seed always gives the same faults."""

    seed: int = 0
    """The seed of the random numbers."""
    reorder: int = 0
    """The number of consecutive frames to shuffle. 0 keeps the order."""
    duplicate: float = 0.0
    """The fraction of frames that arrive twice."""
    delay: float = 0.0
    """The longest time to delay a read, in seconds."""
    drop: float = 0.0
    """The fraction of frames that never arrive."""
    corrupt: float = 0.0
    """The fraction of frames that have one bit flipped."""
    cut_after: int | None = None
    """The number of frames after which the connection breaks. None never breaks it."""


class FaultyChannel:
    """A channel that injects `Faults` into received frames. Everything else is that of another."""

    is_local = False  # faulty data must not be trusted

    def __init__(self, channel: Channel, faults: Faults) -> None:
        self._channel = channel
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._window: list[IncomingFrame] = []
        self._delivered = 0
        self._error: ConnectionLostError | None = None
        self.wake_at: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived, with the faults injected."""
        faults, draw = self._faults, self._random
        arrived: list[UntaggedFrame | ReceivedFrame] = []
        if self.wake_at is not None:
            if time.monotonic() < self.wake_at:
                return []
            self.wake_at = None
        elif faults.delay:
            self.wake_at = time.monotonic() + draw.uniform(0, faults.delay)
            return []
        if self._error is None:
            try:
                arrived = list(expand_frames(self._channel.receive_some()))
            except ConnectionLostError as error:
                self._error = error
            for frame in arrived:
                if draw.random() < faults.drop:
                    continue
                if draw.random() < faults.corrupt:
                    frame = _flip_bit(frame, draw)
                self._window.append(frame)
                if draw.random() < faults.duplicate:
                    self._window.append(frame)
        if arrived and self._error is None and len(self._window) < faults.reorder:
            self.wake_at = time.monotonic() + _WINDOW_SECONDS
            return []
        return self._take_window()

    def _take_window(self) -> list[IncomingFrame]:
        """Remove and return the waiting frames, or raise the error that ended the connection."""
        faults = self._faults
        window = faults.reorder
        released: list[IncomingFrame] = []
        if window:
            start = 0
            while start < len(self._window):
                part = self._window[start : start + window]
                self._random.shuffle(part)
                released += part
                start += window
        else:
            released = self._window
        self._window = []
        if faults.cut_after is not None and self._delivered + len(released) >= faults.cut_after:
            released = released[: faults.cut_after - self._delivered]
            self._error = ConnectionLostError(
                f"the connection with {self._channel.peer} was cut on purpose"
            )
            self._channel.abort()
        self._delivered += len(released)
        if not released and self._error is not None:
            raise self._error
        return released


def _flip_bit(
    frame: UntaggedFrame | ReceivedFrame, draw: random.Random
) -> UntaggedFrame | ReceivedFrame:
    data = bytearray(frame.payload if isinstance(frame, UntaggedFrame) else bytes(frame.body))
    if not data:
        return frame
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    if isinstance(frame, UntaggedFrame):
        return UntaggedFrame(bytes(data))
    body = ReceivedBody.copy(bytes(data), frame.body.start)
    if isinstance(frame.body, RemoteBody):
        body = RemoteBody(body, frame.body.region)
    return ReceivedFrame(frame.tag, body)


class FaultyTransport:
    """A transport that injects faults into the connections of readers."""

    def __init__(self, inner: Transport, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.scheme = inner.scheme
        self.traits = inner.traits

    def listen(self, uri: DataUri, options: ListenOptions) -> Listener:
        """Listen without faults."""
        return self._inner.listen(uri, options)

    def connect(self, uri: DataUri, options: ConnectOptions) -> Channel:
        """Connect and inject faults into the received frames."""
        return cast("Channel", FaultyChannel(self._inner.connect(uri, options), self._faults))

    def diagnose(self) -> Diagnosis:
        """Return the state of the inner transport."""
        return self._inner.diagnose()


@contextmanager
def inject_faults(scheme: str, faults: Faults) -> Generator[None]:
    """Inject faults into every new connection of a scheme while the context lasts."""
    inner = registry.find_transport(DataUri(scheme=scheme))
    with registry.override_transport(FaultyTransport(inner, faults)):
        yield
