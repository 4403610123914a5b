"""How long a client remembers what failed."""

from __future__ import annotations

from splitarrow.client.failures import FailureMemory


def test_each_failure_counts_twice_as_long_as_the_one_before() -> None:
    now = 0.0
    memory = FailureMemory(lambda: now)
    for seconds in (30, 60, 120, 240, 300, 300):
        memory.add("a")
        memory.add("a")  # within the time of the first
        now += seconds - 1
        assert "a" in memory
        now += 1
        assert "a" not in memory
        assert memory.has_failed("a")
    memory.discard("a")
    assert not memory.has_failed("a")
    memory.add("a")
    now += 30
    assert "a" not in memory


def test_the_number_of_failures_is_bounded() -> None:
    memory = FailureMemory()
    for number in range(1000):
        memory.add(str(number))
    assert "0" not in memory
    assert "999" in memory
