"""Memory of a device that a transport receives bodies into by itself."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from ..protocol.devices import DeviceBody
from ..protocol.regions import DeviceHandles
from .device import Device
from .device_region import DeviceRegion
from .host_registration import HostRegistrations
from .pool import BlockPool


class DeviceBodies:
    """Allocates the bodies that a transport receives on a device; see `DeviceAllocator`.

    Parameters
    ----------
    device : Device
        The device.
    pool : BlockPool
        Its memory.
    registrations : HostRegistrations
        The memory of others that it copies from.
    """

    def __init__(self, device: Device, pool: BlockPool, registrations: HostRegistrations) -> None:
        self.device = device
        self.register = registrations.add
        """Page-locks memory that a transport has mapped; see `DeviceAllocator.register`."""
        self._pool = pool
        self._shares, self._has_requested = True, False

    @property
    def type_code(self) -> int:
        """The type of the memory, as in DLPack."""
        return self.device.type_code

    def allocate(self, nbytes: int) -> DeviceBody:
        """Return memory for a body, once the device has ended what it did with it before."""
        block = self._pool.acquire(nbytes)
        # The transport does not wait for the queue of the device, as copies would.
        self.device.record().wait()
        return DeviceBody(block.address, nbytes, block)

    def can_share(self, process: int) -> bool:
        """Return whether to request memory of the device from a server in a process."""
        if self._shares and (process != os.getpid() or self.device.opens_own_exports):
            self._has_requested = True
            return True
        return False

    def stop_sharing(self) -> bool:
        """Request no such memory any more; return whether it was requested before."""
        requested, self._shares, self._has_requested = self._has_requested, False, False
        return requested

    def open_region(self, handles: DeviceHandles) -> DeviceRegion:
        """Return the memory of the device that a server on this host has announced."""
        return DeviceRegion(self.device, handles)

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which libraries that this thread calls use the device."""
        return self.device.current()
