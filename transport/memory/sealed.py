"""Memory without a name that a server writes once, seals, and shares with its readers."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import ExhaustedError
from ...protocol.memory import ALIGNMENT
from .files import FileSpan, SourceFile
from .mapped_region import SEAL_GROW, SEAL_SHRINK, SEAL_WRITE

F_ADD_SEALS = 1033
SEAL_SEAL = 1
_ALLOCATION_BYTES = 8 << 20
_MAX_IOVECS = 512
_RESERVED_SHARE = 32
"""The divisor of the host's memory that gives the share reserved for other processes."""


class SealedMemory(SourceFile):
    """Memory that no process can change, as a file without a name (``memfd_create(2)``).

    The object owns the descriptor. The memory is freed when the object is garbage collected and no
    process maps it.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        self.path = Path(label)
        self._lock = threading.Lock()
        self._loans = 0
        self._is_closed = self._is_leased = False  # sealed memory needs no lease
        self.lease_problem = None
        self.writers = ()
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115
        status = os.fstat(descriptor)
        self.size = status.st_size
        self.version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def __del__(self) -> None:
        self._file.close()


class SealedMemoryWriter:
    """Writes bodies into new memory, one behind the other, and seals it.

    Pages are allocated before they are written to, so that a host without free memory causes an
    error instead of SIGBUS.

    The first body is at `start` or behind it. The bytes before are a hole, which takes no memory.
    Several pieces of memory can so have bodies at different offsets. Raises `OSError` if the
    process has no descriptors left.
    """

    _descriptor = -1  # until the constructor is done

    def __init__(self, label: str, start: int = 0) -> None:
        self._label = label
        self._descriptor = os.memfd_create("splitarrow", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        page = os.sysconf("SC_PAGE_SIZE")
        self._start = self._end = self._allocated = -(-start // page) * page

    @property
    def nbytes(self) -> int:
        """The bytes written so far."""
        return self._end - self._start

    def append(self, prefix: bytes, parts: Iterable[Any], nbytes: int) -> int:
        """Write a body of `nbytes` bytes behind its prefix; return the offset of the body.

        The prefix is the metadata, which decoders need directly before the body. Raises
        `ExhaustedError` if the host has no memory left, and `DatasetError` if a part is a span of a
        file that cannot be read.
        """
        begin = -(-(self._end + len(prefix)) // ALIGNMENT) * ALIGNMENT
        self._allocate(begin + nbytes)
        position = begin - len(prefix)
        views = [memoryview(prefix)]
        for part in parts:
            if isinstance(part, FileSpan):
                position = self._write(views, position)
                position = self._copy(part, position)
            elif memoryview(part).nbytes:
                views.append(memoryview(part).cast("B"))
        self._end = self._write(views, position)
        return begin

    def seal(self) -> SealedMemory:
        """Seal and return the memory. The writer is unusable afterwards."""
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.ftruncate(descriptor, self._end)
            fcntl.fcntl(descriptor, F_ADD_SEALS, SEAL_SEAL | SEAL_SHRINK | SEAL_GROW | SEAL_WRITE)
            read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(descriptor)
        return SealedMemory(read_only, self._label)

    def close(self) -> None:
        """Free the memory, unless it was sealed. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def _allocate(self, end: int) -> None:
        if end <= self._allocated:
            return
        missing = max(end - self._allocated, _ALLOCATION_BYTES)
        available, total = read_host_memory()
        if missing > available - total // _RESERVED_SHARE:
            raise ExhaustedError(
                f"no memory to share {self._label}: it needs {missing} more bytes, and the host "
                f"has {available} available; read it over tcp"
            )
        try:
            os.posix_fallocate(self._descriptor, self._allocated, missing)
        except OSError as error:
            raise ExhaustedError(
                f"no memory to share {self._label}: {error.strerror}; read it over tcp"
            ) from None
        self._allocated += missing

    def _write(self, views: list[memoryview], position: int) -> int:
        """Write views and remove them from the list; return the offset behind them."""
        while views:
            written = os.pwritev(self._descriptor, views[:_MAX_IOVECS], position)
            position += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]
        return position

    def _copy(self, span: FileSpan, position: int) -> int:
        """Copy a span of a file within the kernel; return the offset behind it."""
        os.lseek(self._descriptor, position, os.SEEK_SET)
        offset, remaining = span.offset, span.nbytes
        while remaining:
            count = os.sendfile(self._descriptor, span.file.fileno(), offset, remaining)
            if not count:
                raise span.file.truncation_error(offset)
            offset += count
            remaining -= count
        span.file.check()
        return position + span.nbytes


def read_host_memory() -> tuple[int, int]:
    """Return the memory that new data may take and the memory of the host, both in bytes."""
    values: dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) << 10
    return values["MemAvailable"], values["MemTotal"]
