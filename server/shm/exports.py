"""Memory of devices that readers may still have open after their sessions have ended."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from ..logs import get_logger

WARN_SECONDS = 10.0
"""The time after which a reader that still has memory open is logged, in seconds."""
_GRACE_SECONDS = 1.0
"""The time between the end of a connection and the release of the memory, in seconds. A process
that is killed may close its connection before the driver of the device has closed the memory."""


@dataclass(slots=True, eq=False)
class _OpenExports:
    """What a reader has open."""

    connection: socket.socket
    exports: Sequence[object]
    peer: str
    since: float
    """When its session ended, or when the reader has closed the connection."""
    is_logged: bool = False
    is_closed: bool = False


class ExportKeeper:
    """Keeps memory until the readers that have opened it have closed their connections.

    Freeing memory that another process has open is undefined behavior of CUDA.
    """

    def __init__(self) -> None:
        self._added: SimpleQueue[_OpenExports] = SimpleQueue()
        self._kept: list[_OpenExports] = []
        self._lock = threading.Lock()
        self._wake: socket.socket | None = None

    def keep(self, connection: socket.socket, exports: Sequence[object], peer: str) -> None:
        """Keep exports until the other end of a connection is closed; then close this end."""
        self._added.put(_OpenExports(connection, exports, peer, time.monotonic()))
        with self._lock:
            if self._wake is None:
                self._wake, wakened = socket.socketpair()
                name = "splitarrow-exports"
                threading.Thread(target=self._run, args=(wakened,), name=name, daemon=True).start()
            self._wake.send(b"\0")

    def _run(self, wakened: socket.socket) -> None:
        selector = selectors.DefaultSelector()
        selector.register(wakened, selectors.EVENT_READ)
        while True:
            # Separate calls, so that no local variable keeps memory.
            self._wait(selector, wakened)
            self._take_added(selector)
            self._release(time.monotonic())

    def _wait(self, selector: selectors.BaseSelector, wakened: socket.socket) -> None:
        for key, _ in selector.select(0.1 if self._kept else None):
            if key.data is None:
                wakened.recv(4096)
            elif _is_closed(key.data.connection):
                selector.unregister(key.data.connection)
                key.data.connection.close()
                key.data.is_closed, key.data.since = True, time.monotonic()

    def _take_added(self, selector: selectors.BaseSelector) -> None:
        try:
            while True:
                added = self._added.get_nowait()
                selector.register(added.connection, selectors.EVENT_READ, added)
                self._kept.append(added)
        except Empty:
            return

    def _release(self, now: float) -> None:
        log = get_logger("session")
        for each in list(self._kept):
            if each.is_closed and now - each.since >= _GRACE_SECONDS:
                self._kept.remove(each)
            elif not each.is_closed and not each.is_logged and now - each.since >= WARN_SECONDS:
                each.is_logged = True
                log.warning(
                    "memory of a device is kept: a reader still has it open",
                    peer=each.peer,
                    seconds=round(now - each.since),
                )


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other end is closed; drop what it has sent."""
    try:
        return not connection.recv(1 << 16, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


KEEPER = ExportKeeper()
