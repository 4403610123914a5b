"""Sets of row numbers in the serialization of Roaring bitmaps, as Delta's deletion vectors have it.

A set consists of containers of 65,536 numbers each. A container is an array of 16-bit numbers, a
bitmap or a list of runs, whichever is smallest ("Roaring Bitmap Format Specification"). The sets
stay serialized in memory: only the containers of the rows that are looked up are decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidDataError

_MAGIC = 1681511377
"""The number that precedes the portable 64-bit format ("Deletion Vector Format")."""
_CONTAINER_ROWS = 1 << 16
_ARRAY_ROWS = 4096
_BITMAP_BYTES = _CONTAINER_ROWS // 8
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_OFFSETS_FROM = 4
"""The number of containers from which on a bitmap with runs has offsets."""


@dataclass(frozen=True, slots=True)
class _Container:
    """The numbers of a set in one range of 65,536 numbers."""

    begin: int
    """The first number of the range."""
    count: int
    """How many numbers of the range are in the set."""
    data: memoryview
    """The serialized container, without the number of runs."""
    decode: Callable[[memoryview], NDArray[np.bool_]]
    """Returns which of the 65,536 numbers are in the set."""

    def mask(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Return which numbers from `begin` to before `end`, all of the range, are in the set."""
        return self.decode(self.data)[begin - self.begin : end - self.begin]


class RowSet:
    """A set of row numbers.

    Examples
    --------
    >>> from base64 import b64decode
    >>> data = b64decode("0dM5ZAEAAAAAAAAAAAAAADowAAABAAAAAAACABAAAAADAAQACwA=")
    >>> rows = RowSet.parse(data)
    >>> len(rows), rows.end, rows.count(4, 20), rows.mask(2, 6).tolist()
    (3, 12, 2, [False, True, True, False])
    """

    def __init__(self, containers: list[_Container]) -> None:
        self._containers = containers
        self._begins = [container.begin for container in containers]
        self._len = sum(container.count for container in containers)

    @classmethod
    def parse(cls, data: bytes) -> RowSet:
        """Parse a serialized set, which is kept.

        Raises `InvalidDataError` if it is malformed or truncated, or bytes follow it.
        """
        reader = _Reader(data)
        magic = reader.read_number(4)
        if magic != _MAGIC:
            raise InvalidDataError(
                f"the set of rows begins with the number {magic}; expected {_MAGIC}"
            )
        containers: list[_Container] = []
        for _ in range(reader.read_number(8)):
            key = reader.read_number(4)
            for container in reader.read_bitmap(key << 32):
                if containers and container.begin <= containers[-1].begin:
                    raise InvalidDataError("the containers of the set of rows are not in order")
                containers.append(container)
        reader.check_end()
        return cls(containers)

    def __len__(self) -> int:
        return self._len

    @property
    def end(self) -> int:
        """The number after the largest row number; 0 if the set is empty."""
        if not self._containers:
            return 0
        last = self._containers[-1]
        return last.begin + int(np.flatnonzero(last.decode(last.data))[-1]) + 1

    def mask(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Return which rows from `begin` to before `end` are in the set."""
        mask = np.zeros(end - begin, np.bool_)
        for container, first, last in self._overlaps(begin, end):
            mask[first - begin : last - begin] = container.mask(first, last)
        return mask

    def count(self, begin: int, end: int) -> int:
        """Return how many rows from `begin` to before `end` are in the set."""
        return sum(
            container.count
            if last - first == _CONTAINER_ROWS
            else int(np.count_nonzero(container.mask(first, last)))
            for container, first, last in self._overlaps(begin, end)
        )

    def _overlaps(self, begin: int, end: int) -> Iterator[tuple[_Container, int, int]]:
        """Yield the containers of a range of rows, and the part of the range that each has."""
        index = bisect_left(self._begins, begin - _CONTAINER_ROWS + 1)
        for container in self._containers[index : bisect_left(self._begins, end)]:
            last = min(end, container.begin + _CONTAINER_ROWS)
            yield container, max(begin, container.begin), last


class _Reader:
    """Reads a serialized set. Raises `InvalidDataError` if it is malformed or truncated."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._position = 0

    def read(self, nbytes: int) -> memoryview:
        part = self._data[self._position : self._position + nbytes]
        if len(part) < nbytes:
            raise InvalidDataError(
                f"the set of rows ends at byte {len(self._data)}, within a part of {nbytes} bytes"
            )
        self._position += nbytes
        return part

    def read_number(self, nbytes: int) -> int:
        return int.from_bytes(self.read(nbytes), "little")

    def read_bitmap(self, begin: int) -> list[_Container]:
        """Return the containers of a 32-bit bitmap; `begin` is added to all numbers."""
        cookie = self.read_number(4)
        has_runs: NDArray[np.bool_] | None = None
        if cookie & 0xFFFF == _COOKIE_WITH_RUNS:
            size = (cookie >> 16) + 1
            flags = np.frombuffer(self.read((size + 7) // 8), np.uint8)
            has_runs = np.unpackbits(flags, bitorder="little").astype(np.bool_)
        elif cookie == _COOKIE:
            size = self.read_number(4)
        else:
            raise InvalidDataError(f"the set of rows has a bitmap with the unknown cookie {cookie}")
        header = np.frombuffer(self.read(4 * size), "<u2").astype(np.int64).reshape(size, 2)
        if has_runs is None or size >= _OFFSETS_FROM:
            self.read(4 * size)  # offsets, which follow from the sizes
        containers: list[_Container] = []
        for number, (key, rest) in enumerate(header.tolist()):
            count, decode = rest + 1, _decode_array
            if has_runs is not None and has_runs[number]:
                nbytes, decode = 4 * self.read_number(2), _decode_runs
            elif count <= _ARRAY_ROWS:
                nbytes = 2 * count
            else:
                nbytes, decode = _BITMAP_BYTES, _decode_bitmap
            data = self.read(nbytes)
            found = int(np.count_nonzero(decode(data)))
            if found != count:
                raise InvalidDataError(
                    f"a container of the set of rows has {found} rows; its header states {count}"
                )
            containers.append(_Container(begin + key * _CONTAINER_ROWS, count, data, decode))
        return containers

    def check_end(self) -> None:
        rest = len(self._data) - self._position
        if rest:
            raise InvalidDataError(f"{rest} bytes follow the set of rows")


def _decode_array(data: memoryview) -> NDArray[np.bool_]:
    mask = np.zeros(_CONTAINER_ROWS, np.bool_)
    mask[np.frombuffer(data, "<u2")] = True
    return mask


def _decode_bitmap(data: memoryview) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").view(np.bool_)


def _decode_runs(data: memoryview) -> NDArray[np.bool_]:
    mask = np.zeros(_CONTAINER_ROWS, np.bool_)
    for first, rest in np.frombuffer(data, "<u2").reshape(-1, 2).tolist():
        mask[first : first + rest + 1] = True
    return mask
