"""Damaged tensors are refused, or read within their body; nothing crashes or eats memory."""

from __future__ import annotations

import pytest

from helpers.tensor_mutations import run_battery
from helpers.tensors import KINDS

SHORT, LONG = 5_000, 1_000_000


def check(kind: str, count: int, seed: int) -> None:
    outcomes = run_battery(kind, count, seed)
    assert sum(outcomes.values()) == count
    assert outcomes["read"] > count // 20, "only rubbish was tried"
    assert outcomes["InvalidDataError"] > count // 20, "nothing was damaged"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_tensors_are_read_or_refused(kind: str) -> None:
    check(kind, SHORT, 1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_damaged_tensors_are_read_or_refused(kind: str) -> None:
    check(kind, LONG, 2)
