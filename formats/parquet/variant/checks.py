"""Reporting invalid rows: at the first one, or all of them."""

from __future__ import annotations

import numpy as np

from ....errors import InvalidDataError
from .buffers import Index, Mask

MAX_DEPTH = 200
"""The largest number of nested objects and arrays."""


class RowChecks:
    """Collects the rows that are invalid.

    Parameters
    ----------
    rows : int
        The number of rows.
    first_row : int
        The number of the first row, for messages.
    collect : bool
        Keep the numbers of invalid rows. Otherwise, the first one raises an error.

    Attributes
    ----------
    invalid : ndarray of bool, shape (rows,)
        Whether a row is invalid.
    """

    __slots__ = ("_collect", "_first_row", "invalid")

    def __init__(self, rows: int, *, first_row: int = 0, collect: bool = False) -> None:
        self.invalid: Mask = np.zeros(rows, np.bool_)
        self._first_row = first_row
        self._collect = collect

    def require(self, valid: Mask, rows: Index, problem: str) -> bool:
        """Check a condition of several values.

        Parameters
        ----------
        valid : ndarray of bool, shape (n,)
            Whether the condition holds.
        rows : ndarray of int64, shape (n,)
            The row that contains each value.
        problem : str
            What is wrong with a value for which it does not hold.

        Returns
        -------
        bool
            Whether the condition holds for every value. If not, the caller must not use the
            invalid ones.

        Raises
        ------
        InvalidDataError
            If it does not hold for a value, unless invalid rows are collected.
        """
        if bool(valid.all()):
            return True
        bad = rows[~valid]
        if not self._collect:
            row = int(bad.min()) + self._first_row
            raise InvalidDataError(f"the Variant in row {row} is invalid: {problem}")
        self.invalid[bad] = True
        return False
