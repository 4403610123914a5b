"""Well-known binary, checked and located: all values of an array step by step at once.

The format is the ISO variant, in both byte orders, with X and Y and perhaps Z and M ("Geospatial
Types"). Each step reads one header or one ring of every value that has one left, so that the cost
of Python is that of the value with the most parts. When few values are left, `ValueWalk` reads the
rest of each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ....errors import InvalidDataError

MAX_DEPTH = 16
"""The largest number of geometries inside each other."""
POINT, LINE_STRING, POLYGON, COLLECTION = 1, 2, 3, 7
ANY, RING = 0, -1
_SIZES = (16, 24, 24, 32)
_HEADERS = (struct.Struct(">BI"), struct.Struct("<BI"))
_COUNTS = (struct.Struct(">I"), struct.Struct("<I"))

PointSequence = tuple[int, int, int, bool, bool]
"""The offset, the number of points, the flavor, the byte order, and whether it is a ring."""


class ValueWalk:
    """The rest of one value."""

    def __init__(self, row: int, data: bytes, groups: list[list[int]], little: list[bool]) -> None:
        self._row = row
        self._data = data
        self._groups = groups
        self._little = little
        self._position = 0

    def read(self) -> Iterator[PointSequence]:
        """Yield the sequences of the rest; raise `InvalidDataError` if it is not valid."""
        groups = self._groups
        while groups:
            group = groups[-1]
            if not group[0]:
                groups.pop()
                self._little.pop()
                continue
            group[0] -= 1
            if group[1] == RING:
                yield self._read_sequence(group[2], self._little[-1], is_ring=True)
            else:
                sequence = self._read_geometry(group[1], group[2])
                if sequence is not None:
                    yield sequence
        if self._position != len(self._data):
            raise self._error("bytes follow the geometry")

    def _read_geometry(self, need: int, outer: int) -> PointSequence | None:
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
            return self._read_sequence(flavor, bool(order), is_ring=False)
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

    def _read_sequence(self, flavor: int, little: bool, *, is_ring: bool) -> PointSequence:
        return self._skip_points(self._read_count(little), flavor, little, is_ring=is_ring)

    def _skip_points(
        self, count: int, flavor: int, little: bool, *, is_ring: bool
    ) -> PointSequence:
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


_FEW_VALUES = 8
"""The number of values that are read one by one to their end, since a step of few costs more."""
_HEADER, _COUNT = 5, 4
_DIMENSIONS = np.array([2, 3, 3, 4])
"""The numbers of coordinates of a point, by the thousands of the type code."""
_SMALLEST_CHILD = {ANY: 9, RING: 4, POINT: 21, LINE_STRING: 9, POLYGON: 9}


@dataclass(frozen=True, slots=True)
class PointSequences:
    """Sequences of points: a point, the points of a line, or those of a ring. One item for each."""

    rows: Any
    """The index of the value in the array (int64)."""
    offsets: Any
    """The offset of the first coordinate in the data, in bytes (int64)."""
    counts: Any
    """The number of points (int64)."""
    flavors: Any
    """Which of Z and M a point has beside X and Y: 0 none, 1 Z, 2 M, 3 both (int64)."""
    little: Any
    """Whether the coordinates are little-endian (bool)."""
    rings: Any
    """Whether it is a ring of a polygon (bool)."""


@dataclass(frozen=True, slots=True)
class Geometries:
    """The geometries of an array."""

    data: Any
    """The bytes of all values (uint8)."""
    rows: int
    """The number of values."""
    codes: Any
    """The type code of each value; 0 for null (int64)."""
    sequences: PointSequences


@dataclass(slots=True)
class _Parser:
    """The state of all values that are not read to their end."""

    data: Any
    rows: Any
    positions: Any
    ends: Any
    depths: Any
    left: Any
    """For each value and depth, the number of children left."""
    needs: Any
    """For each value and depth, the type of the children; `ANY` or `RING`."""
    flavors: Any
    """For each value and depth, the flavor of the children; -1 before the first header."""
    little: Any
    """For each value and depth, the byte order of rings."""
    first_row: int = 0
    """The number that errors give to the first value."""
    found: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """The sequences of each step, as the arrays of `PointSequences`."""
    singles: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    """Single sequences."""

    def fail(self, bad: Any, rows: Any, problem: str | Callable[[int], str]) -> None:
        """Raise an error if any of some values is bad."""
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            text = problem if isinstance(problem, str) else problem(index)
            row = int(rows[index]) + self.first_row
            raise InvalidDataError(f"invalid WKB in value {row}: {text}")

    def read_integers(self, positions: Any, little: Any) -> Any:
        """Return the unsigned 32-bit integers at some positions."""
        data = self.data[positions[:, None] + np.arange(4)]
        small = data.view("<u4")[:, 0].astype(np.int64)
        return np.where(little, small, data.view(">u4")[:, 0].astype(np.int64))

    def pop(self) -> None:
        """Go up from each group that has no children left, and drop the values that are done."""
        while True:
            items = np.arange(len(self.rows))
            done = (self.depths >= 0) & (self.left[items, self.depths] == 0)
            if not done.any():
                return
            self.depths[done] -= 1
            ended = self.depths < 0
            if ended.any():
                trailing = ended & (self.positions != self.ends)
                self.fail(trailing, self.rows, "bytes follow the geometry")
                self.keep(~ended)

    def keep(self, kept: Any) -> None:
        """Drop values."""
        for name in ("rows", "positions", "ends", "depths", "left", "needs", "flavors", "little"):
            setattr(self, name, getattr(self, name)[kept])

    def step(self) -> None:
        """Read one ring or one header of each value."""
        items = np.arange(len(self.rows))
        self.left[items, self.depths] -= 1
        rings = self.needs[items, self.depths] == RING
        ringed = items[rings]
        if len(ringed):
            depths = self.depths[ringed]
            self.read_sequence(
                ringed, self.flavors[ringed, depths], self.little[ringed, depths], True
            )
        headed = items[~rings]
        if len(headed):
            self.read_headers(headed)

    def read_sequence(self, items: Any, flavors: Any, little: Any, is_ring: bool) -> None:
        """Read a count of points, and skip the points."""
        rows = self.rows[items]
        self.fail(self.positions[items] + _COUNT > self.ends[items], rows, "it ends in a count")
        counts = self.read_integers(self.positions[items], little)
        self.positions[items] += _COUNT
        self.skip_points(items, counts, flavors, little, is_ring)

    def skip_points(
        self, items: Any, counts: Any, flavors: Any, little: Any, is_ring: bool
    ) -> None:
        rows, positions = self.rows[items], self.positions[items]
        nbytes = counts * _DIMENSIONS[flavors] * 8
        room = self.ends[items] - positions
        self.fail(
            nbytes > room,
            rows,
            lambda index: f"{int(counts[index])} points do not fit in {int(room[index])} bytes",
        )
        rings = np.full(len(items), is_ring)
        self.found.append((rows, positions, counts, flavors, little, rings))
        self.positions[items] = positions + nbytes

    def read_headers(self, items: Any) -> Any:
        """Read a byte order and a type code each, and what follows; return the codes."""
        rows, positions, depths = self.rows[items], self.positions[items], self.depths[items]
        self.fail(positions + _HEADER > self.ends[items], rows, "it ends in a header")
        orders = self.data[positions]
        self.fail(orders > 1, rows, lambda index: f"the byte order is {int(orders[index])}")
        little = orders == 1
        codes = self.read_integers(positions + 1, little)
        flavors, types = codes // 1000, codes % 1000
        unknown = (flavors > 3) | (types < POINT) | (types > COLLECTION)
        self.fail(unknown, rows, lambda index: f"the type code is {int(codes[index])}")
        needs = self.needs[items, depths]
        wrong = (needs != ANY) & (needs != types)
        self.fail(
            wrong,
            rows,
            lambda index: f"a member has the type {int(types[index])}; expected {needs[index]}",
        )
        outer = self.flavors[items, depths]
        self.fail(
            (outer >= 0) & (outer != flavors), rows, "a member has other dimensions than the whole"
        )
        self.positions[items] += _HEADER
        self.read_contents(items, types, flavors, little)
        return codes

    def read_contents(self, items: Any, types: Any, flavors: Any, little: Any) -> None:
        points = types == POINT
        if points.any():
            ones = np.ones(int(points.sum()), np.int64)
            self.skip_points(items[points], ones, flavors[points], little[points], False)
        lines = types == LINE_STRING
        if lines.any():
            self.read_sequence(items[lines], flavors[lines], little[lines], False)
        groups = types > LINE_STRING
        if groups.any():
            self.push(items[groups], types[groups], flavors[groups], little[groups])

    def push(self, items: Any, types: Any, flavors: Any, little: Any) -> None:
        """Go down into polygons, multi-part geometries and collections."""
        rows = self.rows[items]
        depths = self.depths[items] + 1
        self.fail(depths >= MAX_DEPTH, rows, f"it is nested more than {MAX_DEPTH} levels deep")
        self.fail(self.positions[items] + _COUNT > self.ends[items], rows, "it ends in a count")
        counts = self.read_integers(self.positions[items], little)
        self.positions[items] += _COUNT
        needs = np.where(types == COLLECTION, ANY, types - 3)
        needs = np.where(types == POLYGON, RING, needs)
        smallest = np.array([_SMALLEST_CHILD[int(need)] for need in (0, 1, 2, 3, -1)])[needs]
        room = self.ends[items] - self.positions[items]
        self.fail(
            counts * smallest > room,
            rows,
            lambda index: f"{int(counts[index])} parts do not fit in {int(room[index])} bytes",
        )
        self.depths[items] = depths
        self.left[items, depths] = counts
        self.needs[items, depths] = needs
        self.flavors[items, depths] = flavors
        self.little[items, depths] = little

    def finish(self, index: int) -> None:
        """Read one value to its end."""
        row = int(self.rows[index])
        depth = int(self.depths[index])
        groups = [
            [int(part[index, level]) for part in (self.left, self.needs, self.flavors)]
            for level in range(depth + 1)
        ]
        position, end = int(self.positions[index]), int(self.ends[index])
        value = bytes(self.data[position:end])
        little = [bool(each) for each in self.little[index, : depth + 1]]
        walk = ValueWalk(row + self.first_row, value, groups, little)
        for offset, count, flavor, is_little, is_ring in walk.read():
            self.singles.append((row, position + offset, count, flavor, is_little, is_ring))


def parse_wkb(array: Any, first_row: int = 0) -> Geometries:
    """Check all values of an array, and locate their points. A null has none.

    Raises `InvalidDataError` if a value is not valid WKB; the error has its index, from `first_row`
    on.

    Examples
    --------
    >>> point = bytes.fromhex("0101000000" + "00" * 16)
    >>> parse_wkb(pa.array([point, None])).codes.tolist()
    [1, 0]
    """
    data, begins, ends = _locate_values(array)
    valid = np.flatnonzero(np.asarray(array.is_valid()))
    count = len(valid)
    shape = (count, MAX_DEPTH)
    parser = _Parser(
        data,
        valid,
        begins[valid],
        ends[valid],
        np.zeros(count, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, -1, np.int64),
        np.zeros(shape, np.bool_),
        first_row,
    )
    codes = np.zeros(len(array), np.int64)
    if count:
        codes[valid] = parser.read_headers(np.arange(count))
        parser.pop()
    while len(parser.rows) > _FEW_VALUES:
        parser.step()
        parser.pop()
    for index in range(len(parser.rows)):
        parser.finish(index)
    return Geometries(data, len(array), codes, _collect(parser))


def _locate_values(array: Any) -> tuple[Any, Any, Any]:
    """Return the bytes of an array, and where each value begins and ends in them."""
    if array.type not in (pa.binary(), pa.large_binary()):
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    width = np.int32 if array.type == pa.binary() else np.int64
    bounds = np.zeros(1, np.int64)
    if offsets is not None and len(array):
        bounds = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    flat = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return flat, bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)


def _collect(parser: _Parser) -> PointSequences:
    types = (np.int64, np.int64, np.int64, np.int64, np.bool_, np.bool_)
    parts = [tuple(np.zeros(0, each) for each in types), *parser.found]
    if parser.singles:
        columns = zip(*parser.singles, strict=True)
        parts.append(
            tuple(np.array(column, each) for column, each in zip(columns, types, strict=True))
        )
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    kept = joined[2] > 0
    return PointSequences(*(column[kept] for column in joined))


X, Y, Z, M = range(4)
_COORDINATES = {0: (X, Y), 1: (X, Y, Z), 2: (X, Y, M), 3: (X, Y, Z, M)}
"""The dimensions that a point has, by its flavor."""
_MAX_NUMBERS = 1 << 20
"""The largest number of coordinates in memory at a time, if no single sequence is larger."""


@dataclass(frozen=True, slots=True)
class PointBlock:
    """The points of some sequences."""

    rows: Any
    """For each sequence, the index of the value in the array."""
    rings: Any
    """For each sequence, whether it is a ring."""
    starts: Any
    """For each sequence, the index of its first point."""
    dimensions: dict[int, Any]
    """The coordinates of all points, by dimension: `X`, `Y`, perhaps `Z` and `M` (float64)."""

    def reduce(self, dimension: int, ufunc: Any) -> Any:
        """Return a value for each sequence: ``numpy.fmin`` or ``numpy.fmax`` of its coordinates."""
        return ufunc.reduceat(self.dimensions[dimension], self.starts)


def iter_points(geometries: Geometries) -> Iterator[PointBlock]:
    """Yield the points of all sequences in blocks. Their order is not that of the array."""
    sequences = geometries.sequences
    # Coordinates are not aligned, but those of one sequence have the same offset modulo 8.
    shifts = sequences.offsets % 8
    keys = (sequences.flavors * 2 + sequences.little) * 8 + shifts
    for key in np.unique(keys):
        selected = np.flatnonzero(keys == key)
        flavor, little, shift = int(key) // 16, int(key) // 8 % 2, int(key) % 8
        names = _COORDINATES[flavor]
        numbers = _view(geometries.data, shift, bool(little))
        sizes = sequences.counts[selected] * len(names)
        blocks = np.cumsum(sizes) // _MAX_NUMBERS
        for block in np.unique(blocks):
            chosen = selected[blocks == block]
            counts = sequences.counts[chosen]
            ends = np.cumsum(counts)
            firsts = sequences.offsets[chosen] // 8
            steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
            places = np.repeat(firsts, counts) + steps * len(names)
            found = {name: _take(numbers, places + index) for index, name in enumerate(names)}
            yield PointBlock(sequences.rows[chosen], sequences.rings[chosen], ends - counts, found)


def _take(numbers: Any, places: Any) -> Any:
    """Return some numbers, with quiet NaN only: ``fmin`` and ``fmax`` return a signaling one."""
    taken = numbers[places]
    taken[np.isnan(taken)] = np.nan
    return taken


def _view(data: Any, shift: int, little: bool) -> Any:
    count = (len(data) - shift) // 8
    view = data[shift : shift + count * 8].view("<f8" if little else ">f8")
    return view if little else view.astype(np.float64)
