"""The example runs as it is, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "taxi_pipeline.py"


@pytest.mark.timeout(280)
def test_the_taxi_pipeline_runs(tmp_path):
    command = [sys.executable, EXAMPLE, "--rows", "4000", "--epochs", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert found["trips-train"] + found["trips-validation"] == pytest.approx(4000, abs=40)
    assert found["rows"] == found["trips-validation"] > 0
    assert found["zones"] == 40
    assert found["error"] < 2
