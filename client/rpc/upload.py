"""DoPut: record batches become a dataset of the server, all of them or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

import grpc
import pyarrow as pa

from ...errors import ClosedError, ProtocolError, UsageError
from ...formats.flight_data import pack_flight_data
from ...proto import Flight_pb2 as flight
from .channel import FlightChannel
from .results import UploadResult

_MAX_BATCH_BYTES = 64 << 20
"""The largest record batch that is sent as one message. Larger ones are sliced."""

Progress = Callable[[int, int], None]
"""A callback that receives the numbers of rows and bytes sent so far."""


def read_batches(data: Any, schema: pa.Schema | None = None) -> tuple[pa.Schema, Iterator[Any]]:
    """Return the schema and the record batches of any Arrow data.

    Parameters
    ----------
    data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or iterable
        The data. An iterable yields record batches.
    schema : pyarrow.Schema, optional
        The schema of an iterable that yields no record batch.

    Raises
    ------
    UsageError
        If the data is of another type, or has no schema.
    """
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data])
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, iter(data)
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, iter(reader)
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

    def all_batches() -> Iterator[Any]:
        yield first
        yield from batches

    return first.schema, all_batches()


def _check_batch(batch: Any) -> None:
    if not isinstance(batch, pa.RecordBatch):
        raise UsageError(f"expected record batches, got a {type(batch).__name__}")


def upload_dataset(
    channel: FlightChannel,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None = None,
) -> UploadResult:
    """Upload a dataset; see `upload_batches`."""
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=[name])
    result = upload_batches(channel, descriptor, name, schema, batches, progress)
    try:
        return UploadResult(str(result["dataset"]), int(result["rows"]), int(result["bytes"]))
    except (ValueError, KeyError, TypeError):
        raise malformed_result(name) from None


def malformed_result(name: str) -> ProtocolError:
    """Return the error for a response to an upload that cannot be parsed."""
    return ProtocolError("the server sent a malformed upload result", stream=name)


def upload_batches(
    channel: FlightChannel,
    descriptor: flight.FlightDescriptor,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None = None,
    compression: str | None = None,
) -> Any:
    """Upload record batches and return the server's response, a parsed JSON document.

    Parameters
    ----------
    channel : FlightChannel
        The channel to the server.
    descriptor : FlightDescriptor
        The destination.
    name : str
        The dataset that errors name.
    schema : pyarrow.Schema
        The schema of the record batches.
    batches : iterator of RecordBatch
        The data.
    progress : callable, optional
        Receives the numbers of rows and bytes sent so far, on another thread.
    compression : {"lz4", "zstd"}, optional
        The codec of the bodies. `None` sends them uncompressed.

    Raises
    ------
    SplitArrowError
        If the server refuses the upload. It keeps nothing of it then, nor if `batches` raises.
    """
    failures: list[Exception] = []
    call_started = threading.Event()
    source = _UploadSource(batches)

    def messages() -> Generator[bytes]:
        try:
            yield from _encode_messages(descriptor, schema, source, progress, compression)
        except Exception as error:
            failures.append(error)
            call_started.wait()
            call.cancel()  # The end of the messages would otherwise look like that of the data.

    call = channel.do_put(messages())
    call_started.set()
    try:
        responses = list(call)
    except grpc.RpcError as error:
        if failures:
            raise failures[0] from None
        raise channel.convert_error(error, name) from None
    except BaseException:
        call.cancel()
        raise
    finally:
        source.close()
    try:
        return json.loads(flight.PutResult.FromString(responses[-1]).app_metadata)
    except (ValueError, IndexError):
        raise malformed_result(name) from None


class _UploadSource:
    """The record batches of an upload, which gRPC reads on a thread of its own.

    A call can end before that thread does. The caller may then close the file behind the batches,
    and reading a closed file crashes the process.

    Parameters
    ----------
    batches : iterator of RecordBatch
        The data.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._closed = False

    def __iter__(self) -> _UploadSource:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises
        ------
        ClosedError
            If the upload has ended.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the upload has ended")
            return next(self._batches)

    def close(self) -> None:
        """Read no further batch; wait for the one that is being read."""
        with self._lock:
            self._closed = True


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
