"""Arcs of longitudes, which may cross the antimeridian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


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
        several = np.flatnonzero(~single)
        for index in several:
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
        widest = (
            len(gaps) - 1
        )  # of equal gaps, one at the antimeridian, which the box need not cross
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
