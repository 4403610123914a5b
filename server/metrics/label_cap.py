"""A bound on the values of a label, so that no client can create series without end."""

from __future__ import annotations

OTHER = "other"
"""The value that stands for all values beyond the bound."""


class LabelCap:
    """Replaces the values of a label by `OTHER`, except for a number of them.

    Parameters
    ----------
    limit : int
        The number of values to keep: those that come first.

    Examples
    --------
    >>> cap = LabelCap(2)
    >>> [cap.find(name) for name in ("trips", "flights", "weather", "trips")]
    ['trips', 'flights', 'other', 'trips']
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: set[str] = set()

    def find(self, value: str) -> str:
        """Return the value of the label for a value."""
        if value not in self._kept and value != OTHER:
            if len(self._kept) >= self._limit:
                return OTHER
            self._kept.add(value)
        return value
