"""Connections that carry no stream at the moment, kept for the next reader.

A transport keeps a connection only after a proven end, with nothing under way in either direction,
so that no message of one stream reaches another. A kept connection closes when something arrives on
it, when the server leaves, when it has been idle for too long, before the process forks, and when
the process exits.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")


class _Idle(NamedTuple, Generic[K, C]):
    key: K
    connection: C
    expires: float
    """The time at which it is closed (`time.monotonic`)."""


class IdleConnections(ABC, Generic[K, C]):
    """The idle connections of a process. Any thread may call its methods.

    The key states what a connection must have in common with another to take its place. A thread
    watches the connections as long as there are any.
    """

    def __init__(self, name: str, seconds: float, *, most: int, most_alike: int) -> None:
        self.seconds = seconds
        """The time that a connection is kept, in seconds."""
        self.most = most
        """The number of connections that are kept at most."""
        self.most_alike = most_alike
        """The number of connections with the same key that are kept at most."""
        self._name = name
        # Reentrant, because the garbage collector may close a stream at any time.
        self._lock = threading.RLock()
        self._connections: list[_Idle[K, C]] = []
        """The connections, the oldest first."""
        self._epoll: select.epoll | None = None
        self._watches = False
        self._is_closed = False
        self._inherited: object = None
        """Connections of the parent process. They stay as they are."""

    def follow_process(self) -> None:
        """Close the connections before the process forks, and when it exits.

        A child shares the sockets of its parent, whose death the server would not notice then.
        """
        os.register_at_fork(before=self.close, after_in_child=self.after_fork)
        atexit.register(self.close_at_exit)

    @abstractmethod
    def find_descriptor(self, connection: C) -> int:
        """Return the descriptor that becomes readable when something arrives."""

    @abstractmethod
    def is_quiet(self, connection: C) -> bool:
        """Return whether nothing has arrived on a connection and its server is there.

        The next event then makes the descriptor readable.
        """

    @abstractmethod
    def end(self, connection: C) -> None:
        """Close a connection."""

    def find_speed(self, connection: C) -> float:
        """Return how fast a connection was, in any unit."""
        return 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def put(self, key: K, connection: C) -> bool:
        """Keep a connection that nobody else uses; return False if the caller has to close it."""
        with self._lock:
            if self._is_closed or not self.is_quiet(connection):
                return False
            alike = [idle for idle in self._connections if idle.key == key]
            if len(alike) >= self.most_alike:
                self._close(alike[0])
            elif len(self._connections) >= self.most:
                self._close(self._connections[0])
            try:
                if self._epoll is None:
                    self._epoll = select.epoll()
                self._epoll.register(self.find_descriptor(connection), select.EPOLLIN)
            except OSError:
                return False
            self._connections.append(_Idle(key, connection, time.monotonic() + self.seconds))
            if not self._watches:
                # A daemon, because it waits for seconds; `close_at_exit` stops it in time.
                thread = threading.Thread(target=self._watch, name=self._name)
                thread.daemon = True
                thread.start()
                self._watches = True
            return True

    def take(self, key: K) -> C | None:
        """Return the fastest connection with a key, or None. The caller owns it.

        Of several that are as fast, it is the one that was used last.
        """
        with self._lock:
            alike = [idle for idle in reversed(self._connections) if idle.key == key]
            for idle in sorted(alike, key=lambda idle: -self.find_speed(idle.connection)):
                if self.is_quiet(idle.connection):
                    self._remove(idle)
                    return idle.connection
                self._close(idle)
        return None

    def close(self) -> bool:
        """Close all connections; return whether there was one."""
        with self._lock:
            count = len(self._connections)
            for idle in self._connections[:]:
                self._close(idle)
            return count > 0

    def close_at_exit(self) -> None:
        """Close all connections, and keep no others."""
        with self._lock:
            self._is_closed = True
            self.close()

    def after_fork(self) -> None:
        """Leave to the parent what it has put back while it forked."""
        self._inherited = (self._connections, self._epoll, self._inherited)
        self._lock = threading.RLock()
        self._connections = []
        self._epoll = None
        self._watches = False

    def _remove(self, idle: _Idle[K, C]) -> None:
        self._connections.remove(idle)
        assert self._epoll is not None
        self._epoll.unregister(self.find_descriptor(idle.connection))

    def _close(self, idle: _Idle[K, C]) -> None:
        self._remove(idle)
        self.end(idle.connection)

    def _watch(self) -> None:
        """Close connections that the server closes, and those that have been idle for too long."""
        while True:
            with self._lock:
                now = time.monotonic()
                for idle in self._connections[:]:
                    if now >= idle.expires or not self.is_quiet(idle.connection):
                        self._close(idle)
                epoll = self._epoll
                if not self._connections or epoll is None:
                    self._watches = False
                    return
                seconds = self._connections[0].expires - now
            epoll.poll(max(0.0, seconds))
