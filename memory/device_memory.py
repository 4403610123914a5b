"""The memory of a device, to which batches are copied while the next ones arrive."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from ..errors import LimitError, SplitArrowError
from ..formats.arguments import refuse
from ..formats.text import format_size
from ..protocol.devices import StagingAllocator
from ..protocol.memory import Allocator
from .array_layout import ArrayLayout, without_offsets
from .device import CudaDevice, Device, Event
from .device_batch import DeviceBatch, Residence
from .device_bodies import DeviceBodies
from .pinned import (
    HostRegistrations,
    PinnedMemory,
    check_budget,
    default_pinned_memory,
    find_staging,
)
from .pool import BlockPool, keep_until_collected

DEFAULT_BUDGET = 4 << 30
_PENDING_BYTES = 256 << 20
_CUDA = re.compile(r"cuda(?::(\d+))?")
_ALIGNMENT = 256
"""The alignment of areas on the device, as that of CUDA."""
_SLACK_BYTES = 64 << 10
"""Unused memory in an allocation that is copied with the rest, rather than in several copies."""


@dataclass(slots=True)
class _Area:
    """Memory of one allocation of the host that holds buffers of a batch."""

    begin: int
    end: int
    used: int = 0
    target: int = 0
    """Where it begins on the device."""


class DeviceCopier:
    """Copies record batches to a device, in order, without waiting for the copies.

    At most `max_pending` bytes of host memory wait for their copy. Batches that are elsewhere go
    through `staging`, host memory that the device copies from by itself.
    """

    def __init__(
        self, device: Device, pool: BlockPool, max_pending: int, staging: Allocator
    ) -> None:
        self._device = device
        self._pool = pool
        self._max_pending = max_pending
        self._staging = find_staging(staging)
        self._pending: deque[tuple[Event, object, int]] = deque()
        self._pending_bytes = 0

    def copy(self, batch: pa.RecordBatch) -> DeviceBatch:
        """Return a batch on the device. Its copies may still run.

        Raises `LimitError` if the batches that the consumer holds have spent the budget of the
        device.
        """
        with self._device.current():
            return self._copy(batch)

    def _copy(self, batch: pa.RecordBatch) -> DeviceBatch:
        self._drop_copied()
        batch = without_offsets(batch)
        columns = [ArrayLayout.of(column) for column in batch.columns]
        areas = _find_areas([buffer for column in columns for buffer in column.list_buffers()])
        size = 0
        for area in areas:
            area.target, size = size, size + -(-(area.end - area.begin) // _ALIGNMENT) * _ALIGNMENT
        try:
            blocks = [self._pool.acquire(size)] if size else []
        except MemoryError as error:
            raise LimitError(f"a batch of {batch.nbytes} bytes does not fit: {error}") from None
        sources: list[object] = [batch]
        for area in areas:
            area.target += blocks[0].address
            source, owner = self._find_source(area)
            sources.append(owner)
            self._device.copy_in(area.target, source, area.end - area.begin)
        ready = self._device.record()
        self._pending.append((ready, sources, size))
        self._pending_bytes += size
        residence = Residence(self._device, blocks, ready)
        owners = (*blocks, ready)

        def place(buffer: pa.Buffer) -> pa.Buffer:
            begin, end = buffer.address, buffer.address + buffer.size
            area = next(each for each in areas if each.begin <= begin and end <= each.end)
            return pa.foreign_buffer(area.target + begin - area.begin, buffer.size, owners)

        moved = [column.move(place) for column in columns]
        return DeviceBatch(batch.schema, moved, batch.num_rows, residence)

    def _find_source(self, area: _Area) -> tuple[int, object]:
        """Return host memory with the contents of an area, and what keeps it.

        A copy from pageable memory would keep this thread waiting.
        """
        if self._device.is_page_locked(area.begin):
            return area.begin, None
        nbytes = area.end - area.begin
        try:
            staged = self._staging.allocate(nbytes)
        except MemoryError:  # other streams use all of it
            return area.begin, None
        ctypes.memmove(staged.address, area.begin, nbytes)
        return staged.address, staged

    def _drop_copied(self) -> None:
        """Drop host memory whose copies have ended; wait if too much waits."""
        while self._pending:
            event, sources, size = self._pending[0]
            if not event.is_done():
                if self._pending_bytes <= self._max_pending:
                    return
                event.wait()
            self._pending.popleft()
            self._pending_bytes -= size
            del sources

    def close(self) -> None:
        """Wait for all copies, and drop the host memory."""
        while self._pending:
            event, _, _ = self._pending[0]
            event.wait()
            self._pending.popleft()
        self._pending_bytes = 0

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The device may still read host memory that somebody else would get otherwise.
        if not is_finalizing():
            with contextlib.suppress(SplitArrowError):  # a forked child has made no copies
                self.close()


def _find_areas(buffers: list[pa.Buffer]) -> list[_Area]:
    """Return the areas to copy: one for each allocation, or for each buffer if far apart."""
    areas: dict[int, _Area] = {}
    for buffer in buffers:
        begin, end = buffer.address, buffer.address + buffer.size
        area = areas.setdefault(_find_allocation(buffer), _Area(begin, end))
        area.begin, area.end = min(area.begin, begin), max(area.end, end)
        area.used += buffer.size
    found: list[_Area] = []
    for allocation, area in areas.items():
        if area.end - area.begin <= area.used + area.used // 4 + _SLACK_BYTES:
            found.append(area)
            continue
        for buffer in buffers:
            if _find_allocation(buffer) == allocation:
                end = buffer.address + buffer.size
                found.append(_Area(buffer.address, end, buffer.size))
    return found


def _find_allocation(buffer: pa.Buffer) -> int:
    """Return the address of the allocation that a buffer is a slice of."""
    while (parent := buffer.parent) is not None:
        buffer = parent
    return buffer.address


class DeviceMemory:
    """Memory of a device, for the batches of one or more streams.

    Parameters
    ----------
    device : Device
        The device.
    budget : int or str
        The limit on the memory, in bytes or as ``"4GiB"``. A stream that exceeds it because the
        consumer holds too many batches raises a `LimitError` that names it.
    staging : Allocator
        The host memory that bodies are received into and copied from.
    """

    def __init__(self, device: Device, budget: int | str, staging: Allocator) -> None:
        size = check_budget(budget)
        self.device = device
        self.staging = staging
        limit = getattr(staging, "budget", 4 * _PENDING_BYTES)
        self._registrations = HostRegistrations(device, limit)
        keep_until_collected(self._registrations, device)
        self._pool = BlockPool(device.allocate, device.free, size, f"the memory of {device.name}")

    @property
    def budget(self) -> int:
        """The limit on its size, in bytes."""
        return self._pool.budget

    @property
    def used_bytes(self) -> int:
        """The size of the memory that batches use now, in bytes."""
        return self._pool.used_bytes

    def open_copier(self) -> DeviceCopier:
        """Return what copies the batches of a stream."""
        pending = getattr(self.staging, "budget", 2 * _PENDING_BYTES) // 2
        pending = min(pending, _PENDING_BYTES)
        return DeviceCopier(self.device, self._pool, pending, self.staging)

    def open_allocator(self) -> StagingAllocator:
        """Return what supplies the memory of received bodies: of the host, or of the device."""
        bodies = DeviceBodies(self.device, self._pool, self._registrations)
        return StagingAllocator(find_staging(self.staging), bodies)

    def __repr__(self) -> str:
        title = f"{type(self).__name__} {self.device.name}"
        used, budget = format_size(self.used_bytes), format_size(self.budget)
        return f"<splitarrow.{title}: {used} of {budget} in use>"


class CudaMemory(DeviceMemory):
    """Memory of a CUDA device.

    Bodies are received into page-locked memory and copied to the device by a stream of its own,
    while the next ones arrive. It needs the extra ``gpu``, and a CUDA driver.

    Parameters
    ----------
    device : int
        The number of the device.
    budget : int or str
        The limit on the memory of the device, in bytes or as ``"4GiB"``.
    staging : PinnedMemory, optional
        The page-locked memory. `None` takes that of ``memory="pinned"``, which all streams of the
        process share.

    Raises
    ------
    MissingExtraError
        If cuda-bindings is not installed.
    UsageError
        If there is no such device.
    """

    def __init__(
        self,
        device: int = 0,
        budget: int | str = DEFAULT_BUDGET,
        staging: PinnedMemory | None = None,
    ) -> None:
        staging = default_pinned_memory() if staging is None else staging
        super().__init__(CudaDevice(device), budget, staging)


@functools.cache
def default_cuda_memory(device: int) -> CudaMemory:
    """Return the memory of ``memory="cuda:0"``, which all streams of the process share."""
    return CudaMemory(device)


def select_memory(memory: Any) -> Allocator | DeviceMemory:
    """Return the memory that the argument ``memory`` of a read names.

    Raises `UsageError` if it names none, and `MissingExtraError` if it needs cuda-bindings.
    """
    if isinstance(memory, DeviceMemory):
        return memory
    if isinstance(memory, str) and memory == "pinned":
        return default_pinned_memory()
    if isinstance(memory, str) and (match := _CUDA.fullmatch(memory)):
        return default_cuda_memory(int(match[1] or 0))
    if callable(getattr(memory, "allocate", None)) and getattr(memory, "is_host", False):
        return cast("Allocator", memory)
    refuse("memory", memory, "'pinned', 'cuda:0', CudaMemory, or an allocator of host memory")
