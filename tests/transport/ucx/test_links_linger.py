"""Closing connections, and memory that peers may still copy."""

from __future__ import annotations

import threading
from collections import deque
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


def test_memory_is_retained_for_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(links, "_retained", deque())
    links.retain(["a"])
    links.retain([])
    assert len(links._retained) == 1
    clock.now += 1
    links.retain(["b"])
    clock.now = 1.999
    links.retain([])
    assert [memory for _, memory in links._retained] == [["a"], ["b"]]
    clock.now = 2.0
    links.retain([])
    assert [memory for _, memory in links._retained] == [["b"]]
    clock.now += 1
    links.retain([])
    assert not links._retained
