"""Statistics of repeated measurements, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

_RESAMPLES = 2000


class Statistics(NamedTuple):
    """The median and the range of some values."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Statistics | None:
        """Return the statistics of the known values; None if all are unknown (None).

        >>> Statistics.of([3.0, None, 1.0, 2.0])
        Statistics(median=2.0, minimum=1.0, maximum=3.0)
        """
        known = [value for value in values if value is not None]
        return cls(median(known), min(known), max(known)) if known else None


class Interval(NamedTuple):
    """The 95 % confidence interval of a median."""

    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Return the interval of the median of some values, by resampling them.

    The same values always give the same interval.

    >>> median_interval([2.0, 2.0, 2.0])
    Interval(low=2.0, high=2.0)
    """
    generator = np.random.default_rng(0)
    drawn = generator.choice(np.asarray(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Interval(float(low), float(high))


def ratio_interval(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the interval of the ratio of two medians whose values were measured apart."""
    generator = np.random.default_rng(0)
    drawn, other = (
        np.median(generator.choice(np.asarray(each), (_RESAMPLES, len(each))), axis=1)
        for each in (values, others)
    )
    low, high = np.quantile(drawn / other, (0.025, 0.975))
    return Interval(float(low), float(high))


UNKNOWN = "–"
"""The text for an unknown figure."""


def format_size(nbytes: int) -> str:
    """Return a size with a binary unit.

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
