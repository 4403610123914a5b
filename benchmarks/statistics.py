"""Statistics of repeated measurements."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple


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
