"""A service manager that listens, and the daemons that it starts."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMMAND = [sys.executable, "-m", "splitarrow"]
PATIENCE = 60.0
"""How long anything may take, in seconds."""


class Manager:
    """What systemd is to its services: it starts them, and they tell it how they are."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")  # an abstract address that the kernel picks
        self.address = "@" + self._socket.getsockname()[1:].decode()
        self._started: list[subprocess.Popen[str]] = []

    def wait_for(self, state: str) -> None:
        """Wait until something is told; what is told before is left aside.

        It fails when the one that was started last ends without a word.
        """
        ended = os.pidfd_open(self._started[-1].pid)
        try:
            while True:
                readable, _, _ = select.select([self._socket, ended], [], [], PATIENCE)
                assert readable, f"waited in vain for {state}"
                assert self._socket in readable, self._started[-1].communicate()[1]
                if self._socket.recv(4096).decode() == state:
                    break
        finally:
            os.close(ended)

    def start(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of ours."""
        variables = {**os.environ, "NOTIFY_SOCKET": self.address, **(environment or {})}
        self._started.append(
            subprocess.Popen(
                [*COMMAND, *arguments], env=variables, stderr=subprocess.PIPE, text=True
            )
        )
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            with process:  # closes its pipe, and waits
                process.kill()
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager()
    yield manager
    manager.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a dataset."""
    folder = tmp_path / "data"
    folder.mkdir()
    table = pa.table({"number": range(1000)})
    with (
        pa.OSFile(str(folder / "flights.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return folder
