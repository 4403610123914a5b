"""Counting the uses of a cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheUses:
    """The uses of a cache. Whoever counts holds the lock of the cache."""

    hits: int = 0
    """Uses that found the data."""
    misses: int = 0
    """Uses that did not."""

    def count(self, *, is_hit: bool) -> None:
        """Count a use."""
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1
