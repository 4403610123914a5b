"""``splitarrow check`` of Vortex streams and files, sound or damaged."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.vortex_messages import (
    encode_arrow,
    make_columns,
    make_file,
    put_table_first,
    read_stream,
    write_stream,
)
from splitarrow.cli.app import run
from splitarrow.formats.vortex.dtype import TypeKind, encode_dtype, read_dtype
from splitarrow.formats.vortex.file import list_arrays, read_file_footer
from splitarrow.formats.vortex.message import MessageKind, build_message

Say = Callable[..., tuple[int, str, str]]
TABLE = pa.table({"n": list(range(1000)), "s": [f"name {i % 10}" for i in range(1000)]})
DTYPE, ARRAY = encode_arrow(TABLE)
BUFFER = build_message(MessageKind.BUFFER, [b"abc"])
STREAM = write_stream(DTYPE, ARRAY, put_table_first(ARRAY), BUFFER, ARRAY)
FILE = make_file(TABLE)
COLUMNS = make_columns()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process."""

    def say(*arguments: object) -> tuple[int, str, str]:
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return say


@pytest.mark.parametrize("full", [(), ("--full",)], ids=["metadata", "full"])
@pytest.mark.parametrize(("data", "kind"), [(STREAM, "stream"), (FILE, "file")])
def test_sound_data(
    tmp_path: Path, say: Say, data: bytes, kind: str, full: tuple[str, ...]
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    status, out, _ = say("check", *full, path)
    assert status == 0, out
    assert f"Vortex {kind}, sound: " in out
    assert f"{'3,000' if kind == 'stream' else '1,000'} rows, 2 columns" in out


def test_each_defect_has_its_place_and_does_not_end_the_check(tmp_path: Path, say: Say) -> None:
    places = [place for place, _ in read_stream(STREAM)]
    damaged = bytearray(STREAM)
    struct.pack_into("<I", damaged, places[1].end - 4, 1 << 30)
    damaged = damaged[:-5]
    path = tmp_path / "x.vortexs"
    path.write_bytes(damaged)
    status, out, _ = say("check", "--json", path)
    assert status == 1
    report = json.loads(out)
    assert (report["sound"], report["messages"], report["record_batches"]) == (False, 3, 1)
    first, second = report["defects"]
    assert (first["place"], first["offset"]) == ("message 1", places[1].offset)
    assert first["rows"] == 1000
    assert "length of the FlatBuffer" in first["problem"]
    assert (second["place"], second["offset"]) == ("message 4", places[4].offset)
    assert "truncated" in second["problem"]


def test_full_decodes_in_a_child_process(tmp_path: Path, say: Say) -> None:
    header = ARRAY.header
    wrong = build_message(MessageKind.ARRAY, ARRAY.body, row_count=9000, encodings=header.encodings)
    path = tmp_path / "x.vortexs"
    path.write_bytes(write_stream(DTYPE, wrong, ARRAY))
    status, out, _ = say("check", "--full", path)
    assert status == 1
    assert "message 1 at byte" in out
    assert "1 array, 1,000 rows" in out


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (FILE[:-1], r"the Vortex file is truncated"),
        (FILE[:-8] + struct.pack("<HH4s", 2, 10, b"VTXF"), r"the version of the file is 2"),
        (FILE[:-8] + struct.pack("<HH4s", 1, 65535, b"VTXF"), r"the postscript has 65535 bytes"),
        (FILE[:-8] + struct.pack("<HH4s", 1, 0, b"VTXF"), r"the footer is malformed"),
        (FILE[:-600] + FILE[-500:], r"footer|layout|dtype|segment|statistics"),
        (FILE[:8] + bytes(len(FILE) - 3000) + FILE[-2992:], r"segment \d|FlatBuffer"),
        (b"VTXF", r"does not begin|truncated"),
    ],
    ids=["cut", "version", "long postscript", "no postscript", "moved", "zeros", "magic alone"],
)
def test_defects_of_files(tmp_path: Path, say: Say, data: bytes, problem: str) -> None:
    path = tmp_path / "x.vortex"
    path.write_bytes(data)
    status, out, _ = say("check", path)
    assert status == 1
    assert re.search(problem, out), out


def test_defects_of_arrays_in_files_have_their_segments(tmp_path: Path, say: Say) -> None:
    footer = read_file_footer(lambda at, nbytes: FILE[at : at + nbytes], len(FILE))
    array = next(list_arrays(footer))
    damaged = bytearray(FILE)
    struct.pack_into("<I", damaged, array.segment.offset + array.segment.length - 4, 1 << 20)
    path = tmp_path / "x.vortex"
    path.write_bytes(damaged)
    status, out, _ = say("check", "--json", path)
    assert status == 1
    (defect,) = json.loads(out)["defects"]
    assert defect["place"] == f"segment 0 (layout {array.layout.path})"
    assert (defect["offset"], defect["rows"]) == (array.segment.offset, 1000)


@pytest.mark.parametrize("name", COLUMNS)
def test_types_of_arrays_in_files_follow_from_the_layouts(name: str) -> None:
    data = make_file(COLUMNS[name])
    footer = read_file_footer(lambda at, nbytes: data[at : at + nbytes], len(data))
    assert footer.dtype is not None
    assert read_dtype(encode_dtype(footer.dtype)) == footer.dtype
    types = [array.dtype for array in list_arrays(footer)]
    # Each column has statistics, whose type is that of no column.
    assert sum(dtype is None for dtype in types) <= 1
    assert types[1:] == [] or footer.dtype.children[0].kind in {t.kind for t in types if t} | {
        TypeKind.STRUCT
    }


def test_other_files_are_not_taken_for_streams(tmp_path: Path, say: Say) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack("<I", 40) + bytes(100))
    status, out, _ = say("check", path)
    assert status == 1
    assert "Vortex" not in out.partition(":")[2].partition(",")[0]
