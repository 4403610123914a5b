"""Sequence numbers roll over and are compared on a circle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.protocol.reassembler import advance, distance
from splitarrow.protocol.tags import MAX_SEQUENCE

numbers = st.integers(0, MAX_SEQUENCE)


def test_the_number_after_the_last_is_zero() -> None:
    assert advance(MAX_SEQUENCE) == 0
    assert advance(MAX_SEQUENCE, 3) == 2


@pytest.mark.parametrize(
    ("sequence", "base", "expected"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, -1),
        (0, MAX_SEQUENCE, 1),
        (MAX_SEQUENCE, 0, -1),
        ((1 << 31) - 1, 0, (1 << 31) - 1),
        (1 << 31, 0, -(1 << 31)),
    ],
)
def test_the_distance_of_two_numbers_is_signed(sequence: int, base: int, expected: int) -> None:
    assert distance(sequence, base) == expected


@given(numbers, st.integers(-(1 << 31), (1 << 31) - 1))
def test_distance_is_the_inverse_of_advance(base: int, steps: int) -> None:
    assert distance(advance(base, steps), base) == steps


@given(numbers, numbers)
def test_one_of_two_numbers_is_ahead(first: int, second: int) -> None:
    there, back = distance(first, second), distance(second, first)
    assert (there + back) % (MAX_SEQUENCE + 1) == 0
    assert there == -back or abs(there) == (MAX_SEQUENCE + 1) // 2
