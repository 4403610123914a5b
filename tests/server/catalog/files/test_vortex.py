"""Vortex files and streams are served with the rows that they have, as Arrow and as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.vortex_messages import encode_arrow, make_file, write_stream
from splitarrow.errors import DatasetError, InvalidRequestError, MissingExtraError
from splitarrow.formats.vortex.message import MessageKind, build_message
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.files.file_types import open_file
from splitarrow.server.catalog.vortex_encoding import VortexDataset

ROWS = 20_000
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int32()),
        "s": pa.array([None if row % 3 else f"text {row % 50}" for row in range(ROWS)]),
        "t": pa.array(range(ROWS), pa.timestamp("us", "Europe/Zurich")),
        "l": pa.array([[str(row)] * (row % 3) for row in range(ROWS)]),
        "d": pa.array([row / 100 for row in range(ROWS)]),
    }
)
PARTS = (8192, 8192, 3616)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file, a stream, and a folder of two files."""
    folder = tmp_path_factory.mktemp("vortex")
    (folder / "rows.vortex").write_bytes(make_file(TABLE))
    parts, begin = [], 0
    for rows in PARTS:
        (batch,) = TABLE.slice(begin, rows).combine_chunks().to_batches()
        parts.append(encode_arrow(batch.to_struct_array()))
        begin += rows
    messages = [parts[0][0], *(message for _, message in parts)]
    (folder / "rows.vortexs").write_bytes(write_stream(*messages))
    (folder / "parts").mkdir()
    for number, begin in enumerate((0, 5000)):
        part = TABLE.slice(begin, 5000 if number == 0 else None)
        (folder / "parts" / f"{number}.vortex").write_bytes(make_file(part))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[splitarrow.Server]:
    """A server of all of them, and of the table."""
    data = {
        "file": folder / "rows.vortex",
        "stream": folder / "rows.vortexs",
        "folder": folder / "parts",
        "table": TABLE,
    }
    with splitarrow.serve(data, listen=["tcp://127.0.0.1:0", "shm://"]) as running:
        yield running


def read(server: splitarrow.Server, name: str, scheme: str = "tcp", **options: Any) -> pa.Table:
    with splitarrow.open(server.uri(name, scheme), **options) as stream:
        assert stream.format == (options.get("format") or "arrow")
        table = stream.read_all()
    table.validate(full=True)
    return table


@pytest.mark.parametrize("name", ["file", "stream", "folder"])
@pytest.mark.parametrize("scheme", ["tcp", "shm"])
@pytest.mark.parametrize("data_format", [None, "vortex"])
def test_all_rows_arrive(
    server: splitarrow.Server, name: str, scheme: str, data_format: str | None
) -> None:
    assert read(server, name, scheme, format=data_format).equals(TABLE)


SELECTIONS: list[dict[str, Any]] = [
    {"columns": ["d", "n"]},
    {"limit": 9000, "columns": ["l"]},
    {"filter": "n > 4990 and d < 50.5 and s = 'text 0'"},
    {"rows": (8190, 8200)},
    {"rows": (4000, 16_400), "columns": ["s"], "filter": "n > 5000"},
    {"batch_rows": 777, "limit": 3000},
    {"limit": 0},
    {"filter": "n > 4990", "limit": 10},
]


@pytest.mark.parametrize("name", ["file", "stream", "folder"])
def test_selections_are_those_of_arrow(server: splitarrow.Server, name: str) -> None:
    for selection in SELECTIONS:
        expected = read(server, "table", **selection)
        assert read(server, name, **selection) == expected
        assert read(server, name, format="vortex", **selection) == expected
    with pytest.raises(InvalidRequestError, match="no record batches 0:99"):
        splitarrow.open(server.uri(name), batches=(0, 99))


def test_chunks_are_stored_batches(server: splitarrow.Server, folder: Path) -> None:
    stream = open_file(folder / "rows.vortexs")
    encoding = Encoding()
    assert stream.count_rows(Request("x"), encoding) == list(PARTS)
    assert stream.rows == ROWS
    file = open_file(folder / "rows.vortex")
    counts = file.count_rows(Request("x"), encoding)
    assert sum(counts) == file.rows == ROWS
    for data_format in (None, "vortex"):
        found = read(server, "stream", batches=(1, 2), format=data_format)
        assert found == TABLE.slice(8192, 8192)
        found = read(server, "file", batches=(0, 1), format=data_format)
        assert found == TABLE.slice(0, counts[0])


def test_a_stream_is_its_own_region(folder: Path) -> None:
    path = folder / "rows.vortexs"
    dataset = VortexDataset(open_file(path))
    source = dataset.open(Request("x", format="vortex"), Encoding(regions=True))
    assert list(source.region_files) == [path]
    spans = [message.body[0] for group in source for message in group if message.body]
    assert [span.nbytes > 0 and span.offset % 64 == 0 for span in spans] == [True] * 4
    source.close()


def damage(path: Path, data: bytes, problem: str) -> None:
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=problem):
        open_file(path)


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    file = (folder / "rows.vortex").read_bytes()
    damage(tmp_path / "a.vortex", file[:-9], "as a Vortex file")
    damage(tmp_path / "b.vortex", file[:100], "as a Vortex file")
    stream = (folder / "rows.vortexs").read_bytes()
    damage(tmp_path / "c.vortexs", stream[:-1], "truncated")
    dtype, message = encode_arrow(TABLE.slice(0, 5))
    damage(tmp_path / "d.vortexs", write_stream(dtype), "has no arrays")
    buffer = build_message(MessageKind.BUFFER, [b"12345678"])
    damage(tmp_path / "e.vortexs", write_stream(dtype, message, buffer), "type BUFFER")
    numbers = encode_arrow(pa.array([1, 2]))
    damage(tmp_path / "f.vortexs", write_stream(*numbers), "expected a struct with columns")


def test_rows_that_are_null_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nulls.vortexs"
    path.write_bytes(write_stream(*encode_arrow(pa.array([{"n": 1}, None]))))
    with splitarrow.serve({"data": path}, listen=["tcp://127.0.0.1:0"]) as server:
        for data_format in ("arrow", "vortex"):
            with pytest.raises(splitarrow.errors.SplitArrowError, match="rows that are null"):
                read(server, "data", format=data_format)


def test_a_missing_library_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vortex", None)
    with pytest.raises(MissingExtraError, match=r"splitarrow\[vortex\]"):
        open_file(folder / "rows.vortex")
