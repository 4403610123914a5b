"""Regions of memory that another process made, or of files: mapped read-only, and checked."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import stat
import threading
from typing import Any

import pyarrow as pa

from ...errors import (
    ConnectionLostError,
    DatasetError,
    LimitError,
    ProtocolError,
    SplitArrowError,
)
from .remapping import copy_of, map_shared, page_ranges, populate, replace_by_copy, unmap
from .watching import WATCHER

F_GET_SEALS = 1034
SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_FUTURE_WRITE = 2, 4, 8, 16
_NAME = "/memfd:"


class _Use:
    """What a buffer keeps alive: its region, the lease on it, and the note that it is used."""

    __slots__ = ("_key", "_owner", "_region")

    def __init__(self, region: MappedRegion, owner: object, key: int) -> None:
        self._region = region
        self._owner = owner
        self._key = key

    def __del__(self) -> None:
        self._region.unused(self._key)


class MappedRegion:
    """A region of the server's memory, mapped into this process.

    Parameters
    ----------
    descriptor : int
        What the server handed over. It belongs to this object from here on.
    size : int
        The size that the server declared, in bytes.
    watch : int
        A socket that ends when a file must be let go of; -1 if there is none. It belongs to
        this object, too.

    Raises
    ------
    ProtocolError
        If it is no file, is shorter than declared, or is memory that somebody could still
        write to or shrink.
    LimitError
        If there is no room to map it.
    """

    def __init__(self, descriptor: int, size: int, watch: int = -1) -> None:
        self.size = size
        """The size in bytes."""
        self._descriptor = descriptor
        self._watch = watch
        self._address = 0
        self._lock = threading.Lock()
        self._uses: dict[int, tuple[int, int]] = {}
        self._keys = itertools.count()
        self._loss: SplitArrowError | None = None
        self.registrations: dict[Any, Any] = {}
        """What a transport has made of the region for its peers; they end with the region."""
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ProtocolError("the region that was handed over is no file and no memory")
            if status.st_size < size:
                raise ProtocolError(
                    f"the region has {status.st_size} bytes where {size} are declared"
                )
            self._is_sealed = _check_seals(descriptor)
            self._identity = (status.st_size, status.st_mtime_ns)
            if size:
                self._address = map_shared(descriptor, size)
            if self._is_sealed or watch >= 0:
                self._close_descriptor()  # it is not needed to notice changes
            if watch >= 0:
                WATCHER.add(watch, self)
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            raise LimitError(f"cannot map a region of {size} bytes: {error}") from None
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """Where it lies in this process; 0 if it is empty."""
        return self._address

    def populate(self, offset: int, nbytes: int) -> None:
        """Enter a stretch into the page tables before another process copies from it."""
        populate(self._address + offset, nbytes)

    def check(self) -> None:
        """Check that a file still is what was mapped.

        Raises
        ------
        DatasetError
            If it was truncated or written to, or is about to be.
        ConnectionLostError
            If the server is gone, and nobody guards the file any more.
        """
        if self._loss is not None:
            raise self._loss
        if self._descriptor < 0:
            return  # it cannot change, or we are told before it does
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self._identity:
            what = "truncated" if status.st_size < self._identity[0] else "written to"
            raise DatasetError(f"the file behind the shared region was {what} while it was read")

    def framed(self, head: bytes, offset: int, nbytes: int, owner: object) -> pa.Buffer | None:
        """Return a stretch with what lies in front of it, if that is `head`; see `Region`."""
        begin = offset - len(head)
        if begin < 0 or copy_of(self._address + begin, len(head)) != head:
            return None
        return self.buffer(begin, len(head) + nbytes, owner)

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a stretch, without copying it; see `Region.buffer`."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ProtocolError(f"{nbytes} bytes at {offset} lie outside of {self.size} bytes")
        if not nbytes:
            return pa.py_buffer(b"")
        if self._is_sealed:
            return pa.foreign_buffer(self._address + offset, nbytes, base=(owner, self))
        with self._lock:
            if self._loss is not None:
                raise self._loss
            key = next(self._keys)
            self._uses[key] = (offset, nbytes)
        return pa.foreign_buffer(self._address + offset, nbytes, base=_Use(self, owner, key))

    def unused(self, key: int) -> None:
        """Note that a buffer is gone. Called by finalizers: it takes no lock."""
        self._uses.pop(key, None)

    def detach(self, *, server_gone: bool) -> None:
        """Move what is in use into memory of this process, at the same addresses."""
        with self._lock:
            if server_gone:
                self._loss = ConnectionLostError("the server is gone that shared the file")
            else:
                self._loss = DatasetError(
                    "the file behind the shared region is being changed by another process"
                )
            for begin, end in page_ranges(list(self._uses.values()), mmap.PAGESIZE):
                with contextlib.suppress(OSError):  # without memory it stays as it is
                    replace_by_copy(self._address + begin, end - begin)
            self._stop_watching()

    def close(self) -> None:
        """Let go of the descriptors. The mapping stays as long as buffers of it do."""
        self._close_descriptor()
        self._stop_watching()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, -1
        if watch >= 0:
            WATCHER.remove(watch)
            with contextlib.suppress(OSError):
                os.close(watch)

    def __del__(self) -> None:
        self.registrations.clear()
        self.close()
        if self._address:
            unmap(self._address, self.size)


def _check_seals(descriptor: int) -> bool:
    """Tell whether a descriptor is sealed memory; refuse memory that is not sealed."""
    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith(_NAME):
        return False
    seals = fcntl.fcntl(descriptor, F_GET_SEALS)
    fixed = seals & SEAL_SHRINK and seals & SEAL_GROW
    if not fixed or not seals & (SEAL_WRITE | SEAL_FUTURE_WRITE):
        raise ProtocolError("the memory that was handed over is not sealed: it could change")
    return True
