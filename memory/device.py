"""What the copying of record batches needs of a device: memory, copies, and events."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Event(Protocol):
    """A point in the work of a device."""

    @property
    def handle(self) -> int:
        """The address of the native event (``cudaEvent_t *``), for Arrow's C device interface."""
        ...

    def is_done(self) -> bool:
        """Return whether the device has reached it."""
        ...

    def wait(self) -> None:
        """Wait until the device has reached it."""
        ...

    def delay(self, stream: int) -> None:
        """Make a consumer's stream wait for it, without waiting here.

        Parameters
        ----------
        stream : int
            The native handle of the stream, as DLPack passes it.
        """
        ...


class Device(Protocol):
    """A device with memory of its own, and one queue of copies."""

    @property
    def name(self) -> str:
        """Its name, as PyTorch writes it: ``cuda:0``."""
        ...

    @property
    def index(self) -> int:
        """Its number."""
        ...

    @property
    def type_code(self) -> int:
        """Its type: the same number in DLPack and in Arrow's C device interface; 2 is CUDA."""
        ...

    def activate(self) -> None:
        """Make it the device of libraries that this thread calls from now on."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Return a context in which it is the device of libraries that this thread calls."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, which is aligned to 64 bytes or more.

        Raises
        ------
        MemoryError
            If the device has not enough memory.
        """
        ...

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned, once the device does not use it any more."""
        ...

    @property
    def uuid(self) -> bytes:
        """The 16 bytes that identify it among all devices."""
        ...

    @property
    def opens_own_exports(self) -> bool:
        """Whether a process can open what it has exported itself."""
        ...

    def find_allocation(self, address: int) -> tuple[int, int]:
        """Return the beginning and the size of the allocation that contains an address."""
        ...

    def export_allocation(self, address: int) -> bytes:
        """Return the handle by which other processes open an allocation, in 64 bytes.

        Raises
        ------
        SplitArrowError
            If they cannot.
        """
        ...

    def open_allocation(self, handle: bytes, nbytes: int) -> int:
        """Return the address of an allocation of another process.

        Raises
        ------
        SplitArrowError
            If the handle is not valid on this host, or the allocation is smaller.
        """
        ...

    def close_allocation(self, address: int) -> None:
        """Undo `open_allocation`."""
        ...

    def is_page_locked(self, address: int) -> bool:
        """Return whether the device copies from an address of the host without the processor."""
        ...

    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of the host that is mapped for reading, from the beginning of a page.

        Raises
        ------
        SplitArrowError, MemoryError
            If that is not possible.
        """
        ...

    def unregister_host(self, address: int) -> None:
        """Undo `register_host`."""
        ...

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy from host memory at `source` to memory of the device at `target`."""
        ...

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy from memory of the device to other memory of it."""
        ...

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        """Copy from memory of the device at `source` to host memory at `target`, and wait."""
        ...

    def record(self) -> Event:
        """Return an event after all copies that were queued so far."""
        ...

    def record_stream(self, stream: int) -> Event:
        """Return an event after all work that a consumer has queued to its stream so far."""
        ...

    def wait_for(self, event: Event) -> None:
        """Let copies that are queued from now on wait for an event."""
        ...

    def synchronize(self) -> None:
        """Wait for all work of the device, of all streams."""
        ...
