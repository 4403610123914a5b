"""Servers of shared memory: in this process, and as processes that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import splitarrow

Serve = Callable[..., splitarrow.Server]
"""Serves datasets over a Unix socket until the test ends: `serve({"name": source}, **settings)`."""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers in this process."""
    with ExitStack() as running:
        count = 0

        def start(datasets: dict[str, Any], **settings: Any) -> splitarrow.Server:
            nonlocal count
            count += 1
            listen = [f"shm://{tmp_path}/{count}.sock"]
            return running.enter_context(splitarrow.serve(datasets, listen=listen, **settings))

        yield start


class Program:
    """A Python program that takes lines and answers with lines."""

    def __init__(self, source: str, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """Return the next line that it prints; an empty one if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, line: str = "") -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Return its exit status; a negative one is a signal."""
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with self.process:
            pass


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Start programs; those that still run at the end are killed."""
    running: list[Program] = []

    def start(source: str, *arguments: str) -> Program:
        running.append(Program(source, list(arguments)))
        return running[-1]

    yield start
    for each in running:
        each.close()


class DaemonProcess:
    """A running ``splitarrow serve`` on a Unix socket."""

    def __init__(self, folder: Path, socket: Path, datasets: list[str]) -> None:
        self._ready_file = folder / "ready.json"
        self._log_file = folder / "log.txt"
        self._ready_file.unlink(missing_ok=True)
        arguments = ["--listen", f"shm://{socket}", "--ready-file", str(self._ready_file)]
        with self._log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "splitarrow", "serve", *datasets, *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "SPLITARROW_LOG_FORMAT": "json"},
            )
        deadline = time.monotonic() + 30
        while not self._ready_file.exists():
            assert self.process.poll() is None, f"the daemon ended: {self.log()}"
            assert time.monotonic() < deadline, f"the daemon is not ready: {self.log()}"
            time.sleep(0.01)
        self.ready: dict[str, Any] = json.loads(self._ready_file.read_text())

    def uri(self, name: str) -> str:
        return self.ready["datasets"][name]["shm"]

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons on a socket; those that still run at the end are killed."""
    running: list[DaemonProcess] = []

    def start(socket: Path, **datasets: Path) -> DaemonProcess:
        folder = tmp_path / f"daemon-{len(running)}"
        folder.mkdir()
        given = [f"{name}={path}" for name, path in datasets.items()]
        running.append(DaemonProcess(folder, socket, given))
        return running[-1]

    yield start
    for each in running:
        each.kill()
