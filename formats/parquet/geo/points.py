"""The coordinates of the geometries of an array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .wkb import Geometries

X, Y, Z, M = range(4)
_COORDINATES = {0: (X, Y), 1: (X, Y, Z), 2: (X, Y, M), 3: (X, Y, Z, M)}
"""The dimensions that a point has, by its flavor."""
_MAX_NUMBERS = 1 << 20
"""The largest number of coordinates in memory at a time, if no single run is larger."""


@dataclass(frozen=True, slots=True)
class PointBlock:
    """The points of some runs."""

    rows: Any
    """For each run, the index of the value in the array."""
    rings: Any
    """For each run, whether it is a ring."""
    starts: Any
    """For each run, the index of its first point."""
    dimensions: dict[int, Any]
    """The coordinates of all points, by dimension: `X`, `Y`, perhaps `Z` and `M` (float64)."""

    def reduce(self, dimension: int, ufunc: Any) -> Any:
        """Return a value for each run: ``numpy.fmin`` or ``numpy.fmax`` of its coordinates."""
        return ufunc.reduceat(self.dimensions[dimension], self.starts)


def iter_points(geometries: Geometries) -> Iterator[PointBlock]:
    """Yield the points of all runs in blocks. Their order is not that of the array."""
    runs = geometries.runs
    # Coordinates are not aligned, but those of one run have the same offset modulo 8.
    shifts = runs.offsets % 8
    keys = (runs.flavors * 2 + runs.little) * 8 + shifts
    for key in np.unique(keys):
        selected = np.flatnonzero(keys == key)
        flavor, little, shift = int(key) // 16, int(key) // 8 % 2, int(key) % 8
        names = _COORDINATES[flavor]
        numbers = _view(geometries.data, shift, bool(little))
        sizes = runs.counts[selected] * len(names)
        blocks = np.cumsum(sizes) // _MAX_NUMBERS
        for block in np.unique(blocks):
            chosen = selected[blocks == block]
            counts = runs.counts[chosen]
            ends = np.cumsum(counts)
            firsts = runs.offsets[chosen] // 8
            steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
            places = np.repeat(firsts, counts) + steps * len(names)
            found = {name: _take(numbers, places + index) for index, name in enumerate(names)}
            yield PointBlock(runs.rows[chosen], runs.rings[chosen], ends - counts, found)


def _take(numbers: Any, places: Any) -> Any:
    """Return some numbers, with quiet NaN only: ``fmin`` and ``fmax`` return a signaling one."""
    taken = numbers[places]
    taken[np.isnan(taken)] = np.nan
    return taken


def _view(data: Any, shift: int, little: bool) -> Any:
    count = (len(data) - shift) // 8
    view = data[shift : shift + count * 8].view("<f8" if little else ">f8")
    return view if little else view.astype(np.float64)
