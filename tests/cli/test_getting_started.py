"""The commands of the page Getting started run as they are typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq

import splitarrow
from helpers.cli import Run
from helpers.package import ROOT
from splitarrow.cli.demo_table import write_trips

PAGE = (ROOT / "docs" / "getting-started.md").read_text()
SERVED = "grpc://127.0.0.1:8815"


def test_the_commands_that_read(run: Run, tmp_path: Path) -> None:
    write_trips(tmp_path / "trips.arrow", 5000)
    commands = re.findall(r"^\$ splitarrow ((?:ls|fetch) .+)$", PAGE, re.MULTILINE)
    assert len(commands) >= 4
    with splitarrow.serve(
        {"trips": tmp_path / "trips.arrow"}, control=f"{SERVED[:-5]}:0"
    ) as server:
        for command in commands:
            done = run(*shlex.split(command.replace(SERVED, server.control_uri or "")))
            assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "far.parquet")["distance_km"].to_numpy().min() > 20
    assert len((tmp_path / "tips.csv").read_text().splitlines()) == 101


def test_the_demo_names_the_command_of_the_page() -> None:
    assert f"splitarrow serve data/trips.arrow --control {SERVED}" in PAGE
    assert "--control grpc://127.0.0.1:8815" in (ROOT / "cli" / "demo.py").read_text()
