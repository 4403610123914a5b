"""The steps of keeping connections: what is looked at, what is closed, and by whom."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.waiting import wait_until
from splitarrow.errors import TransportError
from splitarrow.transport import idle_connections
from splitarrow.transport.ucx import links as idle_links
from splitarrow.transport.ucx.links import IdleLinks, ServerKey

KEY = ServerKey(b"here", 5, b"handle")
OTHER = ServerKey(b"there", 5, b"handle")


class FakeWorker:
    """A worker with as much work as a test states, which records what is done with it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.descriptor = os.eventfd(0)
        self.work = 0
        self.has_arrivals = False
        self.attempts: list[bool | Exception] = []
        """The results of the next attempts to wait for events; afterwards they succeed."""
        self.closed: list[Any] = []
        self.is_destroyed = False

    def progress(self) -> bool:
        self.work -= 1
        return self.work >= 0

    def arm(self) -> bool:
        result = self.attempts.pop(0) if self.attempts else True
        if isinstance(result, Exception):
            raise result
        return result

    def close_endpoint(self, endpoint: Any) -> None:
        self.closed.append(endpoint)

    def destroy(self) -> None:
        self.is_destroyed = True

    def wake_up(self) -> None:
        os.eventfd_write(self.descriptor, 1)


class Store:
    """A store of idle connections with a clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.links = IdleLinks()
        self.workers: list[FakeWorker] = []
        self._before = set(threading.enumerate())
        monkeypatch.setattr(idle_connections, "time", SimpleNamespace(monotonic=lambda: self.now))

    def make_link(self) -> Any:
        worker = FakeWorker()
        self.workers.append(worker)
        return SimpleNamespace(worker=worker, endpoint=f"endpoint {len(self.workers)}")

    def put(self, key: ServerKey = KEY) -> Any:
        """Keep a new connection, and return it."""
        link = self.make_link()
        assert self.links.put(key, link) is True
        return link

    def list_watchers(self) -> list[threading.Thread]:
        started = set(threading.enumerate()) - self._before
        return [thread for thread in started if thread.name == "splitarrow-ucx-idle"]

    def end(self) -> None:
        """Let the connections that are left expire."""
        self.now += 1000.0
        if self.links:
            self.workers[-1].wake_up()
            wait_until(lambda: not self.links, "the end of the connections")
        for worker in self.workers:
            os.close(worker.descriptor)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(monkeypatch)
    yield made
    made.end()


def test_closing_says_whether_there_was_a_connection(store: Store) -> None:
    link = store.put()
    assert store.links.close() is True
    assert store.links.close() is False
    assert link.worker.closed == ["endpoint 1"]
    assert link.worker.is_destroyed


def test_a_store_closed_at_exit_closes_what_it_has_and_refuses_others(store: Store) -> None:
    link = store.put()
    store.links.close_at_exit()
    assert link.worker.is_destroyed
    assert store.links.put(KEY, store.make_link()) is False
    assert not store.links


def test_a_connection_that_cannot_be_watched_is_not_kept(store: Store) -> None:
    link = store.make_link()
    os.close(link.worker.descriptor)
    link.worker.descriptor = os.open(__file__, os.O_RDONLY)  # the kernel watches no files
    assert store.links.put(KEY, link) is False
    assert not store.links


def test_the_oldest_connection_to_a_server_makes_room(store: Store) -> None:
    other = store.put(OTHER)
    links = [store.put() for _ in range(5)]
    assert [link.worker.is_destroyed for link in links] == [True, False, False, False, False]
    assert not other.worker.is_destroyed
    assert len(store.links) == 5


def test_the_oldest_connection_of_all_makes_room(store: Store) -> None:
    links = [store.put(ServerKey(b"%d" % number, 5, b"handle")) for number in range(9)]
    assert [link.worker.is_destroyed for link in links] == [True] + [False] * 8


def set_arrivals(worker: FakeWorker) -> None:
    worker.has_arrivals = True


def set_arrivals_with_work(worker: FakeWorker) -> None:
    worker.has_arrivals, worker.work = True, 5


def set_failure(worker: FakeWorker) -> None:
    worker.attempts = [TransportError("the connection has failed")]


def set_endless(worker: FakeWorker) -> None:
    worker.attempts = [False] * 2000


@pytest.mark.parametrize(
    "disturb", [set_arrivals, set_arrivals_with_work, set_failure, set_endless]
)
def test_a_connection_with_something_under_way_is_neither_kept_nor_taken(
    store: Store, disturb: Callable[[FakeWorker], None]
) -> None:
    link = store.make_link()
    disturb(link.worker)
    assert store.links.is_quiet(link) is False
    disturb(link.worker)
    assert store.links.put(KEY, link) is False
    kept = store.put()
    disturb(kept.worker)
    assert store.links.take(KEY) is None
    assert not store.links
    assert kept.worker.is_destroyed


def test_what_has_arrived_ends_the_work_on_a_connection(store: Store) -> None:
    link = store.make_link()
    link.worker.work, link.worker.has_arrivals = 5, True
    assert store.links.put(KEY, link) is False
    assert link.worker.work == 4


def test_a_connection_with_work_but_no_arrivals_is_kept(store: Store) -> None:
    link = store.make_link()
    link.worker.work, link.worker.attempts = 5, [False, False]
    assert store.links.put(KEY, link) is True
    assert store.links.take(KEY) is link
    link.worker.work = 5
    assert store.links.put(KEY, link) is True


def test_one_daemonic_thread_watches_all_connections_until_they_expire(store: Store) -> None:
    first = store.put()
    second = store.put(OTHER)
    (watcher,) = store.list_watchers()
    assert watcher.daemon
    store.now += idle_links.IDLE_SECONDS
    first.worker.wake_up()
    wait_until(lambda: not store.links, "the end of the connections")
    watcher.join(10)
    assert not watcher.is_alive()
    assert first.worker.is_destroyed
    assert second.worker.is_destroyed


def test_the_thread_waits_until_the_oldest_connection_expires(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    class Epoll:
        def register(self, descriptor: int, events: int) -> None:
            """Take note of nothing."""

        def unregister(self, descriptor: int) -> None:
            """Take note of nothing."""

        def poll(self, seconds: float) -> None:
            waits.append(seconds)
            store.now += seconds

    monkeypatch.setattr(idle_connections, "select", SimpleNamespace(epoll=Epoll, EPOLLIN=1))
    store.put()
    wait_until(lambda: not store.links, "the end of the connection")
    assert waits == [idle_links.IDLE_SECONDS]


def test_a_child_process_watches_its_own_connections(store: Store) -> None:
    inherited = store.put()
    store.links.after_fork()
    assert not store.links
    own = store.put()
    own.worker.has_arrivals = True
    own.worker.wake_up()
    wait_until(lambda: not store.links, "the end of the connection")
    assert own.worker.is_destroyed
    assert not inherited.worker.is_destroyed
