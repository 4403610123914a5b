"""Page-locked host memory, from which CUDA devices copy without the processor."""

from __future__ import annotations

import functools

import pyarrow as pa

from ..errors import UsageError
from ..units import parse_size
from .cuda import allocate_pinned, free_pinned, load_runtime
from .pool import BlockPool, wrap_block

DEFAULT_BUDGET = 1 << 30


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
        block = self._pool.acquire(nbytes)
        return wrap_block(block, nbytes)


def check_budget(budget: int | str) -> int:
    """Return a budget in bytes.

    Raises
    ------
    UsageError
        If it is not a size above 0.
    """
    size = parse_size(budget) if isinstance(budget, str) else budget
    if size < 1:
        raise UsageError(f"budget is {budget!r}; expected more than 0 bytes")
    return size


@functools.cache
def default_pinned_memory() -> PinnedMemory:
    """Return the memory of ``memory="pinned"``, which all streams of the process share."""
    return PinnedMemory()
