"""The memory of devices, as transports use it: to receive bodies into it, or to copy to it.

A transport that knows nothing of devices receives into host memory, from which bodies are copied.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from .memory import Allocator, ReceivedBody, describe_exhaustion
from .regions import DeviceHandles, Region

_NO_BYTES = pa.py_buffer(b"")


class DeviceBody(ReceivedBody):
    """A packed body in the memory of a device. Host code knows its address and its size alone."""

    __slots__ = ("address", "owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        super().__init__(_NO_BYTES, memoryview(b""), 0, nbytes)
        self.address = address
        self.owner = owner


class ClosableMemory(Protocol):
    """Access to memory that ends with `close`."""

    def close(self) -> None:
        """End the access, once nothing uses it. Idempotent."""
        ...


class DeviceAllocator(Protocol):
    """Supplies the memory of a device, for transports that receive into it by themselves."""

    @property
    def type_code(self) -> int:
        """The type of the memory, as in DLPack: 2 is CUDA's."""
        ...

    def allocate(self, nbytes: int) -> DeviceBody:
        """Return memory for a packed body, which nothing uses any more.

        Raises `MemoryError` if there is not enough memory. The stream then fails with a
        `LimitError`.
        """
        ...

    def register(self, address: int, nbytes: int) -> ClosableMemory | None:
        """Page-lock memory that a transport has mapped; return None if it cannot be."""
        ...

    def can_share(self, process: int) -> bool:
        """Return whether to request memory of the device from a server in a process."""
        ...

    def stop_sharing(self) -> bool:
        """Request no such memory any more; return whether it was requested before."""
        ...

    def open_region(self, handles: DeviceHandles, connection: int) -> Region:
        """Return the memory of the device that a server on this host has announced.

        The region owns `connection`, a descriptor of the connection to the server, and closes it
        once the memory is closed: the server keeps the memory as long.

        Raises `ConnectError` if it is on another device, or cannot be opened.
        """
        ...

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which libraries that this thread calls use the device."""
        ...


class StagingAllocator:
    """Host memory to receive bodies into that go on to a device.

    A transport that knows the memory of the device may receive packed bodies there instead.
    """

    is_host = True

    def __init__(self, staging: Allocator, device: DeviceAllocator) -> None:
        self._staging = staging
        self.device = device

    def allocate(self, nbytes: int) -> pa.Buffer:
        """Return host memory; see `Allocator.allocate`."""
        return self._staging.allocate(nbytes)


def allocate_on_device(allocator: DeviceAllocator, nbytes: int, tag: int) -> DeviceBody:
    """Return memory of a device for a body; raise `LimitError` if there is not enough."""
    try:
        return allocator.allocate(nbytes)
    except MemoryError as error:
        raise describe_exhaustion(nbytes, tag, error) from None
