"""The blocking driver: waits for a channel on the calling thread."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

from ..errors import StallError
from ..protocol.frames import Incoming, Outgoing
from .base import Channel


def _wait(descriptor: int, events: int, seconds: float | None) -> bool:
    """Wait for a descriptor; return False when the time is over."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))


def stalled(channel: Channel, stall_timeout: float | None) -> StallError:
    """Return the error for a peer that neither sends nor receives."""
    return StallError(f"{channel.peer} has been silent for {stall_timeout:g} s")


class Silence:
    """Tells how long to wait for a channel, and when its peer has been silent for too long.

    A channel may want to look again before (see `Channel.wake_at`); only bytes that arrived
    end a silence.
    """

    def __init__(self, channel: Channel, stall_timeout: float | None) -> None:
        self._channel = channel
        self._timeout = stall_timeout
        self._received = channel.bytes_received
        self._since = 0.0

    def pause(self) -> float | None:
        """Return how many seconds to wait at most; None: without end."""
        channel, timeout = self._channel, self._timeout
        wake_at = channel.wake_at
        if timeout is None and wake_at is None:
            return None
        now = time.monotonic()
        if not self._since or channel.bytes_received != self._received:
            self._since, self._received = now, channel.bytes_received
        until = [] if timeout is None else [self._since + timeout]
        if wake_at is not None:
            until.append(wake_at)
        return min(until) - now

    def check(self) -> None:
        """Raise `StallError` if the peer has been silent for too long."""
        timeout = self._timeout
        if timeout is not None and time.monotonic() >= self._since + timeout:
            raise stalled(self._channel, timeout)


def send(channel: Channel, frames: Iterable[Outgoing], stall_timeout: float | None) -> None:
    """Send frames and wait until the transport has taken all of them.

    Raises
    ------
    StallError
        If the peer takes nothing for `stall_timeout` seconds.
    ConnectionLostError
        If the peer is gone.
    """
    channel.queue(frames)
    while not channel.send_some():
        events = select.POLLIN if channel.send_waits_readable else select.POLLOUT
        if not _wait(channel.send_fileno(), events, stall_timeout):
            raise stalled(channel, stall_timeout)


def receive(channel: Channel, stall_timeout: float | None) -> list[Incoming]:
    """Return what has arrived, at least one frame; wait for it if need be.

    Raises
    ------
    StallError
        If nothing arrives for `stall_timeout` seconds.
    ConnectionLostError, NotAPeerError, ProtocolError
        As the channel's `receive_some` does.
    """
    silence = Silence(channel, stall_timeout)
    while not (frames := channel.receive_some()):
        if not _wait(channel.fileno(), select.POLLIN, silence.pause()):
            silence.check()
    return frames
