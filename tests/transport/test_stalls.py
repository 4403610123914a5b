"""A silent peer is noticed even if the descriptor of its channel is ready all the time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.clock import Clock
from splitarrow.errors import StallError
from splitarrow.transport import aio, blocking
from splitarrow.transport.blocking import StallTimer

PATIENCE = 10.0


class BusyChannel:
    """A channel whose descriptors are always ready, while nothing is ever transferred."""

    peer = "127.0.0.1:1"
    send_waits_readable = True
    wake_at = None
    bytes_sent = bytes_received = 0

    def __init__(self) -> None:
        self._descriptor = os.eventfd(1)
        self._end = time.monotonic() + PATIENCE

    def fileno(self) -> int:
        assert time.monotonic() < self._end, "the stall is not noticed"
        return self._descriptor

    send_fileno = fileno

    def queue(self, frames: Any) -> None:
        pass

    def send_some(self) -> bool:
        return False

    def receive_some(self) -> list[Any]:
        return []

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def busy() -> Iterator[Any]:
    channel = BusyChannel()
    yield channel
    channel.close()


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_a_blocking_driver_notices_a_silent_peer(busy: Any, seconds: float) -> None:
    for call in (
        lambda: blocking.receive(busy, seconds),
        lambda: blocking.send(busy, [], seconds),
    ):
        begin = time.monotonic()
        with pytest.raises(StallError, match=f"silent for {seconds:g} s"):
            call()
        assert time.monotonic() - begin >= seconds


async def test_an_asynchronous_driver_notices_a_silent_peer(busy: Any) -> None:
    for call in (aio.receive(busy, 0.05), aio.send(busy, [], 0.05)):
        with pytest.raises(StallError, match=r"silent for 0\.05 s"):
            await call


class ReadyChannel:
    """A channel that takes and returns everything at once, so that nobody has to wait."""

    def queue(self, frames: Any) -> None:
        pass

    def send_some(self) -> bool:
        return True

    def receive_some(self) -> list[Any]:
        return [b"frame"]

    def fileno(self) -> int:
        raise AssertionError("there is nothing to wait for")

    send_fileno = fileno
    bytes_sent = bytes_received = 0
    wake_at = None


async def test_nobody_waits_for_a_channel_that_is_done() -> None:
    channel: Any = ReadyChannel()
    blocking.send(channel, [], 1.0)
    await aio.send(channel, [], 1.0)
    assert blocking.receive(channel, 1.0) == await aio.receive(channel, 1.0) == [b"frame"]


def test_only_transferred_bytes_end_a_silence(busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=clock))
    timer = StallTimer(busy, 10.0)
    assert timer.compute_wait(0) == 10
    clock.now += 4
    assert timer.compute_wait(0) == 6
    assert timer.compute_wait(0, wake_at=clock.now + 1) == 1
    assert timer.compute_wait(0, wake_at=clock.now + 7) == 6
    clock.now += 5
    assert timer.compute_wait(1) == 10
    clock.now += 10
    with pytest.raises(StallError, match=r"127\.0\.0\.1:1 has been silent for 10 s"):
        timer.compute_wait(1)


def test_without_a_timeout_a_wait_ends_only_where_the_channel_wants_it(
    busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=clock))
    timer = StallTimer(busy, None)
    for _ in range(2):
        assert timer.compute_wait(0) is None
        assert timer.compute_wait(0, wake_at=clock.now + 3) == 3
        clock.now += 1000
