"""Objects in object stores, read range by range."""

from __future__ import annotations

import io
import threading
from typing import Any

import pyarrow as pa

from ....publication.storage import ObjectStorage, StoredObject
from ....transport.memory.files import SourceFile

_FIRST_WINDOW = 64 << 10
_LAST_WINDOW = 8 << 20


class ObjectFile(SourceFile):
    """An object of an object store, in one state. Safe to use from several threads.

    Each request names the entity tag of that state. A read therefore fails once the object has been
    replaced, and never returns bytes of two states. Sequential reads request larger and larger
    ranges, up to 8 MiB. It has no descriptor, so its bytes are neither sent nor mapped directly.

    Parameters
    ----------
    storage : ObjectStorage
        The object store.
    entry : StoredObject
        The object, and its state.
    """

    def __init__(self, storage: ObjectStorage, entry: StoredObject) -> None:
        self._storage = storage
        self._entry = entry
        self._reading = threading.Lock()
        self._begin, self._data = 0, b""
        self._window = _FIRST_WINDOW
        self.path = f"{storage.location}/{entry.name}"
        self.lease_problem = None
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


def identify_object(entry: StoredObject) -> tuple[int | str, ...]:
    """Return the identity of the state of an object."""
    return (entry.name, entry.etag or "", entry.nbytes)
