"""The asynchronous driver: waits for a channel under anyio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from ..protocol.frames import IncomingFrame, OutgoingFrame
from .base import Channel
from .blocking import StallTimer


async def _wait(
    ready: Callable[[int], Awaitable[None]], descriptor: int, seconds: float | None
) -> None:
    """Wait for a descriptor, at most `seconds`."""
    if seconds is None:
        await ready(descriptor)
        return
    with anyio.move_on_after(max(0.0, seconds)):
        await ready(descriptor)


async def drain(channel: Channel, stall_timeout: float | None = None) -> None:
    """Wait until the transport has accepted the whole queue. The errors are those of `send`."""
    if not channel.send_some():
        await wait_drained(channel, stall_timeout)


async def wait_drained(channel: Channel, stall_timeout: float | None = None) -> None:
    """Wait until a transport that has not accepted the whole queue has; see `drain`."""
    timer = StallTimer(channel, stall_timeout)
    ready = anyio.wait_readable if channel.send_waits_readable else anyio.wait_writable
    while True:
        await _wait(ready, channel.send_fileno(), timer.compute_wait(channel.bytes_sent))
        if channel.send_some():
            return


async def send(
    channel: Channel, frames: Iterable[OutgoingFrame], stall_timeout: float | None = None
) -> None:
    """Send frames and wait until the transport has accepted all of them.

    Raises `StallError` if the peer accepts nothing for `stall_timeout` seconds. Raises
    `ConnectionLostError` if the peer is gone.
    """
    channel.queue(frames)
    await drain(channel, stall_timeout)


async def receive(channel: Channel, stall_timeout: float | None = None) -> list[IncomingFrame]:
    """Return the frames that have arrived. If there are none, wait for the first.

    Raises `StallError` if nothing arrives for `stall_timeout` seconds. Raises
    `ConnectionLostError`, `NotAPeerError`, `ProtocolError` as the channel's `receive_some` does.
    """
    if frames := channel.receive_some():
        return frames
    timer = StallTimer(channel, stall_timeout)
    while not frames:
        seconds = timer.compute_wait(channel.bytes_received, channel.wake_at)
        await _wait(anyio.wait_readable, channel.fileno(), seconds)
        frames = channel.receive_some()
    return frames
