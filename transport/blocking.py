"""The blocking driver: waits for a channel on the calling thread."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

from ..errors import StallError
from ..protocol.frames import IncomingFrame, OutgoingFrame
from .base import Channel


def _wait(descriptor: int, events: int, seconds: float | None) -> None:
    """Wait for a descriptor, at most `seconds`."""
    poll = select.poll()
    poll.register(descriptor, events)
    poll.poll(None if seconds is None else max(0.0, seconds) * 1000)


class StallTimer:
    """Computes how long to wait for a channel, and detects a silent peer.

    Only transferred bytes end a silence. A descriptor that becomes ready does not: UCX makes it
    ready again and again while a message waits for room.
    """

    def __init__(self, channel: Channel, stall_timeout: float | None) -> None:
        self._channel = channel
        self._timeout = stall_timeout
        self._transferred = -1
        self._since = 0.0

    def compute_wait(self, transferred: int, wake_at: float | None = None) -> float | None:
        """Return the longest time to wait in seconds, or None to wait without a limit.

        Raises `StallError` if no byte has been transferred for the timeout.
        """
        timeout = self._timeout
        if timeout is None and wake_at is None:
            return None
        now = time.monotonic()
        if transferred != self._transferred:
            self._since, self._transferred = now, transferred
        elif timeout is not None and now >= self._since + timeout:
            raise StallError(f"{self._channel.peer} has been silent for {timeout:g} s")
        deadlines = [] if timeout is None else [self._since + timeout]
        if wake_at is not None:
            deadlines.append(wake_at)
        return min(deadlines) - now


def send(channel: Channel, frames: Iterable[OutgoingFrame], stall_timeout: float | None) -> None:
    """Send frames and wait until the transport has accepted all of them.

    Raises `StallError` if the peer accepts nothing for `stall_timeout` seconds. Raises
    `ConnectionLostError` if the peer is gone.
    """
    channel.queue(frames)
    if channel.send_some():
        return
    timer = StallTimer(channel, stall_timeout)
    events = select.POLLIN if channel.send_waits_readable else select.POLLOUT
    while True:
        _wait(channel.send_fileno(), events, timer.compute_wait(channel.bytes_sent))
        if channel.send_some():
            return


def receive(channel: Channel, stall_timeout: float | None) -> list[IncomingFrame]:
    """Return the frames that have arrived. If there are none, wait for the first.

    Raises `StallError` if nothing arrives for `stall_timeout` seconds. Raises
    `ConnectionLostError`, `NotAPeerError`, `ProtocolError` as the channel's `receive_some` does.
    """
    if frames := channel.receive_some():
        return frames
    timer = StallTimer(channel, stall_timeout)
    while not frames:
        seconds = timer.compute_wait(channel.bytes_received, channel.wake_at)
        _wait(channel.fileno(), select.POLLIN, seconds)
        frames = channel.receive_some()
    return frames
