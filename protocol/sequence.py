"""Sequence numbers: uint32, rolling over at 2**32 ("Definitions" of the specification).

Two numbers are compared by serial-number arithmetic (RFC 1982): the one that is less than
half the circle ahead is the later one.
"""

from __future__ import annotations

MODULUS = 1 << 32
LAST = MODULUS - 1
_HALF = 1 << 31


def following(sequence: int, steps: int = 1) -> int:
    """Return the sequence number `steps` after `sequence`.

    Examples
    --------
    >>> following(LAST)
    0
    """
    return (sequence + steps) & LAST


def distance(sequence: int, base: int) -> int:
    """Return how far `sequence` lies ahead of `base`; negative if it lies behind.

    Examples
    --------
    >>> distance(1, LAST), distance(LAST, 1)
    (2, -2)
    """
    ahead = (sequence - base) & LAST
    return ahead if ahead < _HALF else ahead - MODULUS
