"""Sequence numbers: uint32, rolling over at 2**32 ("Definitions" of the specification).

Numbers are compared by serial-number arithmetic (RFC 1982). Of two numbers, the one that is less
than 2**31 steps ahead of the other is the later one.
"""

from __future__ import annotations

MODULUS = 1 << 32
MAX_SEQUENCE = MODULUS - 1
"""The last number before the rollover. Also the mask of a sequence number."""
_HALF = 1 << 31


def advance(sequence: int, steps: int = 1) -> int:
    """Return the sequence number `steps` after `sequence`.

    Examples
    --------
    >>> advance(MAX_SEQUENCE)
    0
    """
    return (sequence + steps) & MAX_SEQUENCE


def distance(sequence: int, base: int) -> int:
    """Return the number of steps from `base` to `sequence`, negative if `sequence` is earlier.

    Examples
    --------
    >>> distance(1, MAX_SEQUENCE), distance(MAX_SEQUENCE, 1)
    (2, -2)
    """
    ahead = (sequence - base) & MAX_SEQUENCE
    return ahead if ahead < _HALF else ahead - MODULUS
