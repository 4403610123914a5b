"""Daemon processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from splitarrow.testing import Daemon

StartDaemon = Callable[..., Daemon]
"""Starts a daemon with the arguments of `Daemon`: `daemon({"name": path}, **options)`."""


def kill(daemon: Daemon) -> None:
    """Kill a daemon if it runs, even one that SIGSTOP has stopped, and close it."""
    if daemon.is_running:
        daemon.kill()
    daemon.close()


@pytest.fixture
def daemon() -> Iterator[StartDaemon]:
    """Start daemons; kill those that still run at the end of the test."""
    started: list[Daemon] = []

    def start(datasets: Mapping[str, str | Path] | None = None, **options: Any) -> Daemon:
        new = Daemon(datasets, **options)
        started.append(new)
        new.start()
        return new

    yield start
    for each in started:
        kill(each)
