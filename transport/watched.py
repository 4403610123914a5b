"""Files that may change while the program runs: certificates, tokens, keys."""

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
_Signature = tuple[int, int, int, int]

T = TypeVar("T")


class Watched(Generic[T]):
    """What files say, read again when one of them has changed.

    Nothing runs in the background: `current` looks at the files, at most once a second. A
    change that cannot be read leaves what was read before in place, and is told once.

    Parameters
    ----------
    paths : iterable of Path
        The files. They are looked up anew each time, so that a renamed or relinked one counts.
    read : callable
        Reads them; raises a `SplitArrowError` if they are not as they should be. Its text
        must hold no secret.
    on_failure : callable
        Told why a change was not taken over.
    clock : callable
        The time in seconds, from any start.

    Raises
    ------
    SplitArrowError
        What `read` raises the first time.
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
        self._told: tuple[object, str] | None = None
        self._checked = clock()
        self._signatures = self._look()
        self._value = read()

    def current(self) -> T:
        """Return what the files say, or what they last said when it could be read."""
        if self._clock() - self._checked >= _CHECK_SECONDS:
            with self._lock:
                if self._clock() - self._checked >= _CHECK_SECONDS:
                    self._check()
        return self._value

    def _check(self) -> None:
        self._checked = self._clock()
        signatures = self._look()  # before reading: a change in between is then seen next time
        if signatures == self._signatures:
            return
        try:
            self._value = self._read()
        except SplitArrowError as error:
            failure = (signatures, str(error))
            if failure != self._told:
                self._told = failure
                self._on_failure(str(error))
            return
        self._signatures = signatures
        self._told = None

    def _look(self) -> list[_Signature | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> _Signature | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def readable_by_others(path: Path) -> bool:
    """Tell whether users other than the file's owner and its group may read it."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False
