"""Links: the connections below channels, kept for the next reader or closed gracefully.

Connecting costs tens of milliseconds on both sides, most of it spent by the library on selecting
protocols. A kept link costs none of that. A process keeps one only after a proven end, with nothing
under way in either direction, so that no message of one stream reaches another. It closes the link
when something arrives on it, when the server leaves, after `IDLE_SECONDS`, before the process
forks, and when it exits.

A channel that closes its link lingers for a bounded time, so that messages under way still arrive.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...errors import TransportError
from .context import Reach
from .worker import Worker

LINGER_SECONDS = 1.0
"""The time that a closed connection may continue sending, in seconds."""
_RETENTION_SECONDS = 2.0
_MIN_PAUSE, _MAX_PAUSE = 0.0005, 0.01
IDLE_SECONDS = 5.0
"""The time that a connection is kept, in seconds."""
MAX_LINKS = 8
"""The connections that a process keeps at most."""
MAX_LINKS_PER_SERVER = 4
"""The connections to one server that a process keeps at most."""
_MAX_STEPS = 1000
"""The attempts to wait for the events of a connection, before it is given up."""


class ClosingConnection(Protocol):
    """A connection that is being closed."""

    def finish(self, *, force: bool) -> bool:
        """Continue closing and return whether the connection is closed. `force` closes it."""
        ...


_lock = threading.Lock()
_closing: list[tuple[ClosingConnection, float]] = []
_thread: threading.Thread | None = None
_retained: deque[tuple[float, list[object]]] = deque()


def linger(connection: ClosingConnection) -> None:
    """Finish a connection on another thread, within `LINGER_SECONDS`."""
    global _thread
    with _lock:
        _closing.append((connection, time.monotonic() + LINGER_SECONDS))
        if _thread is None:
            _thread = threading.Thread(target=_run, name="splitarrow-ucx-linger")
            _thread.start()


def _run() -> None:
    global _thread
    pause = _MIN_PAUSE
    while True:
        with _lock:
            if not _closing:
                _thread = None
                return
            current = list(_closing)
        now = time.monotonic()
        finished = [item for item in current if item[0].finish(force=now >= item[1])]
        with _lock:
            for item in finished:
                _closing.remove(item)
        pause = _MIN_PAUSE if finished else min(2 * pause, _MAX_PAUSE)
        time.sleep(pause)


def retain(memory: list[object]) -> None:
    """Keep memory alive for a while that a peer on this host may still copy from or to.

    Closing an endpoint at once does not wait for a copy that the peer has begun. The memory must
    not be reused until the copy ends.
    """
    now = time.monotonic()
    with _lock:
        if memory:
            _retained.append((now + _RETENTION_SECONDS, memory))
        while _retained and _retained[0][0] <= now:
            _retained.popleft()


@dataclass(frozen=True, slots=True)
class Link:
    """A connection that has been made or is being made. A channel owns its parts."""

    worker: Worker
    """The connection's own worker."""
    endpoint: Any
    """The library's endpoint."""
    peer: str
    """The other end, for logs and errors."""
    reach: Reach
    """Where the other end is."""
    spin_seconds: float = 0.0
    """The time to poll for work before waiting for it, in seconds."""
    is_reused: bool = False
    """Whether it has carried a stream before."""


class ServerKey(NamedTuple):
    """What a connection has to have in common with another to take its place."""

    sockaddr: bytes
    """The server's address."""
    want_data: int | None
    """The tag of data requests."""
    remote_handle: bytes
    """The handle of remote bodies, by which a restarted server differs from the one before."""


class _IdleLink(NamedTuple):
    key: ServerKey
    link: Link
    expires: float
    """The time at which it is closed (`time.monotonic`)."""


class IdleLinks:
    """The idle connections of a process. Any thread may call its methods.

    A thread watches the connections as long as there are any.
    """

    def __init__(self) -> None:
        # Reentrant, because the garbage collector may close a stream at any time.
        self._lock = threading.RLock()
        self._links: list[_IdleLink] = []
        """The connections, the oldest first."""
        self._epoll: select.epoll | None = None
        self._watches = False
        self._is_closed = False
        self._inherited: object = None
        """Connections of the parent process. They stay as they are."""

    def __len__(self) -> int:
        return len(self._links)

    def put(self, key: ServerKey, link: Link) -> bool:
        """Keep a connection; return False if the caller has to close it.

        The caller holds the lock of the link's worker, and nobody else uses the link.
        """
        with self._lock:
            if self._is_closed or not _is_quiet(link):
                return False
            same = [idle for idle in self._links if idle.key == key]
            if len(same) >= MAX_LINKS_PER_SERVER:
                self._close(same[0])
            elif len(self._links) >= MAX_LINKS:
                self._close(self._links[0])
            try:
                if self._epoll is None:
                    self._epoll = select.epoll()
                self._epoll.register(link.worker.descriptor, select.EPOLLIN)
            except OSError:
                return False
            self._links.append(_IdleLink(key, link, time.monotonic() + IDLE_SECONDS))
            if not self._watches:
                # A daemon, because it waits for seconds; `close_at_exit` stops it in time.
                thread = threading.Thread(target=self._watch, name="splitarrow-ucx-idle")
                thread.daemon = True
                thread.start()
                self._watches = True
            return True

    def take(self, key: ServerKey) -> Link | None:
        """Return the connection to a server that was used last, or None. The caller owns it."""
        with self._lock:
            for idle in reversed(self._links[:]):
                if idle.key != key:
                    continue
                if _is_quiet(idle.link):
                    self._remove(idle)
                    return idle.link
                self._close(idle)
        return None

    def close(self) -> bool:
        """Close all connections; return whether there was one."""
        with self._lock:
            count = len(self._links)
            for idle in self._links[:]:
                self._close(idle)
            return count > 0

    def close_at_exit(self) -> None:
        """Close all connections, and keep no others."""
        with self._lock:
            self._is_closed = True
            self.close()

    def after_fork(self) -> None:
        """Leave to the parent what it has put back while it forked."""
        self._inherited = (self._links, self._epoll, self._inherited)
        self._lock = threading.RLock()
        self._links = []
        self._epoll = None
        self._watches = False

    def _remove(self, idle: _IdleLink) -> None:
        self._links.remove(idle)
        assert self._epoll is not None
        self._epoll.unregister(idle.link.worker.descriptor)

    def _close(self, idle: _IdleLink) -> None:
        self._remove(idle)
        worker = idle.link.worker
        with worker.lock:
            worker.close_endpoint(idle.link.endpoint)
            worker.destroy()

    def _watch(self) -> None:
        """Close connections that the server closes, and those that have been idle for too long."""
        while True:
            with self._lock:
                now = time.monotonic()
                for idle in self._links[:]:
                    if now >= idle.expires or not _is_quiet(idle.link):
                        self._close(idle)
                epoll = self._epoll
                if not self._links or epoll is None:
                    self._watches = False
                    return
                seconds = self._links[0].expires - now
            epoll.poll(max(0.0, seconds))


def _is_quiet(link: Link) -> bool:
    """Return whether nothing has arrived on a connection and its server is there.

    The next event then wakes the worker's descriptor up.
    """
    worker = link.worker
    with worker.lock:
        for _ in range(_MAX_STEPS):
            while worker.progress():
                if worker.has_arrivals:
                    return False
            if worker.has_arrivals:
                return False
            try:
                if worker.arm():
                    return True
            except TransportError:
                return False
    return False


IDLE_LINKS = IdleLinks()
"""The idle connections of this process."""

# A child shares the sockets of its parent, whose death the server would not notice then.
os.register_at_fork(before=IDLE_LINKS.close, after_in_child=IDLE_LINKS.after_fork)
atexit.register(IDLE_LINKS.close_at_exit)
