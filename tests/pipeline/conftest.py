"""One Spark session for all tests, and daemons that are processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.benchmarks.serving import Daemon
from splitarrow.pipeline import session

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.task.maxFailures": "4",
    "spark.sql.session.timeZone": "America/New_York",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session whose tasks are tried again, as on a cluster."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    before = dict(os.environ)
    found = session(
        "splitarrow tests",
        master="local[2,4]",
        settings={**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)},
    )
    try:
        yield found
    finally:
        found.stop()
        gateway: Any = type(found.sparkContext)._gateway
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)
            type(found.sparkContext)._gateway = None
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    """Start daemons: names and paths, and further arguments of ``serve``."""
    with ExitStack() as stack:
        yield lambda datasets, *more: stack.enter_context(Daemon(datasets, *more))


def write_arrow(path: Path, table: pa.Table, rows: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_folder(folder: Path, tables: list[pa.Table]) -> Path:
    for index, table in enumerate(tables):
        write_arrow(folder / f"{index:05}.arrow", table)
    return folder
