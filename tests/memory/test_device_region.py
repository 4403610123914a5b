"""Memory of a device that a process exports and another one opens, where both are this one."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pyarrow as pa
import pytest

from helpers.trap_device import TrapDevice
from helpers.waiting import wait_until
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


def test_an_allocation_is_not_opened_while_it_is_closed() -> None:
    """CUDA may unmap what one thread opens beside the close of another thread."""
    events: list[str] = []
    is_closing, may_close = threading.Event(), threading.Event()

    class SlowDevice(TrapDevice):
        def open_allocation(self, handle: bytes, nbytes: int) -> int:
            events.append("open")
            return super().open_allocation(handle, nbytes)

        def close_allocation(self, address: int) -> None:
            is_closing.set()
            may_close.wait(10)
            super().close_allocation(address)
            events.append("closed")

    exported, _ = export(TrapDevice(), 4096)
    device, regions = SlowDevice(), list[DeviceRegion]()
    regions.append(DeviceRegion(device, exported.handles))
    closer = threading.Thread(target=regions.clear)
    closer.start()
    assert is_closing.wait(10)
    opener = threading.Thread(target=lambda: regions.append(DeviceRegion(device, exported.handles)))
    opener.start()
    opener.join(0.05)
    may_close.set()
    closer.join()
    opener.join()
    regions.clear()
    assert events == ["open", "closed", "open", "closed"]


def test_two_regions_share_an_allocation() -> None:
    exported, _ = export(TrapDevice(), 4096)
    reader = TrapDevice()
    first = DeviceRegion(reader, exported.handles)
    second = DeviceRegion(reader, exported.handles)
    assert (reader.opened, first.locate(0, 1)) == (1, second.locate(0, 1))
    larger = exported.handles._replace(allocations=((exported.handles.allocations[0][0], 8192),))
    with pytest.raises(ConnectError, match="an allocation has 4096 bytes, not 8192"):
        DeviceRegion(reader, larger)
    del first
    assert reader.closed == 0
    del second
    assert reader.closed == 1


def test_what_cannot_be_exported_is_refused() -> None:
    device = TrapDevice()
    with pytest.raises(SplitArrowError, match="memory of the type 13 is not that of one device"):
        DeviceExport(device, 13, [])
    with pytest.raises(UsageError, match="is not within one allocation"):
        DeviceExport(device, device.type_code, [pa.foreign_buffer(device.allocate(4096), 4097)])


def test_a_lease_lasts_until_nothing_on_the_device_uses_it() -> None:
    class Lease:
        pass

    def wait() -> None:
        held.append(found() is not None)

    held: list[bool] = []
    lease = Lease()
    found = weakref.ref(lease)
    exported, _ = export(TrapDevice(), 100)
    block = DeviceRegion(TrapDevice(), exported.handles).lease(lease)
    block.on_return = lambda: wait
    del lease, block
    wait_until(lambda: found() is None, "the end of the lease")
    assert held == [True]
