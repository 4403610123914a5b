"""Sparklines: small line plots as SVG paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120.0, 28.0
"""The size of the coordinate system in which a path is drawn."""
_TOP = 2.0


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line plot of values."""

    line: str
    """The path of the line; empty if there are too few values."""
    area: str
    """The path of the area below the line."""
    peak: float
    """The largest value."""


def draw_sparkline(values: Sequence[float], points: int) -> Sparkline:
    """Return a sparkline of values, the last one at the right edge.

    Parameters
    ----------
    values : sequence of float
        The values, none of which is negative, the oldest first.
    points : int
        The number of values that take the whole width.

    Examples
    --------
    >>> draw_sparkline([0, 5, 10], 3).line
    'M0,28 L60,15 L120,2'
    """
    peak = max(values, default=0.0)
    if len(values) < 2:
        return Sparkline("", "", peak)
    step = WIDTH / (points - 1)
    left = WIDTH - step * (len(values) - 1)
    scale = (HEIGHT - _TOP) / peak if peak else 0.0
    places = [
        f"{left + step * index:.4g},{HEIGHT - value * scale:.4g}"
        for index, value in enumerate(values)
    ]
    line = "M" + " L".join(places)
    return Sparkline(line, f"{line} L{WIDTH:g},{HEIGHT:g} L{left:.4g},{HEIGHT:g} Z", peak)
