"""Read-only mappings of memory that another process shares: sealed memory, or a file.

A directory finds the regions that this process can pass to another one, by address. One thread
revokes the mapped files of the process before they change.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import select
import stat
import threading
import weakref
from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import ConnectionLostError, DatasetError, LimitError, ProtocolError, SplitArrowError
from ...protocol.devices import ClosableMemory
from .pages import find_page_ranges, map_shared, populate, replace_with_copy, unmap, view_bytes

F_GET_SEALS = 1034
SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 2, 4, 8, 16
_SEALED_MEMORY_NAME = "/memfd:"
_END_OF_SOCKET = select.EPOLLIN | select.EPOLLRDHUP
"""The events by which a socket ends. `select.poll` uses the same numbers."""


class RegionDirectory:
    """The mapped regions of a process, if it passes tensors or arrays in them to another one.

    Regions that are mapped before `open` are not in it. Each region in it keeps its descriptor
    open. A region that is collected leaves it.
    """

    def __init__(self) -> None:
        self.is_open = False
        """Whether new regions are added."""
        self._regions: dict[int, weakref.ref[MappedRegion]] = {}
        self._numbers = itertools.count()

    def open(self) -> None:
        """Add each region that this process maps from now on."""
        self.is_open = True

    def close(self) -> None:
        """Add no more regions."""
        self.is_open = False

    def add(self, region: MappedRegion) -> int:
        """Add a region and return its number, which no other region of this process gets."""
        number = next(self._numbers)
        self._regions[number] = weakref.ref(region)
        return number

    def remove(self, number: int) -> None:
        """Forget a region. Finalizers may call this: it takes no lock."""
        self._regions.pop(number, None)

    def get(self, number: int) -> MappedRegion | None:
        """Return the region with a number, or None if it is gone."""
        reference = self._regions.get(number)
        return None if reference is None else reference()

    def find(self, address: int, nbytes: int) -> tuple[int, MappedRegion] | None:
        """Return the number and the region that contains a span, unless it was revoked."""
        for number, reference in list(self._regions.items()):
            region = reference()
            if region is None or not region.address:
                continue
            begin = region.address
            if begin <= address and address + nbytes <= begin + region.size:
                return None if region.is_lost else (number, region)
        return None


REGIONS = RegionDirectory()
"""The directory of this process."""


class RevocationWatcher:
    """Waits for the ends of revocation sockets, on a thread that starts with the first one."""

    def __init__(self) -> None:
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._regions: dict[int, weakref.ref[MappedRegion]] = {}

    def add(self, descriptor: int, region: MappedRegion) -> None:
        """Revoke `region` when the socket `descriptor` ends; at once if it has ended already.

        The caller keeps ownership of both, and calls `remove` before it closes the socket.
        """
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._run, args=(self._epoll,), name="splitarrow-watch", daemon=True
                ).start()
            self._regions[descriptor] = weakref.ref(region)
            self._epoll.register(descriptor, _END_OF_SOCKET)
        # The caller may use the region before the thread runs.
        poll = select.poll()
        poll.register(descriptor, _END_OF_SOCKET)
        for _, events in poll.poll(0):
            self._handle_end(descriptor, events)

    def remove(self, descriptor: int) -> None:
        """Forget a socket. Finalizers may call this: it takes no lock."""
        self._regions.pop(descriptor, None)
        if self._epoll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def after_fork(self) -> None:
        """Start again in a forked child, which inherits the regions but not the thread."""
        inherited = list(self._regions.items())
        epoll = self._epoll
        self._start_empty()
        if epoll is not None:
            epoll.close()
        for descriptor, reference in inherited:
            region = reference()
            if region is not None:
                self.add(descriptor, region)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            try:
                ended = epoll.poll()
            except (OSError, ValueError):
                return
            for descriptor, events in ended:
                self._handle_end(descriptor, events)

    def _handle_end(self, descriptor: int, events: int) -> None:
        reference = self._regions.get(descriptor)
        region = None if reference is None else reference()
        if region is None:
            self.remove(descriptor)
        else:
            # A server that revokes the file ends one direction; a server that dies ends both.
            region.revoke(server_gone=bool(events & select.EPOLLHUP))


REVOCATIONS = RevocationWatcher()
"""The watcher of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=REVOCATIONS.after_fork)


class _BufferOwner:
    """The base object of a buffer: keeps its region and its lease alive while the buffer lives."""

    __slots__ = ("_key", "_lease", "_region")

    def __init__(self, region: MappedRegion, lease: object, key: int) -> None:
        self._region = region
        self._lease = lease
        self._key = key

    def __del__(self) -> None:
        self._region.forget_buffer(self._key)


class MappedRegion:
    """A region that is mapped into this process; a `splitarrow.protocol.regions.Region`.

    The mapping lives as long as this object or a buffer of it. The region of a file records which
    parts its buffers use, so that only those are copied when the file is revoked. Sealed memory
    cannot change, so its buffers are not recorded.

    The region owns both descriptors. `size` is the size that the server declared. Raises
    `ProtocolError` if the descriptor is not a file, is shorter than `size`, or is memory that
    another process could still change. Raises `LimitError` if the region cannot be mapped.
    """

    def __init__(self, descriptor: int, size: int, revocation: int = -1) -> None:
        self.size = size
        """The size in bytes."""
        self._descriptor = descriptor
        self._revocation = revocation
        self._address = 0
        self._view = memoryview(b"")
        self._lock = threading.Lock()
        self._buffers: dict[int, tuple[int, int]] = {}
        self._keys = itertools.count()
        self._loss: SplitArrowError | None = None
        self._number = -1
        self.registrations: dict[Any, Any] = {}
        """The registrations of the region for peers, by transport context.

        The region drops the registrations before it removes the mapping."""
        self.page_lock: ClosableMemory | None = None
        """What page-locks the region for a device. It is closed before any page is replaced."""
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ProtocolError("the descriptor of a region is neither a file nor memory")
            if status.st_size < size:
                raise ProtocolError(
                    f"a region has {status.st_size} bytes, but {size} bytes were announced"
                )
            self._is_sealed = _check_seals(descriptor)
            self._identity = (status.st_size, status.st_mtime_ns)
            if size:
                self._address = map_shared(descriptor, size)
                self._view = view_bytes(self._address, size)
            self._is_constant = self._is_sealed or revocation >= 0
            if REGIONS.is_open:
                self._number = REGIONS.add(self)
            elif self._is_constant:
                self._close_descriptor()  # only `check` of an unguarded file needs it
            if revocation >= 0:
                REVOCATIONS.add(revocation, self)
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            raise LimitError(f"cannot map a region of {size} bytes: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """The address in this process; 0 if the region is empty."""
        return self._address

    @property
    def is_lost(self) -> bool:
        """Whether the file was revoked. Buffers have copies of its pages then."""
        return self._loss is not None

    @contextlib.contextmanager
    def hold_descriptors(self) -> Generator[list[int]]:
        """Return the descriptors from which another process can map the region.

        The context lends them: those of the region, and of its revocation socket if it has one.
        The file is not revoked meanwhile. `REGIONS` must have been open when the region was mapped.
        Raises as `check` does.
        """
        with self._lock:
            self.check()
            yield [each for each in (self._descriptor, self._revocation) if each >= 0]

    def populate(self, offset: int, nbytes: int) -> None:
        """Enter a span into the page tables, before another process copies from it."""
        populate(self._address + offset, nbytes)

    def check(self) -> None:
        """Check that a file has not changed since it was mapped.

        Raises `DatasetError` if the file was truncated or written to, or was revoked. Raises
        `ConnectionLostError` if the server is gone, so that no process guards the file.
        """
        if self._loss is not None:
            raise self._loss
        if self._is_constant:
            return  # the memory is sealed, or the file is revoked before it changes
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self._identity:
            change = "truncated" if status.st_size < self._identity[0] else "written to"
            raise DatasetError(f"the file behind a shared region was {change} while it was read")

    def prefixed_buffer(
        self, prefix: bytes, offset: int, nbytes: int, owner: object
    ) -> pa.Buffer | None:
        """Return a span with the bytes in front of it, if those are `prefix`; see `Region`."""
        begin = offset - len(prefix)
        if begin < 0 or self._view[begin:offset].tobytes() != prefix:
            return None
        return self.buffer(begin, len(prefix) + nbytes, owner)

    def repeats(self, data: bytes, begin: int, period: int, count: int) -> bool:
        """Return whether the region holds `data` at `count` positions; see `Region`."""
        if begin < 0:
            return False
        shape, strides = (count, len(data)), (period, 1)
        found: NDArray[np.uint8] = np.ndarray(shape, np.uint8, self._view, begin, strides)
        return bool((found == np.frombuffer(data, np.uint8)).all())

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a span without copying it; see `Region.buffer`."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ProtocolError(
                f"{nbytes} bytes at offset {offset} are outside a region of {self.size} bytes"
            )
        if not nbytes:
            return pa.py_buffer(b"")
        if self._is_sealed:
            return pa.foreign_buffer(self._address + offset, nbytes, base=(owner, self))
        with self._lock:
            if self._loss is not None:
                raise self._loss
            key = next(self._keys)
            self._buffers[key] = (offset, nbytes)
        owner = _BufferOwner(self, owner, key)
        return pa.foreign_buffer(self._address + offset, nbytes, base=owner)

    def forget_buffer(self, key: int) -> None:
        """Record that a buffer is gone. Finalizers call this: it takes no lock."""
        self._buffers.pop(key, None)

    def revoke(self, *, server_gone: bool) -> None:
        """Copy the pages in use into memory of this process, at the same addresses.

        Buffers stay valid. `check` and `buffer` raise from now on.
        """
        with self._lock:
            if server_gone:
                self._loss = ConnectionLostError("the server that shared the file is gone")
            else:
                self._loss = DatasetError(
                    "the file behind a shared region is being changed by another process"
                )
            self._unlock_pages()
            for begin, end in find_page_ranges(list(self._buffers.values()), mmap.PAGESIZE):
                with contextlib.suppress(OSError):  # without memory, the pages stay mapped
                    replace_with_copy(self._address + begin, end - begin)
            self._close_descriptor()  # it may share the file lease of a server that has died
            self._close_revocation()

    def _unlock_pages(self) -> None:
        lock, self.page_lock = self.page_lock, None
        if lock is not None:
            lock.close()

    def close(self) -> None:
        """Close the descriptors. The mapping stays as long as buffers of it."""
        self._close_descriptor()
        self._close_revocation()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _close_revocation(self) -> None:
        revocation, self._revocation = self._revocation, -1
        if revocation >= 0:
            REVOCATIONS.remove(revocation)
            with contextlib.suppress(OSError):
                os.close(revocation)

    def __del__(self) -> None:
        self.registrations.clear()
        self._unlock_pages()
        REGIONS.remove(self._number)
        self.close()
        address, self._address = self._address, 0
        if address:
            unmap(address, self.size)


def _check_seals(descriptor: int) -> bool:
    """Return whether a descriptor is sealed memory; refuse memory that may change."""
    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(_SEALED_MEMORY_NAME):
        return False
    seals = fcntl.fcntl(descriptor, F_GET_SEALS)
    fixed_size = seals & SEAL_SHRINK and seals & SEAL_GROW
    if not fixed_size or not seals & (SEAL_WRITE | SEAL_FUTURE_WRITE):
        raise ProtocolError(
            "the memory of a region is not sealed, so another process could change it"
        )
    return True
