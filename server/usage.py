"""What a process of a server uses of the limits that all of its processes share."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Protocol


class Counts(Protocol):
    """Numbers of things in use, by a key: the streams of a principal, for example."""

    def take(self, key: str, limit: float) -> bool:
        """Count one more, and return whether it is within a limit. If not, it is not counted."""
        ...

    def release(self, key: str) -> None:
        """Count one less."""
        ...


class Usage(Protocol):
    """What a process uses, beside the other processes of the server if it has any."""

    @property
    def processes(self) -> int:
        """The number of processes of the server. They divide its memory for caches."""
        ...

    @property
    def streams(self) -> Counts:
        """The streams with signed tickets, by principal."""
        ...

    @property
    def addresses(self) -> Counts:
        """The connections of readers, by address."""
        ...

    def make_number(self) -> int:
        """Return the number of a new stream, which no other process of the server uses."""
        ...

    def set_load(self, connections: int | None) -> None:
        """Let the other processes know how many connections this one serves; None: no new ones."""
        ...

    @property
    def is_busier(self) -> bool:
        """Whether another process that accepts connections serves fewer of them."""
        ...


class LocalCounts:
    """The counts of a server with one process; see `Counts`."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def take(self, key: str, limit: float) -> bool:
        """Count one more; see `Counts.take`."""
        if self._counts[key] >= limit:
            if not self._counts[key]:
                del self._counts[key]
            return False
        self._counts[key] += 1
        return True

    def release(self, key: str) -> None:
        """Count one less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]


class LocalUsage:
    """The usage of a server with one process; see `Usage`."""

    is_busier = False
    processes = 1

    def __init__(self) -> None:
        self.streams = LocalCounts()
        self.addresses = LocalCounts()
        self._numbers = count(1)

    def make_number(self) -> int:
        """Return the number of a new stream."""
        return next(self._numbers)

    def set_load(self, connections: int | None) -> None:
        """Do nothing: there is no other process."""
