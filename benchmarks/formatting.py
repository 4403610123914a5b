"""Sizes and figures as text."""

from __future__ import annotations

from .statistics import Interval, Statistics

UNKNOWN = "–"
"""The text for an unknown figure."""


def format_size(nbytes: int) -> str:
    """Return a size with a binary unit.

    Examples
    --------
    >>> format_size(65536)
    '64 KiB'
    """
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}"
    return f"{nbytes} B"


def format_mebibytes(nbytes: int | None) -> str:
    """Return a size in MiB without the unit."""
    return UNKNOWN if nbytes is None else f"{nbytes / 2**20:,.0f}"


def format_figure(value: float) -> str:
    """Return a figure with about three digits.

    Examples
    --------
    >>> [format_figure(value) for value in (0.5, 12.34, 1234.5)]
    ['0.50', '12.3', '1,234']
    """
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def format_median(statistics: Statistics | None, scale: float = 1.0) -> str:
    """Return the median, multiplied by `scale`."""
    return UNKNOWN if statistics is None else format_figure(statistics.median * scale)


def format_range(statistics: Statistics, scale: float = 1.0) -> str:
    """Return the minimum and the maximum, multiplied by `scale`."""
    minimum, maximum = statistics.minimum * scale, statistics.maximum * scale
    return f"{format_figure(minimum)}–{format_figure(maximum)}"


def format_interval(interval: Interval | None) -> str:
    """Return both ends of an interval with two decimals."""
    return UNKNOWN if interval is None else f"{interval.low:.2f}–{interval.high:.2f}"


def format_ratio(ratio: float | None) -> str:
    """Return a ratio with two decimals."""
    return UNKNOWN if ratio is None else f"{ratio:.2f}"
