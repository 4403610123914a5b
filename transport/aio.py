"""The asynchronous driver: waits for a channel under anyio."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

import anyio

from ..protocol.frames import Incoming, Outgoing
from .base import Channel
from .blocking import stalled


async def _wait(
    ready: Callable[[int], Awaitable[None]],
    descriptor: int,
    channel: Channel,
    stall_timeout: float | None,
) -> None:
    wake_at = channel.wake_at
    if stall_timeout is None and wake_at is None:
        await ready(descriptor)
        return
    if wake_at is not None:
        pause = max(0.0, wake_at - time.monotonic())
        with anyio.move_on_after(pause):
            await ready(descriptor)
        return
    with anyio.move_on_after(stall_timeout) as scope:
        await ready(descriptor)
    if scope.cancelled_caught:
        raise stalled(channel, stall_timeout)


async def drain(channel: Channel, stall_timeout: float | None = None) -> None:
    """Wait until the transport has taken all that is queued; errors as for `send`."""
    ready = anyio.wait_readable if channel.send_waits_readable else anyio.wait_writable
    while not channel.send_some():
        await _wait(ready, channel.send_fileno(), channel, stall_timeout)


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
    while not (frames := channel.receive_some()):
        await _wait(anyio.wait_readable, channel.fileno(), channel, stall_timeout)
    return frames
