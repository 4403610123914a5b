"""Sequence numbers roll over and are compared on a circle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.protocol.sequence import LAST, MODULUS, distance, following

numbers = st.integers(0, LAST)


def test_the_number_after_the_last_is_zero() -> None:
    assert following(LAST) == 0
    assert following(LAST, 3) == 2


@pytest.mark.parametrize(
    ("sequence", "base", "expected"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, -1),
        (0, LAST, 1),
        (LAST, 0, -1),
        ((1 << 31) - 1, 0, (1 << 31) - 1),
        (1 << 31, 0, -(1 << 31)),
    ],
)
def test_distance(sequence: int, base: int, expected: int) -> None:
    assert distance(sequence, base) == expected


@given(numbers, st.integers(-(1 << 31), (1 << 31) - 1))
def test_distance_undoes_following(base: int, steps: int) -> None:
    assert distance(following(base, steps), base) == steps


@given(numbers, numbers)
def test_one_of_two_numbers_is_ahead(first: int, second: int) -> None:
    there, back = distance(first, second), distance(second, first)
    assert (there + back) % MODULUS == 0
    assert there == -back or abs(there) == MODULUS // 2
