"""Links: the connections below channels, kept for the next reader or closed gracefully.

A channel that closes its link lingers for a bounded time, so that messages under way still arrive.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from ...errors import TransportError
from ..idle_connections import IdleConnections
from .context import Reach
from .worker import Worker

LINGER_SECONDS = 1.0
"""The time that a closed connection may continue sending, in seconds."""
_RETENTION_SECONDS = 2.0
_MIN_PAUSE, _MAX_PAUSE = 0.0005, 0.01
IDLE_SECONDS = 5.0
"""The time that a connection is kept, in seconds."""
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
_retained: SimpleQueue[tuple[float, list[object]]] = SimpleQueue()
_releaser: threading.Thread | None = None


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


def _before_fork() -> None:
    """Wait for connections that linger: a child with the workers of its parent cannot use UCX."""
    thread = _thread
    if thread is not None:
        thread.join()


def _after_fork() -> None:
    """Leave to the parent what it has closed while it forked."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _closing.clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def retain(memory: list[object]) -> None:
    """Keep memory alive for a while that a peer on this host may still copy from or to.

    Closing an endpoint at once does not wait for a copy that the peer has begun. The memory must
    not be reused until the copy ends.
    """
    global _releaser
    if not memory:
        return
    _retained.put((time.monotonic() + _RETENTION_SECONDS, memory))
    # The garbage collector may close a channel here too. Two threads that release do no harm.
    if _releaser is None or not _releaser.is_alive():  # it ends with a fork
        _releaser = threading.Thread(target=_release, name="splitarrow-ucx-retained", daemon=True)
        with suppress(RuntimeError):  # the interpreter ends, and the memory with it
            _releaser.start()


def _release() -> None:
    while True:
        due, memory = _retained.get()
        time.sleep(max(0.0, due - time.monotonic()))
        memory.clear()


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


class IdleLinks(IdleConnections[ServerKey, Link]):
    """The idle connections of a process; the caller of `put` holds the lock of a link's worker.

    Connecting costs tens of milliseconds on both sides, most of it spent by the library on
    selecting protocols.
    """

    def __init__(self) -> None:
        super().__init__("splitarrow-ucx-idle", IDLE_SECONDS, most=8, most_alike=4)

    def find_descriptor(self, connection: Link) -> int:
        """Return the descriptor of the worker."""
        return connection.worker.descriptor

    def is_quiet(self, connection: Link) -> bool:
        """Return whether the worker has nothing to do, and waits for events."""
        worker = connection.worker
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

    def end(self, connection: Link) -> None:
        """Close the endpoint, and end the worker."""
        with connection.worker.lock:
            connection.worker.close_endpoint(connection.endpoint)
            connection.worker.destroy()


IDLE_LINKS = IdleLinks()
"""The idle connections of this process."""
IDLE_LINKS.follow_process()
