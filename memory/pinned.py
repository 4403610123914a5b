"""Page-locked host memory, from which CUDA devices copy without the processor.

It is allocated here, or it is the memory of others, page-locked in place.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading

import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..formats.text import format_size, parse_size
from .device import Device, allocate_pinned, free_pinned, load_runtime
from .pool import BlockPool, wrap_block

DEFAULT_BUDGET = 1 << 30
_log = logging.getLogger("splitarrow.memory")


class PinnedMemory:
    """Allocates the bodies of streams in page-locked memory, and keeps that memory for reuse.

    Several streams may share it. It needs the extra ``gpu``, and a CUDA driver.

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
        load_runtime()
        size = check_budget(budget)
        self._pool = BlockPool(allocate_pinned, free_pinned, size, "page-locked memory")

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
        return wrap_block(self._pool.acquire(nbytes), nbytes)


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

    def __del__(self) -> None:
        with contextlib.suppress(SplitArrowError):  # CUDA is shutting down
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
