"""DoPut: record batches become a dataset of the server, all of them or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

import grpc
import pyarrow as pa

from ..errors import ProtocolError, UsageError
from ..proto import Flight_pb2 as flight
from .calls import Caller
from .described import Stored
from .flightdata import assemble

_BATCH_BYTES = 64 << 20
"""Larger batches are sent in pieces: each travels as one message."""

Progress = Callable[[int, int], None]
"""Is told how many rows and bytes have been handed over."""


def batches_of(data: Any, schema: pa.Schema | None = None) -> tuple[pa.Schema, Iterator[Any]]:
    """Return the schema and the record batches of whatever has some.

    Parameters
    ----------
    data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or batches
        What to send.
    schema : pyarrow.Schema, optional
        The schema, which an iterable of no batches does not tell.

    Raises
    ------
    UsageError
        If it has none.
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
        raise UsageError(f"a {type(data).__name__} is no table, reader or iterable of batches")
    batches = iter(cast("Iterable[Any]", data))
    first = next(batches, None)
    if first is None and schema is None:
        raise UsageError("no batches, and no schema: give schema=…")
    if first is not None and not isinstance(first, pa.RecordBatch):
        raise UsageError(f"a {type(first).__name__} among the batches")

    def all_of_them() -> Iterator[Any]:
        if first is not None:
            yield first
        yield from batches

    found = schema if first is None else first.schema
    assert found is not None
    return found, all_of_them()


def put(
    caller: Caller,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None = None,
) -> Stored:
    """Send a dataset; return what the server made of it.

    Raises
    ------
    SplitArrowError
        If it is refused. The server has nothing of it then; nor if `batches` raises.
    """
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=[name])
    told = sent(caller, descriptor, name, schema, batches, progress)
    try:
        return Stored(str(told["dataset"]), int(told["rows"]), int(told["bytes"]))
    except (ValueError, KeyError, TypeError):
        raise unclear(name) from None


def unclear(name: str) -> ProtocolError:
    """Return the error for an answer that cannot be understood."""
    return ProtocolError("the server does not say what it has stored", stream=name)


def sent(
    caller: Caller,
    descriptor: Any,
    name: str,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None = None,
    compression: str | None = None,
) -> Any:
    """Send record batches under a descriptor; return the server's answer, parsed.

    Parameters
    ----------
    caller : Caller
        The connection.
    descriptor : FlightDescriptor
        What they shall become.
    name : str
        The dataset, for errors.
    schema : pyarrow.Schema
        Their schema.
    batches : iterator of RecordBatch
        The data.
    progress : callable, optional
        Is told how many rows and bytes have been handed over.
    compression : {"lz4", "zstd"}, optional
        How the bodies travel, and are stored.

    Raises
    ------
    SplitArrowError
        If it is refused. The server has nothing of it then; nor if `batches` raises.
    """
    failed: list[Exception] = []
    begun = threading.Event()

    def messages() -> Generator[bytes]:
        try:
            yield from _messages(descriptor, schema, batches, progress, compression)
        except Exception as error:
            failed.append(error)
            begun.wait()
            call.cancel()  # or the server would take the end of the messages for that of the data

    call = caller.upload(messages())
    begun.set()
    try:
        answers = list(call)
    except grpc.RpcError as error:
        if failed:
            raise failed[0] from None
        raise caller.failure(error, name) from None
    except BaseException:
        call.cancel()
        raise
    try:
        return json.loads(flight.PutResult.FromString(answers[-1]).app_metadata)
    except (ValueError, IndexError):
        raise unclear(name) from None


def _messages(
    descriptor: Any,
    schema: pa.Schema,
    batches: Iterator[Any],
    progress: Progress | None,
    compression: str | None,
) -> Iterator[bytes]:
    collected = _Collected()
    options = pa.ipc.IpcWriteOptions(
        compression=cast(Any, compression), emit_dictionary_deltas=True
    )
    rows = nbytes = 0
    first = descriptor.SerializeToString()
    file = pa.PythonFile(cast(Any, collected), mode="w")
    with pa.ipc.new_stream(file, schema, options=options) as writer:
        for batch in batches:
            if not isinstance(batch, pa.RecordBatch):
                raise UsageError(f"a {type(batch).__name__} among the batches")
            if not batch.schema.equals(schema):
                raise UsageError("the batches have different schemas")
            for piece in _pieces(batch):
                writer.write_batch(piece)
                for message in collected.messages():
                    yield assemble(message.metadata, message.body, descriptor=first)
                    first = b""
                rows += piece.num_rows
                nbytes += piece.nbytes
                if progress is not None:
                    progress(rows, nbytes)
    for message in collected.messages():  # the schema, if there was no batch
        yield assemble(message.metadata, message.body, descriptor=first)
        first = b""
    # The server keeps the dataset only if as many rows have come.
    yield assemble(app_metadata=json.dumps({"rows": rows}).encode())


def _pieces(batch: Any) -> Iterator[Any]:
    count = max(1, -(-batch.nbytes // _BATCH_BYTES))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, max(1, batch.num_rows), step):
        yield batch.slice(start, step)


class _Collected:
    """A file that keeps what is written until it is taken as messages."""

    closed = False

    def __init__(self) -> None:
        self._sink = pa.BufferOutputStream()

    def write(self, data: Any) -> int:
        self._sink.write(data)
        return len(data)

    def messages(self) -> Iterator[Any]:
        """Yield the messages that were written since the last call."""
        written = self._sink.getvalue()
        self._sink = pa.BufferOutputStream()
        reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(written))
        yield from reader

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
