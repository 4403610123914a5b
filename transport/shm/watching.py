"""Letting go of mapped files before they change: one thread for all regions of the process.

A server guards the files that its readers map, and hands each reader a socket along. When that
ends, because somebody wants to change the file or because the server is gone, what is still in
use of the file is moved into memory of this process, at the same addresses. Closing the socket
tells the server that this is done.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from typing import Protocol

_ENDS = select.EPOLLIN | select.EPOLLRDHUP
"""What tells that a socket has ended; `select.poll` has the same numbers."""


class Watched(Protocol):
    """A region of a file."""

    def detach(self, *, server_gone: bool) -> None:
        """Move what is in use into memory of this process, and close the watched socket."""
        ...


class Watcher:
    """Waits for the ends of sockets."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._watched: dict[int, weakref.ref[Watched]] = {}

    def add(self, descriptor: int, watched: Watched) -> None:
        """Have `watched` detached when the socket `descriptor` ends: at once if it has."""
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._run, args=(self._epoll,), name="splitarrow-watch", daemon=True
                ).start()
            self._watched[descriptor] = weakref.ref(watched)
            self._epoll.register(descriptor, _ENDS)
        # The thread may come too late for what is read from the region next.
        now = select.poll()
        now.register(descriptor, _ENDS)
        for _, events in now.poll(0):
            self._end(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Forget a socket, which is about to be closed. Safe in finalizers."""
        self._watched.pop(descriptor, None)
        if self._epoll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def after_fork(self) -> None:
        """Watch anew in a child: it has the parent's regions, and not its thread."""
        inherited = list(self._watched.items())
        epoll = self._epoll
        self._begin()
        if epoll is not None:
            epoll.close()
        for descriptor, reference in inherited:
            watched = reference()
            if watched is not None:
                self.add(descriptor, watched)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            try:
                events = epoll.poll()
            except (OSError, ValueError):
                return
            for descriptor, events_of in events:
                self._end(descriptor, events_of)

    def _end(self, descriptor: int, events: int) -> None:
        reference = self._watched.get(descriptor)
        watched = None if reference is None else reference()
        if watched is None:
            self.remove(descriptor)
        else:
            # A server that wants the file back ends one direction; one that is gone, both.
            watched.detach(server_gone=bool(events & select.EPOLLHUP))


WATCHER = Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCHER.after_fork)
