"""Files that datasets are read from, their leases, and spans of them as parts of outgoing bodies.

With a file lease, the kernel guarantees that no process can write to the file. A file that is
open for writing already is watched instead, if it can only change together with its times.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NoReturn

from ...errors import DatasetError, exhausted_error
from .writers import Writer, WriterSearch

_F_SETSIG = 10
_SETTLE_SECONDS = 0.1
"""How long a file that is open for writing has to be unchanged: longer than a tick of its times."""
_MAX_LEASE_ATTEMPTS = 3


def take_file_lease(descriptor: int) -> None:
    """Take a read lease on a file that is open for reading.

    Raises `BlockingIOError` if a process has the file open for writing, or waits to open it. Raises
    `OSError` if there are no leases on this file; see `describe_refusal`.
    """
    # The kernel reports a conflicting open by a signal. Its default, SIGIO, ends the process;
    # SIGURG is ignored.
    fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)


def drop_file_lease(descriptor: int) -> None:
    """Give a lease up, even if other descriptors share it. No lease is no error."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # the kernel has taken it away


def holds_file_lease(descriptor: int) -> bool:
    """Return whether a lease holds, and no process waits to write to the file."""
    return fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_RDLCK


def describe_refusal(error: OSError) -> str:
    """Return the reason why the kernel refused a lease."""
    if isinstance(error, BlockingIOError):
        return "another process has it open for writing"
    if isinstance(error, PermissionError):
        return "it belongs to another user, and the server lacks CAP_LEASE"
    return f"its file system does not support file leases ({error.strerror})"


def open_beneath(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> int:
    """Return a new descriptor of a file or folder that is in a folder, whatever links lead to it.

    The folder itself may be a symbolic link. The caller closes the descriptor. Raises
    `DatasetError` if a link leads out of the folder, and `OSError` if there is no such file.
    """
    flags = os.O_PATH | os.O_CLOEXEC
    text, prefix = os.fspath(path), os.path.join(folder, "")
    name = text[len(prefix) :] if text.startswith(prefix) else os.path.relpath(path, folder)
    root = os.open(folder, flags | os.O_DIRECTORY)
    try:
        # This opens nothing yet: it neither waits for a pipe nor reaches a device.
        found = os.open(name, flags, dir_fd=root)
        try:
            base, target = (
                os.readlink(f"/proc/self/fd/{root}"),
                os.readlink(f"/proc/self/fd/{found}"),
            )
            if not target.startswith(f"{base}/"):
                check_beneath(target, base, path)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(found)
    finally:
        os.close(root)


def check_beneath(
    target: str | os.PathLike[str], folder: str | os.PathLike[str], path: str | os.PathLike[str]
) -> None:
    """Raise `DatasetError` if a path leads to a target out of a folder. Both have no links."""
    if not Path(target).is_relative_to(folder):
        raise DatasetError(
            f"{path} leads out of the folder {folder} by a symbolic link: copy the data into the "
            "folder, or accept all links with follow_symlinks=True (--follow-symlinks)"
        )


class SourceFile:
    """A file that is open for reading. It stays open while a span of it exists.

    The file is read and sent, never mapped: if it shrinks meanwhile, a read fails with an error,
    whereas access to a mapping would kill the process. `splitarrow.server.shm` maps files and
    guards them.

    Where the kernel grants file leases, no process can write to the file until the server has
    noticed it: `check` raises, and `yield_to_writers` lets the writer continue. Bytes that were
    read before a successful `check` are therefore those of one state of the file.

    The kernel grants no lease on a file that a process has open for writing. Such a file is
    watched, unless a process maps it for writing or no process that may be examined has it open.
    `writers` is not empty then. Nobody maps the file or lends its pages: `part` reads it. `check`
    raises if the size or a time of the file differs from the first one, or a writer has mapped it.
    Every write sets the times before it changes bytes, and so does the first write to a page
    through a new mapping. What remains unnoticed:

    - a second writer that may not be examined, beside one that may be;
    - on tmpfs, changes through a mapping that is younger than the search for writers, if another
      process makes it, or it is gone before the next `check`;
    - direct writes without a copy in the page cache that were under way when the file was opened.

    A writer may pause for longer than `_SETTLE_SECONDS` between two writes. Readers then get the
    state between them.

    With a `folder`, the file must be in it, whatever symbolic links lead to it.

    With `refuse_writers=False`, the file is read without a lease. With `waits=False`, opening a
    file that is open for writing raises `BlockingIOError`; otherwise it may take a moment. Raises
    `DatasetError` if the file cannot be opened, or a writer could change it unnoticed, and
    `ExhaustedError` if the process has no descriptors left.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_is_closed",
        "_is_leased",
        "_loans",
        "_lock",
        "_search",
        "_times",
        "lease_problem",
        "path",
        "size",
        "version",
        "writers",
    )

    is_own: ClassVar[bool] = False
    """Whether this process alone writes to the file, and never changes bytes that it has sent."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        refuse_writers: bool = True,
        waits: bool = True,
        folder: Path | None = None,
    ) -> None:
        self.path: Path | str = Path(path)
        """The path that was opened; the URL of an object in an object store."""
        self._lock = threading.Lock()
        self._loans = 0
        self._is_closed = self._is_leased = False
        self.lease_problem: str | None = None
        """The reason why the kernel grants no lease, if one was requested; None otherwise."""
        self.writers: tuple[Writer, ...] = ()
        """The processes that had the watched file open for writing; empty if it is not watched."""
        try:
            source = path if folder is None else open_beneath(path, folder)
            self._file = open(source, "rb", buffering=0)  # noqa: SIM115
            if refuse_writers:
                self._take_lease(waits=waits)
            status = os.fstat(self._file.fileno())
        except BlockingIOError:
            raise
        except OSError as error:
            problem = f"cannot read {self.path}: {error.strerror}"
            raise exhausted_error(error) or DatasetError(problem) from None
        self.size = status.st_size
        """The size when the file was opened, in bytes."""
        self.version: tuple[int | str, ...] = (
            *(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        )
        """The identity of the contents: device, inode, size and modification time."""

    def _take_lease(self, *, waits: bool) -> None:
        for _ in range(_MAX_LEASE_ATTEMPTS):
            try:
                take_file_lease(self._file.fileno())
            except BlockingIOError:
                if not waits:
                    self._file.close()
                    raise
                self._watch()
                if self.writers:
                    return  # otherwise the writer may have closed the file meanwhile
            except OSError as error:
                self.lease_problem = describe_refusal(error)
                return
            else:
                break
        else:
            self._refuse("by a process that the server cannot examine")
        self._is_leased = True
        key = id(self)
        _LEASED_FILES[key] = weakref.ref(self, lambda _: _LEASED_FILES.pop(key, None))

    def _watch(self) -> None:
        """Find the writers, and remember the times; raise if they could change it unnoticed."""
        descriptor = self._file.fileno()
        before = _read_times(descriptor)
        time.sleep(min(max(before[2] / 1e9 + _SETTLE_SECONDS - time.time(), 0), _SETTLE_SECONDS))
        self._times = _read_times(descriptor)
        # This waits for the lock of the file system on the file, and so for a write that is under
        # way: it has set the times already, but not yet changed all bytes.
        with suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_DATA)
        self._search = WriterSearch(descriptor)
        self.writers = self._search.find()
        if self.writers and self.writers[0].maps_file:
            self._refuse(f"{self.writers[0]}, which maps it")
        if self.writers and not before == self._times == _read_times(descriptor):
            self._refuse(f"{self.writers[0]}, which has just changed it")

    def _refuse(self, writer: str) -> NoReturn:
        self._file.close()
        raise DatasetError(
            f"{self.path} is open for writing {writer}, so a reader could get a mixture of two "
            "states: close it, or write a new file and rename it to this name; "
            "allow_writers=True (--allow-writers) accepts the risk"
        )

    def describe_writer(self) -> str:
        """Return that the watched file is open for writing, and where."""
        hint = ""
        if self.writers[0].pid == os.getpid():
            hint = (
                " (pyarrow's writer keeps it open until it is deleted: `del w`, or write through "
                "`pa.OSFile`)"
            )
        return f"it is open for writing {self.writers[0]}{hint}"

    def fileno(self) -> int:
        """Return the descriptor. It stays this object's to close."""
        return self._file.fileno()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes; raise `DatasetError` if they cannot be read."""
        try:
            data = os.pread(self._file.fileno(), nbytes, offset)
            while len(data) < nbytes:
                more = os.pread(self._file.fileno(), nbytes - len(data), offset + len(data))
                if not more:
                    raise self.truncation_error(offset + len(data))
                data += more
        except OSError as error:
            raise DatasetError(f"cannot read {self.path}: {error.strerror}") from None
        return data

    def check(self) -> None:
        """Raise `DatasetError` if the file has changed or was closed, or a writer waits."""
        try:
            descriptor = self._file.fileno()
            status = os.fstat(descriptor)
            if self._is_leased and not holds_file_lease(descriptor):
                raise self._writer_error()
            if self.writers:
                self._check_writers(_read_times(descriptor))
        except (OSError, ValueError):
            raise DatasetError(f"{self.path} was closed while it was read") from None
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if now != self.version:
            raise DatasetError(f"{self.path} changed while it was read")

    def _check_writers(self, times: tuple[int, ...]) -> None:
        if times != self._times:
            raise DatasetError(f"{self.path} changed while it was read: {self.describe_writer()}")
        for writer in self.writers:
            with suppress(OSError):  # it has ended
                if self._search.maps_file(writer.pid):
                    raise DatasetError(
                        f"{self.path} may have changed while it was read: it was mapped for "
                        f"writing {writer}"
                    )

    def part(self, offset: int, nbytes: int) -> FileSpan | bytes:
        """Return a part of a body: a span, or the bytes of a file that is watched.

        Raises `DatasetError` if the bytes cannot be read, or the file has changed.
        """
        if not self.writers:
            return FileSpan(self, offset, nbytes)
        data = self.read(offset, nbytes)
        self.check()
        return data

    def require_regions(self) -> None:
        """Raise `DatasetError` if the file may not be mapped, as a process may write to it."""
        if self.writers:
            raise DatasetError(f"cannot share {self.path}: {self.describe_writer()}")

    def truncation_error(self, position: int) -> DatasetError:
        """Return the error for a file that now ends at byte `position`."""
        return DatasetError(
            f"{self.path} ends at byte {position}; it had {self.size} bytes when it was opened"
        )

    def corruption_error(self, position: int, reason: str) -> DatasetError:
        """Return the error for invalid contents at byte `position`."""
        return DatasetError(f"{self.path} is corrupt at byte {position}: {reason}")

    def prefetch(self, offset: int, nbytes: int) -> None:
        """Let the kernel read a part of the file into the page cache, without waiting for it."""
        os.posix_fadvise(self._file.fileno(), offset, nbytes, os.POSIX_FADV_WILLNEED)

    def _writer_error(self) -> DatasetError:
        return DatasetError(
            f"{self.path} changed while it was read: another process opened it for writing; "
            "write a new file and rename it to this name"
        )

    @property
    def delays_writer(self) -> bool:
        """Whether another process waits to write to the file, and pages of it are lent."""
        if not self._loans:
            return False
        with self._lock:
            return not (self._file.closed or holds_file_lease(self._file.fileno()))

    def lend(self) -> None:
        """Keep the lease until `take_back`, even if the file is closed.

        A socket to which pages of the file are sent refers to them until its peer has read them.

        Raises `DatasetError` if another process waits to write to the file, or has written to it.
        """
        if self._is_leased:
            with self._lock:
                if not (self._loans or holds_file_lease(self._file.fileno())):
                    raise self._writer_error()
                self._loans += 1

    def take_back(self) -> None:
        """End one loan."""
        if self._is_leased:
            with self._lock:
                self._loans -= 1
                self._settle()

    def yield_to_writers(self) -> None:
        """Give the lease up if another process waits to write and no page of the file is lent.

        From then on, `check` raises.
        """
        with self._lock:
            if not (self._loans or self._file.closed or holds_file_lease(self._file.fileno())):
                drop_file_lease(self._file.fileno())

    def close(self) -> None:
        """Close the file. Spans of it can no longer be read or sent."""
        with self._lock:
            self._is_closed = True
            self._settle()

    def _settle(self) -> None:
        if self._is_closed and not self._loans and not self._file.closed:
            if self._is_leased:
                _LEASED_FILES.pop(id(self), None)
                drop_file_lease(self._file.fileno())  # a forked process may share the descriptor
            self._file.close()


def _read_times(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


_LEASED_FILES: dict[int, weakref.ref[SourceFile]] = {}


def list_leased_files() -> list[SourceFile]:
    """Return the open files of this process on which it holds a lease."""
    return [file for ref in list(_LEASED_FILES.values()) if (file := ref()) is not None]


class FileSpan:
    """A part of a file, as a part of an outgoing body. Its bytes stay in the page cache."""

    __slots__ = ("file", "nbytes", "offset")

    def __init__(self, file: SourceFile, offset: int, nbytes: int) -> None:
        self.file = file
        """The file. The span keeps it open."""
        self.offset = offset
        """The offset of the first byte."""
        self.nbytes = nbytes
        """The size in bytes."""

    def read_into(self, target: memoryview) -> None:
        """Copy the span to `target`; raise `DatasetError` if the file has changed."""
        done = 0
        while done < self.nbytes:
            try:
                count = os.preadv(self.file.fileno(), [target[done:]], self.offset + done)
            except OSError as error:
                raise DatasetError(f"cannot read {self.file.path}: {error.strerror}") from None
            if not count:
                raise self.file.truncation_error(self.offset + done)
            done += count
        self.file.check()
