"""Daemon processes."""

from __future__ import annotations

import random
import socket
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


def find_free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def find_free_network() -> str:
    """Return the first three bytes of addresses of the loopback interface that nothing uses."""
    while True:
        network = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"
        with socket.socket() as sock:
            try:
                sock.bind((f"{network}.1", 8816))
            except OSError:
                continue
        return network
