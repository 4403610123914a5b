"""The order of an epoch: which rows each rank delivers, and in which batch.

An epoch is a sequence of rows: blocks of the dataset in a shuffled order, with shuffled rows. The
ranks divide this sequence into contiguous shares. A share is divided into *lanes*, which its
batches come from in turn, so that batch `k` comes from lane `k % interleave`. A loader with `n`
workers takes batch `k` from worker `k % n`. The order does not depend on `n`, and each lane belongs
to one worker if `n` divides `interleave`.

This module does no I/O.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..formats.arguments import check_choice, check_integer

Even = Literal["drop", "pad", "uneven"]
"""What happens to the rows that remain when all ranks have the same number."""
Span = tuple[int, int]
"""The first of some consecutive positions, and the one after the last."""


class Piece(NamedTuple):
    """Consecutive rows of a block."""

    block: int
    """The index of the block."""
    begin: int
    """The first row."""
    end: int
    """The row after the last."""


@dataclass(frozen=True, slots=True)
class Division:
    """How the rows of an epoch are divided into batches of ranks. It is valid once built."""

    world_size: int
    """The number of ranks."""
    batch_rows: int
    """The number of rows in a batch. The last batch of a rank may have fewer."""
    interleave: int
    """The number of lanes."""
    even: Even
    """``drop`` leaves out the remainder, ``pad`` repeats rows, ``uneven`` gives some ranks one row
    more."""

    def __post_init__(self) -> None:
        for name in ("world_size", "batch_rows", "interleave"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 1))
        check_choice("even", self.even, Even)


class Spans:
    """A sequence of positions, as spans in order."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = [span for span in spans if span[0] < span[1]]
        self._ends = list(accumulate(end - begin for begin, end in self._spans))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slice(self, begin: int, end: int) -> Iterator[Span]:
        """Yield the spans of the positions from `begin` to `end` of this sequence."""
        index = bisect_right(self._ends, begin)
        while begin < end:
            _, last = self._spans[index]
            start = last - (self._ends[index] - begin)
            count = min(end, self._ends[index]) - begin
            yield start, start + count
            begin += count
            index += 1


class Share:
    """The batches of one rank."""

    def __init__(self, rows: Spans, division: Division, rank: int) -> None:
        self._rows = rows
        total, ranks = len(rows), division.world_size
        if division.even == "uneven":
            self._begin = rank * (total // ranks) + min(rank, total % ranks)
            self._count = total // ranks + (rank < total % ranks)
        else:
            self._count = total // ranks if division.even == "drop" else -(-total // ranks)
            self._begin = rank * self._count
        self._batch_rows = division.batch_rows
        self.batches = -(-self._count // self._batch_rows)
        """The number of batches."""
        self.lanes = max(1, min(division.interleave, self.batches))
        """The number of lanes."""
        self._tail = self._count - (self.batches - 1) * self._batch_rows
        self._last = self._place(self.batches - 1) if self.batches else -1

    def batch(self, number: int) -> list[Span]:
        """Return the positions of a batch."""
        place = self._place(number)
        begin, end = self._offset(place), self._offset(place + 1)
        return list(self._wrap(self._begin + begin, self._begin + end))

    def rest(self, steps: int, shifts: Mapping[int, int] | None = None) -> Iterator[Span]:
        """Yield the positions after the first `steps` batches, without those that are repeated.

        `shifts` are the rows that each lane has left out besides.
        """
        total = len(self._rows)
        for lane in range(self.lanes):
            first = max(0, -((lane - steps) // self.lanes))
            begin, end = self._lane_begin(lane) + first, self._lane_begin(lane + 1)
            if begin < end:
                row = self._begin + self._offset(begin) + (shifts or {}).get(lane, 0)
                last = min(self._begin + self._offset(end), total)
                yield from self._rows.slice(min(row, last), last)

    def list_blocks(self, order: EpochOrder, lanes: Iterable[int], steps: int) -> list[int]:
        """Return the blocks of some lanes, in the order in which batches after `steps` need them.

        A block is there for each lane that needs it.
        """
        found: list[tuple[int, int]] = []
        for lane in lanes:
            first = max(0, -((lane - steps) // self.lanes))
            begin, end = self._lane_begin(lane) + first, self._lane_begin(lane + 1)
            rows, last = 0, -1
            spans = self._wrap(self._begin + self._offset(begin), self._begin + self._offset(end))
            for piece in order.locate(spans):
                if piece.block != last:
                    number = first + rows // self._batch_rows
                    found.append((lane + number * self.lanes, piece.block))
                last = piece.block
                rows += piece.end - piece.begin
        return [block for _, block in sorted(found, key=itemgetter(0))]

    def _place(self, number: int) -> int:
        """Return the position of a batch among all batches of all lanes, lane after lane."""
        return self._lane_begin(number % self.lanes) + number // self.lanes

    def _lane_begin(self, lane: int) -> int:
        count, longer = divmod(self.batches, self.lanes)
        return lane * count + min(lane, longer)

    def _offset(self, place: int) -> int:
        """Return the first row of the batch at a place. The last batch may be shorter."""
        missing = self._batch_rows - self._tail if place > self._last else 0
        return place * self._batch_rows - missing

    def _wrap(self, begin: int, end: int) -> Iterator[Span]:
        """Yield positions; those after the last one continue at the first."""
        total = len(self._rows)
        while begin < end:
            start = begin % total
            count = min(end - begin, total - start)
            yield from self._rows.slice(start, start + count)
            begin += count


def remaining_rows(
    rows: Spans,
    division: Division,
    steps: int,
    find_shifts: Callable[[int, int], Mapping[int, int]],
) -> Spans:
    """Return the positions that no rank has delivered after `steps` batches of each rank.

    `find_shifts` returns the rows that each lane of a rank has left out, given its lanes.
    """
    spans: list[Span] = []
    for rank in range(division.world_size):
        share = Share(rows, division, rank)
        spans += share.rest(steps, find_shifts(rank, share.lanes))
    return Spans(spans)


class EpochOrder:
    """The sequence of all rows in an epoch."""

    def __init__(
        self, block_rows: Sequence[int], seed: int, epoch: int | str, *, shuffle: bool
    ) -> None:
        self._key = (seed, epoch)
        self._shuffle = shuffle
        self._order: list[int] = list(range(len(block_rows)))
        if shuffle:
            self._order = draw_permutation(len(block_rows), *self._key, "blocks").to_pylist()
        self._ends = list(accumulate(block_rows[block] for block in self._order))
        self._rows = block_rows

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, spans: Iterable[Span]) -> Iterator[Piece]:
        """Yield the rows of blocks at some positions, in order."""
        for begin, end in spans:
            index = bisect_right(self._ends, begin)
            while begin < end:
                block = self._order[index]
                row = begin - self._ends[index] + self._rows[block]
                count = min(end, self._ends[index]) - begin
                if count:
                    yield Piece(block, row, row + count)
                begin += count
                index += 1

    def find(self, positions: Any) -> tuple[Any, Any]:
        """Return the blocks of positions, and their rows in the order of the epoch, as arrays."""
        order, ends, begins = self._arrays
        indices = np.searchsorted(ends, positions, side="right")
        return order[indices], positions - begins[indices]

    @cached_property
    def _arrays(self) -> tuple[Any, Any, Any]:
        """The blocks in order, and their ends and beginnings, as arrays."""
        order, ends = np.asarray(self._order, np.int64), np.asarray(self._ends, np.int64)
        return order, ends, np.concatenate([[0], ends[:-1]])[: len(ends)]

    @property
    def is_shuffled(self) -> bool:
        """Whether blocks and rows are shuffled."""
        return self._shuffle

    def permutation(self, block: int) -> Any:
        """Return the order of the rows of a block, or None if they are not shuffled."""
        if not self._shuffle:
            return None
        return draw_permutation(self._rows[block], *self._key, block)


def merge_ranges(ranges: Sequence[range]) -> tuple[range, ...]:
    """Return ascending ranges without overlap that have the same numbers.

    Examples
    --------
    >>> merge_ranges([range(5, 7), range(0, 2), range(1, 5)])
    (range(0, 7),)
    """
    merged: list[range] = []
    for each in sorted(ranges, key=lambda each: each.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(each.stop, merged[-1].stop))
        else:
            merged.append(each)
    return tuple(merged)


def draw_permutation(count: int, *key: int | str) -> Any:
    """Return a permutation of the numbers below `count` that depends on nothing but the key.

    Equal keys give equal permutations on every machine and with every version of a library: the
    numbers are sorted by a hash (the finalizer of SplitMix64).

    Examples
    --------
    >>> draw_permutation(5, 7, 0).to_pylist() == draw_permutation(5, 7, 0).to_pylist()
    True
    """
    start = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    hashes = pc.add(_uint64(start), pc.multiply(_range(count), _uint64(0x9E3779B97F4A7C15)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        hashes = _mix(hashes, shift, factor)
    return pc.array_sort_indices(hashes)


def _mix(hashes: Any, shift: int, factor: int) -> Any:
    # Inside the loop, pyright would need 6 seconds to infer the types.
    mixed = pc.bit_wise_xor(hashes, pc.shift_right(hashes, _uint64(shift)))
    return pc.multiply(mixed, _uint64(factor))


def _range(count: int) -> Any:
    return _numbers(1 << max(16, (count - 1).bit_length()))[:count]


@lru_cache(maxsize=1)
def _numbers(count: int) -> Any:
    ones = pa.repeat(_uint64(1), count)
    return pc.subtract(pc.cumulative_sum(ones), _uint64(1))


def _uint64(value: int) -> Any:
    # pyarrow.scalar and pyarrow.array import pandas, which takes longer than an epoch may.
    memory = pa.py_buffer(value.to_bytes(8, "little"))
    return pa.Array.from_buffers(pa.uint64(), 1, [None, memory])[0]
