"""A server in this process, which most tests read from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from helpers.client_server import SHARD_ROWS, SHARDS, split
from helpers.control_plane import Running, running
from helpers.files import write_shards


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """A table of many batches."""
    rows = SHARDS * SHARD_ROWS
    whole = pa.table({"n": range(rows), "text": [f"row {n}" for n in range(rows)]})
    return pa.Table.from_batches(whole.to_batches(250), whole.schema)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> Path:
    """The table, cut into several files."""
    folder = tmp_path_factory.mktemp("data") / "many"
    write_shards(folder, split(table))
    return folder


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, folder: Path
) -> Iterator[Running]:
    """The server of most tests."""
    uploads = tmp_path_factory.mktemp("uploads")
    with running({"table": table, "many": folder}, writable=uploads) as served:
        yield served
