"""Waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""The longest time to wait for anything that happens at once on an idle machine, in seconds."""


def wait_until(
    condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE
) -> None:
    """Wait until a condition is true; fail if that takes more than `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.002)
