"""A device whose memory the processor cannot touch: reading or writing it ends the process."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from splitarrow.errors import SplitArrowError
from splitarrow.memory.device import Event
from splitarrow.memory.device_memory import DeviceMemory
from splitarrow.protocol.memory import DEFAULT_ALLOCATOR, Allocator

_PROT_NONE = 0
_HANDLE = struct.Struct("<QQ48x")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class TrapEvent:
    """An event that happens when the device has made its queued copies."""

    handle = 0

    def __init__(self, device: TrapDevice, copies: int) -> None:
        self._device = device
        self._copies = copies
        self.streams: list[int] = []

    def is_done(self) -> bool:
        return self._device.copied >= self._copies

    def wait(self) -> None:
        self._device.run(self._copies)

    def delay(self, stream: int) -> None:
        self.streams.append(stream)
        self._device.delayed.append(stream)


class TrapDevice:
    """A device of the type kDLExtDev. Its copies wait until something waits for them.

    The memory is that of a file in memory. Its addresses are mapped without any right to use them;
    the copies go through the file.
    """

    name = "trap:0"
    index = 0
    type_code = 12

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}
        self._queue: deque[tuple[int, int, int]] = deque()
        self._lock = threading.RLock()
        self.activations = self.reads = self.depth = 0
        self.queued = self.copied = self.frees = self.synchronizations = 0
        self.opened = self.closed = 0
        self.has_pageable_memory = False
        self.refusal = ""
        self.registered: dict[int, int] = {}
        self.registrations = 0
        self.locked: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.delayed: list[int] = []
        self.recorded: list[int] = []
        self.waits: list[Event] = []

    def allocate(self, nbytes: int) -> int:
        descriptor = os.memfd_create("trap")
        os.ftruncate(descriptor, nbytes)
        return self._map(descriptor, nbytes)

    def _map(self, descriptor: int, nbytes: int) -> int:
        address = _libc.mmap(None, nbytes, _PROT_NONE, mmap.MAP_SHARED, descriptor, 0)
        assert address not in (None, ctypes.c_void_p(-1).value)
        self._files[address] = (descriptor, nbytes)
        return address

    def activate(self) -> None:
        self.activations += 1

    uuid = b"the trap device."
    opens_own_exports = True

    def find_allocation(self, address: int) -> tuple[int, int]:
        for begin, (_, nbytes) in self._files.items():
            if begin <= address < begin + nbytes:
                return begin, nbytes
        raise AssertionError(f"{address:#x} is not memory of the device")

    def export_allocation(self, address: int) -> bytes:
        if self.refusal:
            raise SplitArrowError(self.refusal)
        return _HANDLE.pack(os.getpid(), self._files[address][0])

    def open_allocation(self, handle: bytes, nbytes: int) -> int:
        process, number = _HANDLE.unpack(handle)
        try:
            descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        except OSError as error:
            raise SplitArrowError(f"invalid handle: {error.strerror}") from None
        if os.fstat(descriptor).st_size < nbytes:
            os.close(descriptor)
            raise SplitArrowError("the allocation is smaller")
        self.opened += 1
        return self._map(descriptor, nbytes)

    def close_allocation(self, address: int) -> None:
        self.free(address)
        self.frees -= 1
        self.closed += 1

    def is_page_locked(self, address: int) -> bool:
        """Return whether memory is in `locked`. Without pageable memory, all is."""
        is_locked = any(begin <= address < begin + nbytes for begin, nbytes in self.locked)
        return is_locked or not self.has_pageable_memory

    def register_host(self, address: int, nbytes: int) -> None:
        assert address % mmap.PAGESIZE == 0
        if self.refusal:
            raise SplitArrowError(self.refusal)
        self.registered[address] = nbytes
        self.locked.append((address, nbytes))
        self.registrations += 1

    def unregister_host(self, address: int) -> None:
        """Unregister memory that no queued copy reads; others may be queued for other memory."""
        end = address + self.registered.pop(address)
        assert not [source for _, source, _ in tuple(self._queue) if address <= source < end]

    @contextmanager
    def current(self) -> Generator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def free(self, address: int) -> None:
        descriptor, nbytes = self._files.pop(address)
        os.close(descriptor)
        _libc.munmap(address, nbytes)
        self.frees += 1

    def _locate(self, address: int) -> tuple[int, int]:
        for begin, (descriptor, nbytes) in self._files.items():
            if begin <= address < begin + nbytes:
                return descriptor, address - begin
        raise AssertionError(f"{address:#x} is not memory of the device")

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        self._queue.append((target, source, nbytes))
        self.sources.append(source)
        self.queued += 1

    def run(self, until: int) -> None:
        """Make the queued copies, up to a number of all copies so far."""
        # A collection may run this from within, or on any thread: regions wait for their copies.
        with self._lock:
            while self.copied < until and self._queue:
                target, source, nbytes = self._queue.popleft()
                descriptor, offset = self._locate(target)
                assert os.pwrite(descriptor, ctypes.string_at(source, nbytes), offset) == nbytes
                self.copied += 1

    def copy_within(self, target: int, source: int, nbytes: int) -> None:
        self.run(self.queued)
        self.write(target, self.read(source, nbytes))

    def copy_out(self, target: int, source: int, nbytes: int) -> None:
        self.run(self.queued)
        self.reads += 1
        descriptor, offset = self._locate(source)
        ctypes.memmove(target, os.pread(descriptor, nbytes, offset), nbytes)

    def record(self) -> TrapEvent:
        return TrapEvent(self, self.queued)

    def record_stream(self, stream: int) -> TrapEvent:
        self.recorded.append(stream)
        return TrapEvent(self, self.queued)

    def wait_for(self, event: Event) -> None:
        self.waits.append(event)

    def synchronize(self) -> None:
        self.run(self.queued)
        self.synchronizations += 1

    def read(self, address: int, nbytes: int) -> bytes:
        """Return the bytes at an address, as the device sees them."""
        descriptor, offset = self._locate(address)
        return os.pread(descriptor, nbytes, offset)

    def write(self, address: int, data: bytes) -> None:
        """Write bytes, as the device does."""
        descriptor, offset = self._locate(address)
        assert os.pwrite(descriptor, data, offset) == len(data)


class HostDevice(TrapDevice):
    """A device that says that it is the processor, so that pyarrow and NumPy accept its arrays."""

    name = "cpu:0"
    type_code = 1

    def allocate(self, nbytes: int) -> int:
        address = super().allocate(nbytes)
        assert _libc.mprotect(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        return address


class TrapMemory(DeviceMemory):
    """The memory of a `TrapDevice`."""

    device: TrapDevice

    def __init__(
        self,
        budget: int | str = "64MiB",
        staging: Allocator = DEFAULT_ALLOCATOR,
        device: TrapDevice | None = None,
    ) -> None:
        super().__init__(device or TrapDevice(), budget, staging)
