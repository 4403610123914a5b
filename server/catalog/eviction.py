"""Which shards a cache evicts and fetches next: those whose next use is furthest away go first.

A reader may announce the order in which it will open shards. The next use of such a shard is as far
away as the bytes of the shards that the reader opens before it. Of other shards, the next use is
estimated as LRU-2 does (O'Neil et al., 1993): as far away as the use before the last. A shard that
was used once has no such estimate, and goes before all others, so that a scan evicts only its own
shards. The uses of evicted shards are remembered for a while.

This module does no I/O, and has no clock.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter

_WINDOW = 64
"""How far a reader may be from the order that it announced, in shards."""
_STALE = 32
"""A shard that a reader has passed over is expected until the reader is so many shards further."""
_SAME_USE = 8
"""Uses of a shard are one if less than this part of the capacity is opened between them."""
_MAX_HISTORY = 65536
"""The evicted shards whose uses are remembered."""
ReaderId = tuple[str, str]
"""The principal of a reader, and the name that the principal has given to it."""


class _Reader:
    """The order of one reader, and how much of it is done."""

    def __init__(self, order: Sequence[str], sizes: Mapping[str, int], position: int) -> None:
        self._order = order
        self._begins = array("q", [0])
        for key in order:
            self._begins.append(self._begins[-1] + sizes[key])
        self._done = self._front = min(position, len(order))
        self._pending: dict[str, list[int]] = {}
        """The places of each shard in the order, from the last to the next."""
        for index in range(len(order) - 1, self._front - 1, -1):
            self._pending.setdefault(order[index], []).append(index)

    @property
    def keys(self) -> Collection[str]:
        """The shards that it will open."""
        return self._pending.keys()

    def count_before(self, key: str) -> int:
        """Return how many shards precede the next use of one that it will open."""
        return self._pending[key][-1] - self._done

    def measure_before(self, key: str) -> int:
        """Return how many bytes precede the next use of a shard that it will open."""
        return self._measure(self._pending[key][-1])

    def advance(self, key: str) -> list[str]:
        """Note that it opens a shard; return the shards that it will not open any more."""
        finished = self._take(key)
        while self._front < len(self._order):
            key = self._order[self._front]
            if self._pending.get(key, [-1])[-1] == self._front:
                if self._front >= self._done - _STALE:
                    break
                finished += self._take(key)
            self._front += 1
        return finished

    def list_next(self) -> Generator[tuple[int, str, int]]:
        """Yield the distance in bytes, the name and the size of the next shards, in order."""
        for index in range(self._front, len(self._order)):
            key = self._order[index]
            if self._pending.get(key, [-1])[-1] == index:
                yield self._measure(index), key, self._begins[index + 1] - self._begins[index]

    def _measure(self, index: int) -> int:
        return max(0, self._begins[index] - self._begins[self._done])

    def _take(self, key: str) -> list[str]:
        """Remove the next use of a shard; return the shard if this was its last use."""
        self._done += 1
        places = self._pending[key]
        places.pop()
        if places:
            return []
        del self._pending[key]
        return [key]


@dataclass(slots=True)
class _Uses:
    """The last use of a shard and the one before, as counts of the bytes opened until then."""

    last: float
    before: float = -math.inf


class EvictionPolicy:
    """Decides which shards a cache of `capacity` bytes evicts, and which ones it fetches ahead.

    Examples
    --------
    >>> policy = EvictionPolicy(30)
    >>> policy.announce(("me", "1"), ["a", "b", "c", "b"], dict.fromkeys("abc", 10))
    >>> for key in "abc":
    ...     policy.add(key, 10)
    ...     policy.use(key, 10)
    ('me', '1')
    ('me', '1')
    ('me', '1')
    >>> policy.list_victims()
    ['a', 'c', 'b']
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: dict[str, int] = {}
        self._uses: OrderedDict[str, _Uses] = OrderedDict()
        """The uses of shards, also of evicted ones, least recently used first."""
        self._readers: dict[ReaderId, _Reader] = {}
        self._announced: dict[str, set[ReaderId]] = {}
        """The readers that will open a shard, by shard."""
        self._opened = 0.0
        """The bytes of all shards that were opened: the scale of time."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the shards in the cache."""
        return self._sizes

    def announce(
        self, reader: ReaderId, order: Sequence[str], sizes: Mapping[str, int], position: int = 0
    ) -> None:
        """Note the order in which a reader opens shards, and how many of them are done.

        It replaces the previous order of the reader.
        """
        self.withdraw(reader)
        found = self._readers[reader] = _Reader(order, sizes, position)
        for key in found.keys:
            self._announced.setdefault(key, set()).add(reader)

    def withdraw(self, reader: ReaderId) -> None:
        """Forget the order of a reader, if it has announced one."""
        found = self._readers.pop(reader, None)
        self._finish(reader, () if found is None else found.keys)

    def add(self, key: str, nbytes: int) -> None:
        """Note that a shard is in the cache."""
        self._sizes[key] = nbytes

    def remove(self, key: str) -> None:
        """Note that a shard is not in the cache any more."""
        self._sizes.pop(key, None)

    def use(self, key: str, nbytes: int) -> ReaderId | None:
        """Note that a shard is opened; return the reader that announced it, or None."""
        uses = self._uses.setdefault(key, _Uses(-math.inf))
        self._uses.move_to_end(key)
        is_repeated = self._opened - uses.last <= self._capacity / _SAME_USE
        reader = self._find_reader(key, 0 if is_repeated else _WINDOW)
        if reader is not None:
            self._finish(reader, self._readers[reader].advance(key))
        elif not is_repeated:
            uses.before = uses.last
        if reader is not None or not is_repeated:
            self._opened += nbytes
        uses.last = self._opened
        self._forget()
        return reader

    def next_use(self, key: str) -> float:
        """Return how many bytes are opened before the next use of a shard, as far as is known."""
        uses = self._uses.get(key)
        estimated = math.inf if uses is None else self._opened - uses.before
        readers = self._announced.get(key)
        if not readers:
            return estimated
        nearest = min(self._readers[reader].measure_before(key) for reader in readers)
        return min(nearest * len(self._readers), estimated)

    def list_victims(self) -> list[str]:
        """Return the shards in the cache, in the order of their eviction."""
        never = _Uses(-math.inf)
        ranks = {key: (-self.next_use(key), self._uses.get(key, never).last) for key in self._sizes}
        return sorted(ranks, key=ranks.__getitem__)

    def make_room(
        self, excess: int, in_use: Collection[str], *, before: str | None = None
    ) -> list[str] | None:
        """Return the shards to evict so that the cache has `excess` bytes less, or all that it can.

        It chooses no shards in use. With `before`, it chooses only those whose next use is after
        that of this shard, and returns None if they are too few.
        """
        if excess <= 0:
            return []
        limit = -math.inf if before is None else self.next_use(before)
        found: list[str] = []
        for key in self.list_victims():
            if self.next_use(key) <= limit:
                break
            if key not in in_use:
                found.append(key)
                excess -= self._sizes[key]
                if excess <= 0:
                    return found
        return found if before is None else None

    def list_missing(self, nbytes: int) -> list[str]:
        """Return the shards that are not in the cache of the next `nbytes` that readers open."""
        found: list[str] = []
        seen: set[str] = set()
        for _, key, size in merge(*(reader.list_next() for reader in self._readers.values())):
            if key in seen:
                continue
            seen.add(key)
            nbytes -= size
            if nbytes < 0:
                break
            if key not in self._sizes:
                found.append(key)
        return found

    def _find_reader(self, key: str, most: int) -> ReaderId | None:
        """Return the reader with the nearest use of a shard, after at most so many others."""
        readers = self._announced.get(key, ())
        counts = ((self._readers[reader].count_before(key), reader) for reader in readers)
        count, nearest = min(counts, default=(0, None), key=itemgetter(0))
        return nearest if count <= most else None

    def _finish(self, reader: ReaderId, keys: Collection[str]) -> None:
        """Note that a reader does not open some shards any more."""
        for key in keys:
            readers = self._announced[key]
            readers.discard(reader)
            if not readers:
                del self._announced[key]

    def _forget(self) -> None:
        """Drop the uses of the shards that were evicted longest ago."""
        while len(self._uses) > len(self._sizes) + _MAX_HISTORY:
            key, uses = self._uses.popitem(last=False)
            if key in self._sizes:
                self._uses[key] = uses
