"""Files of credentials that may change while the program runs: certificates, tokens, keys."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import SplitArrowError

_CHECK_SECONDS = 1.0
_generation = 0
_Signature = tuple[int, int, int, int]

T = TypeVar("T")


def check_files_now() -> None:
    """Let every `Reloadable` of this process check its files at its next use."""
    global _generation
    _generation += 1


class Reloadable(Generic[T]):
    """A value that is read from files, and read again when one of them changes.

    Nothing runs in the background: `current` checks the files, at most once a second or after
    `check_files_now`. If they cannot be read after a change, the old value stays, and the failure
    is reported once.

    Each check resolves the paths again, and so detects a renamed or relinked file. `read` raises a
    `SplitArrowError`, without secrets, if a file is invalid. The first one leaves the constructor.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        read: Callable[[], T],
        *,
        on_failure: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._on_failure = on_failure
        self._clock = clock
        self._lock = threading.Lock()
        self._reported: tuple[object, str] | None = None
        self._checked = clock()
        self._generation = _generation
        self._signatures = self._read_signatures()
        self._value = read()

    def current(self) -> T:
        """Return the value of the files, or the last one that could be read."""
        if self._is_due():
            with self._lock:
                if self._is_due():
                    self._check()
        return self._value

    def check_now(self) -> None:
        """Check the files at the next use, even if that was done just now."""
        self._generation = -1

    def _is_due(self) -> bool:
        is_old = self._clock() - self._checked >= _CHECK_SECONDS
        return is_old or self._generation != _generation

    def _check(self) -> None:
        self._generation = _generation
        self._checked = self._clock()
        signatures = self._read_signatures()  # first, so that the next check sees later changes
        if signatures == self._signatures:
            return
        try:
            self._value = self._read()
        except SplitArrowError as error:
            failure = (signatures, str(error))
            if failure != self._reported:
                self._reported = failure
                self._on_failure(str(error))
            return
        self._signatures = signatures
        self._reported = None

    def _read_signatures(self) -> list[_Signature | None]:
        return [_read_signature(path) for path in self._paths]


def _read_signature(path: Path) -> _Signature | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # also a path that no file can have
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_world_readable(path: Path) -> bool:
    """Return whether every user can read a file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False
