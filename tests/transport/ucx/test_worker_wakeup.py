"""Descriptors that are readable after an event, or once they are set."""

from __future__ import annotations

import os
import select
import socket

import pytest

from splitarrow.transport.ucx import worker
from splitarrow.transport.ucx.worker import Wakeup


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_a_wakeup_is_readable_after_an_event_or_once_it_is_set() -> None:
    events, peer = socket.socketpair()
    with events, peer:
        wakeup = Wakeup(events.fileno())
        assert not is_readable(wakeup.fileno())
        peer.send(b"x")
        assert is_readable(wakeup.fileno(), 10)
        events.recv(1)
        assert not is_readable(wakeup.fileno())
        assert not wakeup.is_set
        wakeup.set()
        assert wakeup.is_set
        assert is_readable(wakeup.fileno(), 10)
        wakeup.clear()
        assert not wakeup.is_set
        assert not is_readable(wakeup.fileno())
        wakeup.close()
        wakeup.close()
        wakeup.set()
        assert wakeup.fileno() == -1


def test_the_pauses_of_a_wakeup_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    events, peer = socket.socketpair()
    delays: list[int] = []
    monkeypatch.setattr(worker, "start_timer", lambda timer, delay: delays.append(delay))
    with events, peer:
        wakeup = Wakeup(events.fileno())
        wakeup.clear()
        assert delays == []
        for _ in range(9):
            wakeup.set_later()
        assert delays == [20_000 << n for n in range(7)] + [2_000_000] * 2
        wakeup.reset_pause()
        wakeup.set_later()
        wakeup.clear()
        wakeup.set()
        assert delays[9:] == [20_000, 0, 1]
        wakeup.close()


def test_a_wakeup_may_have_descriptor_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that was started without standard input."""
    events, peer = socket.socketpair()
    started: list[tuple[int, int]] = []
    closed: list[int] = []
    with events, peer:
        wakeup = Wakeup(events.fileno())
        real, wakeup._timer = wakeup._timer, 0
        with monkeypatch.context() as patch:
            patch.setattr(worker, "start_timer", lambda *arguments: started.append(arguments))
            patch.setattr(os, "close", closed.append)
            wakeup.set(5)
            wakeup.close()
            wakeup.close()
            wakeup.set(5)
        os.close(real)
    assert (started, closed, wakeup.fileno()) == ([(0, 5)], [0], -1)
