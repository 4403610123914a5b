"""Regions of files as parts of outgoing bodies: the bytes stay in the page cache."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import DatasetError


class RegionFile:
    """A file, open for reading, that lives as long as a region of it does.

    It is not mapped here: a file that shrinks while it is read is an error and not a signal that
    kills the process. What maps files guards them; see `splitarrow.server.shared`.
    """

    __slots__ = ("_file", "path", "size", "version")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        """Where the file was when it was opened."""
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
            status = os.fstat(self._file.fileno())
        except OSError as error:
            raise DatasetError(f"cannot read {self.path}: {error.strerror}") from None
        self.size = status.st_size
        """The size in bytes when it was opened."""
        self.version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        """What identifies the contents."""

    def fileno(self) -> int:
        """Return the descriptor. It stays this object's."""
        return self._file.fileno()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes at `offset`.

        Raises
        ------
        DatasetError
            If the file is shorter, or cannot be read.
        """
        try:
            data = os.pread(self._file.fileno(), nbytes, offset)
            while len(data) < nbytes:
                more = os.pread(self._file.fileno(), nbytes - len(data), offset + len(data))
                if not more:
                    raise self.shrunk(offset + len(data))
                data += more
        except OSError as error:
            raise DatasetError(f"cannot read {self.path}: {error.strerror}") from None
        return data

    def check(self) -> None:
        """Check that the file is what it was when it was opened.

        Raises
        ------
        DatasetError
            If it was written to, or cannot be looked at.
        """
        try:
            status = os.fstat(self._file.fileno())
        except (OSError, ValueError):
            raise DatasetError(f"{self.path} was closed while it was read") from None
        now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if now != self.version:
            raise DatasetError(f"{self.path} changed while it was read")

    def shrunk(self, position: int) -> DatasetError:
        """Return the error for a file that ends before `position`, where it had bytes before."""
        return DatasetError(
            f"{self.path} ends at byte {position}; it had {self.size} bytes when it was opened"
        )

    def corrupt(self, position: int, why: str) -> DatasetError:
        """Return the error for a file that holds something wrong at `position`."""
        return DatasetError(f"{self.path} is corrupt at byte {position}: {why}")

    def will_need(self, offset: int, nbytes: int) -> None:
        """Ask the kernel to read ahead."""
        os.posix_fadvise(self._file.fileno(), offset, nbytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file; regions of it can no longer be sent."""
        self._file.close()


class FileRegion:
    """A stretch of a file, as a part of an outgoing body."""

    __slots__ = ("file", "nbytes", "offset")

    def __init__(self, file: RegionFile, offset: int, nbytes: int) -> None:
        self.file = file
        """The file; it is kept open by this object."""
        self.offset = offset
        """Where the stretch begins, in bytes."""
        self.nbytes = nbytes
        """How long it is, in bytes."""

    def read_into(self, target: memoryview) -> None:
        """Copy the stretch to `target`, which has `nbytes` bytes.

        Raises
        ------
        DatasetError
            If the file has become shorter, or cannot be read.
        """
        done = 0
        while done < self.nbytes:
            try:
                got = os.preadv(self.file.fileno(), [target[done:]], self.offset + done)
            except OSError as error:
                raise DatasetError(f"cannot read {self.file.path}: {error.strerror}") from None
            if not got:
                raise self.file.shrunk(self.offset + done)
            done += got
