"""Statistics of repeated measurements."""

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

        Examples
        --------
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

    Examples
    --------
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
