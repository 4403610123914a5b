"""Connections that end: what was sent still arrives, within a bounded time.

The kernel goes on sending for a socket that was closed; UCX does not for a worker. So a
connection that is closed with messages under way is handed to a thread that sees to them. There
is one such thread in the process, while there is something to close, and none otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

LINGER_SECONDS = 1.0
"""How long a connection that was closed may go on sending."""
_AFTERLIFE_SECONDS = 2.0
_LEAST_PAUSE, _MOST_PAUSE = 0.0005, 0.01


class Closing(Protocol):
    """A connection that is being closed."""

    def finish(self, *, force: bool) -> bool:
        """Go on; tell whether it is closed now. With `force` it always is."""
        ...


_lock = threading.Lock()
_closing: list[tuple[Closing, float]] = []
_thread: threading.Thread | None = None
_afterlife: deque[tuple[float, list[object]]] = deque()


def linger(connection: Closing) -> None:
    """See a connection off, on another thread, within `LINGER_SECONDS`."""
    global _thread
    with _lock:
        _closing.append((connection, time.monotonic() + LINGER_SECONDS))
        if _thread is None:
            _thread = threading.Thread(target=_run, name="splitarrow-ucx-closing")
            _thread.start()


def _run() -> None:
    global _thread
    pause = _LEAST_PAUSE
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
        pause = _LEAST_PAUSE if finished else min(2 * pause, _MOST_PAUSE)
        time.sleep(pause)


def keep_for_a_while(memory: list[object]) -> None:
    """Keep memory that a peer on this host may still be copying from, or to.

    An endpoint that is closed at once does not wait for a copy that the peer has begun; the
    memory must not be given to someone else meanwhile.
    """
    now = time.monotonic()
    with _lock:
        if memory:
            _afterlife.append((now + _AFTERLIFE_SECONDS, memory))
        while _afterlife and _afterlife[0][0] <= now:
            _afterlife.popleft()
