"""Closing connections, and memory that peers may still copy."""

from __future__ import annotations

import os
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from helpers.clock import Clock
from helpers.waiting import wait_until
from splitarrow.transport.ucx import links


class Closing:
    """A connection that is closed after some calls, or once it is forced."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.forced: list[bool] = []

    def finish(self, *, force: bool) -> bool:
        self.forced.append(force)
        self.left -= 1
        return force or self.left == 0


def test_connections_finish_on_one_thread_and_are_forced_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses = Clock(0.0), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    wait_until(lambda: links._thread is None)
    started = threading.Event()
    monkeypatch.setattr(links, "_thread", started)  # as if one were running
    connections = [Closing(1), Closing(3), Closing(-1)]
    for connection in connections:
        links.linger(connection)
    links._run()
    assert links._thread is None
    assert links._closing == []
    assert [connection.forced for connection in connections[:2]] == [[False], [False] * 3]
    assert connections[2].forced == [False] * (len(pauses) - 1) + [True]
    assert sum(pauses[:-1]) >= 1 > sum(pauses[:-2])
    assert pauses[:9] == [0.0005, 0.001, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
    last = Closing(2)
    links.linger(last)
    wait_until(lambda: links._thread is None)
    assert last.forced == [False, False]


class Memory:
    """Memory that can be watched, and whose end closes another channel."""

    def __init__(self) -> None:
        self.also: list[object] = []

    def __del__(self) -> None:
        links.retain(self.also)


def test_memory_is_retained_for_a_while_and_released_without_another_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert links._RETENTION_SECONDS == 2.0
    monkeypatch.setattr(links, "_RETENTION_SECONDS", 0.2)
    first, last = Memory(), Memory()
    released = weakref.WeakSet([first, last])
    first.also.append(last)
    start = time.monotonic()
    links.retain([first])
    del first, last
    assert len(released) == 2
    wait_until(lambda: len(released) == 1)
    assert time.monotonic() - start >= 0.2
    wait_until(lambda: not released)
    assert time.monotonic() - start >= 0.4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_releases_what_it_retains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_RETENTION_SECONDS", 0.1)
    links.retain([Memory()])  # the thread runs, in this process only
    child = os.fork()
    if child == 0:
        status = 1
        try:
            memory = Memory()
            released = weakref.WeakSet([memory])
            links.retain([memory])
            del memory
            wait_until(lambda: not released)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_what_lingers() -> None:
    connection = Closing(20)
    links.linger(connection)
    child = os.fork()
    if child == 0:
        os._exit(0 if not connection.left and links._thread is None else 1)
    assert os.waitpid(child, 0)[1] == 0
