"""The bounds of a plan to read a dataset."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.client.arguments import ReadOptions, ReadPlan
from splitarrow.errors import UsageError


@pytest.mark.parametrize(
    ("name", "least", "below", "expected"),
    [
        ("location_timeout", 0.001, 0, "more than 0"),
        ("resume_attempts", 0, -1, "0 or more"),
        ("parallel", 1, 0, "1 or more"),
        ("window_bytes", 1, 0, "1 or more"),
    ],
)
def test_a_plan_is_valid_once_built(name: str, least: float, below: int, expected: str) -> None:
    allowed: Any = {name: least}
    assert getattr(ReadPlan(ReadOptions(), **allowed), name) == least
    refused: Any = {name: below}
    with pytest.raises(UsageError, match=f"^{name} is {below}; expected {expected}$"):
        ReadPlan(ReadOptions(), **refused)


def test_the_defaults_are_those_of_a_read() -> None:
    options = ReadOptions()
    assert ReadPlan(options) == ReadPlan(options, "auto", 2.0, 8, 4, 268_435_456)
