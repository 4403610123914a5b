"""DoPut: record batches become a dataset of the server, or shards of a publication.

A dataset appears with all of its batches or not at all. Shards wait in the server's staging area
until the publication is committed.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal, NamedTuple, cast

import grpc
import pyarrow as pa

from ...errors import DatasetError, DeniedError, ProtocolError, UsageError
from ...formats.arguments import (
    check_integer,
    check_path,
    check_text,
    check_texts,
    import_stream,
    list_items,
    refuse,
)
from ...formats.arrow.file_scan import check_file
from ...formats.arrow.message import read_batch_header
from ...formats.flight_data import pack_flight_data
from ...proto import Flight_pb2 as flight
from .channel import FlightChannel
from .info import ShardUploadResult, UploadResult, parse_result

_CODECS = {"none": None, "lz4": "lz4", "zstd": "zstd"}
_MAX_BATCH_BYTES = 64 << 20
"""The largest record batch that is sent as one message. Larger ones are sliced."""

IfExists = Literal["error", "replace"]
"""What becomes of an upload if there is a dataset of its name."""
Progress = Callable[[int, int], None]
"""A callback that receives the numbers of rows and bytes sent so far."""


def read_batches(data: Any, schema: pa.Schema | None = None) -> tuple[pa.Schema, Iterator[Any]]:
    """Return the schema and the record batches of any Arrow data, or of an iterable of batches."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data])
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, iter(data)
    if hasattr(data, "__arrow_c_stream__"):
        reader = import_stream(data)
        return reader.schema, iter(reader)
    if schema is not None and not isinstance(schema, pa.Schema):  # pyright: ignore[reportUnnecessaryIsInstance]
        refuse("schema", schema, "a pyarrow.Schema, or None")
    if not isinstance(data, Iterable):
        raise UsageError(
            f"cannot upload a {type(data).__name__}; expected a table, a reader or an iterable of "
            "record batches"
        )
    return _peek_schema(iter(cast("Iterable[Any]", data)), schema)


def _peek_schema(
    batches: Iterator[Any], schema: pa.Schema | None
) -> tuple[pa.Schema, Iterator[Any]]:
    """Take the schema from the first record batch."""
    first = next(batches, None)
    if first is None:
        if schema is None:
            raise UsageError("there are no batches to take the schema from; pass schema=")
        return schema, batches
    _check_batch(first)
    return first.schema, chain([first], batches)


def _check_batch(batch: Any) -> None:
    if not isinstance(batch, pa.RecordBatch):
        raise UsageError(f"expected record batches, got a {type(batch).__name__}")


def upload_dataset(
    channel: FlightChannel,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    attempt: str,
    if_exists: IfExists = "error",
    progress: Progress | None = None,
) -> UploadResult:
    """Upload a dataset; see `upload_batches`.

    The attempt is a random text. An upload may replace what one with the same attempt has stored.
    """
    command = {"dataset": name, "if_exists": if_exists, "attempt": attempt}
    descriptor = flight.FlightDescriptor(
        type=flight.FlightDescriptor.CMD, cmd=json.dumps(command).encode()
    )
    response = upload_batches(channel, descriptor, name, schema, batches, progress)
    return parse_result(UploadResult, response, name)


def upload_batches(
    channel: FlightChannel,
    descriptor: flight.FlightDescriptor,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None = None,
    compression: str | None = None,
) -> bytes:
    """Upload record batches and return the server's response, a JSON document; empty if none.

    The progress callback runs on another thread. If the server refuses the upload, or `batches`
    raises, the server keeps nothing.
    """
    if progress is not None and not callable(progress):
        refuse("progress", progress, "a function, or None")
    failures: list[Exception] = []
    call_started = threading.Event()

    def encode() -> Generator[bytes]:
        try:
            yield from _encode_messages(descriptor, schema, batches, progress, compression)
        except Exception as error:
            failures.append(error)
            call_started.wait()
            call.cancel()  # The end of the messages would otherwise look like that of the data.

    messages = _Messages(encode())
    call = channel.do_put(messages)
    call_started.set()
    try:
        responses = list(call)
    except grpc.RpcError as error:
        if failures:
            raise failures[0] from None
        failure = channel.convert_error(error, name)
        if isinstance(failure, DeniedError) and failure.code == "UNAUTHENTICATED":
            channel.reject_token()  # the data cannot be sent again, but the next upload can succeed
        raise failure from None
    except BaseException:
        call.cancel()
        raise
    finally:
        messages.close()
    return flight.PutResult.FromString(responses[-1]).app_metadata if responses else b""


class _Messages:
    """The messages of an upload, which gRPC reads on a thread of its own.

    A call can end before that thread does. The caller may then close the file behind the batches,
    or end the process. To read a closed file crashes the process, and so does pyarrow if it runs
    on another thread while the interpreter ends.
    """

    def __init__(self, messages: Generator[bytes]) -> None:
        self._messages = messages
        self._lock = threading.Lock()

    def __iter__(self) -> _Messages:
        return self

    def __next__(self) -> bytes:
        """Return the next message, unless the upload has ended."""
        with self._lock:
            return next(self._messages)

    def close(self) -> None:
        """Encode no further message; wait for the one that is being encoded."""
        with self._lock:
            self._messages.close()


def _encode_messages(
    descriptor: flight.FlightDescriptor,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None,
    compression: str | None,
) -> Iterator[bytes]:
    """Yield serialized FlightData; the first one carries the descriptor."""
    sink = _MessageSink()
    options = pa.ipc.IpcWriteOptions(
        compression=cast(Any, compression), emit_dictionary_deltas=True
    )
    rows = nbytes = 0
    pending_descriptor = descriptor.SerializeToString()
    file = pa.PythonFile(cast(Any, sink), mode="w")
    with pa.ipc.new_stream(file, schema, options=options) as writer:
        for batch in batches:
            _check_batch(batch)
            if not batch.schema.equals(schema):
                raise UsageError("the batches have different schemas; all need the same one")
            for piece in _slice_batch(batch):
                writer.write_batch(piece)
                for message in sink.take_messages():
                    yield _encode_flight_data(message, pending_descriptor)
                    pending_descriptor = b""
                rows += piece.num_rows
                nbytes += piece.nbytes
                if progress is not None:
                    progress(rows, nbytes)
    for message in sink.take_messages():  # the schema, if there was no batch
        yield _encode_flight_data(message, pending_descriptor)
        pending_descriptor = b""
    # The server commits the upload only if it received this number of rows.
    yield pack_flight_data(app_metadata=json.dumps({"rows": rows}).encode())


def _encode_flight_data(message: Any, descriptor: bytes) -> bytes:
    body = message.body
    parts, size = (None, 0) if body is None else ([body], body.size)
    return pack_flight_data(message.metadata, parts, size, descriptor=descriptor)


def _slice_batch(batch: Any) -> Iterator[Any]:
    count = max(1, -(-batch.nbytes // _MAX_BATCH_BYTES))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, max(1, batch.num_rows), step):
        yield batch.slice(start, step)


class _MessageSink:
    """A file that a pyarrow writer fills, and whose contents are read back as messages."""

    closed = False

    def __init__(self) -> None:
        self._buffer = pa.BufferOutputStream()

    def write(self, data: Any) -> None:
        self._buffer.write(data)

    def take_messages(self) -> Iterator[Any]:
        """Yield the messages that were written since the last call."""
        written = self._buffer.getvalue()
        self._buffer = pa.BufferOutputStream()
        yield from pa.ipc.MessageReader.open_stream(pa.BufferReader(written))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


MODES = ("append", "overwrite")
"""Whether a publication keeps the shards of the previous version or replaces them."""
_FILE_MAGIC_BYTES = 8
"""The size of the magic and its padding at the start of an Arrow IPC file, in bytes."""


class ShardData(NamedTuple):
    """The contents of a shard."""

    schema: pa.Schema
    """The schema."""
    batches: Iterator[Any]
    """The record batches."""
    codec: str | None
    """The compression of the source file: ``lz4``, ``zstd``, or None."""


@contextmanager
def open_shard(data: Any, schema: pa.Schema | None = None) -> Generator[ShardData]:
    """Open the contents of a shard while the context lasts. A path names an Arrow IPC file."""
    if not isinstance(data, (str, os.PathLike)):
        yield ShardData(*read_batches(data, schema), None)
        return
    path = check_path("the shard", data)
    try:
        with pa.memory_map(path) as file:
            reader = pa.ipc.open_file(file)
            _check_footer(file, path)
            count = reader.num_record_batches
            codec = _read_codec(path) if count else None
            batches = (reader.get_batch(index) for index in range(count))
            yield ShardData(reader.schema, batches, codec)
    except pa.ArrowInvalid as error:
        raise DatasetError(
            f"cannot read the shard {path}: {error}; expected an Arrow IPC file, as splitarrow "
            "convert writes it"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"cannot read the shard {path}: {error}") from None


def _check_footer(file: Any, path: str) -> None:
    """Raise `DatasetError` if a file has data that its footer does not list."""
    try:
        check_file(lambda offset, nbytes: file.read_at(nbytes, offset), file.size())
    except ProtocolError as error:
        raise DatasetError(f"cannot read the shard {path}: {error.message}") from None


def _read_codec(path: str) -> str | None:
    """Return the compression of a file's first record batch. All batches of a file share it."""
    with pa.memory_map(path) as file:
        file.seek(_FILE_MAGIC_BYTES)
        for message in pa.ipc.MessageReader.open_stream(file):
            if message.type == "record batch":
                return read_batch_header(bytes(memoryview(message.metadata))).codec
    return None


def upload_shard(
    channel: FlightChannel,
    name: str,
    data: ShardData,
    job: str,
    ordinal: int,
    compression: str | None = None,
    progress: Progress | None = None,
) -> ShardUploadResult:
    """Upload a shard into the staging area of a publication; see `upload_batches`.

    Without a compression, the shard keeps that of its source file.
    """
    _check_job(job)
    ordinal = check_integer("ordinal", ordinal, 0)
    if compression is not None and str(compression) not in _CODECS:
        refuse("compression", compression, "none, lz4, zstd, or None")
    command = {"dataset": name, "publish": {"job": job, "ordinal": ordinal}}
    descriptor = flight.FlightDescriptor(
        type=flight.FlightDescriptor.CMD, cmd=json.dumps(command).encode()
    )
    codec = data.codec if compression is None else _CODECS[compression]
    response = upload_batches(channel, descriptor, name, data.schema, data.batches, progress, codec)
    return parse_result(ShardUploadResult, response, name)


def encode_publication(
    name: str,
    *,
    job: str,
    ordinals: Iterable[int],
    shards_total: int | None,
    snapshot: str | None,
    mode: str,
    schema: pa.Schema | None,
    properties: Mapping[str, str] | None,
) -> bytes:
    """Return the body of the action ``publish``; the parameters are those of `Client.publish`."""
    _check_job(job)
    found = list_items("ordinals", ordinals, "ordinals of shards")
    required = sorted({check_integer("an ordinal in ordinals", each, 0) for each in found})
    total = len(required)
    if shards_total is not None:
        total = check_integer("shards_total", shards_total, 0)
    if str(mode) not in MODES:
        refuse("mode", mode, " or ".join(MODES))
    if required and not 0 <= required[0] <= required[-1] < total:
        raise UsageError(
            f"ordinals range from {required[0]} to {required[-1]}; "
            f"expected 0 to {total - 1} for {total} shards"
        )
    body: dict[str, Any] = {
        "dataset": name,
        "job": job,
        "ordinals": required,
        "shards_total": total,
        "snapshot": job if snapshot is None else check_text("snapshot", snapshot) or job,
        "mode": mode,
    }
    if schema is not None:
        if not isinstance(schema, pa.Schema):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("schema", schema, "a pyarrow.Schema, or None")
        body["schema"] = base64.b64encode(memoryview(schema.serialize())).decode()
    if properties is not None:
        body["properties"] = check_texts("properties", properties)
    return json.dumps(body).encode()


def _check_job(job: str) -> None:
    if not check_text("job", job).strip():
        raise UsageError("job is empty; expected a name that is unique to the publication")
