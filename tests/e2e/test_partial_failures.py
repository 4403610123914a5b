"""A change that one of several processes or daemons does not make."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import splitarrow
from helpers.cluster import StartDaemons, join_uris
from helpers.daemons import StartDaemon, kill
from helpers.files import write_file
from helpers.uploads import list_uploads
from helpers.waiting import PATIENCE, wait_until
from splitarrow.errors import ExhaustedError, NotFoundError, RemoteError, SplitArrowError
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("partial_failures")]

WORKERS = 2
OLD, NEW = (pa.table({"n": values}) for values in ([1, 2], [3, 4, 5]))
Contents = dict[str, pa.Table]


@dataclass(frozen=True)
class Server:
    """A daemon with workers, its configuration and its folder for uploads."""

    daemon: Daemon
    client: splitarrow.Client
    folder: Path

    @property
    def uploads(self) -> Path:
        return self.folder / "uploads"

    def find_workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for child in psutil.Process(self.daemon.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "spawn_main" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def configure(self, **tables: pa.Table) -> None:
        """Write a configuration with tables as datasets."""
        lines = [f"workers = {WORKERS}", "[datasets]"]
        for name, table in tables.items():
            path = write_file(self.folder / f"{name}-{table.num_rows}.arrow", table)
            lines.append(f'{name} = "{path}"')
        (self.folder / "splitarrow.toml").write_text("\n".join(lines))

    def read_everywhere(self, *names: str) -> list[Contents]:
        """Return what the first process serves under some names, and what each worker does."""
        found = [_read_all(names, lambda name: self.client.read(name, transport="flight"))]
        workers = self.find_workers()
        for worker in workers:
            others = [other for other in workers if other != worker]
            with _stopped(others):
                found.append(_read_all(names, self._open))
        return found

    def _open(self, name: str) -> splitarrow.Stream | splitarrow.DatasetStream:
        """Open a dataset at a worker, which may have to start first."""
        uri = f"{self.daemon.listen[0]}&ticket={name}"
        return splitarrow.open(uri, connect_timeout=PATIENCE, stall_timeout=4 * PATIENCE)


def _read_all(names: tuple[str, ...], open_stream: Callable[[str], Any]) -> Contents:
    found: Contents = {}
    for name in names:
        try:
            with open_stream(name) as stream:
                found[name] = stream.read_all()
        except NotFoundError:
            continue
    return found


def suspend(worker: psutil.Process) -> None:
    """Stop a process, and return when it can accept no connection any more."""
    worker.suspend()
    wait_until(lambda: worker.status() == psutil.STATUS_STOPPED, "the stop of a worker")


@contextmanager
def _stopped(workers: list[psutil.Process]) -> Generator[None]:
    for worker in workers:
        suspend(worker)
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A daemon whose datasets the tests change, each under names of its own."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "splitarrow.toml").write_text(f"workers = {WORKERS}\n")
    daemon = Daemon(
        control="grpc://127.0.0.1:0",
        writable=folder / "uploads",
        arguments=["--config", str(folder / "splitarrow.toml")],
    )
    daemon.start()
    with splitarrow.connect(daemon.control_uri) as client:
        yield Server(daemon, client, folder)
    kill(daemon)


@contextmanager
def refusing(worker: psutil.Process) -> Generator[None]:
    """Let a worker open no file."""
    limits = worker.rlimit(psutil.RLIMIT_NOFILE)
    worker.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        worker.rlimit(psutil.RLIMIT_NOFILE, limits)


def reload(server: Server, **tables: pa.Table) -> None:
    server.configure(**tables)
    server.client.act("reload")


def upload(server: Server, name: str, table: pa.Table) -> None:
    server.client.put(name, table, if_exists="replace")


def publish(server: Server, table: pa.Table) -> None:
    server.client.put_shard("published", table, job="job", ordinal=0)
    server.client.publish("published", job="job", ordinals=[0])


@dataclass(frozen=True)
class Change:
    """A change of what the processes serve."""

    before: Contents
    after: Contents
    make: Callable[[Server], object]
    prepare: Callable[[Server], object] = lambda _: None
    is_refused: bool = True


CHANGES = {
    "reload": Change(
        {"a": OLD, "b": OLD},
        {"a": NEW, "c": NEW},
        lambda server: reload(server, a=NEW, c=NEW),
        lambda server: reload(server, a=OLD, b=OLD),
    ),
    "upload": Change({}, {"put": OLD}, lambda server: upload(server, "put", OLD)),
    "replacement": Change(
        {"replaced": OLD},
        {"replaced": NEW},
        lambda server: upload(server, "replaced", NEW),
        lambda server: upload(server, "replaced", OLD),
    ),
    "drop": Change(
        {"dropped": NEW},
        {},
        lambda server: server.client.drop("dropped"),
        lambda server: upload(server, "dropped", NEW),
        is_refused=False,
    ),
    "publication": Change({}, {"published": NEW}, lambda server: publish(server, NEW)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_all_processes_make_a_change_or_none(server: Server, name: str) -> None:
    change = CHANGES[name]
    change.prepare(server)
    names = tuple({**change.before, **change.after})
    assert server.read_everywhere(*names) == [change.before] * (1 + WORKERS)
    files = sorted(path.read_bytes() for path in server.uploads.glob("*.arrow"))
    with refusing(server.find_workers()[0]):
        if change.is_refused:
            with pytest.raises(RemoteError, match=r"a worker cannot .*open files"):
                change.make(server)
        else:
            change.make(server)
    if change.is_refused:
        assert server.read_everywhere(*names) == [change.before] * (1 + WORKERS)
        assert sorted(path.read_bytes() for path in server.uploads.glob("*.arrow")) == files
        if name == "reload":
            replace_worker(server, kill_worker)
            assert server.read_everywhere(*names) == [change.before] * (1 + WORKERS)
        change.make(server)
    assert server.read_everywhere(*names) == [change.after] * (1 + WORKERS)
    assert not [name for name in list_uploads(server.uploads) if name.startswith(".")]
    if name == "reload":
        replace_worker(server, kill_worker)
        assert server.read_everywhere(*names) == [change.after] * (1 + WORKERS)


def replace_worker(server: Server, end: Callable[[Server, psutil.Process], object]) -> None:
    """End a worker, and wait for its successor."""
    before = server.find_workers()
    end(server, before[0])

    def is_replaced() -> bool:
        workers = server.find_workers()
        return before[0] not in workers and len(workers) == WORKERS

    wait_until(is_replaced, "another worker")


def kill_worker(server: Server, worker: psutil.Process) -> None:
    del server
    worker.kill()


def put_while_stopped(server: Server, worker: psutil.Process) -> None:
    suspend(worker)
    server.client.put("late", OLD)


def test_a_worker_that_hangs_is_replaced_so_that_a_change_returns(server: Server) -> None:
    replace_worker(server, put_while_stopped)
    assert server.read_everywhere("late") == [{"late": OLD}] * (1 + WORKERS)
    assert "worker does not respond; killing it" in server.daemon.log()


def test_staged_shards_count_after_a_restart(daemon: StartDaemon, tmp_path: Path) -> None:
    table = pa.table({"n": range(10_000)})
    server = daemon(control="grpc://127.0.0.1:0", writable=tmp_path / "up", writable_bytes=100_000)
    with splitarrow.connect(server.control_uri) as client:
        client.put_shard("d", table, job="one", ordinal=0)
    server.kill()
    server.start()
    with splitarrow.connect(server.control_uri) as client:
        with pytest.raises(ExhaustedError, match="of 100000 bytes are available"):
            client.put("other", table)
        client.discard("d", "one")
        client.put("other", table)


def test_a_dataset_is_dropped_where_daemons_respond(daemons: StartDaemons) -> None:
    one, two = daemons(2)
    for each in (one, two):
        with splitarrow.connect(each.control_uri) as client:
            client.put("d", OLD)
    with splitarrow.connect(join_uris(one, two)) as cluster:
        two.kill()
        with pytest.raises(SplitArrowError, match="'d' was not dropped at every daemon") as raised:
            cluster.drop("d")
        assert two.control_uri in str(raised.value)
        assert one.control_uri not in str(raised.value)
        with splitarrow.connect(one.control_uri) as client:
            assert client.datasets() == []
    two.start()
    with splitarrow.connect(join_uris(one, two)) as cluster:
        with cluster.read("d") as stream:
            assert stream.read_all() == OLD
        cluster.drop("d")
        assert cluster.datasets() == []
        with pytest.raises(NotFoundError):
            cluster.drop("d")
