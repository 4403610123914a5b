"""Control planes on real ports, in a thread of this process."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc
import pyarrow as pa
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyarrow import flight

from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.config import load_settings
from splitarrow.server.control.plane import ControlPlane
from splitarrow.server.control.settings import ControlSettings
from splitarrow.server.daemon import Daemon


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

    @property
    def port(self) -> int:
        assert self.plane.uri is not None
        assert self.plane.uri.port is not None
        return self.plane.uri.port

    def drain(self) -> None:
        self.portal.call(self.daemon.drain)

    def cut(self) -> None:
        self.portal.call(self.daemon.cut)

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def client(self, **options: Any) -> Any:
        """A stock client; its stubs lag behind what it can do."""
        return flight.FlightClient(self.uri, **options)


@contextmanager
def running(
    datasets: Mapping[str, Any] | None = None,
    *,
    control: str = "grpc://127.0.0.1:0",
    listen: tuple[str, ...] = ("tcp://127.0.0.1:0",),
    guard: Any = None,
    office: Any = None,
    reload: Any = None,
    daemon_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Generator[Running]:
    """Serve, and drain at the end."""
    catalog = Catalog(datasets or {})
    daemon = Daemon(catalog, load_settings(listen=listen, **(daemon_settings or {})))
    plane = ControlPlane(
        daemon, guard, office, ControlSettings(control=control, **settings), reload
    )

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


def write_file(path: Path, table: pa.Table, **options: Any) -> Path:
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as new:
        new.write_table(table)
    return path


def write_stream(path: Path, table: pa.Table, **options: Any) -> Path:
    with pa.ipc.new_stream(
        str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as new:
        new.write_table(table)
    return path


def bearer(token: str) -> flight.FlightCallOptions:
    headers: Any = [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=headers)
