"""Daemons with control planes on real ports, in threads of this process."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.config import load_settings
from splitarrow.server.control.plane import ControlPlane
from splitarrow.server.control.settings import ControlSettings
from splitarrow.server.daemon import Daemon

SHARDS = 7
SHARD_ROWS = 2000


@dataclass
class Running:
    """A daemon with a control plane that serve."""

    daemon: Daemon
    plane: ControlPlane
    portal: BlockingPortal

    @property
    def uri(self) -> str:
        assert self.plane.uri is not None
        return self.plane.uri.address

    def drain(self) -> None:
        self.portal.call(self.daemon.drain)


@contextmanager
def running(
    datasets: Mapping[str, Any],
    *,
    control: str = "grpc://127.0.0.1:0",
    listen: tuple[str, ...] = ("tcp://127.0.0.1:0",),
    guard: Any = None,
    office: Any = None,
    **settings: Any,
) -> Generator[Running]:
    """Serve, and drain at the end."""
    catalog = Catalog(datasets)
    daemon = Daemon(catalog, load_settings(listen=listen), office=office)
    plane = ControlPlane(daemon, guard, office, ControlSettings(control=control, **settings), None)

    async def serve(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await plane.bind()
        daemon.bind()
        async with anyio.create_task_group() as group:
            await group.start(daemon.run)
            await group.start(plane.run)
            task_status.started()

    with ExitStack() as stack:
        stack.callback(catalog.close)
        portal = stack.enter_context(start_blocking_portal())
        done, _ = portal.start_task(serve)
        served = Running(daemon, plane, portal)
        stack.callback(done.result, timeout=20)
        stack.callback(served.drain)
        yield served


def write_file(path: Path, table: pa.Table) -> Path:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """A table in many batches."""
    rows = SHARDS * SHARD_ROWS
    whole = pa.table({"n": range(rows), "text": [f"row {n}" for n in range(rows)]})
    return pa.Table.from_batches(whole.to_batches(250), whole.schema)


def write_shards(folder: Path, table: pa.Table) -> Path:
    folder.mkdir()
    for index in range(SHARDS):
        part = table.slice(index * SHARD_ROWS, SHARD_ROWS)
        write_file(folder / f"part-{index}.arrow", part)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> Path:
    """The table as files of some rows each."""
    return write_shards(tmp_path_factory.mktemp("data") / "many", table)


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, folder: Path
) -> Iterator[Running]:
    """What most tests read from."""
    uploads = tmp_path_factory.mktemp("uploads")
    with running({"table": table, "many": folder}, writable=uploads) as served:
        yield served
