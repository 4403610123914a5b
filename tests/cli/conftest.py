"""Commands, a daemon that all tests of the command line share, and relays to it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from helpers.cli import (
    COMMAND,
    PATIENCE,
    REPLACED,
    UNMERGEABLE,
    Relay,
    Run,
    Served,
    Start,
    make_table,
)
from helpers.files import write_file, write_stream
from helpers.signals import default_dispositions
from splitarrow.cli.app import run as run_command
from splitarrow.testing import Daemon


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, in the folder `tmp_path`."""

    def run(
        *arguments: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        given = [*map(str, arguments)]
        with (
            contextlib.chdir(tmp_path),
            mock.patch.dict(os.environ, env or {}, clear=env is not None),
            restored_logger(),
        ):
            try:
                status = run_command(given)
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 0
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(given, status, shown.out, shown.err)

    return run


@contextlib.contextmanager
def restored_logger() -> Generator[None]:
    """Restore the logger that ``serve`` configures."""
    logger = logging.getLogger("splitarrow")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def run_process(tmp_path: Path) -> Run:
    """Run a command in a process of its own, in the folder `tmp_path`."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
        settings |= {"timeout": PATIENCE, **options}
        return subprocess.run([*COMMAND, *map(str, arguments)], **settings)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in `tmp_path`; those that still run at the end are killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        settings: dict[str, Any] = {"text": True, "cwd": tmp_path}
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with default_dispositions():
            running.append(subprocess.Popen([*COMMAND, *map(str, arguments)], **settings))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """What is served as `table`."""
    return make_table()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> Iterator[Served]:
    """Start the daemon."""
    folder = tmp_path_factory.mktemp("served")
    write_file(folder / "table.arrow", table)
    write_file(folder / "empty.arrow", table.schema.empty_table())
    write_stream(folder / "replaced.arrows", REPLACED)
    write_stream(folder / "unmergeable.arrows", UNMERGEABLE)
    interval = pa.record_batch({"span": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    write_stream(folder / "interval.arrows", [interval])
    listen = [f"tcp://127.0.0.1:0{stream}" for stream in ("", "?stream=metadata", "?stream=body")]
    with Daemon({path.stem: path for path in sorted(folder.iterdir())}, listen=listen) as daemon:
        yield Served(daemon.ready)


@pytest.fixture
def relay(served: Served) -> Iterator[Callable[..., int]]:
    """Return the port of a relay that cuts the answer, or goes silent, after `limit` bytes."""
    relays: list[Relay] = []

    def relay(limit: int, *, cut: bool) -> int:
        relays.append(Relay(served.port, limit, cut))
        return relays[-1].port

    yield relay
    for each in relays:
        each.close()
