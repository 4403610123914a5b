"""Memory of a device that one process exports and another one on this host opens."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import pyarrow as pa

from ..errors import ConnectError, ProtocolError, SplitArrowError, UsageError
from ..protocol.regions import DeviceHandles
from .device import Device

_ATTEMPTS, _RETRY_SECONDS = 50, 0.1
_log = logging.getLogger("splitarrow.memory")


class DeviceExport:
    """The allocations that hold some buffers, one after another in one region.

    It keeps the buffers alive.

    Raises `SplitArrowError` if other processes cannot open one of the allocations. So it is with
    managed memory, and with memory of pools of the driver. Raises `UsageError` if a buffer is not
    within one allocation.
    """

    def __init__(self, device: Device, type_code: int, buffers: Iterable[pa.Buffer]) -> None:
        if type_code != device.type_code:
            raise SplitArrowError(f"memory of the type {type_code} is not that of one device")
        self._buffers = list(buffers)
        sizes: dict[int, int] = {}
        for buffer in self._buffers:
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


class _OpenAllocations:
    """The allocations that this process has opened: each once, whoever uses it.

    CUDA may unmap an allocation that one thread opens while another one closes it. So one thread
    at a time does either. Finalizers do not wait for it, but leave to it what they close.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[int, bytes], tuple[int, int, int]] = {}
        """The address, the size, and the number of users, by the device's number and the handle."""
        self._unused: deque[tuple[Device, list[bytes], int]] = deque()

    def open(self, device: Device, handle: bytes, nbytes: int) -> int:
        """Return the address of an allocation; see `Device.open_allocation`."""
        key = (device.index, handle)
        try:
            with self._lock:
                address, size, users = self._open.get(key, (0, 0, 0))
                if not users:
                    address, size = device.open_allocation(handle, nbytes), nbytes
                if nbytes > size:
                    raise SplitArrowError(f"an allocation has {size} bytes, not {nbytes}")
                self._open[key] = (address, size, users + 1)
        finally:
            self._close_unused()
        return address

    def close(self, device: Device, handles: list[bytes], connection: int) -> None:
        """Undo `open`, and then close a descriptor, unless it is -1. Safe in finalizers."""
        self._unused.append((device, handles, connection))
        self._close_unused()

    def _close_unused(self) -> None:
        while self._unused and self._lock.acquire(blocking=False):
            try:
                while self._unused:
                    self._close_next()
            finally:
                self._lock.release()

    def _close_next(self) -> None:
        device, handles, connection = self._unused.popleft()
        for handle in handles:
            key = (device.index, handle)
            address, size, users = self._open.pop(key)
            if users > 1:
                self._open[key] = (address, size, users - 1)
                continue
            with contextlib.suppress(SplitArrowError):  # a forked child leaves it to its parent
                device.close_allocation(address)
        if connection >= 0:
            os.close(connection)


_ALLOCATIONS = _OpenAllocations()
_lock = threading.Lock()


class DeviceRegion:
    """The allocations that a server has announced, one after another; a `Region`.

    The region owns `connection`, a descriptor of the connection to the server, or -1. It closes the
    descriptor after the allocations, because the server keeps its memory until then.

    Raises `ConnectError` if the memory is on another device, or cannot be opened.
    """

    def __init__(self, device: Device, handles: DeviceHandles, connection: int = -1) -> None:
        self._connection = connection
        self._handles: list[bytes] = []
        self._addresses: list[int] = []
        self._device = device
        if (handles.type_code, handles.device) != (device.type_code, device.uuid):
            raise ConnectError(
                f"the server's data is on another device than {device.name}, which cannot open it"
            )
        self.size = handles.size
        """The size in bytes."""
        sizes = [nbytes for _, nbytes in handles.allocations]
        self._ends = list(accumulate(sizes))
        try:
            for handle, nbytes in handles.allocations:
                self._addresses.append(_ALLOCATIONS.open(device, handle, nbytes))
                self._handles.append(handle)
        except (SplitArrowError, MemoryError) as error:
            raise ConnectError(
                f"the server's data on {device.name} cannot be opened by this process: {error}"
            ) from None
        _RETURNS.start()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            _ALLOCATIONS.close(self._device, self._handles, self._connection)

    def locate(self, offset: int, nbytes: int) -> int:
        """Return the address of a span; raise `ProtocolError` if not within one allocation."""
        index = bisect_right(self._ends, offset)
        if index >= len(self._ends) or offset + nbytes > self._ends[index]:
            raise ProtocolError(
                f"{nbytes} bytes at offset {offset} are not within one allocation of a region of "
                f"{self.size} bytes"
            )
        begin = self._ends[index - 1] if index else 0
        return self._addresses[index] + offset - begin

    def lease(self, lease: object) -> LeasedBlock:
        """Return what keeps the region open, and a lease, while a batch uses them."""
        return LeasedBlock(self._device, self, lease)

    def check(self) -> None:
        """Do nothing: the server keeps the memory unchanged."""

    def repeats(self, data: bytes, begin: int, period: int, count: int) -> bool:
        """Return False: the host does not look at the memory."""
        return False

    def prefixed_buffer(self, prefix: bytes, offset: int, nbytes: int, owner: object) -> None:
        """Return None: there is no host memory."""

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Raise `UsageError`: there is no host memory."""
        raise UsageError(f"the data is on {self._device.name}, not in host memory")


class LeasedBlock:
    """Memory of a region; see `Returnable`."""

    def __init__(self, device: Device, region: DeviceRegion, lease: object) -> None:
        self._device = device
        self._owners: tuple[Any, ...] = (lease, region)
        self.on_return: Callable[[], Callable[[], None] | None] | None = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        wait = None if self.on_return is None else self.on_return()
        if wait is not None:
            _RETURNS.put(self._device, wait, self._owners)


class _Returns:
    """A thread that waits for the device, and then drops leases."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Device, Callable[[], None], object]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs. Not safe in finalizers."""
        with _lock:
            if self._thread is None:
                name = "splitarrow-device-returns"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def put(self, device: Device, wait: Callable[[], None], owners: object) -> None:
        """Drop owners after `wait` and what it has queued on the device. Safe in finalizers."""
        self._queue.put((device, wait, owners))

    def _run(self) -> None:
        while True:
            # A separate call, so that no local variable keeps the last lease.
            _drop_next(self._queue)


def _drop_next(pending: queue.SimpleQueue[Any]) -> None:
    device, wait, owners = pending.get()
    reason = ""
    for _ in range(_ATTEMPTS):
        try:
            wait()
            device.record().wait()
        except (SplitArrowError, MemoryError) as error:  # for example during a graph capture
            reason = str(error)
            time.sleep(_RETRY_SECONDS)
        else:
            return
    _log.error("a lease on memory of %s lasts until the process ends: %s", device.name, reason)
    _KEPT.append(owners)


_RETURNS = _Returns()
_KEPT: list[object] = []
"""The owners of memory that a device may still use."""
