"""The memory of a device as the place where a stream's batches land."""

from __future__ import annotations

import functools

from ..protocol.devices import StagingAllocator
from ..protocol.memory import Allocator
from ..units import format_size
from .copier import DeviceCopier
from .cuda import CudaDevice
from .device import Device
from .device_bodies import DeviceBodies
from .host_registration import HostRegistrations
from .pinned import PinnedMemory, check_budget, default_pinned_memory
from .pool import BlockPool

DEFAULT_BUDGET = 4 << 30
_PENDING_BYTES = 256 << 20


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
        return StagingAllocator(self.staging, bodies)

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
