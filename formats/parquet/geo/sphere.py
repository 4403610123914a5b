"""Bounds of edges on the earth: GEOGRAPHY, whose edges are not straight lines of a map.

An edge goes the shorter way, so its longitudes are those between its ends, across the antimeridian
if that is shorter. Its latitudes may go beyond those of its ends. They are those of a great circle,
with a margin for the edges of an ellipsoid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..logical_types import EDGES
from .longitudes import Arcs
from .points import PointBlock, X, Y

ELLIPSOID_MARGIN = 0.25
"""How far an edge of an ellipsoid may be from the great circle, in degrees of latitude."""
_HALF, _FULL = 180.0, 360.0


def bound_runs(block: PointBlock, edges: str) -> tuple[Arcs, Any, Any]:
    """Return the longitudes, the southern and the northern latitude of each run.

    A ring that goes around a pole has all longitudes, and the latitudes up to the nearer pole.
    A run without a longitude or a latitude has NaN.
    """
    x, y, starts = block.dimensions[X], block.dimensions[Y], block.starts
    runs = np.zeros(len(x), np.int64)
    runs[starts[1:]] = 1
    runs = np.cumsum(runs)
    south = np.fmin.reduceat(y, starts)
    north = np.fmax.reduceat(y, starts)
    known = np.flatnonzero(~(np.isnan(x) | np.isnan(y)))
    # X and Y of points that have only one of them still count, but no edge begins or ends there.
    joined = np.flatnonzero(np.diff(runs[known]) == 0) if len(known) else known
    first, second = known[joined], known[joined + 1] if len(joined) else known[joined]
    _extend_latitudes(x, y, first, second, runs, south, north, edges)
    begins, widths, turns = _unroll(x, first, second, runs, starts)
    _close_rings(block, runs, y, turns, widths, south, north)
    begins = np.where(widths >= _FULL, -_HALF, (begins + _HALF) % _FULL - _HALF)
    return Arcs(block.rows, begins, np.minimum(widths, _FULL)), south, north


def _unroll(x: Any, first: Any, second: Any, runs: Any, starts: Any) -> tuple[Any, Any, Any]:
    """Return the western longitude, the width and the sum of the turns of each run."""
    steps = np.zeros(len(x))
    deltas = (x[second] - x[first] + _HALF) % _FULL - _HALF
    steps[second] = deltas
    # The longitudes of a run, counted on beyond 180 degrees.
    base = _first_known(x, runs, starts)
    sums = np.cumsum(steps)
    unrolled = base[runs] + sums - sums[starts][runs]
    unrolled[np.isnan(x)] = np.nan
    lonely = ~np.isnan(x)
    lonely[first] = lonely[second] = False
    unrolled[lonely] = x[lonely]  # points without an edge
    low, high = np.fmin.reduceat(unrolled, starts), np.fmax.reduceat(unrolled, starts)
    turns = np.zeros(len(starts))
    np.add.at(turns, runs[second], deltas)
    return low, high - low, turns


def _first_known(x: Any, runs: Any, starts: Any) -> Any:
    base = np.full(len(starts), np.nan)
    known = np.flatnonzero(~np.isnan(x))[::-1]
    base[runs[known]] = x[known]  # the last assignment wins: the first point of the run
    return base


def _close_rings(
    block: PointBlock, runs: Any, y: Any, turns: Any, widths: Any, south: Any, north: Any
) -> None:
    around = block.rings & (np.abs(turns) > _HALF)
    if not around.any():
        return
    widths[around] = _FULL
    totals = np.zeros(len(widths))
    np.add.at(totals, runs, np.nan_to_num(y))
    north[around & (totals >= 0)] = 90.0
    south[around & (totals < 0)] = -90.0


def _extend_latitudes(
    x: Any, y: Any, first: Any, second: Any, runs: Any, south: Any, north: Any, edges: str
) -> None:
    """Extend the latitudes of runs by those of their edges."""
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
    owners = runs[first]
    np.fmax.at(north, owners, np.minimum(upper, 90.0))
    np.fmin.at(south, owners, np.maximum(lower, -90.0))


def _vector(longitude: Any, latitude: Any) -> Any:
    angle, height = np.radians(longitude), np.radians(latitude)
    flat = np.cos(height)
    return np.stack([flat * np.cos(angle), flat * np.sin(angle), np.sin(height)], axis=1)
