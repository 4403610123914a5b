"""`convert`, `head`, `cat`, `schema` and `stats`, over files, servers and pipes."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.cli import COMMAND, REPLACED, Run, Served, encoded, read
from helpers.files import write_file, write_stream
from splitarrow.cli.app import run as run_here

TABLE = pa.table(
    {
        "n": pa.array([3, 1, None, 2], pa.int64()),
        "s": ["x", None, "zz", "x"],
        "d": pa.array(["a", "b", "a", None]).dictionary_encode(),
    }
)
PLAIN = TABLE.select(["n", "s"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_file(tmp_path / "t.arrow", TABLE, batch_rows=2)


@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".arrows", ".parquet"])
@pytest.mark.parametrize("source", ["t.arrow", "t.parquet", "t.arrows"])
def test_every_format_becomes_every_other(
    run: Run, tmp_path: Path, file: Path, source: str, suffix: str
) -> None:
    write_stream(tmp_path / "t.arrows", TABLE.to_batches(2))
    pq.write_table(TABLE, tmp_path / "t.parquet")
    done = run("convert", source, f"out{suffix}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    written = read(tmp_path / f"out{suffix}")
    assert written.to_pydict() == TABLE.to_pydict()
    assert done.stderr.startswith(f"{source}: 4 rows")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_text_is_written_and_read(run: Run, tmp_path: Path, suffix: str) -> None:
    pq.write_table(PLAIN, tmp_path / "t.parquet")
    assert run("convert", "t.parquet", f"t.{suffix}").returncode == 0
    assert run("convert", f"t.{suffix}", "back.arrow").returncode == 0
    assert read(tmp_path / "back.arrow")["n"].to_pylist() == [3, 1, None, 2]


def test_a_dictionary_that_returns_after_a_delta_is_written_again(run: Run, tmp_path: Path) -> None:
    words = [pa.array(text.split()) for text in ("a", "a b", "a", "a c")]
    batches = [encoded(each, *range(len(each))) for each in words]
    write_stream(tmp_path / "t.arrows", batches, emit_dictionary_deltas=True)
    assert run("convert", "t.arrows", "out.arrows").returncode == 0
    with pa.ipc.open_stream((tmp_path / "out.arrows").read_bytes()) as reader:
        columns: list[Any] = [batch["word"] for batch in reader]
    assert [each.dictionary for each in columns] == words


def test_messages_are_copied_unchanged(run: Run, tmp_path: Path, file: Path) -> None:
    with pa.ipc.open_file(str(file)) as source:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, source.schema) as writer:
            for number in range(source.num_record_batches):
                writer.write_batch(source.get_batch(number))
    (tmp_path / "in.arrows").write_bytes(stream.getvalue())
    assert run("convert", "in.arrows", "out.arrows").returncode == 0
    assert (tmp_path / "out.arrows").read_bytes() == (tmp_path / "in.arrows").read_bytes()


@pytest.mark.parametrize("output", ["out.arrow", "out.arrows"])
@pytest.mark.parametrize("endianness", ["big", "little"])
@pytest.mark.parametrize("framing", ["legacy", "current"])
@pytest.mark.parametrize("version", ["v4", "v5"])
def test_pyarrow_reads_every_form(
    run: Run, tmp_path: Path, file: Path, output: str, endianness: str, framing: str, version: str
) -> None:
    form = ["--endianness", endianness, "--framing", framing, "--metadata-version", version]
    assert run("convert", file, output, *form).returncode == 0
    assert read(tmp_path / output).equals(TABLE)
    shown = json.loads(run("schema", output, "--json").stdout)
    assert (shown["endianness"], shown["metadata_version"]) == (endianness, version.upper())


def test_legacy_framing_implies_the_version_that_its_readers_know(
    run: Run, tmp_path: Path, file: Path
) -> None:
    assert run("convert", file, "old.arrows", "--framing", "legacy").returncode == 0
    assert (tmp_path / "old.arrows").read_bytes()[:4] != b"\xff\xff\xff\xff"
    shown = json.loads(run("schema", "old.arrows", "--json").stdout)
    assert shown["metadata_version"] == "V4"


def test_compression_of_the_output(run: Run, tmp_path: Path) -> None:
    write_file(tmp_path / "zeros.arrow", pa.table({"zeros": [0] * 10_000}))
    assert run("convert", "zeros.arrow", "packed.arrow", "--compression", "zstd").returncode == 0
    assert run("convert", "packed.arrow", "plain.arrow", "--compression", "none").returncode == 0
    sizes = [(tmp_path / name).stat().st_size for name in ("packed.arrow", "plain.arrow")]
    assert sizes[0] < 10_000 < 80_000 < sizes[1]
    shown = json.loads(run("schema", "packed.arrow", "--json").stdout)
    assert shown["features"] == ["COMPRESSED_BODY"]


SELECTIONS = [
    (["--columns", "s,n"], {"s": ["x", None, "zz", "x"], "n": [3, 1, None, 2]}),
    (["--filter", "n > 1", "--columns", "n"], {"n": [3, 2]}),
    (["--limit", "3", "--columns", "n"], {"n": [3, 1, None]}),
    (["--rows", "1:3", "--columns", "n"], {"n": [1, None]}),
    (["--batches", "1:2", "--columns", "n"], {"n": [None, 2]}),
]


@pytest.mark.parametrize(("options", "expected"), SELECTIONS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("from_pipe", [False, True])
def test_the_selection_of_fetch_applies(
    run: Run,
    tmp_path: Path,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    expected: dict[str, list[object]],
    *,
    from_pipe: bool,
) -> None:
    stream = write_stream(tmp_path / "t.arrows", TABLE.to_batches(2))
    with stream.open("rb") as pipe:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
        done = run("convert", "-" if from_pipe else file, "out.arrows", *options)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrows").to_pydict() == expected


def test_a_dataset_of_a_server(run: Run, served: Served, table: pa.Table, tmp_path: Path) -> None:
    uri = served.uri("table")
    assert run("convert", uri, "out.arrow", "--endianness", "big").returncode == 0
    assert read(tmp_path / "out.arrow").equals(table)
    head = run("head", uri, "-n", "2", "--columns", "number")
    assert head.stdout.split() == ["number", "0", "1"]
    assert run("schema", uri).stdout.count("\n") == 5
    assert json.loads(run("stats", uri, "--columns", "kind", "--json").stdout)["rows"] == 200_000


def test_replaced_dictionaries_are_merged_for_a_file(run: Run, tmp_path: Path) -> None:
    write_stream(tmp_path / "t.arrows", REPLACED)
    for options in ([], ["--endianness", "big"]):
        assert run("convert", "t.arrows", "out.arrow", *options).returncode == 0
        expected = pa.Table.from_batches(REPLACED).to_pydict()
        assert read(tmp_path / "out.arrow").to_pydict() == expected
    assert {path.name for path in tmp_path.iterdir()} == {"t.arrows", "out.arrow"}


def test_numbers_that_json_lacks_are_text(run: Run, tmp_path: Path) -> None:
    numbers = pa.table({"n": [1.5, float("inf"), float("-inf"), float("nan")]})
    write_file(tmp_path / "t.arrow", numbers)
    done = run("convert", "t.arrow", "out.jsonl")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    texts = ["Infinity", "-Infinity", "NaN"]
    assert lines == ['{"n": 1.5}', *(f'{{"n": "{text}"}}' for text in texts)]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_schema_gives_text_its_types(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    columns = {
        "n": pa.array([1, None, 3], pa.uint8()),
        "d": pa.array([2_999_999, None, 0], pa.date32()),
        "s": ["007", "", None],
    }
    table = pa.table(columns)
    write_file(tmp_path / "t.arrow", table)
    assert run("convert", "t.arrow", name).returncode == 0
    assert run("convert", name, "back.arrow", "--schema", "t.arrow").returncode == 0
    with pa.ipc.open_file(str(tmp_path / "back.arrow")) as opened:
        assert opened.read_all() == table
    if name == "t.csv":
        text = (tmp_path / name).read_text()
        assert text == '"n","d","s"\n1,10183-09-20,"007"\n,,""\n3,1970-01-01,\n'
        with (tmp_path / name).open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert run("convert", "-", "again.csv", "--schema", "t.arrow").returncode == 0
        assert (tmp_path / "again.csv").read_text() == text


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"n": pa.int8()}, "line 3: \"300\" in the column 'n' is not of the type int8"),
        ({"n": pa.date32()}, "line 2: \"1\" in the column 'n' is not of the type date32[day]"),
        ({"n": pa.list_(pa.int8())}, "it cannot have the column 'n' with the type list"),
        ({"n": pa.int64(), "m": pa.int64()}, "it has no column 'm', which the schema has"),
        ({"m": pa.int64()}, "it has no column 'm', which the schema has"),
        ({}, "the schema has no column 'n', which the file has"),
    ],
)
def test_text_that_does_not_fit_a_schema_is_an_error(
    run: Run, tmp_path: Path, schema: dict[str, Any], error: str
) -> None:
    write_file(tmp_path / "t.arrow", pa.schema(schema).empty_table())
    (tmp_path / "t.csv").write_text("n\n1\n300\n")
    done = run("cat", "t.csv", "--schema", "t.arrow")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"cannot read t.csv as a CSV file: {error}\n"), done.stderr


def test_a_schema_is_for_text(run: Run, tmp_path: Path) -> None:
    write_file(tmp_path / "t.arrow", pa.table({"n": [1]}))
    for location in ("t.arrow", "grpc://127.0.0.1:1/t"):
        done = run("cat", location, "--schema", "t.arrow")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--schema is for a " in done.stderr


def test_a_dictionary_that_is_sent_again_is_written_once(run: Run, tmp_path: Path) -> None:
    words = encoded(pa.array(["a", "b"]), 0, 1, None)
    for number in range(3):
        write_file(tmp_path / "folder" / f"{number}.arrow", [words])
    assert run("convert", "folder", "out.arrow").returncode == 0
    with pa.ipc.open_file(str(tmp_path / "out.arrow")) as opened:
        assert opened.read_all().to_pydict()["word"] == ["a", "b", None] * 3
        assert opened.stats.num_dictionary_batches == 1


@pytest.mark.parametrize(
    "options", [[], ["--filter", "m is not null"], ["--columns", "m"], ["--endianness", "big"]]
)
def test_the_names_of_the_children_of_maps_stay(
    run: Run, tmp_path: Path, options: list[str]
) -> None:
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8()))
    path = write_stream(tmp_path / "t.arrows", pa.table({"m": maps, "n": [1, 2]}).to_batches())
    renamed = path.read_bytes()
    for old, new in ((b"entries", b"records"), (b"key", b"kex"), (b"value", b"worth")):
        renamed = renamed.replace(old, new)
    path.write_bytes(renamed)
    done = run("convert", "t.arrows", "out.arrow", *options)
    assert done.returncode == 0, done.stderr
    shown = json.loads(run("schema", "out.arrow", "--json").stdout)
    (items,) = shown["fields"][0]["children"]
    names = [items["name"], *(each["name"] for each in items["children"])]
    assert names == ["records", "kex", "worth"]
    assert read(tmp_path / "out.arrow")["m"].to_pylist()[0] == [("a", 1)]


@pytest.mark.slow
def test_a_pipe_carries_a_stream(run: Run, file: Path) -> None:
    first = [*COMMAND, "convert", str(file), "-", "--endianness", "big", "-q"]
    second = [*COMMAND, "cat", "-", "--format", "csv"]
    with subprocess.Popen(first, stdout=subprocess.PIPE) as source:
        done = subprocess.run(second, stdin=source.stdout, capture_output=True, text=True)
    assert (source.returncode, done.returncode, done.stderr) == (0, 0, "")
    assert done.stdout.splitlines()[:2] == ['"n","s","d"', '3,"x","a"']


@pytest.mark.slow
def test_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    write_file(tmp_path / "long.arrow", pa.table({"n": range(300_000)}))
    command = [*COMMAND, "cat", str(tmp_path / "long.arrow"), "--format", "csv"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == '"n"\n'
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def encode_stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let a command read data from standard input."""
    file: Any = io.BytesIO(data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(file)))


_A, _B = (encode_stream(pa.table({"n": values})) for values in ([3, 1], [7]))
_OLD = encode_stream(pa.table({"n": [3]}), use_legacy_format=True)
TRAILING = {
    "second stream": _A + _B,
    "old framing": _OLD + _A,
    "other schema": _A + encode_stream(pa.table({"x": ["y"]})),
    "newline": _A + b"\n",
    "text": _A + b"n\n1\n",
    "zeros": _A + bytes(65),
}


@pytest.mark.parametrize("data", TRAILING.values(), ids=TRAILING)
def test_data_behind_a_stream_is_refused_on_standard_input(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    for command in (
        ["convert", "-", "out.csv"],
        ["convert", "-", "out.arrow", "--columns", "n"],
        ["stats", "-"],
        ["head", "-"],
        ["cat", "-", "--filter", "n > 1"],
    ):
        feed(monkeypatch, data)
        done = run(*command)
        assert done.returncode == 1, command
        assert "bytes follow its end marker" in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data", [_A, _A + bytes(64), _A[:-8], _OLD], ids=["marker", "padding", "no marker", "old"]
)
def test_a_stream_on_standard_input_may_end_with_padding(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    feed(monkeypatch, data)
    done = run("convert", "-", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrow")["n"].to_pylist()[:1] == [3]


def test_streams_without_end_markers_are_not_joined(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _A[:-8] + _B
    feed(monkeypatch, data)
    assert "message 2 of standard input is a second schema" in run("cat", "-").stderr


def test_head_need_not_read_a_stream_to_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _A + _B
    feed(monkeypatch, data)
    assert run("head", "-", "-n", "1").stdout.split() == ["n", "3"]


TEXT = [("n,s\n1,x\n", "n  s\n1  x\n"), ('{"n": 7}\n', "n\n7\n")]


@pytest.mark.parametrize(("text", "shown"), TEXT, ids=["csv", "jsonl"])
def test_standard_input_may_be_text(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shown: str
) -> None:
    path = tmp_path / "in.txt"
    path.write_text(text)
    with path.open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        done = run("cat", "-")
    assert done.stdout == shown, done.stderr


def test_head_shows_a_table(run: Run, file: Path) -> None:
    done = run("head", file, "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "   n  s     d",
        "   3  x     a",
        "   1  null  b",
        "null  zz    a",
    ]


def test_columns_that_do_not_fit_are_named(run: Run, tmp_path: Path) -> None:
    write_file(tmp_path / "wide.arrow", pa.table({f"column {n}": [n] for n in range(30)}))
    done = run("cat", "wide.arrow")
    assert done.stdout.startswith("column 0  column 1")
    assert done.stderr.startswith("18 more columns: column 12, column 13")
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_a_schema_is_a_tree(run: Run, tmp_path: Path) -> None:
    fields = [
        pa.field("id", pa.int32(), nullable=False, metadata={"unit": "m"}),
        pa.field("u", pa.uuid()),
        pa.field("l", pa.list_(pa.struct([("x", pa.timestamp("ns", "UTC"))]))),
    ]
    write_file(tmp_path / "t.arrow", pa.schema(fields, {"origin": "here"}).empty_table())
    shown = run("schema", "t.arrow").stdout
    for text in (
        "V5, little-endian, no features",
        "metadata origin = here",
        "id  int32 not null",
        "unit = m",
        "fixed_size_binary[16]  arrow.uuid",
        "x  timestamp[ns, UTC]",
    ):
        assert text in shown


def test_statistics(run: Run, tmp_path: Path, file: Path) -> None:
    shown = json.loads(run("stats", file, "--json").stdout)
    assert shown["rows"] == 4
    assert [column["nulls"] for column in shown["columns"]] == [1, 1, 1]
    assert [(column["min"], column["max"]) for column in shown["columns"]] == [
        ("1", "3"),
        ("x", "zz"),
        ("a", "b"),
    ]
    assert [column["distinct"] for column in shown["columns"]] == [3, 2, 2]
    assert all(column["stored_bytes"] for column in shown["columns"])
    table = run("stats", file).stdout
    assert "4 rows" in table
    assert "stored" in table


def test_many_distinct_values_are_estimated(run: Run, tmp_path: Path) -> None:
    write_file(tmp_path / "t.arrow", pa.table({"n": range(50_000)}), batch_rows=5000)
    (column,) = json.loads(run("stats", "t.arrow", "--json").stdout)["columns"]
    assert not column["distinct_is_exact"]
    assert 45_000 < column["distinct"] < 55_000


REFUSED = [
    (["convert", "none.arrow", "x.arrow"], 1, "none.arrow: No such file"),
    (["convert", "t.arrow", "x.txt"], 2, "the suffix selects the format"),
    (["convert", "t.arrow", "x.csv", "--endianness", "big"], 2, "--endianness: only for"),
    (
        ["convert", "t.arrow", "x.arrow", "--format", "csv"],
        2,
        "--output-format csv is for standard output; write to -",
    ),
    (["convert", "t.arrow", "x.arrow", "--columns", "q"], 1, "no column 'q'"),
    (["convert", "t.arrow", "x.arrow", "--rows", "3"], 2, "--rows is '3'"),
    (["convert", "t.arrow", "x.arrow", "--input-format", "csv"], 2, "is for standard input"),
    (
        ["convert", "t.arrow", "x.arrow", "--framing", "legacy", "--compression", "lz4"],
        2,
        "know no compression",
    ),
    (["cat", ""], 1, "the name of the input is empty"),
]


@pytest.mark.parametrize(("arguments", "status", "reason"), REFUSED, ids=lambda v: str(v)[:40])
def test_an_error_is_one_line_and_leaves_nothing(
    run: Run, tmp_path: Path, file: Path, arguments: list[str], status: int, reason: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_truncated_pipe_is_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_stream(tmp_path / "t.arrows", PLAIN.to_batches())
    path.write_bytes(path.read_bytes()[:-40])
    with path.open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        done = run("convert", "-", "out.arrow")
    assert done.returncode == 1
    assert "ends inside message 1" in done.stderr
    assert not (tmp_path / "out.arrow").exists()


def invalid_text() -> pa.RecordBatch:
    """Return a batch with a text that is not UTF-8."""
    buffers = [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")]
    text = pa.Array.from_buffers(pa.string(), 2, buffers)
    return pa.record_batch({"n": pa.array([1, 2]), "s": text})


@pytest.fixture(params=["file", "stream", "parquet"])
def invalid(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file with an invalid value."""
    batch, path = invalid_text(), tmp_path / "in.arrow"
    if request.param == "parquet":
        path = tmp_path / "in.parquet"
        pq.write_table(pa.Table.from_batches([batch]), path)
        return path
    make_writer = pa.ipc.new_file if request.param == "file" else pa.ipc.new_stream
    with make_writer(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    return path


@pytest.mark.parametrize("suffix", [".arrow", ".arrows", ".parquet", ".csv", ".jsonl", ".vortex"])
@pytest.mark.parametrize("command", ["convert", "fetch"])
def test_an_invalid_value_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], invalid: Path, suffix: str, command: str
) -> None:
    output = tmp_path / f"out{suffix}"
    with splitarrow.serve({"x": invalid}) as server:
        uri = server.uri("x", scheme="tcp")
        arguments = ["convert", str(invalid)] if command == "convert" else ["fetch", uri, "-o"]
        assert run_here([*arguments, str(output)]) == 1
        output.write_bytes(b"old")
        assert run_here([*arguments, str(output)]) == 1
    error = capsys.readouterr().err
    assert "UTF8" in error
    assert "internal" not in error
    assert output.read_bytes() == b"old"
    assert {each.name for each in tmp_path.iterdir()} == {invalid.name, output.name}


@pytest.mark.parametrize("output", ["-", "out.arrow"])
@pytest.mark.slow
def test_an_invalid_value_from_a_pipe_is_an_error(tmp_path: Path, output: str) -> None:
    command = [*COMMAND, "convert", "-", output]
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, invalid_text().schema) as writer:
        writer.write_batch(invalid_text())
    done = subprocess.run(command, input=sink.getvalue(), capture_output=True, cwd=tmp_path)
    assert (done.returncode, b"UTF8" in done.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(pa.ArrowException):
        pa.ipc.open_stream(done.stdout).read_all()


@pytest.mark.parametrize("validate", ["cheap", "off"])
def test_writing_without_validation_is_refused(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str], validate: str
) -> None:
    output = str(tmp_path / "x.arrow")
    for arguments in (["convert", str(file), output], ["cat", str(file)]):
        assert run_here([*arguments, "--validate", validate]) == 2
        assert f"--validate {validate}: data is validated in full" in capsys.readouterr().err
    assert run_here(["fetch", "tcp://h/x", "-o", output, "--validate", validate]) == 2
