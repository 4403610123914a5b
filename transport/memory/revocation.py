"""Revoking mapped files before they change: one thread for all regions of the process.

A server that guards a file gives each reader one end of a socket, the revocation socket. The
server ends it when another process wants to change the file, and the kernel ends it when the
server dies. The region then copies the pages that are still in use into memory of this process,
at the same addresses. It closes its end to signal that it has released the file.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from typing import Protocol

_END_OF_SOCKET = select.EPOLLIN | select.EPOLLRDHUP
"""The events by which a socket ends. `select.poll` uses the same numbers."""


class RevocableRegion(Protocol):
    """A region of a guarded file."""

    def revoke(self, *, server_gone: bool) -> None:
        """Copy the pages in use into memory of this process and close the revocation socket."""
        ...


class RevocationWatcher:
    """Waits for the ends of revocation sockets, on a thread that starts with the first one."""

    def __init__(self) -> None:
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._regions: dict[int, weakref.ref[RevocableRegion]] = {}

    def add(self, descriptor: int, region: RevocableRegion) -> None:
        """Revoke `region` when the socket `descriptor` ends; at once if it has ended already.

        The caller keeps ownership of both, and calls `remove` before it closes the socket.
        """
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._run, args=(self._epoll,), name="splitarrow-watch", daemon=True
                ).start()
            self._regions[descriptor] = weakref.ref(region)
            self._epoll.register(descriptor, _END_OF_SOCKET)
        # The caller may use the region before the thread runs.
        poll = select.poll()
        poll.register(descriptor, _END_OF_SOCKET)
        for _, events in poll.poll(0):
            self._handle_end(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Forget a socket. Finalizers may call this: it takes no lock."""
        self._regions.pop(descriptor, None)
        if self._epoll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def after_fork(self) -> None:
        """Start again in a forked child, which inherits the regions but not the thread."""
        inherited = list(self._regions.items())
        epoll = self._epoll
        self._start_empty()
        if epoll is not None:
            epoll.close()
        for descriptor, reference in inherited:
            region = reference()
            if region is not None:
                self.add(descriptor, region)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            try:
                ended = epoll.poll()
            except (OSError, ValueError):
                return
            for descriptor, events in ended:
                self._handle_end(descriptor, events)

    def _handle_end(self, descriptor: int, events: int) -> None:
        reference = self._regions.get(descriptor)
        region = None if reference is None else reference()
        if region is None:
            self.remove(descriptor)
        else:
            # A server that revokes the file ends one direction; a server that dies ends both.
            region.revoke(server_gone=bool(events & select.EPOLLHUP))


REVOCATIONS = RevocationWatcher()
"""The watcher of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REVOCATIONS.after_fork)
