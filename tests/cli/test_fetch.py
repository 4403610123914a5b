"""``splitarrow fetch``: what arrives in a file, on standard output, or before one's eyes."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import COMMAND, PATIENCE, ROWS, WORDS, Run, Served, read
from helpers.files import write_parquet
from helpers.wkb import write_wkb


@pytest.mark.parametrize("name", ["out.arrow", "out.feather", "out.arrows", "out.parquet"])
def test_a_file_holds_what_is_served(
    run: Run, served: Served, table: pa.Table, tmp_path: Path, name: str
) -> None:
    done = run("fetch", served.uri("table"), "-o", name)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / name).equals(table)
    assert done.stdout == ""
    assert done.stderr.startswith("table: 200,000 rows, ")
    assert done.stderr.endswith(f"/s -> {name}\n")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("suffix", ["arrow", "arrows", "parquet"])
def test_nothing_is_a_dataset_too(
    run: Run, served: Served, table: pa.Table, tmp_path: Path, suffix: str
) -> None:
    assert run("fetch", served.uri("empty"), "-o", f"out.{suffix}").returncode == 0
    assert read(tmp_path / f"out.{suffix}").equals(table.schema.empty_table())


def test_standard_output_carries_a_stream_and_nothing_else(served: Served, table: pa.Table) -> None:
    done = subprocess.run(
        [*COMMAND, "fetch", served.uri("table"), "-o", "-"], capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == 0
    source = io.BytesIO(done.stdout)
    with pa.ipc.open_stream(source) as reader:
        assert reader.read_all().equals(table)
        assert source.read() == b""
    assert b"-> standard output" in done.stderr


@pytest.mark.parametrize("suffix", ["arrow", "arrows", "parquet"])
def test_dictionaries_may_replace_each_other(
    run: Run, served: Served, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"out.{suffix}"
    done = run("fetch", served.uri("replaced"), "-o", path)
    assert done.returncode == 0, done.stderr
    found = read(path)
    assert pa.types.is_dictionary(found.schema.field("word").type)
    assert found["word"].to_pylist() == WORDS
    assert found["n"].to_pylist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]


def test_dictionaries_that_a_file_cannot_hold(run: Run, served: Served, tmp_path: Path) -> None:
    done = run("fetch", served.uri("unmergeable"), "-o", "out.arrow")
    assert done.returncode == 2
    assert done.stderr.startswith("splitarrow: error: an Arrow IPC file holds one dictionary")
    assert done.stderr.endswith("write to .arrows or .parquet instead\n")
    assert os.listdir(tmp_path) == []
    assert run("fetch", served.uri("unmergeable"), "-o", "out.arrows").returncode == 0
    assert read(tmp_path / "out.arrows")["word"].to_pylist() == [{"x": 1}, {"x": 2}]


def test_a_type_that_parquet_lacks(run: Run, served: Served, tmp_path: Path) -> None:
    done = run("fetch", served.uri("interval"), "-o", "out.parquet")
    assert done.returncode == 2
    assert "whole milliseconds of 32 bits; write to .arrow instead" in done.stderr
    assert os.listdir(tmp_path) == []


def test_columns_and_limit(run: Run, served: Served, table: pa.Table, tmp_path: Path) -> None:
    chosen = ["--columns", 'kind, "a, b"', "--columns", "number", "--limit", "12345"]
    assert run("fetch", served.uri("table"), *chosen, "-o", "out.arrow").returncode == 0
    expected = table.select(["kind", "a, b", "number"]).slice(0, 12345)
    assert read(tmp_path / "out.arrow").equals(expected)


def test_columns_may_be_fields_of_structs(run: Run, tmp_path: Path) -> None:
    table = pa.table({"st": [{"x": 1, "y": "a"}, None, {"x": 3, "y": "c"}], "n": [1, 2, 3]})
    chosen = ["--columns", "st.x,n", "--limit", "2"]
    with splitarrow.serve({"t": table}, listen=["tcp://127.0.0.1:0"]) as server:
        assert run("fetch", server.uri("t"), *chosen, "-o", "out.parquet").returncode == 0
    assert read(tmp_path / "out.parquet").to_pydict() == {"st.x": [1, None], "n": [1, 2]}
    write_parquet(tmp_path / "t.parquet", table)
    assert run("convert", "t.parquet", "out.arrow", *chosen).returncode == 0
    assert read(tmp_path / "out.arrow").to_pydict() == {"st.x": [1, None], "n": [1, 2]}


def test_record_batches_of_a_dataset(
    run: Run, served: Served, table: pa.Table, tmp_path: Path
) -> None:
    done = run("fetch", served.uri("table"), "--batches", "3:7", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrow").to_batches() == table.to_batches()[3:7]
    done = run("fetch", served.uri("table"), "--batches", "3-7", "-o", "out.arrow")
    assert done.returncode == 2
    assert "--batches is '3-7'; expected the first record batch" in done.stderr
    done = run("fetch", served.uri("table"), "--rows", "70:5000", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrow").equals(table.slice(70, 4930))
    done = run("fetch", served.uri("table"), "--rows", "7", "-o", "out.arrow")
    assert done.returncode == 2
    assert "--rows is '7'; expected the first row and the one after the last" in done.stderr


def test_batches_and_compression(run: Run, served: Served, table: pa.Table, tmp_path: Path) -> None:
    chosen = ["--batch-rows", 999, "--compression", "zstd", "--validate", "full"]
    done = run("fetch", served.uri("table"), *chosen, "--json", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["bytes"] < table.nbytes / 2
    found = read(tmp_path / "out.arrow")
    assert found.equals(table)
    assert max(batch.num_rows for batch in found.to_batches()) <= 999
    assert (tmp_path / "out.arrow").stat().st_size > table.nbytes  # the file is not compressed


def test_a_pair_of_addresses_and_a_ticket(
    run: Run, served: Served, table: pa.Table, tmp_path: Path
) -> None:
    done = run("fetch", *served.halves(), "--ticket", "table", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrow").equals(table)


def test_json_says_what_came(run: Run, served: Served, table: pa.Table, tmp_path: Path) -> None:
    done = run("fetch", served.uri("table"), "--json", "--quiet", "-o", "out.arrow")
    assert done.stderr == ""
    summary = json.loads(done.stdout)
    assert 0 < summary.pop("seconds") < PATIENCE
    assert summary.pop("bytes") > 4_000_000
    assert summary == {
        "dataset": "table",
        "rows": ROWS,
        "batches": 20,
        "path": "out.arrow",
        "transport": "tcp",
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
    }


def test_without_a_file_the_data_is_looked_at(run: Run, served: Served, tmp_path: Path) -> None:
    done = run("fetch", served.uri("table"))
    assert done.returncode == 0
    lines = [line.rstrip().split(None, 2) for line in done.stdout.splitlines()]
    assert lines[0] == ["column", "type", "first values"]
    assert lines[1][:2] == ["number", "int64"]
    assert lines[1][2] == "0, 1, 2, 3, 4"
    assert lines[2][:2] == ["name", "string"]
    assert lines[2][2].startswith("null, name 1, name 2")
    assert lines[3][:2] == ["kind", "dictionary<string>"]
    assert done.stderr.startswith("table: 200,000 rows, ")
    assert os.listdir(tmp_path) == []


def test_quiet_is_silent(run: Run, served: Served) -> None:
    done = run("fetch", served.uri("table"), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_file_that_was_there_keeps_its_mode_and_its_links(
    run: Run, served: Served, table: pa.Table, tmp_path: Path
) -> None:
    path, link = tmp_path / "real.arrow", tmp_path / "link.arrow"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("real.arrow")
    assert run("fetch", served.uri("table"), "-o", "link.arrow").returncode == 0
    assert link.is_symlink()
    assert read(path).equals(table)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_reader_that_has_enough_is_no_error(served: Served) -> None:
    process = subprocess.Popen(
        [*COMMAND, "fetch", served.uri("table"), "-o", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        process.stdout.read(1000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.wait(PATIENCE) == 1


def test_closed_outputs_are_not_taken_for_others(served: Served, tmp_path: Path) -> None:
    command = shlex.join(COMMAND)
    uri = served.uri("table")
    script = f"{command} fetch '{uri}' -o out.arrow >&- 2>&-; echo $? > status"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, timeout=PATIENCE, check=True)
    assert (tmp_path / "status").read_text() == "0\n"
    assert read(tmp_path / "out.arrow").num_rows == ROWS
    script = f"{command} fetch '{uri}' -o - >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr == b"splitarrow: error: -o -: standard output is closed\n"


def test_a_box_selects_rows(run: Run, tmp_path: Path) -> None:
    field = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    points = pa.array([write_wkb(1, (x, -x)) for x in range(10)])
    table = pa.Table.from_arrays(
        [pa.array(range(10)), points], schema=pa.schema([pa.field("n", pa.int64()), field])
    )
    with splitarrow.serve({"points": table}, control="grpc://127.0.0.1:0") as server:
        address = [server.control_uri or "", "points"]
        for box in ("--bbox=2,-5,7.5,-3", "--bbox=g,2,-5,7.5,-3"):
            done = run("fetch", *address, box, "--filter", "n <> 4", "-o", "out.parquet")
            assert done.returncode == 0, done.stderr
            assert read(tmp_path / "out.parquet")["n"].to_pylist() == [3, 5]
        for box, problem in (
            ("--bbox=1,2,3", "expected xmin,ymin,xmax,ymax"),
            ("--bbox=1,2,3,x", "expected xmin,ymin,xmax,ymax"),
            ("--bbox=0,2,1,1", "ymin at most ymax"),
            ("--bbox=n,0,0,1,1", "'n' is not geospatial"),
        ):
            done = run("fetch", *address, box)
            assert done.returncode == 2
            assert problem in done.stderr
