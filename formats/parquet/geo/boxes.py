"""Bounding boxes of geometries and of columns ("Bounding Box")."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .longitudes import Arcs, cover_arcs
from .points import M, X, Y, Z, iter_points
from .sphere import bound_runs
from .wkb import Geometries, parse_wkb

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

        Parameters
        ----------
        geographic : bool
            Whether X and Y are longitudes and latitudes in degrees, as in a GEOGRAPHY.
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

    Parameters
    ----------
    array : pyarrow.Array
        The values; see `parse_wkb`.
    edges : str, optional
        The algorithm of the edges of a GEOGRAPHY. X and Y are then longitudes and latitudes, an
        edge goes the shorter way around the earth, and boxes may cross the antimeridian. None
        stands for the straight edges of a GEOMETRY.

    Raises
    ------
    InvalidDataError
        If a value is not valid WKB.
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
        for dimension, (low, high) in part.extras.items():
            former = extras.get(dimension, (low, high))
            extras[dimension] = (min(former[0], low), max(former[1], high))
    extents = [part.extent for part in parts if part.extent is not None]
    return RowBoxes(
        np.concatenate([part.sides for part in parts]),
        np.concatenate([part.codes for part in parts]),
        extras,
        merge_extents(extents, edges) if extents else None,
    )


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
            spans, south, north = bound_runs(block, edges)
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
    known = not any(map(math.isnan, extent))
    xmin, ymin, xmax, ymax = extent
    found = (xmin, ymin, xmax, ymax) if known else None
    return RowBoxes(sides, geometries.codes, extras, found)


def _empty(rows: int) -> tuple[Any, Any]:
    return np.full((4, rows), np.nan), np.full((4, rows), np.nan)


def _reduce(ufunc: Any, values: Any) -> float:
    return float(ufunc.reduce(values)) if len(values) else math.nan


class BoxTracker:
    """Computes the box and the types of a column, one array at a time.

    Parameters
    ----------
    edges : str, optional
        The algorithm of the edges of a GEOGRAPHY; see `bound_rows`.

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
        for dimension, (low, high) in boxes.extras.items():
            former = self._extras.get(dimension, (low, high))
            self._extras[dimension] = (min(former[0], low), max(former[1], high))
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
        west, east = cover_arcs(sides[:, 0], _widths(sides[:, 0], sides[:, 2]))
    return float(west), float(sides[:, 1].min()), float(east), float(sides[:, 3].max())


def _widths(west: Any, east: Any) -> Any:
    return np.where(east >= west, east - west, east - west + 360)
