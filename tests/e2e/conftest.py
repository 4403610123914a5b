"""Real daemon processes, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class DaemonProcess:
    """A running ``splitarrow serve``."""

    def __init__(self, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "log.txt"
        command = [sys.executable, "-m", "splitarrow", "serve", *arguments]
        if "--ready-file" not in arguments:
            command += ["--ready-file", str(self.ready_file)]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        self.ready: dict[str, Any] = {}

    def wait_ready(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not self.ready_file.exists():
            assert self.process.poll() is None, f"the daemon ended: {self.log()}"
            assert time.monotonic() < deadline, f"the daemon is not ready: {self.log()}"
            time.sleep(0.01)
        self.ready = json.loads(self.ready_file.read_text())

    def uri(self, name: str, scheme: str = "tcp") -> str:
        return self.ready["datasets"][name][scheme]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Start daemons; those that still run at the end are killed."""
    running: list[DaemonProcess] = []

    def start(*arguments: str, wait: bool = True, **environment: str) -> DaemonProcess:
        folder = tmp_path / f"daemon-{len(running)}"
        folder.mkdir()
        started = DaemonProcess(folder, list(arguments), environment)
        running.append(started)
        if wait:
            started.wait_ready()
        return started

    yield start
    for each in running:
        each.kill()
