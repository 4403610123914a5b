"""Version locks, which keep versions that are being read from being pruned.

A reader holds a shared lock on the manifest of its version. Pruning takes the exclusive lock
before it removes a version.

In a folder, the lock is an ``flock`` on the manifest file. It counts for all processes on the
machine, and the kernel releases it when its process ends. In an object store, the lock counts for
this process only.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from ..errors import DatasetError
from .storage import Storage


class VersionLock:
    """A shared lock on one version, which keeps it from being pruned until the release."""

    def __init__(self, unlock: Callable[[], object]) -> None:
        self._unlock: Callable[[], object] | None = unlock
        self._mutex = threading.Lock()

    def release(self) -> None:
        """Release the lock. Idempotent; any thread may call it."""
        with self._mutex:
            unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()


class VersionLocks:
    """The version locks of one dataset."""

    _mutex = threading.Lock()
    _shared: ClassVar[Counter[str]] = Counter()
    """The number of shared locks on each manifest in an object store, over all instances."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def acquire(self, name: str, *, check: bool = True) -> VersionLock | None:
        """Acquire a shared lock on a manifest.

        Return None if the manifest does not exist or is being removed.
        """
        if self._storage.folder is not None:
            descriptor = _lock_file(self._storage.folder / name, fcntl.LOCK_SH)
            return None if descriptor is None else VersionLock(lambda: os.close(descriptor))
        key = f"{self._storage.location}/{name}"
        with self._mutex:
            self._shared[key] += 1
        lock = VersionLock(lambda: self._unlock_object(key))
        try:
            # The lock comes first: whoever prunes from now on sees it.
            if not check or self._storage.find(name) is not None:
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()
        return None

    @contextmanager
    def try_lock_exclusively(self, name: str) -> Generator[bool]:
        """Try to lock a manifest exclusively and yield whether that succeeded.

        The attempt fails while another holder has a lock. No other lock can be acquired inside the
        block.
        """
        if self._storage.folder is not None:
            descriptor = _lock_file(self._storage.folder / name, fcntl.LOCK_EX)
            try:
                yield descriptor is not None
            finally:
                if descriptor is not None:
                    os.close(descriptor)
            return
        with self._mutex:
            yield not self._shared[f"{self._storage.location}/{name}"]

    def _unlock_object(self, key: str) -> None:
        with self._mutex:
            self._shared[key] -= 1
            if not self._shared[key]:
                del self._shared[key]


def _lock_file(path: Path, operation: int) -> int | None:
    """Lock a file without waiting, and return its descriptor.

    Returns None if the file does not exist, was moved away while it was opened, or has a
    conflicting lock. Closing the descriptor releases the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        raise DatasetError(f"{path}: {error.strerror}") from None
    os.close(descriptor)
    return None
