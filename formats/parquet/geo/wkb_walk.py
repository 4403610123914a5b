"""Reading the rest of one value of well-known binary, part by part."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ....errors import InvalidDataError

MAX_DEPTH = 16
"""The largest number of geometries inside each other."""
POINT, LINE_STRING, POLYGON, COLLECTION = 1, 2, 3, 7
ANY, RING = 0, -1
_SIZES = (16, 24, 24, 32)
_HEADERS = (struct.Struct(">BI"), struct.Struct("<BI"))
_COUNTS = (struct.Struct(">I"), struct.Struct("<I"))

Run = tuple[int, int, int, bool, bool]
"""The offset, the number of points, the flavor, the byte order, and whether it is a ring."""


class ValueWalk:
    """The rest of one value.

    Parameters
    ----------
    row : int
        The index of the value, for errors.
    data : bytes
        The rest of its bytes.
    groups : list of list of int
        For each group that is open, the parts left, their type and their flavor.
    little : list of bool
        For each group, the byte order of its rings.
    """

    def __init__(self, row: int, data: bytes, groups: list[list[int]], little: list[bool]) -> None:
        self._row = row
        self._data = data
        self._groups = groups
        self._little = little
        self._position = 0

    def read(self) -> Iterator[Run]:
        """Yield the runs of the rest; raise `InvalidDataError` if it is not valid."""
        groups = self._groups
        while groups:
            group = groups[-1]
            if not group[0]:
                groups.pop()
                self._little.pop()
                continue
            group[0] -= 1
            if group[1] == RING:
                yield self._read_run(group[2], self._little[-1], is_ring=True)
            else:
                run = self._read_geometry(group[1], group[2])
                if run is not None:
                    yield run
        if self._position != len(self._data):
            raise self._error("bytes follow the geometry")

    def _read_geometry(self, need: int, outer: int) -> Run | None:
        if self._position + 5 > len(self._data):
            raise self._error("it ends in a header")
        order = self._data[self._position]
        if order > 1:
            raise self._error(f"the byte order is {order}")
        code: int = _HEADERS[order].unpack_from(self._data, self._position)[1]
        flavor, kind = divmod(code, 1000)
        if flavor > 3 or not POINT <= kind <= COLLECTION:
            raise self._error(f"the type code is {code}")
        if need not in (ANY, kind):
            raise self._error(f"a member has the type {kind}; expected {need}")
        if outer not in (-1, flavor):
            raise self._error("a member has other dimensions than the whole")
        self._position += 5
        if kind == POINT:
            return self._skip_points(1, flavor, bool(order), is_ring=False)
        if kind == LINE_STRING:
            return self._read_run(flavor, bool(order), is_ring=False)
        if len(self._groups) >= MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} levels deep")
        count = self._read_count(bool(order))
        if count * 4 > len(self._data) - self._position:
            room = len(self._data) - self._position
            raise self._error(f"{count} parts do not fit in {room} bytes")
        need = RING if kind == POLYGON else ANY if kind == COLLECTION else kind - 3
        self._groups.append([count, need, flavor])
        self._little.append(bool(order))
        return None

    def _read_run(self, flavor: int, little: bool, *, is_ring: bool) -> Run:
        return self._skip_points(self._read_count(little), flavor, little, is_ring=is_ring)

    def _skip_points(self, count: int, flavor: int, little: bool, *, is_ring: bool) -> Run:
        offset = self._position
        room = len(self._data) - offset
        if count * _SIZES[flavor] > room:
            raise self._error(f"{count} points do not fit in {room} bytes")
        self._position += count * _SIZES[flavor]
        return offset, count, flavor, little, is_ring

    def _read_count(self, little: bool) -> int:
        if self._position + 4 > len(self._data):
            raise self._error("it ends in a count")
        (count,) = _COUNTS[little].unpack_from(self._data, self._position)
        self._position += 4
        return count

    def _error(self, problem: str) -> InvalidDataError:
        return InvalidDataError(f"invalid WKB in value {self._row}: {problem}")
