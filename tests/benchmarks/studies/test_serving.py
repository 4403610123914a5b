"""The study of many files, readers and reads, at a small size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from splitarrow.benchmarks.studies.serving import (
    measure_files,
    measure_kept,
    measure_reads,
    measure_waiting,
    write_folder,
)

from ...helpers.files import write_file


@pytest.mark.slow
def test_starting_and_listing_are_timed(tmp_path: Path) -> None:
    write_folder(tmp_path / "files", 20)
    found = measure_files(tmp_path / "files", 1)
    assert {case: len(durations) for case, durations in found.items()} == {
        "ready": 1,
        "ls": 1,
        "one file": 1,
        "imports": 1,
    }
    assert all(each.wall > 0 and each.used > 0 for (each,) in found.values())
