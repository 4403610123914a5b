"""Memory of a device that this process lets others on this host open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..protocol.regions import DeviceHandles
from .device import Device


class DeviceExport:
    """The allocations that hold some buffers, one after another in one region.

    Parameters
    ----------
    device : Device
        The device.
    type_code : int
        The type of the memory, as in DLPack.
    buffers : iterable of Buffer
        The buffers.

    Raises
    ------
    SplitArrowError
        If other processes cannot open one of the allocations. So it is with managed memory, and
        with memory of pools of the driver.
    UsageError
        If a buffer is not within one allocation.
    """

    def __init__(self, device: Device, type_code: int, buffers: Iterable[pa.Buffer]) -> None:
        if type_code != device.type_code:
            raise SplitArrowError(f"memory of the type {type_code} is not that of one device")
        sizes: dict[int, int] = {}
        for buffer in buffers:
            begin, nbytes = device.find_allocation(buffer.address)
            if buffer.address + buffer.size > begin + nbytes:
                raise UsageError(f"a buffer on {device.name} is not within one allocation")
            sizes[begin] = nbytes
        self._bases = sorted(sizes)
        ends = list(accumulate(sizes[base] for base in self._bases))
        self._offsets = [0, *ends[:-1]]
        self.handles = DeviceHandles(
            type_code,
            device.uuid,
            tuple((device.export_allocation(base), sizes[base]) for base in self._bases),
        )
        """What a reader needs to open the allocations."""

    def locate(self, address: int) -> int:
        """Return the offset in the region of an address in one of the buffers."""
        index = bisect_right(self._bases, address) - 1
        return self._offsets[index] + address - self._bases[index]
