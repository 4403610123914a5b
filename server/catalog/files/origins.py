"""Where the files of datasets come from: a file system, or an object store.

An object is read range by range. Both kinds open as files for pyarrow, whose errors are mapped.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ....errors import (
    DatasetError,
    MissingExtraError,
    ProtocolError,
    SplitArrowError,
    exhausted_error,
)
from ....publication.storage import ObjectStorage, StoredObject
from ....transport.memory.files import SourceFile

Identity = tuple[int | str, ...]
"""The values that identify the state of a file; see `SourceFile.version`."""

_FIRST_WINDOW = 64 << 10
_LAST_WINDOW = 8 << 20


def identify_object(entry: StoredObject) -> Identity:
    """Return the identity of the state of an object."""
    return (entry.name, entry.etag or "", entry.nbytes)


class ObjectFile(SourceFile):
    """An object of an object store, in one state. Safe to use from several threads.

    Each request names the entity tag of that state. A read therefore fails once the object has been
    replaced, and never returns bytes of two states. Sequential reads request larger and larger
    ranges, up to 8 MiB. It has no descriptor, so its bytes are neither sent nor mapped directly.
    """

    def __init__(self, storage: ObjectStorage, entry: StoredObject) -> None:
        self._storage = storage
        self._entry = entry
        self._reading = threading.Lock()
        self._begin, self._data = 0, b""
        self._window = _FIRST_WINDOW
        self.path = f"{storage.location}/{entry.name}"
        self.lease_problem = None
        self.writers = ()
        self.size = entry.nbytes
        self.version = identify_object(entry)

    def fileno(self) -> int:
        """Raise: an object has no descriptor."""
        raise io.UnsupportedOperation(f"{self.path} has no descriptor")

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes at `offset`; see `SourceFile.read`."""
        end = offset + nbytes
        if end > self.size:
            raise self.truncation_error(self.size)
        if not nbytes:
            return b""
        with self._reading:
            buffered = self._begin + len(self._data)
            if not self._begin <= offset <= buffered:
                self._begin, self._data, self._window = offset, b"", _FIRST_WINDOW
                buffered = offset
            head = self._data[offset - self._begin : end - self._begin]
            if len(head) == nbytes:
                return head
            fetched = self._fetch(buffered, max(end, buffered + self._window))
            rest = nbytes - len(head)
            if not head and rest == len(fetched):
                return fetched
            return head + fetched[:rest]

    def _fetch(self, begin: int, end: int) -> bytes:
        self._data = self._storage.read_range(self._entry, begin, min(end, self.size))
        self._begin = begin
        self._window = min(2 * self._window, _LAST_WINDOW)
        return self._data

    def check(self) -> None:
        """Do nothing: every request names the state of the object."""

    def prefetch(self, offset: int, nbytes: int) -> None:
        """Do nothing: `read` reads ahead."""

    def close(self) -> None:
        """Free the bytes that were read ahead."""
        self._data = b""

    def open_handle(self) -> pa.PythonFile:
        """Return a handle for pyarrow. The caller closes it."""
        handle: Any = _Handle(self)
        return pa.PythonFile(handle, mode="r")


class _Handle(io.RawIOBase):
    """The interface of Python's files."""

    def __init__(self, file: ObjectFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        rest = max(self._file.size - self._position, 0)
        size = rest if size < 0 else min(size, rest)
        data = self._file.read(self._position, size)
        self._position += size
        return data


def make_read_error(path: Path | str, error: OSError) -> SplitArrowError:
    """Return the error for a file or folder that cannot be read."""
    return exhausted_error(error) or DatasetError(f"cannot read {path}: {error.strerror}")


@contextmanager
def open_with_arrow(file: SourceFile, file_type: str) -> Generator[Any]:
    """Yield a handle of pyarrow, and turn the errors of libraries into a `DatasetError`."""
    with map_read_errors(file.path, file_type), closing(open_handle(file)) as handle:
        yield handle


def open_handle(file: SourceFile) -> pa.NativeFile:
    """Return a handle of pyarrow on an open file. The caller closes it.

    The handle refers to the open file, even if another file has its path by now. It reads the file
    and does not map it.
    """
    if isinstance(file, ObjectFile):
        return file.open_handle()
    return pa.OSFile(f"/proc/self/fd/{file.fileno()}", "rb")


@contextmanager
def map_read_errors(path: Path | str, file_type: str) -> Generator[None]:
    """Turn the errors of libraries into a `DatasetError` of one line."""
    try:
        yield
    except MissingExtraError:
        raise
    except ProtocolError as error:
        raise DatasetError(f"cannot read {path} as {file_type}: {error.message}") from None
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        if exhausted := exhausted_error(error):
            raise exhausted from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DatasetError(f"cannot read {path} as {file_type}: {reason}") from None


class LocalOrigin:
    """A file of a file system that may belong to a dataset. It is named after itself by default.

    With a `folder`, no symbolic link may lead out of it.
    """

    is_remote = False
    """Whether it is an object in an object store."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.path = Path(path)
        """The path."""
        self._folder = folder
        self.name = name or self.path.name
        """The path below the folder of the dataset. ``/`` separates its components."""

    def read_identity(self) -> Identity:
        """Return the identity of the current state; raise `OSError` if the file is missing."""
        status = self.path.stat()
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def open(self, *, refuse_writers: bool, waits: bool = True) -> SourceFile:
        """Open the file for reading; see `SourceFile` for the arguments and errors."""
        return SourceFile(
            self.path, refuse_writers=refuse_writers, waits=waits, folder=self._folder
        )


class ObjectOrigin:
    """An object of an object store, in the state of a listing. See `LocalOrigin`."""

    is_remote = True

    def __init__(self, storage: ObjectStorage, entry: StoredObject) -> None:
        self._storage = storage
        self._entry = entry
        self.name = entry.name
        self.path = f"{storage.location}/{entry.name}"

    def read_identity(self) -> Identity:
        """Return the identity of the listed state."""
        return identify_object(self._entry)

    def open(self, *, refuse_writers: bool, waits: bool = True) -> SourceFile:
        """Open the object for reading. A writer replaces it, and never changes it."""
        return ObjectFile(self._storage, self._entry)


FileOrigin = LocalOrigin | ObjectOrigin
"""A file that may belong to a dataset."""
