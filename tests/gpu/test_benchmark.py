"""The benchmark of ``make gpu``, with little data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import cuda

pytestmark = pytest.mark.gpu


def test_every_section_measures(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    ended = cuda.run_program(
        """
        import sys
        from splitarrow.benchmarks.studies import gpu
        if __name__ == "__main__":
            sys.exit(gpu.main(["--quick", "--json", sys.argv[1]]))
        """,
        str(path),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads(path.read_text())
    assert len(rows) == 7
    assert all(row["value"] is not None for row in rows)
