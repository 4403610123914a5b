"""Bounding boxes of geometries and of columns ("Bounding Box").

The edges of a GEOGRAPHY are not straight lines of a map. An edge goes the shorter way, so its
longitudes are those between its ends, across the antimeridian if that is shorter. Its latitudes may
go beyond those of its ends. They are those of a great circle, with a margin for the edges of an
ellipsoid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..logical_types import EDGES
from .wkb import Geometries, M, PointBlock, X, Y, Z, iter_points, parse_wkb


@dataclass(frozen=True, slots=True)
class Arcs:
    """Arcs of longitudes, each of one value of an array. A value may have several."""

    rows: Any
    """The index of the value in the array."""
    begins: Any
    """The longitude at which the arc begins in the west, from -180 to 180 degrees."""
    widths: Any
    """The width in degrees, at most 360."""

    @classmethod
    def concatenate(cls, parts: Sequence[Arcs]) -> Self:
        """Return the arcs of several blocks."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        return cls(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.begins for part in parts]),
            np.concatenate([part.widths for part in parts]),
        )

    def cover_rows(self, rows: int) -> tuple[Any, Any]:
        """Return the west and the east of the smallest arc that covers each value's arcs.

        Both are NaN for a value that has no arc.
        """
        west, east = np.full(rows, np.nan), np.full(rows, np.nan)
        known = ~np.isnan(self.begins)
        owners, begins, widths = self.rows[known], self.begins[known], self.widths[known]
        order = np.argsort(owners, kind="stable")
        owners, begins, widths = owners[order], begins[order], widths[order]
        values, firsts, counts = np.unique(owners, return_index=True, return_counts=True)
        single = counts == 1
        alone = firsts[single]
        west[values[single]], east[values[single]] = _end(begins[alone], widths[alone])
        for index in np.flatnonzero(~single):
            part = slice(firsts[index], firsts[index] + counts[index])
            row = values[index]
            west[row], east[row] = cover_arcs(begins[part], widths[part])
        return west, east


def cover_arcs(begins: Any, widths: Any) -> tuple[float, float]:
    """Return the west and the east of the smallest arc that covers some arcs.

    Examples
    --------
    >>> cover_arcs(np.array([170.0, -175.0]), np.array([5.0, 5.0]))
    (170.0, -170.0)
    """
    known = ~np.isnan(begins)
    begins, widths = begins[known], widths[known]
    if not len(begins):
        return math.nan, math.nan
    order = np.argsort(begins)
    begins, ends = begins[order], (begins + widths)[order]
    if (widths >= 360).any():
        return -180.0, 180.0
    reach = np.maximum.accumulate(ends)
    # Arcs that cross the antimeridian cover the west of the circle, too.
    reach = np.maximum(reach, reach[-1] - 360)
    gaps = np.append(begins[1:], begins[0] + 360) - np.maximum(reach, begins[0])
    widest = int(np.argmax(gaps))
    if gaps[-1] >= gaps[widest] - 1e-12 and reach[-1] <= 180:
        widest = len(gaps) - 1  # of equal gaps, that at the antimeridian, so no box crosses it
    if gaps[widest] <= 0:
        return -180.0, 180.0
    start = begins[(widest + 1) % len(begins)]
    end = reach[widest]
    return float(start), float(end - 360 if end > 180 else end)


def _end(begins: Any, widths: Any) -> tuple[Any, Any]:
    ends = begins + widths
    full = widths >= 360
    west = np.where(full, -180.0, begins)
    east = np.where(ends > 180, ends - 360, ends)
    return west, np.where(full, 180.0, east)


ELLIPSOID_MARGIN = 0.25
"""How far an edge of an ellipsoid may be from the great circle, in degrees of latitude."""
_HALF, _FULL = 180.0, 360.0


def bound_sequences(block: PointBlock, edges: str) -> tuple[Arcs, Any, Any]:
    """Return the longitudes, the southern and the northern latitude of each sequence.

    A ring that goes around a pole has all longitudes, and the latitudes up to the nearer pole.
    A sequence without a longitude or a latitude has NaN.
    """
    x, y, starts = block.dimensions[X], block.dimensions[Y], block.starts
    sequences = np.zeros(len(x), np.int64)
    sequences[starts[1:]] = 1
    sequences = np.cumsum(sequences)
    south = np.fmin.reduceat(y, starts)
    north = np.fmax.reduceat(y, starts)
    known = np.flatnonzero(~(np.isnan(x) | np.isnan(y)))
    # X and Y of points that have only one of them still count, but no edge begins or ends there.
    joined = np.flatnonzero(np.diff(sequences[known]) == 0) if len(known) else known
    first, second = known[joined], known[joined + 1] if len(joined) else known[joined]
    _extend_latitudes(x, y, first, second, sequences, south, north, edges)
    begins, widths, turns = _unroll(x, first, second, sequences, starts)
    _close_rings(block, sequences, y, turns, widths, south, north)
    begins = np.where(widths >= _FULL, -_HALF, (begins + _HALF) % _FULL - _HALF)
    return Arcs(block.rows, begins, np.minimum(widths, _FULL)), south, north


def _unroll(x: Any, first: Any, second: Any, sequences: Any, starts: Any) -> tuple[Any, Any, Any]:
    """Return the western longitude, the width and the sum of the turns of each sequence."""
    steps = np.zeros(len(x))
    deltas = (x[second] - x[first] + _HALF) % _FULL - _HALF
    steps[second] = deltas
    # The longitudes of a sequence, counted on beyond 180 degrees.
    base = _first_known(x, sequences, starts)
    sums = np.cumsum(steps)
    unrolled = base[sequences] + sums - sums[starts][sequences]
    unrolled[np.isnan(x)] = np.nan
    lonely = ~np.isnan(x)
    lonely[first] = lonely[second] = False
    unrolled[lonely] = x[lonely]  # points without an edge
    low, high = np.fmin.reduceat(unrolled, starts), np.fmax.reduceat(unrolled, starts)
    turns = np.zeros(len(starts))
    np.add.at(turns, sequences[second], deltas)
    return low, high - low, turns


def _first_known(x: Any, sequences: Any, starts: Any) -> Any:
    base = np.full(len(starts), np.nan)
    known = np.flatnonzero(~np.isnan(x))[::-1]
    base[sequences[known]] = x[known]  # the last assignment wins: the first point of the sequence
    return base


def _close_rings(
    block: PointBlock, sequences: Any, y: Any, turns: Any, widths: Any, south: Any, north: Any
) -> None:
    around = block.rings & (np.abs(turns) > _HALF)
    if not around.any():
        return
    widths[around] = _FULL
    totals = np.zeros(len(widths))
    np.add.at(totals, sequences, np.nan_to_num(y))
    north[around & (totals >= 0)] = 90.0
    south[around & (totals < 0)] = -90.0


def _extend_latitudes(
    x: Any, y: Any, first: Any, second: Any, sequences: Any, south: Any, north: Any, edges: str
) -> None:
    """Extend the latitudes of sequences by those of their edges."""
    if not len(first):
        return
    begin, end = _vector(x[first], y[first]), _vector(x[second], y[second])
    normal = np.cross(begin, end)
    length = np.linalg.norm(normal, axis=1)
    opposite = (length < 1e-9) & (np.einsum("ij,ij->i", begin, end) < 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        normal /= length[:, None]
        tilt = normal[:, 2]
        highest = np.degrees(np.arccos(np.clip(np.abs(tilt), 0, 1)))
    top = -tilt[:, None] * normal
    top[:, 2] += 1
    ahead = np.einsum("ij,ij->i", np.cross(normal, begin), top)
    behind = np.einsum("ij,ij->i", np.cross(normal, end), top)
    margin = 0.0 if edges == EDGES[0] else ELLIPSOID_MARGIN
    peak = np.where((ahead > 0) & (behind < 0), highest, -np.inf)
    trough = np.where((ahead < 0) & (behind > 0), -highest, np.inf)
    moves = (x[first] != x[second]) | (y[first] != y[second])
    extra = np.where(moves, margin, 0.0)
    upper = np.maximum(np.maximum(y[first], y[second]), peak) + extra
    lower = np.minimum(np.minimum(y[first], y[second]), trough) - extra
    upper, lower = np.where(opposite, 90.0, upper), np.where(opposite, -90.0, lower)
    owners = sequences[first]
    np.fmax.at(north, owners, np.minimum(upper, 90.0))
    np.fmin.at(south, owners, np.maximum(lower, -90.0))


def _vector(longitude: Any, latitude: Any) -> Any:
    angle, height = np.radians(longitude), np.radians(latitude)
    flat = np.cos(height)
    return np.stack([flat * np.cos(angle), flat * np.sin(angle), np.sin(height)], axis=1)


_MAX_ROWS = 1 << 16
"""The number of values that are parsed at a time, which bounds the memory of the parser."""
_FIELDS = {Z: ("zmin", "zmax"), M: ("mmin", "mmax")}


@dataclass(frozen=True, slots=True)
class Box:
    """A bounding box. All bounds are part of it.

    ``xmin`` is greater than ``xmax`` if the box crosses the antimeridian: it then has the X with
    ``x >= xmin or x <= xmax``.
    """

    xmin: float
    """The westernmost X."""
    ymin: float
    """The southernmost Y."""
    xmax: float
    """The easternmost X."""
    ymax: float
    """The northernmost Y."""
    zmin: float | None = None
    """The smallest Z. None if no point has one."""
    zmax: float | None = None
    """The largest Z."""
    mmin: float | None = None
    """The smallest M. None if no point has one."""
    mmax: float | None = None
    """The largest M."""

    def is_valid(self, *, geographic: bool) -> bool:
        """Return whether a box may be used. Statistics of a file may hold anything.

        `geographic` states whether X and Y are longitudes and latitudes in degrees, as in a
        GEOGRAPHY.
        """
        sides = (self.xmin, self.ymin, self.xmax, self.ymax)
        if not all(map(math.isfinite, sides)) or self.ymin > self.ymax:
            return False
        if not geographic:
            return True
        return max(map(abs, (self.xmin, self.xmax))) <= 180 and -90 <= self.ymin <= self.ymax <= 90

    def intersects(self, other: Box) -> bool:
        """Return whether two boxes have a common X and Y.

        Examples
        --------
        >>> Box(170, 0, -170, 1).intersects(Box(-175, 1, -172, 2))
        True
        """
        if self.ymin > other.ymax or other.ymin > self.ymax:
            return False
        return any(
            first[0] <= second[1] and second[0] <= first[1]
            for first in self.spans
            for second in other.spans
        )

    @property
    def spans(self) -> list[tuple[float, float]]:
        """The intervals of X."""
        if self.xmin <= self.xmax:
            return [(self.xmin, self.xmax)]
        return [(self.xmin, math.inf), (-math.inf, self.xmax)]


@dataclass(frozen=True, slots=True)
class RowBoxes:
    """The box of each value of an array. A value without an X or without a Y has none."""

    sides: Any
    """xmin, ymin, xmax, ymax of each value; NaN without a box (float64, rows x 4)."""
    codes: Any
    """The type code of each value; 0 for null."""
    extras: dict[int, tuple[float, float]]
    """The smallest and largest `Z` and `M` of the whole array, if there are any."""
    extent: tuple[float, float, float, float] | None
    """xmin, ymin, xmax, ymax of the whole array. None if there is no X or no Y."""

    def intersect(self, box: Box) -> Any:
        """Return whether each value's box has a common X and Y with a box (bool)."""
        xmin, ymin, xmax, ymax = self.sides.T
        found = np.zeros(len(self.sides), np.bool_)
        with np.errstate(invalid="ignore"):
            wraps = xmin > xmax
            for low, high in box.spans:
                within = np.where(wraps, (xmin <= high) | (xmax >= low), True)
                found |= within & (wraps | ((xmin <= high) & (low <= xmax)))
            return found & (ymin <= box.ymax) & (box.ymin <= ymax)


def bound_rows(array: Any, edges: str | None = None) -> RowBoxes:
    """Return the boxes of an array of WKB.

    With the edges of a GEOGRAPHY, X and Y are longitudes and latitudes, an edge goes the shorter
    way around the earth, and boxes may cross the antimeridian. None stands for straight edges.
    Raises `InvalidDataError` if a value is not valid WKB.
    """
    parts: list[RowBoxes] = []
    for start in range(0, max(len(array), 1), _MAX_ROWS):
        geometries = parse_wkb(array.slice(start, _MAX_ROWS), start)
        if edges is None:
            parts.append(_bound_planar(geometries))
        else:
            parts.append(_bound_geography(geometries, edges))
    return parts[0] if len(parts) == 1 else _join(parts, edges)


def _join(parts: list[RowBoxes], edges: str | None) -> RowBoxes:
    extras: dict[int, tuple[float, float]] = {}
    for part in parts:
        _extend(extras, part.extras)
    extents = [part.extent for part in parts if part.extent is not None]
    return RowBoxes(
        np.concatenate([part.sides for part in parts]),
        np.concatenate([part.codes for part in parts]),
        extras,
        merge_extents(extents, edges) if extents else None,
    )


def _extend(extras: dict[int, tuple[float, float]], others: dict[int, tuple[float, float]]) -> None:
    """Extend the bounds of Z and M by others."""
    for dimension, (low, high) in others.items():
        former = extras.get(dimension, (low, high))
        extras[dimension] = (min(former[0], low), max(former[1], high))


def _bound_planar(geometries: Geometries) -> RowBoxes:
    low, high = _empty(geometries.rows)
    for block in iter_points(geometries):
        for dimension in block.dimensions:
            smallest = block.reduce(dimension, np.fmin)
            np.fmin.at(low[dimension], block.rows, smallest)
            np.fmax.at(high[dimension], block.rows, block.reduce(dimension, np.fmax))
    sides = np.stack([low[X], low[Y], high[X], high[Y]], axis=1)
    extent = [_reduce(np.fmin, low[X]), _reduce(np.fmin, low[Y])]
    extent += [_reduce(np.fmax, high[X]), _reduce(np.fmax, high[Y])]
    return _make_boxes(geometries, sides, low, high, extent)


def _bound_geography(geometries: Geometries, edges: str) -> RowBoxes:
    low, high = _empty(geometries.rows)
    arcs: list[Arcs] = []
    for block in iter_points(geometries):
        for dimension in block.dimensions.keys() - {X, Y}:
            np.fmin.at(low[dimension], block.rows, block.reduce(dimension, np.fmin))
            np.fmax.at(high[dimension], block.rows, block.reduce(dimension, np.fmax))
        with np.errstate(all="ignore"):  # coordinates beyond the earth, or infinite
            spans, south, north = bound_sequences(block, edges)
        np.fmin.at(low[Y], block.rows, south)
        np.fmax.at(high[Y], block.rows, north)
        arcs.append(spans)
    everything = Arcs.concatenate(arcs)
    west, east = everything.cover_rows(geometries.rows)
    sides = np.stack([west, low[Y], east, high[Y]], axis=1)
    whole = cover_arcs(everything.begins, everything.widths)
    extent = [whole[0], _reduce(np.fmin, low[Y]), whole[1], _reduce(np.fmax, high[Y])]
    return _make_boxes(geometries, sides, low, high, extent)


def _make_boxes(
    geometries: Geometries, sides: Any, low: Any, high: Any, extent: list[float]
) -> RowBoxes:
    sides[np.isnan(sides).any(axis=1)] = np.nan
    extras = {
        dimension: (_reduce(np.fmin, low[dimension]), _reduce(np.fmax, high[dimension]))
        for dimension in (Z, M)
        if not np.isnan(low[dimension]).all()
    }
    xmin, ymin, xmax, ymax = extent
    found = None if any(map(math.isnan, extent)) else (xmin, ymin, xmax, ymax)
    return RowBoxes(sides, geometries.codes, extras, found)


def _empty(rows: int) -> tuple[Any, Any]:
    return np.full((4, rows), np.nan), np.full((4, rows), np.nan)


def _reduce(ufunc: Any, values: Any) -> float:
    return float(ufunc.reduce(values)) if len(values) else math.nan


class BoxTracker:
    """Computes the box and the types of a column, one array at a time.

    Examples
    --------
    >>> import pyarrow as pa
    >>> tracker = BoxTracker()
    >>> tracker.add(pa.array([bytes.fromhex("0101000000" + "00" * 16), None]))
    >>> tracker.box, tracker.types
    (Box(xmin=0.0, ymin=0.0, xmax=0.0, ymax=0.0, zmin=None, zmax=None, mmin=None, mmax=None), [1])
    """

    def __init__(self, edges: str | None = None) -> None:
        self._edges = edges
        self._extents: list[tuple[float, float, float, float]] = []
        self._extras: dict[int, tuple[float, float]] = {}
        self._types: set[int] = set()

    def add(self, array: Any) -> None:
        """Add the values of an array; raise `InvalidDataError` if one is not valid WKB."""
        boxes = bound_rows(array, self._edges)
        self._types.update(int(code) for code in np.unique(boxes.codes) if code)
        _extend(self._extras, boxes.extras)
        if boxes.extent is not None:
            self._extents = [merge_extents([*self._extents, boxes.extent], self._edges)]

    @property
    def types(self) -> list[int]:
        """The type codes of the values, sorted."""
        return sorted(self._types)

    @property
    def box(self) -> Box | None:
        """The box of all values. None if no value has an X, or none has a Y."""
        if not self._extents:
            return None
        extras = {
            name: value
            for dimension, bounds in self._extras.items()
            for name, value in zip(_FIELDS[dimension], bounds, strict=True)
        }
        return Box(*self._extents[0], **extras)


def merge_extents(
    extents: Iterable[tuple[float, float, float, float]], edges: str | None
) -> tuple[float, float, float, float]:
    """Return the smallest xmin, ymin, xmax, ymax that hold several; there is at least one."""
    sides = np.array(list(extents), np.float64)
    if edges is None:
        west, east = sides[:, 0].min(), sides[:, 2].max()
    else:
        widths = sides[:, 2] - sides[:, 0]
        west, east = cover_arcs(sides[:, 0], np.where(widths >= 0, widths, widths + 360))
    return float(west), float(sides[:, 1].min()), float(east), float(sides[:, 3].max())
