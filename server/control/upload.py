"""One upload: from messages to a file that is complete or not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import pyarrow as pa

from ...errors import ExhaustedError, InvalidDataError, remote_error
from ...protocol.limits import Limits
from .incoming import IncomingBatch, UploadReader
from .wire import FlightData

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FRAMING = 4096
"""What a message takes besides its buffers, in bytes: a guess, put right after it is written."""


class Stored(NamedTuple):
    """What became of an upload."""

    rows: int
    """How many rows it has."""
    nbytes: int
    """How many bytes its file has."""


class Shelf(Protocol):
    """Where uploads are kept."""

    def reserve(self, upload: Upload, nbytes: int) -> None:
        """Note that the upload will take this many bytes; raise `ExhaustedError`."""
        ...

    def commit(self, upload: Upload) -> None:
        """Make the finished file the dataset of that name."""
        ...

    def forget(self, upload: Upload) -> None:
        """Take back what was reserved."""
        ...


class Upload:
    """One upload. Its methods block; one thread at a time may call them.

    Parameters
    ----------
    shelf : Shelf
        Where it will be kept.
    name : str
        The name of the dataset.
    path : Path
        The temporary file; it must not exist. It is removed by `abort`.
    limits : Limits
        Bounds on what is uploaded.
    as_file : bool
        Whether the file has to be an Arrow IPC file, also where dictionaries could be replaced:
        then they may only grow.
    """

    def __init__(
        self, shelf: Shelf, name: str, path: Path, limits: Limits, *, as_file: bool = False
    ) -> None:
        self.name = name
        self.path = path
        self.stored: Stored | None = None
        """What became of it, once it is complete."""
        self._shelf = shelf
        self._limits = limits
        self._as_file = as_file
        self._reader: UploadReader | None = None
        self._writer: Any = None
        self._rows = 0
        self._declared: int | None = None
        with _disk(name):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._file = os.fdopen(handle, "wb")

    def feed(self, data: FlightData) -> None:
        """Take in one message.

        Raises
        ------
        ProtocolError
            If it is not what an upload may hold.
        ExhaustedError
            If there is no room for it.
        """
        if not len(data.header):
            self._note(data.app_metadata)
        elif self._reader is None:
            self._reader = UploadReader(bytes(data.header), self._limits)
        else:
            got = self._reader.feed(data.header, pa.py_buffer(data.body))
            if got is not None:
                self._write(self._reader, got)

    def finish(self) -> None:
        """Complete the file and hand it to the shelf; `stored` then says what it holds.

        Raises
        ------
        InvalidDataError
            If there was no schema, or rows are missing.
        ExhaustedError
            If there is no room for it.
        """
        if self._reader is None:
            raise InvalidDataError("the upload has no schema")
        if self._declared is not None and self._declared != self._rows:
            raise InvalidDataError(
                f"the upload declares {self._declared} rows, and {self._rows} have come"
            )
        with _disk(self.name):
            if self._writer is None:
                self._writer = self._new_writer(self._reader, None)
            self._writer.close()
            self._file.flush()
            nbytes = self._file.tell()
            self._shelf.reserve(self, nbytes)
            os.fsync(self._file.fileno())
            self._file.close()
            self._shelf.commit(self)
        self.stored = Stored(self._rows, nbytes)

    def abort(self) -> None:
        """Remove what there is, unless it is complete. Idempotent."""
        self._writer = self._reader = None
        try:
            self._file.close()
        except OSError:
            pass  # the disk is full, which was told already
        if self.stored is None:
            self.path.unlink(missing_ok=True)
        self._shelf.forget(self)

    def answer(self) -> dict[str, Any]:
        """Return what the client is told once it is complete."""
        assert self.stored is not None
        rows, nbytes = self.stored
        return {"dataset": self.name, "rows": rows, "bytes": nbytes}

    def _write(self, reader: UploadReader, got: IncomingBatch) -> None:
        with _disk(self.name):
            if self._writer is None:
                self._writer = self._new_writer(reader, got.codec)
            if got.codec is None:
                self._shelf.reserve(self, self._file.tell() + got.decoded_bytes + _FRAMING)
            self._writer.write_batch(got.batch, custom_metadata=got.custom_metadata)
            self._shelf.reserve(self, self._file.tell())
        self._rows += got.batch.num_rows

    def _new_writer(self, reader: UploadReader, codec: str | None) -> Any:
        """Return the writer for a file, or for a stream where dictionaries may be replaced."""
        options = pa.ipc.IpcWriteOptions(
            compression=cast(Any, codec), allow_64bit=True, emit_dictionary_deltas=True
        )
        sink = pa.PythonFile(self._file, mode="w")
        streamed = reader.has_dictionaries and not self._as_file
        new = pa.ipc.new_stream if streamed else pa.ipc.new_file
        return new(sink, reader.schema, options=options)

    def _note(self, app_metadata: memoryview | None) -> None:
        """Take in a message without data: it may say how many rows there are in all."""
        try:
            said = json.loads(bytes(app_metadata or b""))
        except (ValueError, RecursionError):
            return
        rows = said.get("rows") if isinstance(said, dict) else None
        if isinstance(rows, int):
            self._declared = rows


@contextmanager
def _disk(name: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ExhaustedError("the server's disk is full", stream=name) from None
        reason = error.strerror or type(error).__name__
        raise remote_error(
            "INTERNAL", f"the upload cannot be stored: {reason}", stream=name
        ) from None
    except pa.ArrowException as error:
        raise InvalidDataError(f"the data cannot be stored: {error}", stream=name) from None
