"""What failed lately: the locations and servers that a client tries last for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FIRST_SECONDS = 30.0
"""The time for which a first failure counts. Each further failure after that time doubles it."""
MAX_SECONDS = 300.0
"""The longest time."""
_MAX_KEYS = 256


@dataclass
class _Failure:
    seconds: float
    ends: float


class FailureMemory:
    """Remembers failures for a while. A success ends it. Safe for several threads.

    Examples
    --------
    >>> memory = FailureMemory()
    >>> memory.add("tcp://a:8816")
    >>> "tcp://a:8816" in memory, "tcp://b:8816" in memory
    (True, False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, _Failure] = OrderedDict()

    def add(self, key: str) -> None:
        """Record a failure. One that is remembered already does not count again."""
        with self._lock:
            now, known = self._clock(), self._failures.get(key)
            if known is None:
                self._failures[key] = _Failure(FIRST_SECONDS, now + FIRST_SECONDS)
            elif now >= known.ends:
                known.seconds = min(2 * known.seconds, MAX_SECONDS)
                known.ends = now + known.seconds
            if len(self._failures) > _MAX_KEYS:
                self._failures.popitem(last=False)

    def discard(self, key: str) -> None:
        """Record a success."""
        with self._lock:
            self._failures.pop(key, None)

    def __contains__(self, key: object) -> bool:
        """Return whether a failure counts now."""
        with self._lock:
            known = self._failures.get(key) if isinstance(key, str) else None
            return known is not None and self._clock() < known.ends

    def has_failed(self, key: str) -> bool:
        """Return whether the last attempt failed, however long ago."""
        return key in self._failures
