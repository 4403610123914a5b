"""Blocks that are kept for reuse, up to a budget."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest

from splitarrow.errors import SplitArrowError
from splitarrow.memory.pool import BlockPool, PoolBlock

KIB = 1 << 10


class Heap:
    """Hands out addresses, and remembers what was allocated and freed."""

    def __init__(self, budget: int) -> None:
        self._addresses = itertools.count(1 << 20, 1 << 30)
        self.sizes: dict[int, int] = {}
        self.allocated: list[int] = []
        self.pool = BlockPool(self.allocate, self.free, budget, "the heap")

    def allocate(self, nbytes: int) -> int:
        address = next(self._addresses)
        self.sizes[address] = nbytes
        self.allocated.append(nbytes)
        return address

    def free(self, address: int) -> None:
        del self.sizes[address]


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (0, 4 * KIB),
        (1, 4 * KIB),
        (4 * KIB + 1, 5 * KIB),
        (64 * KIB, 64 * KIB),
        (64 * KIB + 1, 80 * KIB),
        (80 * KIB, 80 * KIB),
        (100 * KIB, 112 * KIB),
        (128 * KIB, 128 * KIB),
        (128 * KIB + 1, 160 * KIB),
        (1 << 30, 1 << 30),
        ((1 << 30) + 1, 5 << 28),
    ],
)
def test_sizes_are_rounded_up_by_at_most_a_quarter(nbytes: int, size: int) -> None:
    assert Heap(1 << 40).pool.acquire(nbytes).nbytes == size


def test_a_block_that_was_collected_is_used_again() -> None:
    heap = Heap(1 << 20)
    block = heap.pool.acquire(100 * KIB)
    address = block.address
    assert heap.pool.used_bytes == 112 * KIB
    del block
    assert heap.pool.used_bytes == 0
    assert heap.pool.acquire(110 * KIB).address == address
    assert len(heap.allocated) == 1


def test_what_a_block_left_is_tried_again_if_it_failed() -> None:
    heap, calls = Heap(64 * KIB), list[str]()

    def wait() -> None:
        calls.append("waits")
        if len(calls) < 3:
            raise SplitArrowError("a graph is captured")

    block = heap.pool.acquire(64 * KIB)
    block.on_return = lambda: wait
    del block
    for nbytes in (64 * KIB, 4 * KIB):  # the memory is used again, or freed to make room
        with pytest.raises(SplitArrowError):
            heap.pool.acquire(nbytes)
    assert (heap.pool.acquire(4 * KIB).nbytes, calls) == (4 * KIB, ["waits"] * 3)


def test_what_a_block_left_is_done_before_its_next_use() -> None:
    heap, calls = Heap(1 << 20), list[str]()
    block = heap.pool.acquire(1)

    def end() -> object:
        calls.append("returned")
        return lambda: calls.append("used again")

    block.on_return = end  # type: ignore[assignment]
    del block
    assert calls == ["returned"]
    heap.pool.acquire(1)
    assert calls == ["returned", "used again"]


def test_the_error_beyond_the_budget_names_it() -> None:
    heap = Heap(256 * KIB)
    held: list[PoolBlock] = [heap.pool.acquire(128 * KIB)]
    message = "the budget of 256KiB of the heap is spent: 131 kB are in use"
    with pytest.raises(MemoryError, match=message):
        heap.pool.acquire(129 * KIB)
    held.append(heap.pool.acquire(128 * KIB))
    assert heap.pool.allocated_bytes == 256 * KIB


def test_idle_blocks_of_other_sizes_make_room() -> None:
    heap = Heap(256 * KIB)
    for size in (64 * KIB, 128 * KIB):
        heap.pool.acquire(size)  # and drop it
    assert heap.pool.allocated_bytes == 192 * KIB
    held = heap.pool.acquire(160 * KIB)
    assert sorted(heap.sizes.values()) == [64 * KIB, 160 * KIB]
    assert held.nbytes == 160 * KIB


def test_all_memory_is_freed_with_the_last_block_of_a_pool() -> None:
    heap = Heap(1 << 20)
    held = heap.pool.acquire(1)
    del heap.pool
    assert len(heap.sizes) == 1
    del held
    assert heap.sizes == {}


def test_memory_is_freed_if_the_pool_ends_before_its_blocks() -> None:
    heap = Heap(1 << 20)
    cycle: list[Any] = [heap.pool, heap.pool.acquire(1)]
    cycle.append(cycle)
    del heap.pool, cycle
    gc.collect()
    assert heap.sizes == {}
