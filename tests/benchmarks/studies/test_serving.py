"""The study of many files, readers and reads, at a small size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.benchmarks.studies.serving import (
    measure_files,
    measure_kept,
    measure_reads,
    write_folder,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file with the rows of a read."""
    return write_file(tmp_path / "data.arrow", pa.table({"n": range(1280)}))


@pytest.mark.slow
@pytest.mark.long
def test_starting_and_listing_are_timed(tmp_path: Path) -> None:
    write_folder(tmp_path / "files", 20)
    found = measure_files(tmp_path / "files", 1)
    assert list(found) == ["ready", "ls", "one file", "imports"]
    for (duration,) in found.values():
        assert duration.wall > 0
        assert duration.used > 0


@pytest.mark.slow
def test_the_memory_of_a_kept_connection_is_bounded(data: Path) -> None:
    assert -(64 << 10) < measure_kept(data, 100) < 256 << 10


@pytest.mark.slow
def test_each_client_reads_in_turn(data: Path) -> None:
    found = measure_reads(data, rate=50, seconds=0.4, threads=2, rounds=1)
    assert list(found) == ["splitarrow", "DoGet of the daemon", "pyarrow.flight"]
    for (latency,) in found.values():
        assert 0 < latency.middle <= latency.tail
