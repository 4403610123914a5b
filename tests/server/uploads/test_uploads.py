"""DoPut: an upload is stored completely or not at all, within its quota."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import PATH, VARIED, Running, put, running
from helpers.uploads import find_upload, list_uploads, make_incomplete_path
from helpers.waiting import wait_until
from splitarrow.client.connect import connect
from splitarrow.errors import ConfigError, ExhaustedError, LimitError, RemoteError
from splitarrow.formats.flight_data import parse_flight_data
from splitarrow.proto import Flight_pb2 as pb
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.publication.version_store import VersionStore
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.uploads.folder import MARKER
from splitarrow.server.uploads.quota import Quota
from splitarrow.server.uploads.store import DatasetTarget, UploadStore


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    folder = tmp_path / "uploads"
    folder.mkdir()
    return folder


@pytest.fixture
def server(writable: Path, arrow_file: Path) -> Iterator[Running]:
    with running({"configured": arrow_file}, writable=writable) as served:
        yield served


def test_an_uploaded_dataset_can_be_read(server: Running, writable: Path, table: pa.Table) -> None:
    with server.client() as client:
        answer = put(client, "scores", table)
        info = client.get_flight_info(PATH("scores"))
        assert client.do_get(info.endpoints[0].ticket).read_all() == table
        assert info.total_records == 3000
    assert answer == {
        "dataset": "scores",
        "rows": 3000,
        "bytes": find_upload(writable, "scores.arrow").stat().st_size,
    }
    assert list_uploads(writable) == ["scores.arrow"]
    mode = find_upload(writable, "scores.arrow").stat().st_mode
    assert mode & 0o007 == 0  # other users cannot read it


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_all_types_are_uploaded_unchanged(server: Running, compression: str | None) -> None:
    codec: Any = compression
    options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
    with server.client() as client:
        put(client, "varied", VARIED, options)
        got = client.do_get(flight.Ticket(b"varied")).read_all()
    assert got.schema.equals(VARIED.schema, check_metadata=True)
    assert got.equals(VARIED)


def test_an_upload_can_replace_dictionaries(server: Running) -> None:
    batches = [pa.record_batch({"d": pa.array(v).dictionary_encode()}) for v in ("ab", "ca")]
    with server.client() as client:
        put(client, "d", pa.Table.from_batches(batches))
        got = client.do_get(flight.Ticket(b"d")).read_all()
    assert got["d"].to_pylist() == ["a", "b", "c", "a"]


def test_an_upload_without_batches_is_an_empty_dataset(server: Running, table: pa.Table) -> None:
    empty = table.schema.empty_table()
    with server.client() as client:
        writer, _ = client.do_put(PATH("empty"), table.schema)
        writer.close()
        assert client.do_get(flight.Ticket(b"empty")).read_all() == empty


def test_custom_metadata_of_batches_is_kept(
    server: Running, writable: Path, table: pa.Table
) -> None:
    raw_put(server, flight_messages("noted", table, custom_metadata={"key": "value"}))
    with pa.OSFile(str(find_upload(writable, "noted.arrow")), "rb") as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            _, metadata = reader.get_batch_with_custom_metadata(index)
            assert dict(metadata) == {b"key": b"value"}
        assert reader.read_all() == table


def test_metadata_of_other_applications_is_ignored(server: Running) -> None:
    batch = pa.record_batch({"a": [1]})
    with server.client() as client:
        writer, _ = client.do_put(PATH("said"), batch.schema)
        with writer:
            writer.write_metadata(b"not for us")
            writer.write_with_metadata(batch, b"nor this")
            writer.write_metadata(b"[[[")
        assert client.do_get(flight.Ticket(b"said")).read_all().num_rows == 1


def test_uploads_survive_a_restart_and_incomplete_ones_do_not(
    writable: Path, table: pa.Table
) -> None:
    with running({}, writable=writable) as server, server.client() as client:
        put(client, "grüße 1", table)
    make_incomplete_path(writable).write_bytes(b"half")
    with running({}, writable=writable) as server, server.client() as client:
        assert client.do_get(flight.Ticket("grüße 1".encode())).read_all() == table
        assert client.list_actions()
    assert list_uploads(writable) == ["gr%C3%BC%C3%9Fe%201.arrow"]


def test_a_stock_client_replaces_an_upload_only_with_a_command(
    server: Running, table: pa.Table
) -> None:
    other = table.slice(0, 10)
    with server.client() as client:
        put(client, "x", table)
        with pytest.raises(pa.ArrowException, match=r"the dataset exists; .* send the command {"):
            put(client, "x", other)
        assert client.do_get(flight.Ticket(b"x")).read_all() == table
        put(client, "x", other, replace=True)
        assert client.do_get(flight.Ticket(b"x")).read_all() == other
        put(client, "new", other, replace=True)
        assert client.do_get(flight.Ticket(b"new")).read_all() == other


@pytest.mark.parametrize(
    "command",
    [
        {"dataset": "x", "if_exists": "append"},
        {"dataset": "x", "if_exists": None},
        {"dataset": "x", "if_exists": ["replace"]},
        {"dataset": 1, "if_exists": "replace"},
        {"dataset": "x", "if_exists": "replace", "attempt": 1},
        {"dataset": "x", "if_exists": "replace", "other": 1},
        {"if_exists": "replace"},
    ],
)
def test_a_malformed_command_replaces_nothing(
    server: Running, table: pa.Table, command: dict[str, Any]
) -> None:
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
    with server.client() as client:
        put(client, "x", table)
        writer, _ = client.do_put(descriptor, table.schema)
        with pytest.raises(pa.ArrowInvalid, match=r"if_exists|dataset|attempt"):
            writer.close()
        assert client.do_get(flight.Ticket(b"x")).read_all() == table


def test_running_reads_keep_the_replaced_dataset(server: Running, table: pa.Table) -> None:
    old = pa.table({"x": pa.array(np.arange(3_000_000))})
    with server.client() as client:
        put(client, "x", old, max_chunksize=100_000)
        reader = client.do_get(flight.Ticket(b"x"))
        batches = [reader.read_chunk().data]
        put(client, "x", table, replace=True)
        assert client.do_get(flight.Ticket(b"x")).read_all() == table
        assert client.get_schema(PATH("x")).schema == table.schema
        batches += [chunk.data for chunk in reader]
        assert pa.Table.from_batches(batches) == old


def test_running_reads_keep_the_dropped_dataset(server: Running, writable: Path) -> None:
    old = pa.table({"x": pa.array(np.arange(3_000_000))})
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
        with pytest.raises(KeyError, match="no uploaded dataset 'x'"):
            list(client.do_action(flight.Action("drop", b"x")))
    assert list_uploads(writable) == []


def test_configured_datasets_cannot_be_replaced_or_dropped(
    server: Running, table: pa.Table
) -> None:
    with server.client() as client:
        with pytest.raises(pa.ArrowException, match="cannot upload 'configured'"):
            put(client, "configured", table)
        with pytest.raises(
            pa.ArrowException, match="'configured': it belongs to the configuration"
        ):
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
        "x" * 250,
        "ü" * 100,
    ],
)
def test_names_cannot_be_paths(server: Running, name: str, writable: Path, table: pa.Table) -> None:
    before = sorted(writable.parent.iterdir())
    with server.client() as client:
        with pytest.raises(pa.ArrowInvalid, match="name"):
            put(client, name, table)
        with pytest.raises((KeyError, pa.ArrowInvalid)):
            client.get_flight_info(PATH(name))
        with pytest.raises((KeyError, pa.ArrowInvalid)):
            list(client.do_action(flight.Action("drop", name.encode())))
    assert list_uploads(writable) == []
    assert sorted(writable.parent.iterdir()) == before


@pytest.mark.parametrize("kind", ["file", "copy", "hidden", "link", "folder"])
def test_what_others_put_into_the_folder_is_never_served_replaced_or_removed(
    writable: Path, arrow_file: Path, table: pa.Table, kind: str
) -> None:
    with running({}, writable=writable) as server, server.client() as client:
        put(client, "x", table.slice(0, 1))
    own = find_upload(writable, "x.arrow")
    foreign = (
        writable
        / {
            "file": "y.arrow",
            "copy": own.name.replace("x", "y", 1),
            "hidden": ".upload-0123456789abcdef0123456789abcdef",
            "link": "y.arrow",
            "folder": "y.published",
        }[kind]
    )
    if kind == "link":
        foreign.symlink_to(arrow_file)
    elif kind == "folder":
        store = VersionStore(foreign)
        shard = store.write_shard("job", "0.arrow", table.schema, table.to_batches())
        store.commit("job", table.schema, [shard], append=False)
    else:
        foreign.write_bytes(arrow_file.read_bytes())

    def read() -> dict[Path, bytes]:
        paths = foreign.rglob("*") if foreign.is_dir() else [foreign]
        return {path: path.read_bytes() for path in paths if path.is_file()}

    before = read()
    with running({}, writable=writable) as server, server.client() as client:
        assert server.daemon.catalog.names() == ["x"]
        for name in ("y", "y.published"):
            with pytest.raises(KeyError, match="no uploaded dataset"):
                list(client.do_action(flight.Action("drop", name.encode())))
        put(client, "y", table.slice(0, 2))
        with connect(server.uri) as uploader:
            uploader.put_shard("z", table, job="one", ordinal=0)
            uploader.publish("z", job="one", ordinals=[0])
        for name in ("x", "y", "z"):
            list(client.do_action(flight.Action("drop", name.encode())))
    assert read() == before
    assert {path.name for path in writable.iterdir()} == {MARKER, foreign.name}


@pytest.mark.parametrize("name", ["mine.arrow", "notes.txt", "d.published"])
def test_a_folder_with_other_files_is_refused_and_kept(
    writable: Path, name: str, table: pa.Table
) -> None:
    (writable / name).write_bytes(b"mine")
    with (
        pytest.raises(ConfigError, match=f"uploads has other files, such as '{name}', and no"),
        running({}, writable=writable),
    ):
        pass
    assert list(writable.iterdir()) == [writable / name]


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: (folder / "lost+found").mkdir(),
        lambda folder: (folder / ".cache").mkdir(),
        lambda folder: (folder / f"{MARKER}.tmp").write_text("half"),  # by a server that was killed
    ],
)
def test_a_folder_without_visible_files_is_marked(
    writable: Path, table: pa.Table, prepare: Callable[[Path], object]
) -> None:
    prepare(writable)
    before = {path.name for path in writable.iterdir()} - {f"{MARKER}.tmp"}
    for _ in range(2):
        with running({}, writable=writable) as server, server.client() as client:
            put(client, "x", table, replace=True)
            assert server.daemon.catalog.names() == ["x"]
    assert list_uploads(writable) == sorted(["x.arrow", *before])


def test_the_folder_can_be_a_link_and_a_copy(tmp_path: Path, table: pa.Table) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with running({}, writable=tmp_path / "link") as server, server.client() as client:
        put(client, "x", table)
        with (
            pytest.raises(ConfigError, match="another server uses it"),
            running({}, writable=tmp_path / "real"),
        ):
            pass
    shutil.copytree(tmp_path / "real", tmp_path / "copy")
    with running({}, writable=tmp_path / "copy") as server, server.client() as client:
        assert client.do_get(flight.Ticket(b"x")).read_all() == table


def make_old_folder(folder: Path, table: pa.Table) -> None:
    """Store the uploads "x" and "grüße 1", and the published dataset "d", as version 0.1 did."""
    with running({}, writable=folder) as server, connect(server.uri) as client:
        client.put("x", table)
        client.put("grüße 1", table)
        client.put_shard("d", table, job="one", ordinal=0)
        client.publish("d", job="one", ordinals=[0])
    (folder / MARKER).unlink()
    for path in list(folder.iterdir()):
        stem, _, suffix = path.name.rpartition(".")
        path.rename(folder / f"{stem.rpartition('.')[0]}.{suffix}")


def test_the_uploads_of_an_earlier_version_are_kept_and_adopted_on_request(
    writable: Path, arrow_file: Path, table: pa.Table
) -> None:
    make_old_folder(writable, table)
    (writable / "notes.txt").write_text("mine")
    (writable / "link.arrow").symlink_to(arrow_file)
    (writable / "not encoded.arrow").write_bytes(arrow_file.read_bytes())
    old = list_uploads(writable)
    with (
        pytest.raises(ConfigError, match=r"if splitarrow 0\.1 .* write {\"adopt\": true}"),
        running({}, writable=writable),
    ):
        pass
    assert list_uploads(writable) == old
    (writable / MARKER).write_text('{"adopt": true}')
    for _ in range(2):
        with running({}, writable=writable) as server, connect(server.uri) as client:
            assert server.daemon.catalog.names() == ["d", "grüße 1", "x"]
            assert client.read("d").read_all() == client.read("grüße 1").read_all() == table
        assert "adopt" not in json.loads((writable / MARKER).read_text())
    (writable / "y.arrow").write_bytes(arrow_file.read_bytes())  # of another program, later
    with running({}, writable=writable) as server, connect(server.uri) as client:
        for name in server.daemon.catalog.names():
            client.drop(name)
    kept = {MARKER, "link.arrow", "not encoded.arrow", "notes.txt", "y.arrow"}
    assert {path.name for path in writable.iterdir()} == kept


def test_an_adoption_that_was_interrupted_continues(
    writable: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old_folder(writable, table)
    (writable / MARKER).write_text('{"adopt": true}')
    rename, renamed = os.rename, list[Path]()

    def fail_late(source: str, target: Path) -> None:
        if renamed:
            raise OSError(errno.EIO, "Input/output error")
        renamed.append(target)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("splitarrow.server.uploads.folder.os.rename", fail_late)
        with (
            pytest.raises(ConfigError, match=r"cannot use .*: Input/output error"),
            running({}, writable=writable),
        ):
            pass
    with running({}, writable=writable) as server:
        assert server.daemon.catalog.names() == ["d", "grüße 1", "x"]
    assert renamed[0].exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"adopt": false}', '{"key": ""}', '{"key": 1}', '{"key": "zz"}'],
)
def test_a_damaged_marker_is_refused(writable: Path, text: str) -> None:
    (writable / MARKER).write_text(text)
    with (
        pytest.raises(ConfigError, match=f"{MARKER} is damaged"),
        running({}, writable=writable),
    ):
        pass
    assert (writable / MARKER).read_text() == text


def test_the_longest_name_is_stored(server: Running, writable: Path, table: pa.Table) -> None:
    with server.client() as client:
        put(client, "x" * 240, table)
    assert list_uploads(writable) == [f"{'x' * 240}.arrow"]


def test_an_upload_that_cannot_be_read_counts_as_one(writable: Path, table: pa.Table) -> None:
    with running({}, writable=writable) as server, connect(server.uri) as client:
        client.put("x", table)
    broken = find_upload(writable, "x.arrow")
    broken.write_bytes(b"ARROW1 not really")
    with running({}, writable=writable) as server, connect(server.uri) as client:
        assert server.daemon.catalog.names() == []
        with pytest.raises(RemoteError, match="the dataset exists"):
            client.put("x", table)
        client.put("x", table, if_exists="replace")
        assert client.read("x").read_all() == table


@pytest.mark.parametrize(
    "descriptor",
    [
        PATH("a", "b"),
        PATH(),
        flight.FlightDescriptor.for_command(b"name"),
    ],
)
def test_the_descriptor_must_be_a_path_of_one_element(
    server: Running, descriptor: flight.FlightDescriptor, table: pa.Table
) -> None:
    with server.client() as client:
        writer, _ = client.do_put(descriptor, table.schema)
        with pytest.raises(pa.ArrowInvalid, match="path of one element"):
            writer.close()


def test_a_server_without_a_directory_refuses_uploads(table: pa.Table) -> None:
    with running({"a": table}) as server, server.client() as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="accepts no uploads"):
            put(client, "b", table)
        with pytest.raises(pa.ArrowException, match="accepts no uploads"):
            list(client.do_action(flight.Action("drop", b"a")))


BIG = pa.table({"x": pa.array(np.arange(1_000_000))})


@pytest.mark.parametrize("setting", ["writable_bytes", "upload_bytes"])
def test_an_upload_over_the_quota_is_removed(writable: Path, setting: str) -> None:
    settings: dict[str, Any] = {"writable": writable, setting: 4 << 20}
    with running(**settings) as server, server.client() as client:
        with pytest.raises(
            pa.ArrowException, match=r"4194304 of 4194304 bytes are available.*'big'"
        ):
            put(client, "big", BIG, max_chunksize=50_000)
        assert list_uploads(writable) == []
        put(client, "half", BIG.slice(0, 500_000), max_chunksize=50_000)
        put(client, "half", BIG.slice(0, 1000), replace=True)
        assert client.do_get(flight.Ticket(b"half")).read_all() == BIG.slice(0, 1000)


def test_the_quota_counts_all_uploads(writable: Path) -> None:
    with (
        running({}, writable=writable, writable_bytes=9 << 20) as server,
        server.client() as client,
    ):
        put(client, "one", BIG)
        with pytest.raises(pa.ArrowException, match="the upload has at least"):
            put(client, "two", BIG)
        list(client.do_action(flight.Action("drop", b"one")))
        put(client, "two", BIG)
    with (
        running({}, writable=writable, writable_bytes=9 << 20) as server,
        server.client() as client,
        pytest.raises(pa.ArrowException, match="the upload has at least"),
    ):
        put(client, "one", BIG)
    with (
        running({}, writable=writable, writable_bytes=1 << 20) as server,
        server.client() as client,
        pytest.raises(pa.ArrowException, match="; 0 of 1048576 bytes are available"),
    ):
        put(client, "one", BIG)
    assert list_uploads(writable) == ["two.arrow"]


def test_a_batch_over_the_quota_is_not_written(writable: Path) -> None:
    with (
        closing(UploadStore(writable, Catalog({}), Quota(1 << 20))) as store,
        store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS) as upload,
    ):
        schema, *batches = map(parse_flight_data, flight_messages("x", BIG))
        upload.write(schema)
        with pytest.raises(ExhaustedError):
            upload.write(batches[0])
        assert upload.path.stat().st_size < 1 << 20


def test_uploads_over_the_limit_are_refused(writable: Path, table: pa.Table) -> None:
    one = Limits(uploads=1)
    with running({}, writable=writable, limits=one) as server, server.client() as client:
        writer, answers = client.do_put(PATH("first"), table.schema)
        writer.write_table(table)
        wait_for_a_file(writable)
        with pytest.raises(pa.ArrowException, match="'anyone' has 1 running upload, which is its"):
            put(client, "second", table)
        writer.done_writing()
        assert answers.read() is not None
        writer.close()
        put(client, "second", table)


def test_the_end_of_an_upload_makes_room_for_one(writable: Path, table: pa.Table) -> None:
    with (
        running({}, writable=writable, limits=Limits(uploads=2)) as server,
        server.client() as client,
    ):

        def start(name: str) -> Any:
            begun = len(list_uploads(writable))
            writer, answers = client.do_put(PATH(name), table.schema)
            writer.write_table(table)
            wait_until(lambda: len(list_uploads(writable)) > begun, "the file of the upload")
            return writer, answers

        (first, answers), (second, _) = start("a"), start("b")
        first.done_writing()
        assert answers.read() is not None
        first.close()
        third, _ = start("c")
        with pytest.raises(pa.ArrowException, match="'anyone' has 2 running uploads"):
            put(client, "d", table)
        for writer in (second, third):
            writer.close()


@pytest.mark.parametrize(("rate", "amount"), [(0, "nothing"), (1 << 20, "less than 1048576 bytes")])
def test_an_upload_that_sends_too_little_is_ended(
    writable: Path, table: pa.Table, rate: int, amount: str
) -> None:
    gate = threading.Event()

    def trickle() -> Iterator[bytes]:
        yield from flight_messages("slow", table)
        while rate and not gate.wait(0.02):
            yield pb.FlightData(app_metadata=b"x").SerializeToString()
        gate.wait()

    settings: dict[str, Any] = {"writable": writable, "idle_seconds": 0.4, "upload_rate": rate}
    one, quota = Limits(uploads=1), 150_000
    with (
        running({}, limits=one, writable_bytes=quota, **settings) as server,
        server.client() as client,
    ):
        try:
            with pytest.raises(grpc.RpcError) as raised:
                raw_put(server, trickle())
        finally:
            gate.set()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"the client sent {amount}" in str(raised.value.details())
        assert list_uploads(writable) == []
        put(client, "other", table)  # the slot and the quota are free


def wait_for_a_file(folder: Path) -> None:
    """Wait until an upload has begun: its file is there."""
    wait_until(lambda: list_uploads(folder), "the file of the upload")


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


def test_an_upload_of_a_killed_client_is_removed(
    server: Running, writable: Path, table: pa.Table
) -> None:
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
    wait_until(lambda: not list_uploads(writable), "the end of the upload")
    with server.client() as client:
        with pytest.raises(KeyError, match="broken"):
            client.get_flight_info(PATH("broken"))
        put(client, "broken", table)


def flight_messages(name: str, table: pa.Table, **write: Any) -> Iterator[bytes]:
    """Yield the messages that a client sends for a table."""
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
def test_a_cancelled_upload_is_removed(
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
        wait_until(lambda: not list_uploads(writable), "the end of the upload")
        assert "broken" not in server.daemon.catalog.names()


def test_an_upload_must_have_the_declared_rows(
    server: Running, writable: Path, table: pa.Table
) -> None:
    with server.client() as client:
        writer, _ = client.do_put(PATH("short"), table.schema)
        writer.write_table(table)
        writer.write_metadata(b'{"rows": 4000}')
        with pytest.raises(pa.ArrowInvalid, match="declares 4000 rows, but 3000 have arrived"):
            writer.close()
        writer, _ = client.do_put(PATH("none"), table.schema)
        writer.write_table(table)
        writer.write_metadata(b'{"rows": 0}')
        with pytest.raises(pa.ArrowInvalid, match="declares 0 rows, but 3000 have arrived"):
            writer.close()
        assert list_uploads(writable) == []
        writer, _ = client.do_put(PATH("whole"), table.schema)
        writer.write_table(table)
        writer.write_metadata(b'{"rows": 3000}')
        writer.close()
    assert list_uploads(writable) == ["whole.arrow"]


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
        body[-16:] = b"\xff" * 16  # the end of the strings: not UTF-8
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
def test_malformed_messages_are_refused(
    server: Running, writable: Path, kind: str, table: pa.Table
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        raw_put(server, garbage(kind, table))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list_uploads(writable) == []
    assert raw_put(server, flight_messages("good", table)).app_metadata


def test_a_message_over_the_size_limit_is_refused(writable: Path) -> None:
    with running({}, writable=writable, limits=Limits(upload_message_bytes=1 << 20)) as server:
        with pytest.raises(grpc.RpcError) as raised:
            raw_put(server, flight_messages("big", BIG))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert list_uploads(writable) == []


def test_a_full_disk_is_reported_and_leaves_no_file(writable: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    store = UploadStore(writable, Catalog({}))
    upload = store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS)
    with full.open("wb") as device:
        os.dup2(device.fileno(), upload._file.fileno())
    schema, *batches = map(parse_flight_data, flight_messages("x", BIG))
    upload.write(schema)
    with pytest.raises(ExhaustedError, match="disk is full"):
        upload.write(batches[0])
    upload.close()
    store.close()
    assert list_uploads(writable) == []


def test_the_largest_size_of_a_file_is_reported_as_a_full_disk(writable: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        closing(UploadStore(writable, Catalog({}))) as store,
        store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS) as upload,
    ):
        schema, *batches = map(parse_flight_data, flight_messages("x", BIG))
        upload.write(schema)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            with pytest.raises(ExhaustedError, match="disk is full"):
                upload.write(batches[0])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list_uploads(writable) == []


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_drop_that_the_disk_refuses_leaves_nothing_half_done(
    writable: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with (
        Catalog({}) as catalog,
        closing(UploadStore(writable, catalog, Quota(BIG.nbytes * 2))) as store,
    ):

        def upload() -> None:
            with store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS) as upload:
                for message in flight_messages("x", BIG):
                    upload.write(parse_flight_data(message))
                upload.finish()

        upload()
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with pytest.raises(RemoteError, match="cannot drop the dataset: Input/output error"):
                store.drop("x")
        if call == "unlink":  # it is still there, and can be dropped
            assert catalog.names() == ["x"]
            store.drop("x")
        assert (catalog.names(), list_uploads(writable)) == ([], [])
        upload()  # its bytes are free, and so is its name
        assert catalog.names() == ["x"]


def test_an_upload_whose_file_cannot_be_removed_takes_nothing_of_the_quota(
    writable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = Quota()
    with closing(UploadStore(writable, Catalog({}), quota)) as store:
        upload = store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS)
        for message in flight_messages("x", BIG):
            upload.write(parse_flight_data(message))
        assert quota._used
        monkeypatch.setattr(os, "unlink", Mock(side_effect=OSError(errno.EIO, "broken")))
        upload.close()
        monkeypatch.undo()
    assert not quota._used


def test_a_batch_and_its_dictionaries_are_decoded_within_one_limit(writable: Path) -> None:
    columns = {name: pa.array(["x" * 1000]).dictionary_encode() for name in "abc"}
    limits = replace(DEFAULT_LIMITS, decoded_bytes=2000)
    schema, first, second, *_ = map(parse_flight_data, flight_messages("x", pa.table(columns)))
    with (
        closing(UploadStore(writable, Catalog({}))) as store,
        store.begin_upload(DatasetTarget("x"), limits) as upload,
    ):
        upload.write(schema)
        upload.write(first)
        with pytest.raises(LimitError, match="bytes with its dictionaries; the limit is 2000"):
            upload.write(second)


def test_a_dataset_that_was_added_during_an_upload_is_kept(writable: Path, table: pa.Table) -> None:
    catalog = Catalog({})
    with closing(UploadStore(writable, catalog)) as store:
        with store.begin_upload(DatasetTarget("x"), DEFAULT_LIMITS) as upload:
            for data in flight_messages("x", table):
                upload.write(parse_flight_data(data))
            catalog.add("x", table.slice(0, 10))
            with pytest.raises(RemoteError, match="cannot upload 'x'"):
                upload.finish()
        assert catalog.lookup("x").rows == 10
    catalog.close()
    assert list_uploads(writable) == []


def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    with running({}, writable=tmp_path / "uploads") as server, server.client() as client:
        put(client, "scores", pa.table({"n": [1]}))
    assert list_uploads(tmp_path / "uploads") == ["scores.arrow"]


def test_a_directory_can_be_used_by_one_server_only(writable: Path, tmp_path: Path) -> None:
    with (
        running({}, writable=writable),
        pytest.raises(ConfigError, match="another server uses it"),
        running({}, writable=writable),
    ):
        pass
    missing = tmp_path / "none" / "uploads"
    with pytest.raises(ConfigError, match="No such file"), running({}, writable=missing):
        pass
