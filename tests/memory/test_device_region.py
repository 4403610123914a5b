"""Memory of a device that a process exports and another one opens, where both are this one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.trap_device import TrapDevice
from splitarrow.errors import ConnectError, ProtocolError, SplitArrowError, UsageError
from splitarrow.memory.device_region import DeviceExport, DeviceRegion
from splitarrow.protocol.regions import DeviceHandles


def export(device: TrapDevice, *sizes: int) -> tuple[DeviceExport, list[pa.Buffer]]:
    buffers = [pa.foreign_buffer(device.allocate(size), size) for size in sizes]
    return DeviceExport(device, device.type_code, buffers), buffers


def test_a_region_has_the_contents_of_all_allocations() -> None:
    owner, reader = TrapDevice(), TrapDevice()
    exported, buffers = export(owner, 4096, 8192, 100)
    for number, buffer in enumerate(buffers):
        owner.write(buffer.address + 10, bytes([number + 1]) * 50)
    region = DeviceRegion(reader, exported.handles)
    assert region.size == 4096 + 8192 + 100
    for number, buffer in enumerate(buffers):
        offset = exported.locate(buffer.address + 10)
        assert reader.read(region.locate(offset, 50), 50) == bytes([number + 1]) * 50
    assert reader.opened == 3
    del region
    assert reader.closed == 3


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(4000, 97), (0, 4097), (8192, 1), (8191, 2), (1 << 63, 8)]
)
def test_spans_outside_of_an_allocation_are_refused(offset: int, nbytes: int) -> None:
    exported, _ = export(TrapDevice(), 4096, 4096)
    region = DeviceRegion(TrapDevice(), exported.handles)
    assert region.locate(4095, 1)
    with pytest.raises(ProtocolError, match=f"{nbytes} bytes at offset {offset} are not within"):
        region.locate(offset, nbytes)


def test_the_host_gets_no_buffer_of_it() -> None:
    exported, _ = export(TrapDevice(), 4096)
    region = DeviceRegion(TrapDevice(), exported.handles)
    with pytest.raises(UsageError, match="the data is on trap:0, not in host memory"):
        region.buffer(0, 8, None)


def test_what_cannot_be_opened_is_explained() -> None:
    exported, _ = export(TrapDevice(), 4096)
    handles = exported.handles
    other: Any = handles._replace(device=bytes(16))
    with pytest.raises(ConnectError, match="the server's data is on another device than trap:0"):
        DeviceRegion(TrapDevice(), other)
    larger = DeviceHandles(12, handles.device, ((handles.allocations[0][0], 8192),))
    reader = TrapDevice()
    reader.index = 1
    with pytest.raises(ConnectError, match="cannot be opened by this process: the allocation is"):
        DeviceRegion(reader, larger)
    assert reader.opened == reader.closed == 0


def test_what_cannot_be_exported_is_refused() -> None:
    device = TrapDevice()
    with pytest.raises(SplitArrowError, match="memory of the type 13 is not that of one device"):
        DeviceExport(device, 13, [])
    with pytest.raises(UsageError, match="is not within one allocation"):
        DeviceExport(device, device.type_code, [pa.foreign_buffer(device.allocate(4096), 4097)])
