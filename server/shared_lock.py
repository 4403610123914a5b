"""A lock among the processes of a server, which do not wait for one that is stopped."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

_SECONDS = 0.05
"""The time to wait for another process, in seconds. It needs microseconds, unless it is stopped."""
_POLL_SECONDS = 0.0005


class SharedLock:
    """A lock on a file that processes share. The kernel releases it when a process ends.

    While a process is stopped that has it, the others wait once, and then go on without it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._threads = threading.Lock()
        self._patience = _SECONDS

    @contextmanager
    def take(self) -> Generator[bool]:
        """Exclude other threads, and return whether other processes are excluded as well."""
        with self._threads:
            has_lock = self._try()
            deadline = time.monotonic() + self._patience
            while not has_lock and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                has_lock = self._try()
            self._patience = _SECONDS if has_lock else 0.0
            try:
                yield has_lock
            finally:
                if has_lock:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows both
            return False
        return True
