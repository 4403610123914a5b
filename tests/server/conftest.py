"""A small table, in memory and as a file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from helpers.files import write_file


@pytest.fixture
def table() -> pa.Table:
    """A small table in three batches."""
    batches = [
        pa.record_batch({"n": range(at, at + 1000), "text": [f"row {at + i}" for i in range(1000)]})
        for at in (0, 1000, 2000)
    ]
    return pa.Table.from_batches(batches)


@pytest.fixture
def arrow_file(tmp_path: Path, table: pa.Table) -> Path:
    """The table as an Arrow file."""
    return write_file(tmp_path / "numbers.arrow", table)
