"""A clock that tests advance."""

from __future__ import annotations


class Clock:
    """A clock that moves only when a test advances it."""

    def __init__(self, now: float = 1_900_000_000.25) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
