"""Uploads: which data is accepted, and the messages that it becomes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from helpers.files import write_file
from splitarrow.client.rpc import upload
from splitarrow.client.rpc.upload import read_batches, upload_batches, upload_dataset
from splitarrow.errors import ProtocolError, UsageError
from splitarrow.formats.arrow.message import read_batch_layout
from splitarrow.formats.flight_data import parse_flight_data
from splitarrow.proto import Flight_pb2 as flight

TABLE = pa.table({"n": [1, 2, 3]})
BATCH = TABLE.to_batches()[0]
RESULT = {"dataset": "d", "rows": 3, "bytes": 24}


class Stream:
    """Arrow data that is neither a table nor a reader."""

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(schema)


@pytest.mark.parametrize(
    "data", [TABLE, BATCH, TABLE.to_reader(), Stream(), [BATCH], iter([BATCH])]
)
def test_all_kinds_of_arrow_data_are_accepted(data: Any) -> None:
    schema, batches = read_batches(data)
    assert schema == TABLE.schema
    assert pa.Table.from_batches(list(batches), schema) == TABLE


def test_an_iterable_without_batches_needs_a_schema() -> None:
    schema, batches = read_batches([], TABLE.schema)
    assert (schema, list(batches)) == (TABLE.schema, [])
    with pytest.raises(UsageError, match="there are no batches to take the schema from"):
        read_batches([])
    with pytest.raises(UsageError, match="expected record batches, got a int"):
        read_batches([1])
    with pytest.raises(UsageError, match="cannot upload a int; expected a table"):
        read_batches(1)


class Call(list[bytes]):
    """A call of DoPut that has received everything, and its responses."""

    def __init__(self, messages: Iterator[bytes], respond: Callable[[], bytes | None]) -> None:
        self.sent = list(messages)
        self.is_cancelled = False
        response = respond()
        super().__init__([] if response is None else [response])

    def cancel(self) -> None:
        self.is_cancelled = True


class Channel:
    """A channel to a server that accepts every upload."""

    def __init__(self, result: Any = RESULT) -> None:
        self.call: Any = None
        self.result = result

    def do_put(self, messages: Iterator[bytes]) -> Call:
        self.call = Call(messages, self.respond)
        return self.call

    def respond(self) -> bytes | None:
        if self.result is None:
            return None
        text = self.result if isinstance(self.result, bytes) else json.dumps(self.result).encode()
        return flight.PutResult(app_metadata=text).SerializeToString()


def put(batches: list[pa.RecordBatch], schema: pa.Schema, **options: Any) -> list[Any]:
    """Upload batches, and return the messages that were sent."""
    channel: Any = Channel()
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=["d"])
    response = upload_batches(channel, descriptor, "d", schema, iter(batches), **options)
    assert json.loads(response) == RESULT
    messages = [parse_flight_data(data) for data in channel.call.sent]
    found = [message.descriptor and bytes(message.descriptor) for message in messages]
    assert found == [descriptor.SerializeToString(), *[None] * (len(messages) - 1)]
    return messages


def test_an_upload_ends_with_its_number_of_rows() -> None:
    progress: list[tuple[int, int]] = []
    messages = put([BATCH, BATCH], BATCH.schema, progress=lambda *sent: progress.append(sent))
    assert [bytes(each.app_metadata or b"") for each in messages] == [b"", b"", b"", b'{"rows": 6}']
    assert [bool(each.header) for each in messages] == [True, True, True, False]
    assert progress == [(3, 24), (6, 48)]
    assert len(put([], BATCH.schema)) == 2


def test_a_large_batch_is_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_MAX_BATCH_BYTES", 800)
    rows: list[int] = []
    batch = pa.record_batch({"n": range(250)})
    put([batch], batch.schema, progress=lambda sent, _: rows.append(sent))
    assert rows == [84, 168, 250]
    exact = batch.slice(0, 100)
    assert len(put([exact], batch.schema)) == 3
    empty = batch.slice(0, 0)
    assert len(put([empty], batch.schema)) == 3
    nulls = pa.record_batch({"n": pa.nulls(1000)})
    assert len(put([nulls], nulls.schema)) == 3


def test_a_dictionary_that_grows_is_sent_as_a_delta() -> None:
    batches = [
        pa.record_batch({"d": pa.array(values).dictionary_encode()})
        for values in (["a"], ["a", "b"])
    ]
    messages = put(batches, batches[0].schema)
    layouts = [read_batch_layout(bytes(each.header)) for each in messages[1:-1]]
    deltas = [each.is_delta for each in layouts if each.dictionary_id is not None]
    assert deltas == [False, True]


def test_every_batch_of_an_iterable_is_checked() -> None:
    other = pa.record_batch({"m": [1]})
    for wrong, problem in ((1, "expected record batches, got a int"), (other, "different schemas")):
        batches: Any = [BATCH, wrong]
        _, found = read_batches(batches)
        with pytest.raises(UsageError, match=problem):
            list(
                upload._encode_messages(flight.FlightDescriptor(), BATCH.schema, found, None, None)
            )


def test_a_row_is_never_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_MAX_BATCH_BYTES", 8)
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    rows: list[int] = []
    put([batch], batch.schema, progress=lambda sent, _: rows.append(sent))
    assert rows == [1, 2]


def test_a_message_has_at_most_64_mib() -> None:
    column = pa.array(range((1 << 20) // 8), pa.int64())
    for columns, messages in ((64, 1), (65, 2)):
        batch = pa.RecordBatch.from_arrays([column] * columns, [f"{n}" for n in range(columns)])
        assert len(list(upload._slice_batch(batch))) == messages


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_bodies_are_compressed_as_requested(compression: str | None) -> None:
    batch = pa.record_batch({"n": pa.array([0] * 10_000)})
    message = put([batch], batch.schema, compression=compression)[1]
    assert (len(message.body) == 80_000) == (compression is None)


@pytest.mark.parametrize(
    "result", [None, b"{", [], {}, {**RESULT, "rows": None}, {**RESULT, "bytes": "many"}]
)
def test_a_malformed_response_is_an_error(result: Any) -> None:
    channel: Any = Channel(result)
    with pytest.raises(ProtocolError, match="sent a malformed upload result") as caught:
        upload_dataset(channel, "d", BATCH.schema, iter([BATCH]), "attempt")
    assert caught.value.stream == "d"


@pytest.mark.parametrize("result", [None, b"{"])
def test_a_response_that_is_no_json_is_an_error(result: Any) -> None:
    channel: Any = Channel(result)
    with pytest.raises(ProtocolError, match="sent a malformed upload result"):
        upload_dataset(channel, "d", BATCH.schema, iter([BATCH]), "attempt")


def test_no_batch_is_read_once_the_upload_has_ended() -> None:
    """The server can respond before gRPC's thread has read everything."""
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            read.append(number)
            yield BATCH

    class Early:
        def __init__(self, messages: Iterator[bytes]) -> None:
            self.messages = messages
            next(messages)

        def __iter__(self) -> Iterator[bytes]:
            return iter([flight.PutResult(app_metadata=b"{}").SerializeToString()])

    calls: list[Early] = []

    def do_put(messages: Iterator[bytes]) -> Early:
        calls.append(Early(messages))
        return calls[-1]

    channel: Any = SimpleNamespace(do_put=do_put)
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=["d"])
    assert upload_batches(channel, descriptor, "d", BATCH.schema, batches()) == b"{}"
    list(calls[0].messages)
    assert read == [0]


def test_the_response_is_the_result() -> None:
    channel: Any = Channel()
    result = upload_dataset(channel, "d", BATCH.schema, iter([BATCH]), "attempt")
    assert (result.name, result.rows, result.bytes) == ("d", 3, 24)


def test_data_that_fails_at_once_cancels_the_call() -> None:
    """The call reads the messages on a thread of its own, perhaps before it is returned."""
    begun, cancelled = threading.Event(), threading.Event()

    class Started:
        def __init__(self, messages: Iterator[bytes]) -> None:
            self.thread = threading.Thread(target=lambda: list(messages))
            self.thread.start()
            assert begun.wait(10)  # The data fails before the call is returned.

        def __iter__(self) -> Iterator[bytes]:
            assert cancelled.wait(10)
            raise grpc.RpcError

        def cancel(self) -> None:
            cancelled.set()

    def batches() -> Iterator[pa.RecordBatch]:
        begun.set()
        raise ZeroDivisionError
        yield BATCH

    channel: Any = SimpleNamespace(do_put=Started)
    with pytest.raises(ZeroDivisionError):
        upload_dataset(channel, "d", BATCH.schema, batches(), "attempt")


def test_an_interrupted_upload_is_cancelled() -> None:
    class Interrupted(Call):
        def __iter__(self) -> Any:
            raise KeyboardInterrupt

    call = Interrupted(iter([]), lambda: None)
    channel: Any = SimpleNamespace(do_put=lambda messages: call)
    with pytest.raises(KeyboardInterrupt):
        upload_dataset(channel, "d", BATCH.schema, iter([BATCH]), "attempt")
    assert call.is_cancelled


def test_a_refused_upload_raises_the_error_of_the_server() -> None:
    class Refused(Call):
        def __iter__(self) -> Any:
            raise grpc.RpcError

    channel: Any = SimpleNamespace(
        do_put=lambda messages: Refused(iter([]), lambda: None),
        convert_error=lambda error, name: UsageError(f"refused {name}"),
    )
    with pytest.raises(UsageError, match="refused d"):
        upload_dataset(channel, "d", BATCH.schema, iter([BATCH]), "attempt")


@pytest.mark.slow
def test_a_process_ends_in_order_after_a_refused_upload(
    tmp_path: Path, daemon: StartDaemon
) -> None:
    """The large batch is still being encoded when the refusal arrives."""
    code = """
import sys
import numpy, pyarrow, splitarrow
client = splitarrow.connect(sys.argv[1])
try:
    client.put("d", pyarrow.table({"n": numpy.zeros(30_000_000)}))
except splitarrow.errors.RemoteError as error:
    sys.exit(str(error))
"""
    path = write_file(tmp_path / "n.arrow", TABLE)
    server = daemon({"n": path}, control="grpc://127.0.0.1:0")
    for _ in range(2):
        command = [sys.executable, "-c", code, str(server.control_uri)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert process.returncode == 1
        assert process.stderr == (
            "this server accepts no uploads; start it with --writable FOLDER\n"
        )
