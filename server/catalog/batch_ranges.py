"""Ranges of stored record batches or row groups: which ones a reader gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ...protocol.request import Request

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BatchRanges:
    """The stored record batches or row groups to read.

    Examples
    --------
    >>> ranges = BatchRanges(((0, 1), (3, 5)))
    >>> ranges.select("abcdef")
    ['a', 'd', 'e']
    >>> ranges.skip(2, 6)
    BatchRanges(ranges=((4, 5),))
    >>> ranges.within(2, 2)
    BatchRanges(ranges=((1, 2),))
    """

    ranges: tuple[tuple[int, int], ...] | None = None
    """The first one of each range and the one after its last, in ascending order and without
    overlap. None means all."""

    @classmethod
    def of(cls, request: Request) -> BatchRanges:
        """Return the ranges of a request."""
        return cls(request.batch_ranges)

    @property
    def is_all(self) -> bool:
        """Whether everything is read."""
        return self.ranges is None

    @property
    def is_sparse(self) -> bool:
        """Whether something between two ranges is not read."""
        return self.ranges is not None and len(self.ranges) > 1

    def select(self, items: Sequence[_T]) -> Sequence[_T]:
        """Return the items to read, of all items."""
        if self.ranges is None:
            return items
        return [item for first, end in self.ranges for item in items[first:end]]

    def iterate(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items to read, of all items. Those after the last one are not taken."""
        iterator, position = iter(items), 0
        if self.ranges is None:
            yield from iterator
            return
        for first, end in self.ranges:
            yield from islice(iterator, first - position, end - position)
            position = end

    def skip(self, count: int, total: int) -> BatchRanges:
        """Return the ranges without their first `count` items, of `total` items that exist."""
        left: list[tuple[int, int]] = []
        for first, end in ((0, total),) if self.ranges is None else self.ranges:
            skipped = min(count, end - first)
            count -= skipped
            if first + skipped < end:
                left.append((first + skipped, end))
        return BatchRanges(tuple(left))

    def within(self, begin: int, count: int) -> BatchRanges:
        """Return the part in `count` items from `begin` on, counted from there."""
        if self.ranges is None:
            return self
        clipped = ((max(first - begin, 0), min(end - begin, count)) for first, end in self.ranges)
        return BatchRanges(tuple((first, end) for first, end in clipped if first < end))


ALL_BATCHES = BatchRanges()
