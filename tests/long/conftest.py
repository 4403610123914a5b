"""Fixtures of the long tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from helpers.batteries import Battery, checksum_of, numbered_batches
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.readers import ReaderPool, reader_pool
from helpers.waiting import wait_until
from splitarrow.client.kept_clients import KEPT_CLIENTS
from splitarrow.testing import Daemon

_REPORT = pytest.StashKey[pytest.TestReport]()
TRANSPORTS = ["tcp", "shm", "ucx", "flight"]

Numbers = tuple[Path, str]
"""A file and the checksum of its rows."""
StartServer = Callable[..., Daemon]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


def _children() -> set[int]:
    multiprocessing.active_children()  # reaps loader workers that PyTorch has stopped waiting for
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


@pytest.fixture(autouse=True)
def battery(request: pytest.FixtureRequest) -> Iterator[Battery]:
    """The size of the test. At the end, nothing of it remains, and its result is written."""
    before = (_children(), len(os.listdir("/proc/self/fd")))
    name = request.node.name.removeprefix("test_").replace("_", " ")
    scale: Any = request.config.getoption("--scale")
    battery = Battery(name, scale)
    yield battery
    report = request.node.stash.get(_REPORT, None)
    outcome = "passed" if report is not None and report.passed else "failed"
    KEPT_CLIENTS.close_idle()
    try:
        wait_until(
            lambda: (_children(), len(os.listdir("/proc/self/fd"))) <= before,
            "the end of all processes and descriptors of the test",
            seconds=10,
        )
    except AssertionError:
        outcome = "failed"
        raise
    finally:
        if (folder := request.config.getoption("--results")) is not None:
            battery.write(folder, outcome)


@pytest.fixture
def readers(battery: Battery) -> Iterator[ReaderPool]:
    """Start readers as processes; those that still run at the end are killed."""
    with reader_pool() as pool:
        yield pool


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[Numbers]:
    """A file of 4,096 batches, 64 MiB in all: neither data nor metadata fit into a socket."""
    batches = numbered_batches(1, 4096, 1024)
    path = write_file(tmp_path / "numbers.arrow", batches)
    yield path, checksum_of(batches)
    path.unlink()


@pytest.fixture
def server(battery: Battery, daemon: StartDaemon, tmp_path: Path) -> StartServer:
    """Start a daemon that listens on every transport."""

    numbers = count(1)

    def start(datasets: dict[str, Path], **settings) -> Daemon:
        socket = f"shm://{tmp_path}/{next(numbers)}.sock"
        listen = ["tcp://127.0.0.1:0", socket, "ucx://127.0.0.1:0"]
        options = {"listen": listen, "control": "grpc://127.0.0.1:0", **settings}
        return daemon(datasets, **options)

    return start
