"""Memory without a name that a server writes once, seals, and hands to its readers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import ExhaustedError
from ..regions import FileRegion, RegionFile
from .mapping import SEAL_GROW, SEAL_SHRINK, SEAL_WRITE

F_ADD_SEALS = 1033
SEAL_SEAL = 1
ALIGNMENT = 64
"""What the places of bodies are multiples of, in bytes."""
_STEP = 8 << 20
_MOST_PARTS = 512
_LEFT_SHARE = 32
"""One part in so many of the host's memory is left to others."""


class SealedMemory(RegionFile):
    """Memory that nobody can change any more, as a file without a name.

    Parameters
    ----------
    descriptor : int
        It belongs to this object from here on.
    label : str
        What it holds, for errors.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        self.path = Path(label)
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115
        status = os.fstat(descriptor)
        self.size = status.st_size
        self.version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def __del__(self) -> None:
        self._file.close()


class MemoryWriter:
    """Writes bodies into memory, one behind the other.

    Every page is allocated before it is written to, so that a host without room is an error.

    Parameters
    ----------
    label : str
        What is written, for errors.
    start : int
        Where the first body may begin. What is in front of it is a hole that takes no memory;
        it keeps the places of bodies in several pieces of memory apart.
    """

    def __init__(self, label: str, start: int = 0) -> None:
        self._label = label
        self._descriptor = os.memfd_create("splitarrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        page = os.sysconf("SC_PAGE_SIZE")
        self._start = self._end = self._allocated = -(-start // page) * page

    @property
    def nbytes(self) -> int:
        """How much has been written, in bytes."""
        return self._end - self._start

    def append(self, head: bytes, parts: Iterable[Any], nbytes: int) -> int:
        """Write a body behind its head; return where the body begins, a multiple of 64 bytes.

        Parameters
        ----------
        head : bytes
            What lies right in front of the body: the message's metadata, framed as Arrow's
            decoder wants it, so that a reader need not put the two together.
        parts : iterable
            The body's parts, in order.
        nbytes : int
            The size of the body in bytes.

        Raises
        ------
        ExhaustedError
            If there is no memory left for it.
        DatasetError
            If a part is a region of a file that cannot be read.
        """
        begin = -(-(self._end + len(head)) // ALIGNMENT) * ALIGNMENT
        self._allocate(begin + nbytes)
        at = begin - len(head)
        views = [memoryview(head)]
        for part in parts:
            if isinstance(part, FileRegion):
                at = self._write(views, at)
                at = self._copy(part, at)
            elif memoryview(part).nbytes:
                views.append(memoryview(part).cast("B"))
        self._end = self._write(views, at)
        return begin

    def seal(self) -> SealedMemory:
        """Make what was written unchangeable, and return it; this object is done."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.ftruncate(descriptor, self._end)
            fcntl.fcntl(descriptor, F_ADD_SEALS, SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_WRITE)
            reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(descriptor)
        return SealedMemory(reading, self._label)

    def close(self) -> None:
        """Let go of what was written, if it was not sealed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def _allocate(self, end: int) -> None:
        if end <= self._allocated:
            return
        more = max(end - self._allocated, _STEP)
        available, total = host_memory()
        if more > available - total // _LEFT_SHARE:
            raise ExhaustedError(
                f"no memory to share {self._label}: {more} bytes more are needed and {available} "
                "are available; read it over tcp"
            )
        try:
            os.posix_fallocate(self._descriptor, self._allocated, more)
        except OSError as error:
            raise ExhaustedError(
                f"no memory to share {self._label}: {error.strerror}; read it over tcp"
            ) from None
        self._allocated += more

    def _write(self, views: list[memoryview], at: int) -> int:
        while views:
            written = os.pwritev(self._descriptor, views[:_MOST_PARTS], at)
            at += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]
        return at

    def _copy(self, region: FileRegion, at: int) -> int:
        os.lseek(self._descriptor, at, os.SEEK_SET)
        offset, left = region.offset, region.nbytes
        while left:
            done = os.sendfile(self._descriptor, region.file.fileno(), offset, left)
            if not done:
                raise region.file.shrunk(offset)
            offset += done
            left -= done
        return at + region.nbytes


def host_memory() -> tuple[int, int]:
    """Return how much memory is available to new data, and how much there is, in bytes."""
    figures: dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            figures[name] = int(rest.split()[0]) << 10
    return figures["MemAvailable"], figures["MemTotal"]
