"""The commands that speak to a control plane."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, orc, parquet

import splitarrow
from helpers.cli import Run, read
from helpers.files import write_file, write_stream
from splitarrow.cli.app import run as run_here
from splitarrow.cli.doctor import _lines, check_limits

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def control(tmp_path: Path, table: pa.Table) -> Iterator[str]:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    path = tmp_path / "trips.arrow"
    write_file(path, table)
    datasets = {"trips": path, "words": pa.table({"w": ["a", "b"]})}
    with splitarrow.serve(
        datasets, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0", writable=uploads
    ) as server:
        assert server.control_uri is not None
        yield server.control_uri


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process."""

    def say(*arguments: object) -> tuple[int, str, str]:
        status = run_here([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return say


def test_ls(control: str, say: Say, table: pa.Table) -> None:
    status, out, _ = say("ls", control)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["name", "trips", "words"]
    assert f"{table.num_rows:,}" in out
    status, out, _ = say("ls", control, "t*", "--json")
    (found,) = json.loads(out)
    assert (found["name"], found["rows"]) == ("trips", table.num_rows)
    assert found["columns"][0] == {"name": "number", "type": "int64"}
    status, out, err = say("ls", control, "x*")
    assert (status, out) == (0, "")
    assert "'x*'" in err


def test_info(control: str, say: Say, table: pa.Table) -> None:
    status, out, _ = say("info", control, "trips")
    assert status == 0
    assert f"{table.num_rows:,}" in out
    assert "tcp://127.0.0.1:" in out
    assert "number" in out
    _, out, _ = say("info", control, "trips", "--json")
    found = json.loads(out)
    assert found["endpoints"][0]["locations"][-1] == "arrow-flight-reuse-connection://?"
    assert "ticket" not in out
    status, _, err = say("info", control, "trip")
    assert status == 1
    assert "NOT_FOUND" in err
    assert "'trip'" in err


def test_status(control: str, say: Say) -> None:
    status, out, _ = say("status", control)
    assert status == 0
    assert "serving" in out
    assert "streams total" in out
    _, out, _ = say("status", control, "--json")
    assert json.loads(out)["draining"] is False


@pytest.mark.filterwarnings("ignore:Feather V1:DeprecationWarning")
@pytest.mark.parametrize("kind", ["arrow", "arrows", "parquet", "feather v1"])
def test_put_and_fetch(control: str, say: Say, tmp_path: Path, table: pa.Table, kind: str) -> None:
    path, wanted = tmp_path / "upload", table
    if kind == "arrow":
        write_file(path, table)
    elif kind == "arrows":
        write_stream(path, table.to_batches())
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        wanted = table.select(["number", "name"]).combine_chunks()
        feather.write_feather(wanted, path, version=1)
    status, out, err = say("put", control, "new", path, "--json")
    assert status == 0, err
    assert json.loads(out)["rows"] == table.num_rows
    assert "new: 200,000 rows" in err
    got = tmp_path / "got.arrow"
    status, out, err = say("fetch", control, "new", "-o", got, "--json")
    assert status == 0, err
    assert json.loads(out)["transport"] == "tcp"
    assert read(got).equals(wanted)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "orc"])
def test_put_types_that_only_a_server_reads(
    control: str, say: Say, tmp_path: Path, kind: str
) -> None:
    wanted = pa.table({"number": [1, 2, 3], "name": ["a", "b", "c"]})
    path = tmp_path / f"new.{kind}"
    if kind == "csv":
        csv.write_csv(wanted, path)
    elif kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in wanted.to_pylist()))
    else:
        orc.write_table(wanted, path)
    status, _, err = say("put", control, "new", path)
    assert (status, err[:11]) == (0, "new: 3 rows")
    got = tmp_path / "got.arrow"
    assert say("fetch", control, "new", "-o", got)[0] == 0
    assert read(got).equals(wanted)


def test_put_replaces_only_on_request(control: str, say: Say, tmp_path: Path) -> None:
    old, new = (write_file(tmp_path / f"{n}.arrow", pa.table({"n": [n]})) for n in (1, 2))
    assert say("put", control, "new", old)[0] == 0
    status, _, err = say("put", control, "new", new)
    assert status == 1
    assert "cannot upload 'new': the dataset exists; to replace it" in err
    assert "--replace" in err
    assert say("put", control, "new", new, "--replace")[0] == 0
    got = tmp_path / "got.arrow"
    assert say("fetch", control, "new", "-o", got)[0] == 0
    assert read(got)["n"].to_pylist() == [2]


def test_put_refuses_what_is_not_a_table(control: str, say: Say, tmp_path: Path) -> None:
    np.save(tmp_path / "matrix.npy", np.zeros((2, 3)))
    status, _, err = say("put", control, "new", tmp_path / "matrix.npy")
    assert status == 1
    assert "matrix.npy holds tensors, which cannot be uploaded" in err
    (tmp_path / "notes.txt").write_text("no data at all")
    status, _, err = say("put", control, "new", tmp_path / "notes.txt")
    assert status == 1
    assert "expected an Arrow IPC file or stream, a Feather, Parquet, ORC" in err


def test_fetch_less_by_doget(control: str, say: Say, tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "got.parquet"
    arguments = ("--columns", "number", "--limit", 7, "--transport", "flight", "--json")
    status, out, err = say("fetch", control, "trips", "-o", path, *arguments)
    assert status == 0, err
    assert json.loads(out)["transport"] == "flight"
    assert read(path).equals(table.select(["number"]).slice(0, 7))
    status, out, _ = say("fetch", control, "words")
    assert status == 0
    assert "a, b" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fetch", "grpc://127.0.0.1:1"), "name a dataset"),
        (("fetch", "grpc://127.0.0.1:1", "a", "--ticket", "a"), "--ticket"),
        (("fetch", "tcp://127.0.0.1:1?want_data=1&ticket=a", "--token", "x"), "--token"),
        (("fetch", "grpc://127.0.0.1:1", "--sql", "SELECT 1", "--shards", "1"), "with --shards"),
        (("fetch", "grpc://127.0.0.1:1", "--sql", "SELECT 1", "--version", "1"), "with --version"),
        (("top", "grpc://127.0.0.1:1", "--interval", 0.09), "at least 0.1 seconds"),
        (("ls", "tcp://127.0.0.1:1"), "is not the URI of a control plane"),
        (("doctor", "tcp://127.0.0.1:1"), "is not the URI of a control plane"),
        (("status", "grpc://127.0.0.1:1", "--connect-timeout", 0), "--connect-timeout"),
    ],
)
def test_called_wrongly(say: Say, arguments: tuple[object, ...], words: str) -> None:
    status, _, err = say(*arguments)
    assert status == 2
    assert words in err


def test_what_fails(control: str, say: Say, tmp_path: Path) -> None:
    assert say("ls", "grpc://127.0.0.1:1")[0] == 1
    status, _, err = say("put", control, "a", tmp_path / "absent")
    assert status == 1
    assert "absent" in err
    (tmp_path / "text").write_text("no data at all, and no file that is known")
    status, _, err = say("put", control, "a", tmp_path / "text")
    assert status == 1
    assert "text" in err
    (tmp_path / "empty").touch()
    assert say("put", control, "a", tmp_path / "empty")[0] == 1
    cut = tmp_path / "cut"
    cut.write_bytes((tmp_path / "trips.arrow").read_bytes()[:100_000])
    assert say("put", control, "a", cut)[0] == 1
    status, _, err = say("fetch", control, "trips", "--transport", "ucx")
    assert status == 2
    assert "tcp, flight" in err
    assert [info["name"] for info in json.loads(say("ls", control, "--json")[1])] == [
        "trips",
        "words",
    ]


def test_doctor(control: str, say: Say) -> None:
    status, out, err = say("doctor", "--json")
    assert status == 0, err
    report: dict[str, Any] = json.loads(out)
    assert report["good"]
    assert report["versions"]["splitarrow"] == splitarrow.__version__
    found = {each["scheme"]: each for each in report["transports"]}
    assert found["tcp"]["available"]
    assert found["flight"]["available"]
    assert all(each["reason"] for each in found.values() if not each["available"])
    names = {each["name"] for each in report["limits"]}
    assert {"open files", "/dev/shm", "file leases"} <= names
    assert report["vortex"]["decoding_rate"] > 1e6
    status, out, _ = say("doctor", control)
    assert status == 0
    assert "serving 2 datasets" in out
    assert re.search(r"format auto +(arrow|vortex) for 'trips': ", out)
    with splitarrow.serve({"one": pa.table({"n": [1]})}, control="grpc://127.0.0.1:0") as server:
        assert repr(server).startswith("<splitarrow.Server: 1 dataset ('one'), 0 open streams>")
        assert "serving 1 dataset, " in say("doctor", server.control_uri)[1]
        with splitarrow.connect(server.control_uri or "") as client:
            assert repr(client.info("one")).startswith("<splitarrow.DatasetInfo 'one': 1 row, ")
    status, out, _ = say("doctor", "grpc://127.0.0.1:1")
    assert status == 1
    assert "refused" in out


def test_doctor_advises_on_few_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found: list[str | None] = []
    try:
        for limit in (4095, 4096):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            (row,) = (row for row in check_limits() if row["name"] == "open files")
            found.append(row["advice"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == ["raise it for many readers: ulimit -n 4096", None]


def test_doctor_rates_missing_packages() -> None:
    missing = {"available": False, "reason": "absent"}
    report: dict[str, Any] = {
        "versions": {"pyarrow": None, "torch": None, "anyio": "4.0"},
        "java": missing,
        "vortex": missing,
        "transports": [],
        "limits": [],
    }
    ratings = [line.rating for line in _lines(report) if line is not None]
    assert ratings == ["bad", "note", "good", "note", "note"]


def test_in_a_process_of_its_own(control: str, run_process: Run) -> None:
    done = run_process("ls", control)
    assert (done.returncode, done.stderr) == (0, "")
    assert "trips" in done.stdout
    done = run_process("info", control.replace("grpc:", "grpc+tls:"), "trips")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("way", ["option", "variable"])
def test_the_token(say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('[[tokens]]\nname = "anna"\ntoken = "canary-token-of-anna"\ndatasets = ["a"]\n')
    path.chmod(0o600)
    with splitarrow.serve(
        {"a": pa.table({"n": [1]}), "b": pa.table({"n": [1]})},
        listen=["tcp://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        token_file=path,
    ) as server:
        status, _, err = say("ls", server.control_uri)
        assert status == 1
        assert "UNAUTHENTICATED" in err
        given: tuple[str, ...] = ()
        if way == "option":
            given = ("--token", "canary-token-of-anna")
        else:
            monkeypatch.setenv("SPLITARROW_TOKEN", "canary-token-of-anna")
        _, out, _ = say("ls", server.control_uri, "--json", *given)
        assert [info["name"] for info in json.loads(out)] == ["a"]
        status, out, err = say("fetch", server.control_uri, "a", *given)
        assert status == 0, err
        status, out, err = say("fetch", server.control_uri, "b", *given)
        assert status == 1
        assert "canary" not in out + err
