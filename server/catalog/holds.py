"""Holds: versions that somebody reads are not removed.

A hold on a manifest in a folder is a shared lock of its file, so that it counts for all processes
of the machine, and ends with the one that has it. In an object store it counts for this process.
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

from ...errors import DatasetError
from .storage import Storage


class Hold:
    """Something that is held until it is closed. Closing is idempotent, from any thread."""

    def __init__(self, release: Callable[[], object]) -> None:
        self._release: Callable[[], object] | None = release
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go."""
        with self._lock:
            release, self._release = self._release, None
        if release is not None:
            release()


class Holds:
    """The holds on the manifests of one dataset."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    _lock = threading.Lock()
    _held: ClassVar[Counter[str]] = Counter()
    """How often each manifest of an object store is held, whoever opened the dataset."""

    def take(self, name: str) -> Hold | None:
        """Return a hold on a manifest; None if it does not exist, or is being removed."""
        if self._storage.folder is not None:
            handle = _locked(self._storage.folder / name, fcntl.LOCK_SH)
            return None if handle is None else Hold(lambda: os.close(handle))
        key = f"{self._storage.location}/{name}"
        with self._lock:
            self._held[key] += 1
        hold = Hold(lambda: self._let_go(key))
        try:
            if self._storage.nbytes(name) is not None:
                return hold
        except BaseException:
            hold.close()
            raise
        hold.close()
        return None

    @contextmanager
    def exclusive(self, name: str) -> Generator[bool]:
        """Say whether nobody holds a manifest; nobody gets to while the block runs."""
        if self._storage.folder is not None:
            handle = _locked(self._storage.folder / name, fcntl.LOCK_EX)
            try:
                yield handle is not None
            finally:
                if handle is not None:
                    os.close(handle)
            return
        with self._lock:
            yield not self._held[f"{self._storage.location}/{name}"]

    def _let_go(self, key: str) -> None:
        with self._lock:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]


def _locked(path: Path, how: int) -> int | None:
    """Return a descriptor of a file, locked; None if there is no such file, or another has it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(handle)
        raise DatasetError(f"{path}: {error.strerror}") from None
    os.close(handle)
    return None
