"""The blocking driver: waits for a channel on the calling thread."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable

from ..errors import StallError
from ..protocol.frames import Incoming, Outgoing
from .base import Channel


def _wait(descriptor: int, events: int, deadline: float | None, wake_at: float | None) -> bool:
    """Wait for a descriptor; return False when the deadline has passed."""
    poll = select.poll()
    poll.register(descriptor, events)
    while True:
        now = time.monotonic()
        times = [moment for moment in (deadline, wake_at) if moment is not None]
        timeout = max(0.0, min(times) - now) * 1000 if times else None
        if poll.poll(timeout):
            return True
        now = time.monotonic()
        if wake_at is not None and now >= wake_at:
            return True
        if deadline is not None and now >= deadline:
            return False


def stalled(channel: Channel, stall_timeout: float | None) -> StallError:
    """Return the error for a peer that neither sends nor receives."""
    return StallError(f"{channel.peer} has been silent for {stall_timeout:g} s")


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
        deadline = None if stall_timeout is None else time.monotonic() + stall_timeout
        events = select.POLLIN if channel.send_waits_readable else select.POLLOUT
        if not _wait(channel.send_fileno(), events, deadline, channel.wake_at):
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
    while not (frames := channel.receive_some()):
        deadline = None if stall_timeout is None else time.monotonic() + stall_timeout
        if not _wait(channel.fileno(), select.POLLIN, deadline, channel.wake_at):
            raise stalled(channel, stall_timeout)
    return frames
