"""Blocks of memory that are expensive to allocate: kept for reuse, up to a budget."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from ..errors import SplitArrowError
from ..formats.text import format_bytes, format_size

_SMALLEST = 4 << 10
_CLASSES_PER_DOUBLING = 4


class Returnable(Protocol):
    """Memory that returns to its owner when it is collected."""

    on_return: Callable[[], Callable[[], None] | None] | None
    """Called when it is collected. It may return what to do before the memory is used again."""


class PoolBlock:
    """Memory of a pool, which gets it back when the block is collected."""

    __slots__ = ("_pool", "address", "nbytes", "on_return")

    def __init__(self, pool: BlockPool, address: int, nbytes: int) -> None:
        self._pool = pool
        self.address = address
        self.nbytes = nbytes
        self.on_return: Callable[[], Callable[[], None] | None] | None = None
        """Called when the block is collected. It may return what to do before the next use."""

    # At the end of the interpreter, the names of a module may be gone already.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        before_use = None if self.on_return is None else self.on_return()
        self._pool.give_back(self.address, self.nbytes, before_use)


class BlockPool:
    """Hands out blocks, and keeps those that come back for reuse.

    Any thread may use it, and blocks may be collected in any thread at any time.

    `allocate` returns the address of new memory of a size in bytes, or raises `MemoryError`. The
    budget limits all memory, whether in use or kept, in bytes. Blocks that have to be waited for
    are used again after `rest_bytes` of them have come back, the oldest first, or if the budget is
    spent.
    """

    def __init__(
        self,
        allocate: Callable[[int], int],
        free: Callable[[int], None],
        budget: int,
        name: str,
        rest_bytes: int = 0,
    ) -> None:
        self._rest_bytes = rest_bytes
        self._allocate = allocate
        self._free = free
        self.budget = budget
        self._name = name
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int, Callable[[], None] | None]] = deque()
        """Blocks that came back. A collector may add one while this thread holds the lock."""
        self._idle: dict[int, deque[tuple[int, Callable[[], None] | None]]] = defaultdict(deque)
        """Addresses of blocks to use again, by their sizes, the oldest first."""
        self.allocated_bytes = 0
        """The size of all memory, whether in use or kept, in bytes."""
        self._has_ended = False
        keep_until_collected(self, free)

    def acquire(self, nbytes: int) -> PoolBlock:
        """Return a block of at least `nbytes` bytes; raise `MemoryError` if there is no memory."""
        size = _round_up(nbytes)
        with self._lock:
            self._collect()
            if self._must_allocate(size):
                self._make_room(size)
                address, before_use = self._allocate(size), None
                self.allocated_bytes += size
            else:
                address, before_use = self._idle[size].popleft()
        if before_use is not None:
            try:
                before_use()
            except BaseException:  # for example during a graph capture: the next user waits again
                self.give_back(address, size, before_use)
                raise
        return PoolBlock(self, address, size)

    def _must_allocate(self, size: int) -> bool:
        blocks = self._idle[size]
        if not blocks:
            return True
        is_resting = blocks[0][1] is not None and len(blocks) * size < self._rest_bytes
        return is_resting and self.allocated_bytes + size <= self.budget

    def give_back(self, address: int, nbytes: int, before_use: Callable[[], None] | None) -> None:
        """Take a block back: what `PoolBlock` calls when it is collected."""
        self._returned.append((address, nbytes, before_use))
        if self._has_ended:
            self._end()

    @property
    def used_bytes(self) -> int:
        """The size of the blocks that are in use, in bytes."""
        with self._lock:
            self._collect()
            return self._count_used()

    def _collect(self) -> None:
        while self._returned:
            address, nbytes, before_use = self._returned.popleft()
            self._idle[nbytes].append((address, before_use))

    def _count_used(self) -> int:
        idle = sum(nbytes * len(blocks) for nbytes, blocks in self._idle.items())
        return self.allocated_bytes - idle

    def _make_room(self, nbytes: int) -> None:
        """Free idle blocks until another of `nbytes` bytes fits into the budget."""
        self._free_idle(max(0, self.budget - nbytes))
        if self.allocated_bytes + nbytes > self.budget:
            raise MemoryError(
                f"the budget of {format_size(self.budget)} of {self._name} is spent: "
                f"{format_bytes(self._count_used())} are in use by batches that are still held"
            )

    def _free_idle(self, target: int) -> None:
        """Free idle blocks, the largest first, until no more than `target` bytes are allocated."""
        for nbytes in sorted(self._idle, reverse=True):
            blocks = self._idle[nbytes]
            while blocks and self.allocated_bytes > target:
                address, before_use = blocks[0]
                if before_use is not None:
                    before_use()
                blocks.popleft()
                self._free(address)
                self.allocated_bytes -= nbytes

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        # Each block refers to the pool, but those that are garbage together end in any order.
        self._has_ended = True
        self._end()

    def _end(self) -> None:
        self._collect()
        with contextlib.suppress(SplitArrowError):  # a forked child leaves memory to its parent
            self._free_idle(0)


def keep_until_collected(user: object, kept: object) -> None:
    """Keep an object until its user has been collected, also if both are garbage together.

    Otherwise, the finalizer of a device could run before that of memory which is freed on it.
    """
    weakref.finalize(user, id, kept).atexit = False


def wrap_block(block: PoolBlock, nbytes: int) -> pa.Buffer:
    """Return a mutable buffer of `nbytes` bytes in a block of host memory, which it keeps alive.

    ``pyarrow.foreign_buffer`` would return an immutable one.
    """
    memory: Any = (ctypes.c_char * nbytes).from_address(block.address)
    memory.block = block
    return pa.py_buffer(memory)


def _round_up(nbytes: int) -> int:
    """Return the size of the block for `nbytes` bytes: at most a quarter more, from 4 KiB."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = (1 << ((nbytes - 1).bit_length() - 1)) // _CLASSES_PER_DOUBLING
    return -(-nbytes // step) * step
