"""`splitarrow loader audit` on states that are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splitarrow.cli.app import run

STAGE: dict[str, Any] = {
    "world_size": 2,
    "batch_rows": 10,
    "interleave": 1,
    "even": "drop",
    "steps": 3,
}
STATE: dict[str, Any] = {
    "format": 1,
    "dataset": "trips",
    "version": "7",
    "layout": "a",
    "seed": 0,
    "shuffle": False,
    "rows": 101,
    "epoch": 4,
    "stages": [STAGE],
}


def run_audit(tmp_path: Path, *states: Any) -> int:
    paths: list[str] = []
    for number, state in enumerate(states):
        paths.append(str(tmp_path / f"{number}.json"))
        Path(paths[-1]).write_text(json.dumps(state))
    return run(["loader", "audit", *paths])


def test_the_table_counts_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit(tmp_path, STATE) == 0
    heading, row = capsys.readouterr().out.split("\n")[:2]
    assert heading.split() == [
        "dataset",
        "epoch",
        "rows",
        "once",
        "repeated",
        "skipped",
        "errors",
        "remaining",
    ]
    assert row.split() == ["trips", "4", "101", "60", "0", "0", "0", "41"]


def test_rows_may_be_repeated_only_where_the_dataset_states_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    padded = {**STATE, "stages": [{**STAGE, "even": "pad", "steps": 9}]}
    assert run_audit(tmp_path, padded) == 0
    assert capsys.readouterr().out.split()[-7:] == ["4", "101", "100", "1", "0", "0", "0"]


def test_errors_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_audit(tmp_path, {"step": 1}) == 1
    assert "0.json has no state of a dataset" in " ".join(capsys.readouterr().err.split())
    assert run(["loader", "audit", str(tmp_path / "missing.json")]) != 0
    assert "missing.json" in capsys.readouterr().err
