"""``splitarrow check``: files, folders, published datasets and servers, sound or damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import splitarrow
from helpers.parquet_files import footer_of, with_footer, write_parquet
from splitarrow.cli.app import run
from splitarrow.formats.parquet.thrift import (
    CompactReader,
    Struct,
    ThriftList,
    Type,
    Value,
    encode_struct,
)
from splitarrow.publication.version_store import VersionStore

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process."""

    def say(*arguments: object) -> tuple[int, str, str]:
        try:
            status = run([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = int(str(stop.code))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return say


def make_batches(count: int = 4) -> list[pa.RecordBatch]:
    return [
        pa.record_batch(
            {
                "n": pa.array(range(100 * k, 100 * (k + 1))),
                "w": pa.array(["a", "b"] * 50).dictionary_encode(),
            }
        )
        for k in range(count)
    ]


def encode(new: Callable[..., Any], batches: list[pa.RecordBatch], **options: Any) -> bytes:
    sink = io.BytesIO()
    write_options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with new(sink, batches[0].schema, options=write_options, **options) as writer:
        for index, batch in enumerate(batches):
            writer.write_batch(batch, custom_metadata={"index": str(index)})
    return sink.getvalue()


FILE = encode(pa.ipc.new_file, make_batches(), metadata={"origin": "sensor"})
STREAM = encode(pa.ipc.new_stream, make_batches())


def find_batch(data: bytes, number: int) -> int:
    """Return the offset of a record batch."""
    position = -1
    for _ in range(number + 3):  # after the schema and the dictionary
        position = data.index(b"\xff\xff\xff\xff", position + 1)
    return position


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.arrow").write_bytes(FILE)
    (tmp_path / "b.arrows").write_bytes(STREAM)
    parquet.write_table(pa.Table.from_batches(make_batches()), tmp_path / "c.parquet")
    with pa.OSFile(str(tmp_path / "d.tensor"), "wb") as sink:
        pa.ipc.write_tensor(pa.Tensor.from_numpy(np.arange(6.0).reshape(2, 3)), sink)
    np.save(tmp_path / "e.npy", np.arange(6.0).reshape(2, 3))
    (tmp_path / "f.csv").write_text("n\n1\n2\n")
    return tmp_path


@pytest.mark.parametrize("full", [(), ("--full",)])
def test_sound_files_of_every_type(folder: Path, say: Say, full: tuple[str, ...]) -> None:
    status, out, err = say("check", *full, folder, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [report["sound"] for report in found] == [True] * 6, out
    kinds = [
        *("Arrow IPC file", "Arrow IPC stream", "Parquet file", "tensor file", "npy file"),
        "csv file",
    ]
    assert [report["kind"] for report in found] == kinds
    assert [report["rows"] for report in found[:5]] == [400, 400, 400, None, None]
    assert [report["record_batches"] for report in found[3:5]] == [1, 1]
    assert (status, err) == (0, "")
    arrow = found[0]
    assert (arrow["messages"], arrow["record_batches"], arrow["dictionary_batches"]) == (5, 4, 1)
    assert arrow["bytes"] == len(FILE)
    status, out, err = say("check", folder / "a.arrow")
    assert out == (
        f"{folder / 'a.arrow'}: Arrow IPC file, sound: 4 batches, 1 dictionary batch, 400 rows, "
        f"2 columns, {len(FILE) / 1000:.2f} kB\n"
    )


def test_each_defect_is_a_line_with_its_place(tmp_path: Path, say: Say) -> None:
    data = bytearray(FILE)
    offset = find_batch(FILE, 1)
    data[offset + 4 : offset + 8] = b"\1\0\0\0"
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    (tmp_path / "empty.arrow").touch()
    (tmp_path / "sound.arrow").write_bytes(FILE)
    names = ("missing.arrow", "empty.arrow", "sound.arrow")
    status, out, err = say("check", path, *(tmp_path / name for name in names))
    first, defect, second, missing, _, empty, _ = out.splitlines()
    assert first.startswith(f"{path}: Arrow IPC file, 1 defect: 3 batches, 1 dictionary batch, 300")
    assert defect.startswith(f"  record batch 1 at byte {offset}: ")
    assert second.startswith(f"{tmp_path / 'missing.arrow'}: file, 1 defect")
    assert "No such file" in missing
    assert empty == "  file at byte 0: it is empty"
    assert (status, err) == (1, "")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.tensor", "a.txt"])
@pytest.mark.parametrize("content", [b"", b"PAR1garbagePAR1", b"ARROW1\0\0ARROW1", b"garbage"])
def test_garbage_is_reported_without_a_traceback(
    tmp_path: Path, say: Say, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    status, out, err = say("check", "--full", "--json", tmp_path / name)
    report = json.loads(out)
    assert (status, err, report["sound"]) == (1, "", False)
    assert report["defects"]


def test_values_are_validated_with_full_only(tmp_path: Path, say: Say) -> None:
    text = pa.array(["abcdefgh"] * 10)
    data = bytearray(encode(pa.ipc.new_file, [pa.record_batch({"s": text})]))
    at = data.index(b"abcdefgh")
    data[at : at + 2] = b"\xff\xfe"
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    assert say("check", path)[0] == 0
    status, out, _ = say("check", "--full", path)
    assert status == 1
    assert "record batch 0 at byte" in out
    assert "UTF8" in out


def test_values_outside_of_their_range_are_a_warning(tmp_path: Path, say: Say) -> None:
    days = pa.Array.from_buffers(pa.date64(), 2, [None, pa.py_buffer(bytes(8) + b"\1" * 8)])
    path = tmp_path / "a.arrow"
    path.write_bytes(encode(pa.ipc.new_file, [pa.record_batch({"day": days})]))
    status, out, _ = say("check", "--full", path)
    assert status == 0
    assert "warning: record batch 0 at byte" in out
    assert "values outside of the ranges of their types" in out


def test_parquet_chunks_outside_of_the_file_are_defects(tmp_path: Path, say: Say) -> None:
    source, path = tmp_path / "whole.parquet", tmp_path / "a.parquet"
    table = pa.table({"n": pa.array(np.random.default_rng(1).random(5000))})
    parquet.write_table(table, source, use_dictionary=False)
    data = source.read_bytes()
    path.write_bytes(data[:4] + data[20_000:])
    status, out, _ = say("check", path)
    assert status == 1
    assert "row group 0 at byte 4: column n has" in out


def edit_chunks(file: bytes, edit: Callable[[Struct], Struct]) -> bytes:
    """Return a file with edited ColumnMetaData of all column chunks."""
    footer = CompactReader(footer_of(file)).read_struct()
    for group in footer[4].content.items:
        for chunk in group[1].content.items:
            chunk[3] = Value(Type.STRUCT, edit(chunk[3].content))
    return with_footer(file, encode_struct(footer))


def read_served(path: Path) -> pa.Table:
    with (
        splitarrow.serve({"x": path}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("x")) as stream,
    ):
        return stream.read_all()


@pytest.mark.parametrize("has_dictionary", [False, True])
def test_a_dictionary_at_offset_0_means_that_there_is_none(
    tmp_path: Path, say: Say, has_dictionary: bool
) -> None:
    def edit(chunk: Struct) -> Struct:
        first = chunk.get(11, chunk[9])  # the dictionary is the first page
        return chunk | {9: first, 11: Value(Type.I64, 0)}

    uuids = pa.array([b"%016d" % (n % 9) for n in range(500)], pa.binary(16))
    table = pa.table({"n": [n % 9 for n in range(500)], "u": uuids})
    data = write_parquet(table, use_dictionary=has_dictionary)
    path = tmp_path / "x.parquet"
    path.write_bytes(edit_chunks(data, edit))
    status, out, _ = say("check", "--full", path)
    assert (status, "sound" in out) == (0, True), out
    assert read_served(path).equals(table)


@pytest.mark.parametrize("rows", [0, 9])
def test_column_chunks_may_have_metadata_and_no_data_page(
    tmp_path: Path, say: Say, rows: int
) -> None:
    pairs = [
        {1: Value(Type.BINARY, b"foo"), 2: Value(Type.BINARY, b"bar")},
        {1: Value(Type.BINARY, b"without value")},
    ]
    metadata = {8: Value(Type.LIST, ThriftList(Type.STRUCT, pairs))}
    table = pa.table({"a": pa.array(range(rows), pa.int32()), "b": pa.array(range(rows))})
    data = write_parquet(table)
    assert (
        parquet.read_metadata(io.BytesIO(data)).row_group(0).column(0).data_page_offset > 0
    ) == (rows > 0)
    path = tmp_path / "x.parquet"
    path.write_bytes(edit_chunks(data, lambda chunk: chunk | metadata))
    status, out, _ = say("check", "--full", path)
    assert (status, "sound" in out) == (0, True), out
    assert read_served(path).equals(table)


def test_values_without_a_data_page_are_a_defect(tmp_path: Path, say: Say) -> None:
    path = tmp_path / "x.parquet"
    data = write_parquet(pa.table({"n": [1, 2]}))
    path.write_bytes(edit_chunks(data, lambda chunk: chunk | {9: Value(Type.I64, 0)}))
    status, out, _ = say("check", path)
    assert (status, "outside the file" in out) == (1, True)


def test_a_damaged_page_is_found_by_full(folder: Path, say: Say) -> None:
    path = folder / "c.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    assert say("check", path)[0] == 0
    assert say("check", "--full", path)[0] == 1


def test_published_shards_are_compared_with_the_manifest(tmp_path: Path, say: Say) -> None:
    store = VersionStore(tmp_path / "trips")
    table = pa.Table.from_batches(make_batches())
    shards = [
        store.write_shard("job", f"{k}.arrow", table.schema, table.to_batches()) for k in range(2)
    ]
    manifest = store.commit("job", table.schema, shards, append=False)
    status, out, _ = say("check", "--full", "--json", tmp_path / "trips")
    found = [json.loads(line) for line in out.splitlines()]
    assert (status, [report["kind"] for report in found]) == (
        0,
        ["published dataset", "Arrow IPC file", "Arrow IPC file"],
    )
    assert found[0]["rows"] == 800
    path = tmp_path / "trips" / manifest.shards[1].path
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    value = data.index((7).to_bytes(8, "little"))
    data[value] = 8
    path.write_bytes(data)
    assert say("check", tmp_path / "trips")[0] == 0
    status, out, _ = say("check", "--full", tmp_path / "trips")
    assert status == 1
    assert "its SHA-256 is not that in the manifest" in out
    path.write_bytes(data + b"x")
    status, out, _ = say("check", tmp_path / "trips")
    assert status == 1
    assert f"it has {len(data) + 1} bytes; the manifest lists {len(data)}" in out


@pytest.fixture
def server(tmp_path: Path) -> Iterator[splitarrow.Server]:
    (tmp_path / "served.arrow").write_bytes(FILE)
    broken = bytearray(encode(pa.ipc.new_file, [pa.record_batch({"s": ["abcdefgh"] * 10})]))
    at = broken.index(b"abcdefgh")
    broken[at : at + 2] = b"\xff\xfe"
    (tmp_path / "broken.arrow").write_bytes(broken)
    with splitarrow.serve(
        {"good": tmp_path / "served.arrow", "broken": tmp_path / "broken.arrow"},
        listen=["tcp://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
    ) as server:
        yield server


def test_datasets_of_a_server_are_checked(server: splitarrow.Server, say: Say) -> None:
    for uri in (server.uri("good"), f"{server.control_uri}/good"):
        status, out, err = say("check", "--full", uri)
        assert (status, err) == (0, "")
        assert ": dataset, sound: 4 batches, 400 rows, 2 columns" in out
    status, out, _ = say("check", "--full", "--json", server.control_uri)
    found = {json.loads(line)["target"].rpartition("/")[2]: line for line in out.splitlines()}
    assert status == 1
    assert json.loads(found["good"])["sound"]
    (defect,) = json.loads(found["broken"])["defects"]
    assert defect["place"] == "message 1"
    assert "UTF8" in defect["problem"]


def recovered(path: Path) -> tuple[pa.Table, list[str]]:
    """Return the rows of a recovered file, and the metadata of its batches."""
    opened = pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream
    reader = opened(path.read_bytes())
    table, metadata = reader.read_all(), []
    if path.suffix == ".arrow":
        reader = pa.ipc.open_file(path.read_bytes())
        for number in range(reader.num_record_batches):
            custom = reader.get_batch_with_custom_metadata(number)[1]
            metadata.append(custom[b"index"].decode())
    return table, metadata


def expected(*numbers: int) -> pa.Table:
    batches = make_batches()
    return pa.Table.from_batches([batches[k] for k in numbers], batches[0].schema)


@pytest.mark.parametrize(
    ("damage", "numbers", "status"),
    [
        (lambda data: data, (0, 1, 2, 3), 0),
        (lambda data: data[:-1], (0, 1, 2, 3), 0),
        (lambda data: data[:-30], (0, 1, 2, 3), 0),
        (lambda data: data[:-40] + bytes(20) + data[-20:], (0, 1, 2, 3), 0),
        (lambda data: data[: find_batch(data, 3) + 100], (0, 1, 2), 1),
        (lambda data: data[: find_batch(data, 3) + 600], (0, 1, 2), 1),
        (lambda data: data[: find_batch(data, 1)], (0,), 0),
    ],
    ids=["sound", "last byte", "tail", "footer", "metadata", "body", "boundary"],
)
def test_files_are_recovered(
    tmp_path: Path, say: Say, damage: Callable[[bytes], bytes], numbers: Any, status: int
) -> None:
    path, out = tmp_path / "a.arrow", tmp_path / "out.arrow"
    path.write_bytes(damage(FILE))
    found, text, err = say("check", "--recover", out, path)
    assert (found, err) == (status, ""), text
    table, metadata = recovered(out)
    assert table.equals(expected(*numbers))
    assert metadata == [str(number) for number in numbers]
    assert say("check", "--full", out)[0] == 0
    assert path.read_bytes() == damage(FILE)


def test_a_damaged_batch_is_left_out_and_the_footer_metadata_kept(tmp_path: Path, say: Say) -> None:
    data = bytearray(FILE)
    offset = find_batch(FILE, 1)
    data[offset : offset + 16] = bytes(16)
    path, out = tmp_path / "a.arrow", tmp_path / "out.arrow"
    path.write_bytes(data)
    status, text, _ = say("check", "--json", "--recover", out, path)
    result = json.loads(text)
    end = find_batch(FILE, 2)
    assert status == 1
    assert (result["record_batches"], result["rows"]) == (3, 300)
    assert (result["lost_bytes"], len(result["lost"])) == (end - offset, 1)
    assert (result["lost"][0]["begin"], result["lost"][0]["end"]) == (offset, end)
    assert recovered(out)[0].equals(expected(0, 2, 3))
    reader: Any = pa.ipc.open_file(str(out))
    assert reader.metadata == {b"origin": b"sensor"}


def test_an_invalid_batch_is_left_out(tmp_path: Path, say: Say) -> None:
    words = pa.array(["abcdefgh", "ijklmnop"])
    data = bytearray(encode(pa.ipc.new_stream, [pa.record_batch({"s": words})] * 3))
    at = data.index(b"abcdefgh", data.index(b"abcdefgh") + 1)
    data[at : at + 2] = b"\xff\xfe"
    path, out = tmp_path / "a.arrows", tmp_path / "out.arrows"
    path.write_bytes(data)
    status, text, _ = say("check", "--recover", out, path)
    assert status == 1
    assert "lost" in text
    assert "2 rows" in text
    assert recovered(out)[0].to_pydict() == {"s": ["abcdefgh", "ijklmnop"] * 2}


def test_batches_after_a_lost_dictionary_of_a_stream_are_lost(tmp_path: Path, say: Say) -> None:
    """Decoding them with the earlier dictionary would return wrong values."""
    words = [["a", "b"], ["c", "d"], ["e", "f"]]
    batches = [pa.record_batch([pa.array(w).dictionary_encode()], names=["w"]) for w in words]
    data = bytearray(encode(pa.ipc.new_stream, batches))
    offset = find_batch(bytes(data), 1)  # the second dictionary
    data[offset + 4 : offset + 16] = b"\xee" * 12
    path, out = tmp_path / "a.arrows", tmp_path / "out.arrows"
    path.write_bytes(data)
    assert say("check", "--recover", out, path)[0] == 1
    assert recovered(out)[0].to_pydict() == {"w": ["a", "b", "e", "f"]}


def test_the_input_is_never_overwritten(tmp_path: Path, say: Say) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(FILE[:-1])
    (tmp_path / "link").symlink_to(path)
    for out in (path, tmp_path / "link", tmp_path / "." / "a.arrow"):
        status, _, err = say("check", "--recover", out, path)
        assert (status, "name another file" in err) == (2, True)
    assert path.read_bytes() == FILE[:-1]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("--recover", "out", "a", "b"), 2),
        (("--recover", "out", "tcp://h:1/x"), 2),
        (("--full", "--recover", "out", "a"), 2),
        (("--recover", "out", "missing.arrow"), 1),
    ],
)
def test_wrong_usage(say: Say, arguments: tuple[str, ...], status: int) -> None:
    found, out, err = say("check", *arguments)
    assert (found, out) == (status, "")
    assert err


def test_nothing_is_written_if_nothing_can_be_read(tmp_path: Path, say: Say) -> None:
    path, out = tmp_path / "a.arrow", tmp_path / "out.arrow"
    path.write_bytes(b"ARROW1\0\0" + b"\xee" * 100)
    status, _, err = say("check", "--recover", out, path)
    assert status == 1
    assert "nothing can be recovered from" in err
    assert not out.exists()
