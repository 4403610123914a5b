"""``splitarrow demo`` and ``splitarrow bench``, in small."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.cli import PATIENCE, Run, Start, read
from splitarrow.benchmarks.datasets import TRIP_SCHEMA, generate_trips


@pytest.fixture
def temporary(tmp_path: Path) -> dict[str, str]:
    """An environment whose temporary folder is `tmp_path`/tmp."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp")}


@pytest.mark.slow
def test_the_demonstration(run_process: Run, temporary: dict[str, str], tmp_path: Path) -> None:
    arguments = ("--rows", 100_000, "--repeat", 1, "--keep", "kept")
    done = run_process("demo", *arguments, env=temporary)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "100,000 trips, 17 columns, 1,700,000 values" in done.stdout
    assert re.search(r"^serve +process \d+: tcp://127.0.0.1:\d+\?want_data=", done.stdout, re.M)
    assert "100,000 rows, schema and every value equal to the file" in done.stdout
    figures = r" +\d+\.\d\d +\d+\.\d +.*s +\d+\.\d\d$"
    assert re.search(rf"^splitarrow over TCP{figures}", done.stdout, re.MULTILINE)
    assert re.search(rf"^Arrow Flight \(pyarrow, C\+\+\){figures}", done.stdout, re.MULTILINE)
    assert read(tmp_path / "kept" / "trips.arrow").num_rows == 100_000
    assert os.listdir(tmp_path / "kept") == ["trips.arrow"]
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.slow
def test_an_interrupt_ends_it_and_all_it_started(
    start: Start, temporary: dict[str, str], tmp_path: Path
) -> None:
    process = start("demo", "--rows", 100_000, "--repeat", 100_000, env=temporary)
    daemon = 0
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serve"):
            daemon = int(line.split()[2].rstrip(":"))
        if line.startswith("timing"):
            break
    os.kill(daemon, 0)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)
    assert os.listdir(tmp_path / "tmp") == []


def test_no_room_for_the_table(run_process: Run, temporary: dict[str, str]) -> None:
    done = run_process("demo", "--rows", 10**15, env=temporary)
    assert done.returncode == 1
    assert done.stderr.startswith("splitarrow: error: ")
    assert " are free" in done.stderr


def test_the_trips_are_what_they_claim_to_be() -> None:
    batches = list(generate_trips(70_000))
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    assert table.schema == TRIP_SCHEMA
    assert table.num_rows == 70_000
    assert table["trip_id"].to_pylist() == list(range(70_000))
    assert table.sort_by("pickup_at")["trip_id"].equals(table["trip_id"])
    assert 0 < table["passengers"].null_count < 7_000
    assert 0 < table["tip"].null_count < 70_000
    assert table.equals(pa.Table.from_batches(generate_trips(70_000)))


@pytest.mark.slow
def test_a_benchmark(run_process: Run, temporary: dict[str, str], tmp_path: Path) -> None:
    chosen = ("--sizes", "64KiB", "--total", "1MiB", "--backends", "splitarrow-tcp, raw")
    done = run_process(
        "bench", *chosen, "--clients", 1, "--repeat", 1, "--json", "-", env=temporary
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    results = json.loads(done.stdout)["results"]
    assert [(result["consume"], result["backend"]) for result in results] == [
        ("count", "splitarrow-tcp"),
        ("count", "raw"),
        ("sum", "splitarrow-tcp"),
        ("sum", "raw"),
    ]
    assert os.listdir(tmp_path / "tmp") == []


def test_the_backends_are_listed(run: Run) -> None:
    done = run("bench", "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()][:1] == ["splitarrow-tcp"]
