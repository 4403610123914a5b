"""DoPut: whole or not at all, within its quota, under names that are no paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from splitarrow.errors import ConfigError, ExhaustedError
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.control.store import UploadStore
from splitarrow.server.control.wire import parse_flight_data

from .conftest import Running, running
from .test_flight import VARIED

PATH = flight.FlightDescriptor.for_path


def put(
    client: Any,
    name: str,
    table: pa.Table,
    options: flight.FlightCallOptions | None = None,
    **write: Any,
) -> dict[str, Any]:
    """Upload as a stock client does; return what the server answers."""
    writer, answers = client.do_put(PATH(name), table.schema, options=options)
    with writer:
        writer.write_table(table, **write)
        writer.done_writing()
        answer = answers.read()
        assert answer is not None
        return json.loads(answer.to_pybytes())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    folder = tmp_path / "uploads"
    folder.mkdir()
    return folder


@pytest.fixture
def server(writable: Path, arrow_file: Path) -> Iterator[Running]:
    with running({"configured": arrow_file}, writable=writable) as served:
        yield served


def test_what_was_put_is_read_back(server: Running, writable: Path, table: pa.Table) -> None:
    with server.client() as client:
        answer = put(client, "scores", table)
        info = client.get_flight_info(PATH("scores"))
        assert client.do_get(info.endpoints[0].ticket).read_all() == table
        assert info.total_records == 3000
    assert answer == {
        "dataset": "scores",
        "rows": 3000,
        "bytes": (writable / "scores.arrow").stat().st_size,
    }
    assert files(writable) == ["scores.arrow"]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_all_types_come_back(server: Running, compression: str | None) -> None:
    codec: Any = compression
    options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
    with server.client() as client:
        put(client, "varied", VARIED, options)
        got = client.do_get(flight.Ticket(b"varied")).read_all()
    assert got.schema.equals(VARIED.schema, check_metadata=True)
    assert got.equals(VARIED)


def test_dictionaries_may_be_replaced(server: Running) -> None:
    batches = [pa.record_batch({"d": pa.array(v).dictionary_encode()}) for v in ("ab", "ca")]
    with server.client() as client:
        put(client, "d", pa.Table.from_batches(batches))
        got = client.do_get(flight.Ticket(b"d")).read_all()
    assert got["d"].to_pylist() == ["a", "b", "c", "a"]


def test_no_batch_at_all(server: Running, table: pa.Table) -> None:
    empty = table.schema.empty_table()
    with server.client() as client:
        writer, _ = client.do_put(PATH("empty"), table.schema)
        writer.close()
        assert client.do_get(flight.Ticket(b"empty")).read_all() == empty


def test_custom_metadata_of_batches_is_kept(
    server: Running, writable: Path, table: pa.Table
) -> None:
    raw_put(server, flight_messages("noted", table, custom_metadata={"key": "value"}))
    with pa.OSFile(str(writable / "noted.arrow"), "rb") as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            _, metadata = reader.get_batch_with_custom_metadata(index)
            assert dict(metadata) == {b"key": b"value"}
        assert reader.read_all() == table


def test_what_an_application_says_besides_is_no_trouble(server: Running) -> None:
    batch = pa.record_batch({"a": [1]})
    with server.client() as client:
        writer, _ = client.do_put(PATH("said"), batch.schema)
        with writer:
            writer.write_metadata(b"not for us")
            writer.write_with_metadata(batch, b"nor this")
            writer.write_metadata(b"[[[")
        assert client.do_get(flight.Ticket(b"said")).read_all().num_rows == 1


def test_it_is_there_after_a_restart(writable: Path, table: pa.Table) -> None:
    (writable / ".upload-left").write_bytes(b"half")
    (writable / "foreign.txt").write_bytes(b"not ours")
    with running({}, writable=writable) as server, server.client() as client:
        put(client, "grüße 1", table)
    with running({}, writable=writable) as server, server.client() as client:
        assert client.do_get(flight.Ticket("grüße 1".encode())).read_all() == table
        assert client.list_actions()
    assert files(writable) == ["foreign.txt", "gr%C3%BC%C3%9Fe%201.arrow"]


def test_readers_keep_what_is_replaced(server: Running, table: pa.Table) -> None:
    old = pa.table({"x": pa.array(range(3_000_000))})
    with server.client() as client:
        put(client, "x", old, max_chunksize=100_000)
        reader = client.do_get(flight.Ticket(b"x"))
        batches = [reader.read_chunk().data]
        put(client, "x", table)
        assert client.do_get(flight.Ticket(b"x")).read_all() == table
        assert client.get_schema(PATH("x")).schema == table.schema
        batches += [chunk.data for chunk in reader]
        assert pa.Table.from_batches(batches) == old


def test_readers_keep_what_is_dropped(server: Running, writable: Path) -> None:
    old = pa.table({"x": pa.array(range(3_000_000))})
    with server.client() as client:
        put(client, "x", old, max_chunksize=100_000)
        reader = client.do_get(flight.Ticket(b"x"))
        batches = [reader.read_chunk().data]
        (result,) = client.do_action(flight.Action("drop", b"x"))
        assert json.loads(result.body.to_pybytes()) == {"dropped": "x"}
        batches += [chunk.data for chunk in reader]
        assert pa.Table.from_batches(batches) == old
        with pytest.raises(KeyError, match="no dataset 'x'"):
            client.get_flight_info(PATH("x"))
        with pytest.raises(KeyError, match="no dataset 'x' was uploaded"):
            list(client.do_action(flight.Action("drop", b"x")))
    assert files(writable) == []


def test_the_configuration_is_not_for_clients(server: Running, table: pa.Table) -> None:
    with server.client() as client:
        with pytest.raises(pa.ArrowException, match="'configured' belongs to the configuration"):
            put(client, "configured", table)
        with pytest.raises(pa.ArrowException, match="'configured' belongs to the configuration"):
            list(client.do_action(flight.Action("drop", b"configured")))
        assert client.do_get(flight.Ticket(b"configured")).read_all() == table


@pytest.mark.parametrize(
    "name",
    [
        "../escape",
        "..",
        ".",
        ".hidden",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "%2e%2e%2fescape",
        "nul\0byte",
        "line\nbreak",
        "",
        "x" * 300,
        "ü" * 100,
    ],
)
def test_names_are_no_paths(server: Running, name: str, writable: Path, table: pa.Table) -> None:
    before = files(writable.parent)
    with server.client() as client:
        with pytest.raises(pa.ArrowInvalid, match="name"):
            put(client, name, table)
        with pytest.raises((KeyError, pa.ArrowInvalid)):
            client.get_flight_info(PATH(name))
        with pytest.raises((KeyError, pa.ArrowInvalid)):
            list(client.do_action(flight.Action("drop", name.encode())))
    assert files(writable) == []
    assert files(writable.parent) == before


def test_links_in_the_directory_lead_nowhere(
    writable: Path, arrow_file: Path, table: pa.Table
) -> None:
    other = table.slice(0, 10)
    (writable / "link.arrow").symlink_to(arrow_file)
    with running({}, writable=writable) as server, server.client() as client:
        with pytest.raises(KeyError, match="no dataset 'link'"):
            client.get_flight_info(PATH("link"))
        put(client, "link", other)
        assert client.do_get(flight.Ticket(b"link")).read_all() == other
    assert not (writable / "link.arrow").is_symlink()
    with pa.OSFile(str(arrow_file), "rb") as file:
        assert pa.ipc.open_file(file).read_all() == table


@pytest.mark.parametrize(
    "descriptor",
    [
        PATH("a", "b"),
        PATH(),
        flight.FlightDescriptor.for_command(b"name"),
    ],
)
def test_the_descriptor_is_a_path_of_one_element(
    server: Running, descriptor: flight.FlightDescriptor, table: pa.Table
) -> None:
    with server.client() as client:
        writer, _ = client.do_put(descriptor, table.schema)
        with pytest.raises(pa.ArrowInvalid, match="path of one element"):
            writer.close()


def test_a_server_without_a_directory_takes_nothing(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="takes no uploads"):
            put(client, "b", table)
        with pytest.raises(pa.ArrowException, match="takes no uploads"):
            list(client.do_action(flight.Action("drop", b"a")))


BIG = pa.table({"x": pa.array(range(1_000_000))})


@pytest.mark.parametrize("setting", ["writable_bytes", "upload_bytes"])
def test_an_upload_over_its_quota_leaves_nothing(writable: Path, setting: str) -> None:
    settings: dict[str, Any] = {"writable": writable, setting: 4 << 20}
    with running(**settings) as server, server.client() as client:
        with pytest.raises(pa.ArrowException, match=r"room for 4194304 of 4194304.*'big'"):
            put(client, "big", BIG, max_chunksize=50_000)
        assert files(writable) == []
        put(client, "half", BIG.slice(0, 500_000), max_chunksize=50_000)
        put(client, "half", BIG.slice(0, 1000))
        assert client.do_get(flight.Ticket(b"half")).read_all() == BIG.slice(0, 1000)


def test_the_quota_counts_all_uploads(writable: Path) -> None:
    with (
        running({}, writable=writable, writable_bytes=9 << 20) as server,
        server.client() as client,
    ):
        put(client, "one", BIG)
        with pytest.raises(pa.ArrowException, match="the upload takes"):
            put(client, "two", BIG)
        list(client.do_action(flight.Action("drop", b"one")))
        put(client, "two", BIG)
    with (
        running({}, writable=writable, writable_bytes=9 << 20) as server,
        server.client() as client,
        pytest.raises(pa.ArrowException, match="the upload takes"),
    ):
        put(client, "one", BIG)
    assert files(writable) == ["two.arrow"]


def test_more_uploads_than_may_run_are_refused(writable: Path, table: pa.Table) -> None:
    with running({}, writable=writable, uploads=1) as server, server.client() as client:
        writer, answers = client.do_put(PATH("first"), table.schema)
        writer.write_table(table)
        wait_for_a_file(writable)
        with pytest.raises(pa.ArrowException, match="uploads are running"):
            put(client, "second", table)
        writer.done_writing()
        assert answers.read() is not None
        writer.close()
        put(client, "second", table)


def wait_for_a_file(folder: Path) -> None:
    """Wait until an upload has begun: its file is there."""
    waiting = threading.Event()
    while not files(folder):
        waiting.wait(0.005)


BROKEN = """
import os, sys, time
import pyarrow as pa
from pyarrow import flight
client = flight.FlightClient(sys.argv[1])
table = pa.table({"x": pa.array(range(100_000))})
writer, _ = client.do_put(flight.FlightDescriptor.for_path("broken"), table.schema)
for _ in range(5):
    writer.write_table(table)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_leaves_nothing(server: Running, writable: Path, table: pa.Table) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BROKEN, server.uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        wait_for_a_file(writable)
        process.kill()
    waiting = threading.Event()
    while files(writable):
        waiting.wait(0.005)
    with server.client() as client:
        with pytest.raises(KeyError, match="broken"):
            client.get_flight_info(PATH("broken"))
        put(client, "broken", table)


def flight_messages(name: str, table: pa.Table, **write: Any) -> Iterator[bytes]:
    """What a client sends for a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as new:
        for batch in table.to_batches():
            new.write_batch(batch, **write)
    descriptor = pb.FlightDescriptor(type=pb.FlightDescriptor.PATH, path=[name])
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        data = pb.FlightData(
            data_header=message.metadata.to_pybytes(),
            data_body=b"" if message.body is None else message.body.to_pybytes(),
        )
        if descriptor is not None:
            data.flight_descriptor.CopyFrom(descriptor)
            descriptor = None
        yield data.SerializeToString()


def raw_put(server: Running, messages: Iterator[bytes]) -> pb.PutResult:
    with server.channel() as channel:
        method = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        (answer,) = method(messages, timeout=20)
    return pb.PutResult.FromString(answer)


@pytest.mark.parametrize("how", ["cancel", "close", "error"])
def test_a_cancelled_upload_leaves_nothing(
    server: Running, writable: Path, table: pa.Table, how: str
) -> None:
    gate = threading.Event()

    def messages() -> Iterator[bytes]:
        yield from flight_messages("broken", table)
        gate.wait()
        if how == "error":
            raise ValueError

    for _ in range(10):
        gate.clear()
        channel = server.channel()
        call = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")(messages())
        wait_for_a_file(writable)
        if how == "cancel":
            call.cancel()
        elif how == "close":
            channel.close()
        gate.set()
        with pytest.raises((grpc.RpcError, ValueError)):
            list(call)
        channel.close()
        waiting = threading.Event()
        while files(writable):
            waiting.wait(0.005)
        assert "broken" not in server.daemon.catalog.names()


def test_declared_rows_have_to_come(server: Running, writable: Path, table: pa.Table) -> None:
    with server.client() as client:
        writer, _ = client.do_put(PATH("short"), table.schema)
        writer.write_table(table)
        writer.write_metadata(b'{"rows": 4000}')
        with pytest.raises(pa.ArrowInvalid, match="declares 4000 rows, and 3000 have come"):
            writer.close()
        assert files(writable) == []
        writer, _ = client.do_put(PATH("whole"), table.schema)
        writer.write_table(table)
        writer.write_metadata(b'{"rows": 3000}')
        writer.close()
    assert files(writable) == ["whole.arrow"]


def garbage(kind: str, table: pa.Table) -> Iterator[bytes]:
    messages = list(flight_messages("garbage", table))
    first, *rest = messages
    if kind == "nothing":
        return iter(())
    if kind == "no protobuf":
        return iter([b"\xff\xff\xff"])
    if kind == "no descriptor":
        return iter(rest)
    if kind == "cut protobuf":
        return iter([first, rest[0][:-1]])
    data = pb.FlightData.FromString(rest[0])
    if kind == "no schema":
        opening = pb.FlightData.FromString(first)
        opening.data_header = data.data_header
        return iter([opening.SerializeToString()])
    if kind == "two schemas":
        return iter([first, first])
    if kind == "cut body":
        data.data_body = data.data_body[:-8]
    elif kind == "mutated metadata":
        data.data_header = bytes(255 - byte for byte in data.data_header)
    elif kind == "invalid data":
        body = bytearray(data.data_body)
        body[-16:] = b"\xff" * 16  # the end of the texts: no UTF-8
        at = data.data_body.index(b"row 0")
        body[at : at + 2] = b"\xff\xff"
        data.data_body = bytes(body)
    return iter([first, data.SerializeToString()])


@pytest.mark.parametrize(
    "kind",
    [
        "nothing",
        "no protobuf",
        "no descriptor",
        "cut protobuf",
        "no schema",
        "two schemas",
        "cut body",
        "mutated metadata",
        "invalid data",
    ],
)
def test_garbage_is_refused(server: Running, writable: Path, kind: str, table: pa.Table) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        raw_put(server, garbage(kind, table))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert files(writable) == []
    assert raw_put(server, flight_messages("good", table)).app_metadata


def test_a_message_may_not_be_too_large(writable: Path) -> None:
    with running({}, writable=writable, message_bytes=1 << 20) as server:
        with pytest.raises(grpc.RpcError) as raised:
            raw_put(server, flight_messages("big", BIG))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert files(writable) == []


def test_a_full_disk_is_told(writable: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    store = UploadStore(writable, Catalog({}))
    upload = store.begin("x", DEFAULT_LIMITS)
    with full.open("wb") as device:
        os.dup2(device.fileno(), upload._file.fileno())
    schema, *batches = map(parse_flight_data, flight_messages("x", BIG))
    upload.feed(schema)
    with pytest.raises(ExhaustedError, match="disk is full"):
        upload.feed(batches[0])
    upload.abort()
    store.close()
    assert files(writable) == []


def test_a_directory_belongs_to_one_server(writable: Path, tmp_path: Path) -> None:
    with (
        running({}, writable=writable),
        pytest.raises(ConfigError, match="another server uses it"),
        running({}, writable=writable),
    ):
        pass
    with pytest.raises(ConfigError, match="No such file"), running({}, writable=tmp_path / "none"):
        pass
