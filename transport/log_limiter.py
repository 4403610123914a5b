"""Limits on how often the same event is logged, so that a flood of events cannot fill a disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

_MAX_KEYS = 1000


class LogLimiter:
    """Lets a number of equal events through per period of `seconds`, and counts the others.

    Any thread may use it.

    Examples
    --------
    >>> limiter = LogLimiter()
    >>> [limiter.admit("cannot accept") for _ in range(3)]
    [0, None, None]
    >>> limiter.left_out("cannot accept")
    2
    """

    def __init__(
        self,
        limit: int = 1,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._periods: dict[Hashable, tuple[float, int]] = {}

    def admit(self, kind: Hashable) -> int | None:
        """Return how many events the last period left out, or None to leave this one out.

        The number is 0 except for the first event of a period.
        """
        now = self._clock()
        with self._lock:
            begin, count = self._periods.get(kind, (now, 0))
            if now - begin >= self._seconds:
                left_out = max(0, count - self._limit)
                begin, count = now, 0
            else:
                left_out = 0
            if kind not in self._periods and len(self._periods) >= _MAX_KEYS:
                self._periods.clear()
            self._periods[kind] = (begin, count + 1)
        return left_out if count < self._limit else None

    def left_out(self, kind: Hashable) -> int:
        """Return how many events of a kind this period has left out so far."""
        return max(0, self._periods.get(kind, (0.0, 0))[1] - self._limit)
