"""Counting the frames that arrive more than once."""

from __future__ import annotations

from ..errors import LimitError


class DuplicateCounter:
    """Counts duplicates, and bounds those that arrive in succession.

    A network or a proxy may repeat frames. A server that only repeats itself would keep its reader
    busy forever.

    Parameters
    ----------
    limit : int
        The largest number of duplicates without a new frame in between.
    name : str
        What is counted, for errors.

    Attributes
    ----------
    total : int
        The number of all duplicates.
    """

    def __init__(self, limit: int, name: str = "duplicates") -> None:
        self.total = 0
        self._limit = limit
        self._name = name
        self._successive = 0
        self._position: object = None

    def count(self, position: object) -> None:
        """Count a duplicate.

        Parameters
        ----------
        position : object
            A value that differs if new frames have arrived since the last duplicate.

        Raises
        ------
        LimitError
            If too many duplicates have arrived in succession.
        """
        self.total += 1
        if position != self._position:
            self._position, self._successive = position, 0
        self._successive += 1
        if self._successive > self._limit:
            raise LimitError(
                f"{self._successive} {self._name} arrived in succession; the limit is {self._limit}"
            )
