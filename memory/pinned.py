"""Page-locked host memory, from which CUDA devices copy without the processor.

It is allocated here, or it is the memory of others, page-locked in place.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable

import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..formats.text import format_size, parse_size
from ..protocol.memory import Allocator
from .device import Device, PinnedHeap
from .pool import BlockPool, wrap_block

DEFAULT_BUDGET = 1 << 30
_REST_BYTES = 64 << 20
"""The size of the blocks of one size for which a program waits at once, in bytes."""
_log = logging.getLogger("splitarrow.memory")


class PinnedMemory:
    """Allocates the bodies of streams in page-locked memory, and keeps that memory for reuse.

    Several streams may share it. It needs the extra ``gpu``, and a CUDA driver.

    A program may drop a batch while a device still copies from it. The memory is used again once
    all work is done that devices had at that time.

    Parameters
    ----------
    budget : int or str
        The limit on its size, in bytes or as ``"4GiB"``. A stream that exceeds it because the
        consumer holds too many batches raises a `LimitError` that names it.

    Raises
    ------
    MissingExtraError
        If cuda-bindings is not installed.
    UsageError
        If there is no CUDA device.
    """

    is_host = True

    def __init__(self, budget: int | str = DEFAULT_BUDGET) -> None:
        heap = self._heap = PinnedHeap()
        size = check_budget(budget)
        rest = min(size // 4, _REST_BYTES)
        self._pool = BlockPool(heap.allocate, heap.free, size, "page-locked memory", rest)
        self._drops = itertools.count(1)
        self._idle_since = 0
        """The number of the last block that came back before all devices were idle."""

    @property
    def budget(self) -> int:
        """The limit on its size, in bytes."""
        return self._pool.budget

    @property
    def used_bytes(self) -> int:
        """The size of the memory that batches use now, in bytes."""
        return self._pool.used_bytes

    def allocate(self, nbytes: int) -> pa.Buffer:
        """Return a buffer; see `Allocator.allocate`."""
        self._heap.check()
        block = self._pool.acquire(nbytes)
        block.on_return = self._end_use
        return wrap_block(block, nbytes)

    @property
    def staging(self) -> Allocator:
        """The same memory for owners that drop a buffer only after all copies from it."""
        return _Staging(self._heap, self._pool)

    def _end_use(self) -> Callable[[], None]:
        """Return how to wait until no device reads a block that comes back now."""
        number = next(self._drops)

        def wait() -> None:
            if number > self._idle_since:
                last = next(self._drops)
                self._heap.synchronize()
                self._idle_since = last

        return wait


class _Staging:
    """Memory that is used again as soon as it comes back."""

    is_host = True

    def __init__(self, heap: PinnedHeap, pool: BlockPool) -> None:
        self._heap = heap
        self._pool = pool

    def allocate(self, nbytes: int) -> pa.Buffer:
        """Return a buffer; see `Allocator.allocate`."""
        self._heap.check()
        return wrap_block(self._pool.acquire(nbytes), nbytes)


def find_staging(memory: Allocator) -> Allocator:
    """Return host memory for copies, whose owner waits for each of them."""
    return memory.staging if isinstance(memory, PinnedMemory) else memory


def check_budget(budget: int | str) -> int:
    """Return a budget in bytes; raise `UsageError` if it is not a size above 0."""
    size = parse_size(budget) if isinstance(budget, str) else budget
    if size < 1:
        raise UsageError(f"budget is {budget!r}; expected more than 0 bytes")
    return size


@functools.cache
def default_pinned_memory() -> PinnedMemory:
    """Return the memory of ``memory="pinned"``, which all streams of the process share."""
    return PinnedMemory()


class HostRegistration:
    """Memory that is page-locked while this object lives, or until `close`."""

    def __init__(self, owner: HostRegistrations, address: int, nbytes: int) -> None:
        self._owner = owner
        self._address = address
        self._nbytes = nbytes

    def close(self) -> None:
        """Wait for copies from the memory, and make it pageable again. Idempotent."""
        nbytes, self._nbytes = self._nbytes, 0
        if nbytes:
            self._owner.remove(self._address, nbytes)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            with contextlib.suppress(SplitArrowError):  # a forked child leaves it to its parent
                self.close()


class HostRegistrations:
    """Page-locks memory that a transport has mapped, up to a limit in bytes."""

    def __init__(self, device: Device, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._lock = threading.Lock()
        self._nbytes = 0
        self._has_logged = False

    def add(self, address: int, nbytes: int) -> HostRegistration | None:
        """Page-lock memory from the beginning of a page; return None if that is refused."""
        with self._lock:
            has_room = self._nbytes + nbytes <= self._limit
            if has_room:
                self._nbytes += nbytes
        if not has_room:
            limit = format_size(self._limit)
            self._explain(f"it would be more than the {limit} of the staging memory")
            return None
        try:
            self._device.register_host(address, nbytes)
        except (SplitArrowError, MemoryError) as error:
            with self._lock:
                self._nbytes -= nbytes
            self._explain(str(error))
            return None
        return HostRegistration(self, address, nbytes)

    def remove(self, address: int, nbytes: int) -> None:
        """Make memory pageable again, after the copies from it."""
        self._device.record().wait()
        self._device.unregister_host(address)
        with self._lock:
            self._nbytes -= nbytes

    def _explain(self, reason: str) -> None:
        if not self._has_logged:
            self._has_logged = True
            _log.debug(
                "shared memory is not page-locked for %s, so its batches are copied through "
                "staging memory: %s",
                self._device.name,
                reason,
            )
