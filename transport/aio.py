"""The asynchronous driver: waits for a channel under anyio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from ..protocol.frames import Incoming, Outgoing
from .base import Channel
from .blocking import Silence, stalled


async def _wait(
    ready: Callable[[int], Awaitable[None]], descriptor: int, seconds: float | None
) -> bool:
    """Wait for a descriptor; return False when the time is over."""
    if seconds is None:
        await ready(descriptor)
        return True
    with anyio.move_on_after(max(0.0, seconds)) as scope:
        await ready(descriptor)
    return not scope.cancelled_caught


async def drain(channel: Channel, stall_timeout: float | None = None) -> None:
    """Wait until the transport has taken all that is queued; errors as for `send`."""
    ready = anyio.wait_readable if channel.send_waits_readable else anyio.wait_writable
    while not channel.send_some():
        if not await _wait(ready, channel.send_fileno(), stall_timeout):
            raise stalled(channel, stall_timeout)


async def send(
    channel: Channel, frames: Iterable[Outgoing], stall_timeout: float | None = None
) -> None:
    """Send frames and wait until the transport has taken all of them.

    Raises
    ------
    StallError
        If the peer takes nothing for `stall_timeout` seconds.
    ConnectionLostError
        If the peer is gone.
    """
    channel.queue(frames)
    await drain(channel, stall_timeout)


async def receive(channel: Channel, stall_timeout: float | None = None) -> list[Incoming]:
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
        pause = silence.pause()
        if not await _wait(anyio.wait_readable, channel.fileno(), pause):
            silence.check()
    return frames
