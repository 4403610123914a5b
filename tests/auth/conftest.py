"""Clocks that stand still, and how hypothesis runs here."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "splitarrow", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("splitarrow")


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1_900_000_000.25) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()
