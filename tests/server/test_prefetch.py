"""Prefetching: items arrive in order, errors arrive after them, and the iterator is closed once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest

from splitarrow.errors import DatasetError
from splitarrow.protocol.request import Request
from splitarrow.server.prefetch import Prefetch
from splitarrow.server.shares import ThreadShares
from splitarrow.server.streams import ReadSlots


def fail_after(count: int) -> Iterator[int]:
    yield from range(count)
    raise DatasetError("the file is truncated")


async def test_items_arrive_in_order_and_the_iterator_is_closed_once() -> None:
    closed: list[bool] = []
    async with anyio.create_task_group() as tasks:
        threads = anyio.CapacityLimiter(1)
        with Prefetch(iter(range(100)), lambda: closed.append(True), tasks, threads) as items:
            assert [item async for item in items] == list(range(100))
    assert closed == [True]


async def test_an_error_arrives_after_the_items_before_it() -> None:
    closed: list[bool] = []
    async with anyio.create_task_group() as tasks:
        threads = anyio.CapacityLimiter(1)
        with Prefetch(fail_after(3), lambda: closed.append(True), tasks, threads) as items:
            assert [await anext(items) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(DatasetError, match="truncated"):
                await anext(items)
    assert closed == [True]


async def test_one_item_is_prepared_ahead_on_another_thread() -> None:
    prepared = [threading.Event() for _ in range(4)]
    thread_ids: set[int] = set()

    def prepare() -> Iterator[int]:
        for number, event in enumerate(prepared):
            thread_ids.add(threading.get_ident())
            event.set()
            yield number

    async with anyio.create_task_group() as tasks:
        threads = anyio.CapacityLimiter(1)
        with Prefetch(prepare(), lambda: None, tasks, threads) as items:
            assert await anext(items) == 0
            assert await anyio.to_thread.run_sync(prepared[1].wait, 30)
            assert not prepared[2].is_set()
    assert threading.get_ident() not in thread_ids


@pytest.mark.parametrize("condition", [None, "AAAA"])
async def test_the_next_item_is_prepared_while_a_consumer_blocks_the_event_loop(
    condition: str | None,
) -> None:
    slots = ReadSlots(1, ThreadShares(1, 1))
    slot = slots.slot_for(Request("x", filter=condition), "somebody")
    prepared = [threading.Event() for _ in range(5)]

    def prepare() -> Iterator[int]:
        for number, event in enumerate(prepared):
            event.set()
            yield number

    async with anyio.create_task_group() as tasks:
        threads = anyio.CapacityLimiter(1)
        with Prefetch(prepare(), lambda: None, tasks, threads, slot) as items:
            for number in range(4):
                assert await anext(items) == number
                assert prepared[number + 1].wait(5)
                if number == 1:
                    await anyio.wait_all_tasks_blocked()  # the next item is ready


async def test_the_iterator_is_closed_when_its_consumer_leaves_early() -> None:
    closed: list[bool] = []
    async with anyio.create_task_group() as tasks:
        threads = anyio.CapacityLimiter(1)
        with Prefetch(iter(range(100)), lambda: closed.append(True), tasks, threads) as items:
            assert await anext(items) == 0
    assert closed == [True]


async def test_a_consumer_may_have_each_item_prepared_when_it_requests_it() -> None:
    prepared: list[int] = []

    def prepare() -> Iterator[int]:
        for number in range(5):
            prepared.append(number)
            yield number

    threads = anyio.CapacityLimiter(1)
    async with anyio.create_task_group() as tasks:
        with Prefetch(prepare(), lambda: None, tasks, threads) as items:
            items.is_ahead = False
            for number in range(4):
                assert await anext(items) == number
                await anyio.wait_all_tasks_blocked()
                assert (prepared, threads.borrowed_tokens) == (list(range(number + 1)), 0)
            items.is_ahead = True
            assert await anext(items) == 4
