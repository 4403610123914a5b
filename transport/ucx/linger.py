"""Closing connections gracefully: messages under way still arrive, within a bounded time.

The kernel keeps sending for a closed socket, but UCX does not for a destroyed worker. A connection
that is closed with pending messages therefore goes to a thread that completes them. The process
has one such thread, and only while a connection needs it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

LINGER_SECONDS = 1.0
"""The time that a closed connection may continue sending, in seconds."""
_RETENTION_SECONDS = 2.0
_MIN_PAUSE, _MAX_PAUSE = 0.0005, 0.01


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
