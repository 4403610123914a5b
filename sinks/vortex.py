"""Write Vortex files and Vortex streams."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, UsageError
from ..formats.arrow.data_types import list_fields
from ..formats.arrow.supported_types import make_empty_batch
from ..formats.arrow.truncation import needs_truncation, truncate
from ..formats.vortex.decoder import call_library, encode_array, import_library
from ..formats.vortex.encoder import FileConverter, copy_rows
from ..formats.vortex.message import Message, encode_message
from . import Sink

_WAITING_BATCHES = 2


@contextmanager
def _naming(kind: str) -> Generator[None]:
    """Raise `UsageError` for data that Vortex refuses."""
    try:
        yield
    except (InvalidDataError, pa.ArrowException) as error:
        reason = getattr(error, "message", str(error).partition("\n")[0])
        raise UsageError(
            f"a Vortex {kind} cannot store this data: {reason}; write to .arrow or .parquet instead"
        ) from None


class _BatchConverter:
    """Converts batches to what a Vortex file can have."""

    def __init__(self, schema: pa.Schema) -> None:
        self._converter = FileConverter(schema)
        self._truncates = needs_truncation(schema)
        self.schema = self._converter.schema

    def convert(self, batch: pa.RecordBatch) -> Any:
        """Return the rows of a batch as a struct array."""
        if self._truncates:
            batch = truncate(batch)
        return copy_rows(self._converter.convert(batch).to_struct_array())


def _check_unique(repeated: str, fields: list[Any]) -> None:
    """Raise `InvalidDataError` if fields have the same name: a file finds its columns by name."""
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise InvalidDataError(f"{repeated} are named {field.name!r}")
        if pa.types.is_struct(field.type):
            _check_unique(f"several fields of {field.name!r}", list_fields(field.type))


class VortexStreamSink(Sink):
    """Writes Vortex IPC messages."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file)
        self._vortex = import_library()
        with _naming("stream"):
            self._converter = _BatchConverter(schema)
            self._no_rows = make_empty_batch(self._converter.schema).to_struct_array()
            self._encode(self._no_rows)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch as one array."""
        if batch.num_rows:
            with _naming("stream"):
                self._write_array(self._converter.convert(batch))

    def _encode(self, rows: Any) -> tuple[Message, Message]:
        vortex = self._vortex
        array = call_library(lambda: vortex.compress(vortex.Array.from_arrow(rows)), "encoded")
        return encode_array(array)

    def _write_array(self, rows: Any) -> None:
        """Write rows as an array; with the dtype before it if nothing is written yet."""
        dtype, message = self._encode(rows)
        position = self._file.tell()
        for each in (message,) if position else (dtype, message):
            for piece in encode_message(each, position):
                self._file.write(piece)
                position += memoryview(piece).nbytes

    def close(self) -> None:
        """Close the file. A stream without rows gets an array, which has the columns."""
        if not self._file.tell():
            self._write_array(self._no_rows)
        super().close()


class VortexFileSink(Sink):
    """Writes a Vortex file in a thread, which the library makes wait for batches."""

    def __init__(self, schema: pa.Schema, path: Path) -> None:
        super().__init__(None)  # the library opens the file
        self._vortex = import_library()
        with _naming("file"):
            self._converter = _BatchConverter(schema)
            _check_unique("several columns", list(self._converter.schema))
        self._path = path
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(_WAITING_BATCHES)
        self._is_aborted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="vortex-file", daemon=True)
        self._thread.start()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        if batch.num_rows:
            with _naming("file"):
                rows = self._converter.convert(batch)
            self._put(pa.RecordBatch.from_struct_array(rows))

    def close(self) -> None:
        """Complete the file."""
        self._put(None)
        self._thread.join()
        self._raise()

    def abort(self) -> None:
        """End the thread. The file is incomplete."""
        self._is_aborted = True
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put_nowait(None)
            self._thread.join(0.05)

    def _put(self, batch: pa.RecordBatch | None) -> None:
        while True:
            self._raise()
            try:
                self._queue.put(batch, timeout=0.1)
            except queue.Full:
                continue
            return

    def _raise(self) -> None:
        if self._error is not None:
            with _naming("file"):
                raise self._error

    def _run(self) -> None:
        write = self._vortex.io.write
        try:
            reader = pa.RecordBatchReader.from_batches(self._converter.schema, self._batches())
            call_library(lambda: write(reader, str(self._path)), "written")
        except BaseException as error:
            self._error = error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._queue.get()) is not None:
            yield batch
        if self._is_aborted:
            raise InvalidDataError("the output was aborted")
