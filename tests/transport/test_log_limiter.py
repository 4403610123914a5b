"""The limit on equal events in the log."""

from __future__ import annotations

import logging

from helpers.clock import Clock
from splitarrow.server.logs import EventFilter
from splitarrow.transport.log_limiter import LogLimiter


def test_each_period_lets_a_number_of_events_through() -> None:
    clock = Clock()
    limiter = LogLimiter(2, 60, clock)
    assert [limiter.admit("a") for _ in range(5)] == [0, 0, None, None, None]
    assert limiter.left_out("a") == 3
    assert limiter.admit("b") == 0
    clock.now += 60
    assert [limiter.admit("a") for _ in range(3)] == [3, 0, None]


def test_a_flood_of_kinds_takes_no_memory() -> None:
    limiter = LogLimiter()
    for number in range(5000):
        assert limiter.admit(number) == 0
    assert len(limiter._periods) <= 1000


def test_the_log_leaves_out_equal_events_unless_they_are_for_debugging() -> None:
    event_filter = EventFilter(3)

    def passes(level: int, text: str, name: str = "splitarrow.session") -> bool:
        return event_filter.filter(logging.LogRecord(name, level, "", 0, text, (), None))

    assert [passes(logging.WARNING, "stream failed") for _ in range(5)] == [True] * 3 + [False] * 2
    assert passes(logging.WARNING, "reader left")
    assert all(passes(logging.DEBUG, "stream started") for _ in range(5))
    assert all(passes(logging.INFO, "reloaded", "splitarrow.daemon") for _ in range(5))
