"""A service manager that listens, and the daemons that it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.service_manager import Manager


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager()
    yield manager
    manager.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a dataset."""
    folder = tmp_path / "data"
    folder.mkdir()
    table = pa.table({"number": range(1000)})
    with (
        pa.OSFile(str(folder / "flights.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return folder
