"""Limits that the processes of a server share."""

from __future__ import annotations

import multiprocessing

import pytest

from helpers.usage import fill, take_in_child
from splitarrow.server.usage import SharedUsage, Usage, UsageTable


def make_pair() -> tuple[SharedUsage, SharedUsage]:
    table = UsageTable(3)
    return SharedUsage(table, 1), SharedUsage(table, 2)


@pytest.mark.parametrize("usage", [Usage(), make_pair()[0]])
def test_a_key_is_taken_up_to_its_limit_and_released(usage: Usage) -> None:
    assert fill(usage.streams, "a", 3) == 3
    assert fill(usage.streams, "b", 1) == 1
    assert fill(usage.addresses, "a", 2) == 2
    usage.streams.release("a")
    assert fill(usage.streams, "a", 3) == 1
    assert fill(usage.streams, "a", 5) == 2
    assert not usage.streams.take("c", 0)
    numbers = [usage.make_number() for _ in range(3)]
    assert 1 <= numbers[0] < numbers[1] < numbers[2]


def test_processes_share_limits_and_numbers() -> None:
    one, two = make_pair()
    assert one.streams.take("a", 2)
    assert two.streams.take("a", 2)
    assert not one.streams.take("a", 2)
    two.streams.release("a")
    two.streams.release("a")  # it has none left, and those of others stay
    assert fill(one.streams, "a", 2) == 1
    numbers = [usage.make_number() for usage in (one, two, two, one, two)]
    assert len(set(numbers)) == 5
    assert min(numbers) >= 1


def test_what_an_ended_process_used_is_removed() -> None:
    table = UsageTable(3)
    one, two = SharedUsage(table, 1), SharedUsage(table, 2)
    assert fill(one.streams, "a", 3) == 3
    one.set_load(0)
    two.set_load(5)
    assert two.is_busier
    table.clear(1)
    assert fill(two.streams, "a", 3) == 3
    assert not two.is_busier


def test_the_process_with_the_fewest_connections_is_not_busier() -> None:
    table = UsageTable(3)
    main, one, two = (SharedUsage(table, index) for index in range(3))
    main.set_load(0)  # the parent serves no readers of shared listeners
    one.set_load(1)
    assert not one.is_busier
    two.set_load(0)
    assert (main.is_busier, one.is_busier, two.is_busier) == (False, True, False)
    two.set_load(None)
    assert not one.is_busier


def test_a_full_table_refuses_new_keys_and_reuses_those_that_are_free() -> None:
    usage = SharedUsage(UsageTable(2, 64), 1)
    keys = [str(number) for number in range(64)]
    assert all(usage.streams.take(key, 1) for key in keys)
    assert not usage.streams.take("another", 1)
    usage.streams.release(keys[0])
    assert usage.streams.take("another", 1)
    assert not usage.streams.take(keys[0], 1)


def test_a_spawned_process_uses_the_same_table() -> None:
    table = UsageTable(2)
    assert SharedUsage(table, 0).streams.take("a", 3)
    number = SharedUsage(table, 0).make_number()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=take_in_child, args=(table, theirs))
    child.start()
    theirs.close()
    taken, theirs_first = ours.recv()
    assert taken == 2
    assert theirs_first != number
    ours.close()
    child.join()
    child.close()
    assert not SharedUsage(table, 0).streams.take("a", 3)
    table.clear(1)
    assert SharedUsage(table, 0).streams.take("a", 2)
