"""Waiting for revocation sockets to end."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.waiting import wait_until
from splitarrow.transport.memory.mapped_region import RevocationWatcher

ENDS = pytest.mark.parametrize(
    ("server_gone", "how"), [(False, socket.SHUT_WR), (True, socket.SHUT_RDWR)]
)


class Region:
    """A region that records how it is revoked."""

    def __init__(self) -> None:
        self.revoked: list[bool] = []

    def revoke(self, *, server_gone: bool) -> None:
        self.revoked.append(server_gone)


@pytest.fixture
def watcher() -> Iterator[RevocationWatcher]:
    """A watcher, whose thread ends with the test."""
    made = RevocationWatcher()
    yield made
    if made._epoll is not None:
        wakeup = os.eventfd(1)
        made._epoll.register(wakeup, select.EPOLLIN)
        made._epoll.close()
        os.close(wakeup)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end of a revocation socket, and the reader's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_one_daemon_thread_watches_all_sockets(
    watcher: RevocationWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, object]] = []

    class Thread:
        def __init__(self, **options: object) -> None:
            started.append(options)

        def start(self) -> None: ...

    monkeypatch.setattr(threading, "Thread", Thread)
    pairs = [socket.socketpair() for _ in range(2)]
    regions: list[Any] = [Region(), Region()]
    for (_, theirs), region in zip(pairs, regions, strict=True):
        watcher.add(theirs.fileno(), region)
    assert [(each["name"], each["daemon"]) for each in started] == [("splitarrow-watch", True)]
    assert [region.revoked for region in regions] == [[], []]
    for pair in pairs:
        for end in pair:
            end.close()


@pytest.mark.parametrize(
    ("server_gone", "how"), [(False, socket.SHUT_WR), (True, socket.SHUT_RDWR)]
)
def test_the_end_of_a_socket_revokes_its_region(
    watcher: RevocationWatcher,
    ends: tuple[socket.socket, socket.socket],
    server_gone: bool,
    how: int,
) -> None:
    region: Any = Region()
    watcher.add(ends[1].fileno(), region)
    assert region.revoked == []
    ends[0].shutdown(how)
    wait_until(lambda: region.revoked != [])
    watcher.remove(ends[1].fileno())
    assert set(region.revoked) == {server_gone}


@pytest.mark.parametrize(
    ("server_gone", "how"), [(False, socket.SHUT_WR), (True, socket.SHUT_RDWR)]
)
def test_a_socket_that_has_ended_revokes_at_once(
    watcher: RevocationWatcher,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    server_gone: bool,
    how: int,
) -> None:
    monkeypatch.setattr(watcher, "_run", lambda epoll: None)  # before the thread runs
    region: Any = Region()
    ends[0].shutdown(how)
    watcher.add(ends[1].fileno(), region)
    assert region.revoked == [server_gone]


def test_a_socket_that_was_removed_revokes_nothing(
    watcher: RevocationWatcher, ends: tuple[socket.socket, socket.socket]
) -> None:
    region: Any = Region()
    watcher.remove(ends[1].fileno())  # before the first
    watcher.add(ends[1].fileno(), region)
    watcher.remove(ends[1].fileno())
    watcher.remove(ends[1].fileno())
    assert watcher._regions == {}
    ends[0].close()
    assert watcher._epoll is not None
    assert watcher._epoll.poll(0) == []
    watcher._handle_end(ends[1].fileno(), select.EPOLLIN)
    assert region.revoked == []


def test_a_region_that_is_gone_leaves_the_watcher(
    watcher: RevocationWatcher,
    ends: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "_run", lambda epoll: None)
    region: Any = Region()
    watcher.add(ends[1].fileno(), region)
    del region
    ends[0].close()
    assert watcher._epoll is not None
    ((descriptor, events),) = watcher._epoll.poll(10)
    assert descriptor == ends[1].fileno()
    watcher._handle_end(descriptor, events)
    assert watcher._regions == {}
    assert watcher._epoll.poll(0) == []


def test_a_forked_child_watches_what_it_inherits(
    watcher: RevocationWatcher, ends: tuple[socket.socket, socket.socket]
) -> None:
    watcher.after_fork()  # without any region
    assert watcher._epoll is None
    kept: Any = Region()
    dropped: Any = Region()
    ours, theirs = socket.socketpair()
    watcher.add(ends[1].fileno(), kept)
    watcher.add(theirs.fileno(), dropped)
    inherited, lock = watcher._epoll, watcher._lock
    assert inherited is not None
    del dropped
    watcher.after_fork()
    assert inherited.closed
    assert watcher._epoll is not inherited
    assert watcher._lock is not lock
    assert list(watcher._regions) == [ends[1].fileno()]
    ends[0].shutdown(socket.SHUT_WR)
    wait_until(lambda: kept.revoked != [])
    watcher.remove(ends[1].fileno())
    ours.close()
    theirs.close()


def test_the_thread_ends_with_its_epoll(watcher: RevocationWatcher) -> None:
    epoll = select.epoll()
    epoll.close()
    watcher._run(epoll)
