"""One upload: from Flight messages, decoded and validated, to a complete file."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import ExhaustedError, InvalidDataError, LimitError, remote_error
from ...formats.arrow.checker import MessageChecker
from ...formats.arrow.decoding import DECODING_ERRORS, BufferFile, validate_memory
from ...formats.arrow.message import HeaderType, read_batch_header
from ...formats.arrow.schema import read_dictionary_types, read_schema
from ...formats.flight_data import FlightData
from ...protocol.limits import Limits
from ..logs import get_logger
from .quota import Quota


class DecodedBatch(NamedTuple):
    """A record batch of an upload. It shares the memory of the received message."""

    batch: pa.RecordBatch
    """The data, validated in full."""
    custom_metadata: Any
    """The custom metadata of the message, or None."""
    codec: str | None
    """The compression of the message: ``lz4``, ``zstd``, or None."""
    nbytes: int
    """The size of its buffers and of new dictionaries after decompression, in bytes."""


class UploadDecoder:
    """Decodes the messages of one upload, in order. One thread at a time may use it."""

    def __init__(self, schema_metadata: bytes, limits: Limits) -> None:
        self._limits = limits
        schema = read_schema(
            schema_metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
        )
        types = read_dictionary_types(schema_metadata, schema)
        self.has_dictionaries = bool(types)
        """Whether a column is dictionary-encoded."""
        self._checker = MessageChecker(
            schema,
            types,
            max_buffers=limits.buffers,
            max_metadata_bytes=limits.metadata_bytes,
            max_decoded_bytes=limits.decoded_bytes,
        )
        self._input = BufferFile()
        self._input.add(schema_metadata, None)
        self._pending_bytes = 0
        """The decompressed size of the dictionaries since the last record batch."""
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._input), mode="r"))
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the schema is invalid: {error}") from None
        self.schema: pa.Schema = self._reader.schema

    def decode(self, metadata: memoryview, body: pa.Buffer) -> DecodedBatch | None:
        """Return the record batch of a message; None for a dictionary batch, which is kept."""
        if len(metadata) > self._limits.metadata_bytes:
            raise LimitError(
                f"the metadata of a message has {len(metadata)} bytes; "
                f"the limit is {self._limits.metadata_bytes}"
            )
        header = bytes(metadata)
        header_type = self._check(header, body)
        self._input.add(header, body)
        if header_type is HeaderType.DICTIONARY_BATCH:
            return None
        nbytes, self._pending_bytes = self._pending_bytes, 0
        try:
            batch, custom_metadata = self._reader.read_next_batch_with_custom_metadata()
            validate_memory(batch)
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the data is invalid: {error}") from None
        return DecodedBatch(batch, custom_metadata, read_batch_header(header).codec, nbytes)

    def _check(self, metadata: bytes, body: pa.Buffer) -> HeaderType:
        """Check a message before pyarrow decodes it, and return its type."""
        message = self._checker.check(metadata, memoryview(body))
        self._pending_bytes += message.decoded_bytes
        if self._pending_bytes > self._limits.decoded_bytes:
            raise LimitError(
                f"a record batch has {self._pending_bytes} bytes with its dictionaries; "
                f"the limit is {self._limits.decoded_bytes}"
            )
        return message.header_type


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MESSAGE_OVERHEAD_BYTES = 4096
"""An estimate of the bytes of a message besides its buffers, until it is written."""


_BUFFER_BYTES = 256 << 10


class Upload:
    """Writes the record batches of one upload to a file. A context manager that closes it.

    The upload owns the file, and the quota for it, until `finish` hands both to `commit`. `close`
    removes a file that no caller has taken.

    The methods block. Any thread may call them, one at a time. The file must not exist yet. If
    `commit` raises, it must leave the file or remove it. Data with dictionaries becomes an Arrow
    IPC stream, unless it has to be a file: that format refuses dictionaries that are replaced.
    """

    def __init__(
        self,
        dataset: str,
        path: Path,
        quota: Quota,
        commit: Callable[[Upload], Mapping[str, Any]],
        limits: Limits,
        *,
        as_file: bool = False,
    ) -> None:
        self.dataset = dataset
        self.path = path
        self.response: dict[str, Any] | None = None
        """The response to the client; None before `finish` has succeeded."""
        self._quota = quota
        self._commit = commit
        self._limits = limits
        self._as_file = as_file
        self._decoder: UploadDecoder | None = None
        self._writer: Any = None
        self._rows = 0
        self._declared_rows: int | None = None
        with map_errors(dataset):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        self._file = io.BufferedWriter(io.FileIO(descriptor, "wb"), _BUFFER_BYTES)

    def write(self, data: FlightData) -> None:
        """Write one message. The first one with a header must be a schema."""
        if not len(data.header):
            self._read_declared_rows(data.app_metadata)
        elif self._decoder is None:
            self._decoder = UploadDecoder(bytes(data.header), self._limits)
        else:
            batch = self._decoder.decode(data.header, pa.py_buffer(data.body))
            if batch is not None:
                self._write_batch(self._decoder, batch)

    def finish(self) -> None:
        """Complete the file, make it durable, and commit it."""
        if self._decoder is None:
            raise InvalidDataError("the upload has no schema")
        if self._declared_rows is not None and self._declared_rows != self._rows:
            raise InvalidDataError(
                f"the upload declares {self._declared_rows} rows, but {self._rows} have arrived"
            )
        with map_errors(self.dataset):
            if self._writer is None:
                self._writer = self._open_writer(self._decoder, None)
            self._writer.close()
            self._file.flush()
            nbytes = self._file.tell()
            self._quota.reserve(self, nbytes, self.dataset)
            os.fsync(self._file.fileno())
            self._file.close()
            fields = self._commit(self)
        self.response = {"dataset": self.dataset, "rows": self._rows, "bytes": nbytes, **fields}

    def close(self) -> None:
        """Release the quota, and remove the file unless it was committed. Idempotent."""
        self._writer = self._decoder = None
        try:
            self._file.close()
        except OSError:
            pass  # the disk is full, and `write` or `finish` has raised that
        if self.response is None:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:  # the next start removes it
                get_logger("store").error("incomplete upload not removed", reason=error.strerror)
        self._quota.release(self)

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write_batch(self, decoder: UploadDecoder, decoded: DecodedBatch) -> None:
        with map_errors(self.dataset):
            if self._writer is None:
                self._writer = self._open_writer(decoder, decoded.codec)
            if decoded.codec is None:
                estimate = self._file.tell() + decoded.nbytes + _MESSAGE_OVERHEAD_BYTES
                self._quota.reserve(self, estimate, self.dataset)
            self._writer.write_batch(decoded.batch, custom_metadata=decoded.custom_metadata)
            self._quota.reserve(self, self._file.tell(), self.dataset)
        self._rows += decoded.batch.num_rows

    def _open_writer(self, decoder: UploadDecoder, codec: str | None) -> Any:
        """Return a writer that compresses bodies as the first batch was compressed."""
        options = pa.ipc.IpcWriteOptions(
            compression=cast(Any, codec), allow_64bit=True, emit_dictionary_deltas=True
        )
        sink = pa.PythonFile(self._file, mode="w")
        as_stream = decoder.has_dictionaries and not self._as_file
        open_writer = pa.ipc.new_stream if as_stream else pa.ipc.new_file
        return open_writer(sink, decoder.schema, options=options)

    def _read_declared_rows(self, app_metadata: memoryview | None) -> None:
        """Read the total number of rows, ``{"rows": N}``. Ignore any other metadata."""
        try:
            fields = json.loads(bytes(app_metadata or b""))
        except (ValueError, RecursionError):
            return
        rows = fields.get("rows") if isinstance(fields, dict) else None
        if isinstance(rows, int):
            self._declared_rows = rows


@contextmanager
def map_errors(dataset: str, action: str = "store the upload") -> Generator[None]:
    """Turn errors of the disk and of Arrow into errors that name the dataset."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise ExhaustedError("the server's disk is full", stream=dataset) from None
        reason = error.strerror or type(error).__name__
        raise remote_error("INTERNAL", f"cannot {action}: {reason}", stream=dataset) from None
    except pa.ArrowException as error:
        raise InvalidDataError(f"cannot {action}: {error}", stream=dataset) from None
