"""The example examples/taxi_pipeline.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from helpers.package import ROOT

EXAMPLE = ROOT / "examples" / "taxi_pipeline.py"
ROWS = 4000


def check(results: dict[str, Any]) -> None:
    assert results["trips-train"] + results["trips-validation"] == pytest.approx(ROWS, abs=40)
    assert results["rows"] == results["trips-validation"] > 0
    assert results["zones"] == 40
    assert results["error"] < 2


def test_the_taxi_pipeline_trains_and_joins(spark, tmp_path):
    spec = importlib.util.spec_from_file_location("taxi_pipeline", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    check(example.run_pipeline(spark, tmp_path, rows=ROWS, epochs=60))


@pytest.mark.long
@pytest.mark.slow
def test_the_taxi_pipeline_runs_as_a_script(tmp_path):
    command = [sys.executable, EXAMPLE, "--rows", str(ROWS), "--epochs", "60"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert process.returncode == 0, process.stderr[-4000:]
    check(json.loads(process.stdout[process.stdout.index("{") :]))
