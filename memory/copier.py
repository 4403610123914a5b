"""Copying record batches to a device while the next ones arrive."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from ..errors import LimitError
from ..protocol.memory import Allocator
from .array_layout import ArrayLayout, without_offsets
from .device import Device, Event
from .device_batch import DeviceBatch, Residence
from .pool import Block, BlockPool

_SLACK_BYTES = 64 << 10
"""Unused memory in an allocation that is copied with the rest, rather than in several copies."""


@dataclass(slots=True)
class _Area:
    """Memory of one allocation of the host that holds buffers of a batch."""

    begin: int
    end: int
    used: int = 0
    block: Block | None = field(default=None)


class DeviceCopier:
    """Copies record batches to a device, in order, without waiting for the copies.

    Parameters
    ----------
    device : Device
        The device.
    pool : BlockPool
        Its memory.
    max_pending : int
        The size of the host memory that may wait for its copy, in bytes.
    staging : Allocator
        Host memory that the device copies from by itself, for batches that are elsewhere.
    """

    def __init__(
        self, device: Device, pool: BlockPool, max_pending: int, staging: Allocator
    ) -> None:
        self._device = device
        self._pool = pool
        self._max_pending = max_pending
        self._staging = staging
        self._pending: deque[tuple[Event, object, int]] = deque()
        self._pending_bytes = 0

    def copy(self, batch: pa.RecordBatch) -> DeviceBatch:
        """Return a batch on the device. Its copies may still run.

        Raises
        ------
        LimitError
            If the batches that the consumer holds have spent the budget of the device.
        """
        self._drop_copied()
        batch = without_offsets(batch)
        columns = [ArrayLayout.of(column) for column in batch.columns]
        areas = _find_areas([buffer for column in columns for buffer in column.list_buffers()])
        try:
            for area in areas:
                area.block = self._pool.acquire(area.end - area.begin)
        except MemoryError as error:
            raise LimitError(f"a batch of {batch.nbytes} bytes does not fit: {error}") from None
        sources: list[object] = [batch]
        for area in areas:
            assert area.block is not None
            source, owner = self._find_source(area)
            sources.append(owner)
            self._device.copy_in(area.block.address, source, area.end - area.begin)
        ready = self._device.record()
        size = sum(area.end - area.begin for area in areas)
        self._pending.append((ready, sources, size))
        self._pending_bytes += size
        residence = Residence(self._device, [area.block for area in areas if area.block], ready)
        place = _Placement(areas, ready)
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

    def __del__(self) -> None:
        # The device may still read host memory that somebody else would get otherwise.
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


class _Placement:
    """Turns buffers of the host into those of the device."""

    def __init__(self, areas: list[_Area], ready: Event) -> None:
        self._areas = areas
        self._ready = ready

    def __call__(self, buffer: pa.Buffer) -> pa.Buffer:
        begin, end = buffer.address, buffer.address + buffer.size
        for area in self._areas:
            if area.begin <= begin and end <= area.end and area.block is not None:
                address = area.block.address + begin - area.begin
                return pa.foreign_buffer(address, buffer.size, (area.block, self._ready))
        raise AssertionError("a buffer is in no area")
