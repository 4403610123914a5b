"""A pool changes the settings and datasets of all its workers, also of those that start later."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.errors import RemoteError
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.config import load_settings
from splitarrow.server.config.settings import Settings
from splitarrow.server.daemon import Daemon
from splitarrow.server.usage import UsageTable
from splitarrow.server.worker_process import READY, WorkerLink, _PreparedChange, _respond  # pyright: ignore[reportPrivateUsage]
from splitarrow.server.workers import WorkerPool

CONTEXT = multiprocessing.get_context("spawn")


def make_daemon(stack: ExitStack, settings: Settings, *, follow_symlinks: bool = True) -> Daemon:
    catalog = stack.enter_context(Catalog(settings.datasets, follow_symlinks=follow_symlinks))
    daemon = Daemon(catalog, settings)
    stack.callback(daemon.access.close)
    return daemon


class Worker:
    """A worker on a thread of this process, which serves nobody."""

    def __init__(self, daemon: Daemon) -> None:
        self.catalog = daemon.catalog
        self._daemon = daemon
        ours, self._theirs = CONTEXT.Pipe()
        self.link = WorkerLink("worker", ours)
        self._thread = threading.Thread(target=anyio.run, args=(self._run,))
        self._thread.start()

    async def _run(self) -> None:
        change = _PreparedChange()
        self._theirs.send(READY)
        with self._theirs, suppress(EOFError):
            while True:
                request = await anyio.to_thread.run_sync(self._theirs.recv)
                self._theirs.send(await _respond(self._daemon, change, request))

    def close(self) -> None:
        self.link.close()
        self._thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = write_file(tmp_path / "first.arrow", pa.table({"n": [1]}))
    return load_settings(datasets={"first": str(path)}, listen=("tcp://127.0.0.1:0",), workers=2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pool(stack: ExitStack, settings: Settings) -> Any:
    """A pool that has not started its workers."""
    return WorkerPool(make_daemon(stack, settings), {}, UsageTable(settings.workers + 1))


def test_a_worker_that_starts_later_has_the_changes(
    pool: Any, settings: Settings, tmp_path: Path
) -> None:
    path = str(tmp_path / "new.arrow")
    pool.replicate({"new": path}, ())  # the catalog of the parent has it only afterwards
    assert pool._list_uploads() == {"new": path}
    pool.replicate({}, ("new",))
    assert pool._list_uploads() == {}
    pool.reload(settings.model_copy(update={"stall_seconds": 5.0}))
    assert pool._settings.stall_seconds == 5.0


def test_workers_change_their_datasets_together_or_not_at_all(
    pool: Any, stack: ExitStack, settings: Settings, tmp_path: Path
) -> None:
    workers = [
        stack.enter_context(closing(Worker(make_daemon(stack, settings, follow_symlinks=follows))))
        for follows in (True, False)
    ]
    pool._workers = {CONTEXT.Process(): worker.link for worker in workers}
    folder = tmp_path / "new"
    write_file(folder / "new.arrow", pa.table({"n": [1, 2]}))
    changed = settings.model_copy(update={"datasets": {"new": str(folder)}})
    link = folder / "link.arrow"
    link.symlink_to(tmp_path / "first.arrow")  # which leads out of the folder
    with pytest.raises(RemoteError, match=r"a worker cannot serve the dataset: .*link\.arrow"):
        pool.replicate({"new": folder}, ())
    with pytest.raises(RemoteError, match=r"a worker cannot reload: .*link\.arrow"):
        pool.reload(changed)
    assert [worker.catalog.names() for worker in workers] == [["first"]] * 2
    assert pool._list_uploads() == {}
    assert pool._settings.datasets == settings.datasets
    link.unlink()
    pool.replicate({"new": folder}, ())
    assert [worker.catalog.names() for worker in workers] == [["first", "new"]] * 2
    pool.reload(changed)
    assert [worker.catalog.names() for worker in workers] == [["new"]] * 2
