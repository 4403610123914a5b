"""Servers on Unix sockets in this process, and programs in other processes."""

from __future__ import annotations

import subprocess
import sys
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
    """Return a function that starts servers in this process."""
    with ExitStack() as running:
        count = 0

        def start(datasets: dict[str, Any], **settings: Any) -> splitarrow.Server:
            nonlocal count
            count += 1
            listen = [f"shm://{tmp_path}/{count}.sock"]
            return running.enter_context(splitarrow.serve(datasets, listen=listen, **settings))

        yield start


class Program:
    """A Python program that is driven by lines on its standard streams."""

    def __init__(self, source: str, arguments: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        """Return the next line that the program prints, or an empty one at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def send_line(self, line: str = "") -> None:
        """Send a line to the program."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Return the exit status; a negative one is a signal number."""
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        with self.process:
            pass


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Return a function that starts programs. They are killed when the test ends."""
    running: list[Program] = []

    def start(source: str, *arguments: str) -> Program:
        running.append(Program(source, list(arguments)))
        return running[-1]

    yield start
    for each in running:
        each.close()
