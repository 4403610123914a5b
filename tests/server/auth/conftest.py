"""A clock that stands still."""

from __future__ import annotations

import pytest

from helpers.clock import Clock


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when a test moves it."""
    return Clock()
