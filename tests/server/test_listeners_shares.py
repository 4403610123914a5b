"""The shares of listeners: none can take what is reserved for the others."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from splitarrow.server.listeners import Descriptors, Shares, reserved_share

CAPACITIES = st.integers(0, 60)
STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=120)


@given(CAPACITIES, st.integers(1, 4), STEPS)
def test_every_listener_always_gets_what_is_reserved_for_it(
    capacity: int, count: int, steps: Iterable[tuple[int, bool]]
) -> None:
    shares, used = Shares(count), [0] * count
    reserved = reserved_share(capacity, count)
    for index, takes in steps:
        at = index % count
        if takes and shares.room(at, capacity) >= 1:
            shares.take(at, 1)
            used[at] += 1
        elif not takes and used[at]:
            shares.give_back(at, 1)
            used[at] -= 1
        assert sum(used) <= capacity
        for each in range(count):
            assert shares.room(each, capacity) >= reserved - used[each]


def test_a_single_listener_has_everything() -> None:
    assert Shares(1).room(0, 7) == 7


def test_descriptors_leave_a_reserve() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 200, before[1]))
        assert 0 < Descriptors().capacity <= 184
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
