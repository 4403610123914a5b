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


class OneWayChannel:
    """A channel whose descriptor becomes ready for one direction only, and is then done."""

    peer = "peer"
    wake_at = None
    bytes_sent = bytes_received = 0

    def __init__(self, descriptor: int, *, readable: bool, busy: int = 1) -> None:
        self._descriptor = descriptor
        self.send_waits_readable = readable
        self._busy = busy
        self.waits = 0

    def fileno(self) -> int:
        self.waits += 1
        return self._descriptor

    send_fileno = fileno

    def queue(self, frames: Any) -> None:
        pass

    def send_some(self) -> bool:
        self._busy -= 1
        return self._busy < 0

    def receive_some(self) -> list[Any]:
        return [b"frame"] if self.send_some() else []


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe with data: one is only readable, one only writable."""
    reading, writing = os.pipe()
    os.write(writing, b"x")
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_sender_waits_for_the_direction_that_its_channel_names(
    pipe: tuple[int, int], readable: bool, timeout: float | None
) -> None:
    def channel() -> Any:
        return OneWayChannel(pipe[not readable], readable=readable, busy=3)

    first, second = channel(), channel()
    blocking.send(first, [], timeout)
    await aio.send(second, [], timeout)
    assert (first.waits, second.waits) == (3, 3)


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_receiver_waits_for_data(pipe: tuple[int, int], timeout: float | None) -> None:
    for busy in (1, 2):
        first: Any = OneWayChannel(pipe[0], readable=False, busy=busy)
        second: Any = OneWayChannel(pipe[0], readable=False, busy=busy)
        assert blocking.receive(first, timeout) == [b"frame"]
        assert await aio.receive(second, timeout) == [b"frame"]
        assert (first.waits, second.waits) == (busy, busy)


async def test_a_wait_ends_when_the_channel_wants_to_wake(pipe: tuple[int, int]) -> None:
    """Nothing ever arrives, and a time to wake that has passed is no reason to wait."""
    for seconds in (0.001, 0.0, -5.0):
        first: Any = OneWayChannel(pipe[1], readable=False)
        second: Any = OneWayChannel(pipe[1], readable=False)
        first.wake_at = second.wake_at = time.monotonic() + seconds
        assert blocking.receive(first, None) == [b"frame"]
        assert await aio.receive(second, None) == [b"frame"]


def test_a_wait_takes_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Any] = []
    poll = SimpleNamespace(register=lambda *each: waits.append(each), poll=waits.append)
    fake = SimpleNamespace(poll=lambda: poll, POLLIN=1)
    monkeypatch.setattr(blocking, "select", fake)
    clock = Clock(100.0)
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=clock))
    for timeout in (2.5, None):
        channel: Any = OneWayChannel(7, readable=False)
        blocking.receive(channel, timeout)
    assert waits == [(7, 1), 2500.0, (7, 1), None]
