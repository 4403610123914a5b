"""A service manager that receives notifications, and starts daemons."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


DEPLOY = ROOT / "deploy"


COMMAND = [sys.executable, "-m", "splitarrow"]


PATIENCE = 60.0
"""How long anything may take, in seconds."""


class Manager:
    """A stand-in for systemd: it starts services and receives their notifications."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("")  # an abstract address that the kernel picks
        self.address = "@" + self._socket.getsockname()[1:].decode()
        self._started: list[subprocess.Popen[str]] = []

    def wait_for(self, state: str) -> None:
        """Wait for a notification and ignore others before it.

        It fails if the service that was started last exits before that.
        """
        ended = os.pidfd_open(self._started[-1].pid)
        try:
            while True:
                readable, _, _ = select.select([self._socket, ended], [], [], PATIENCE)
                assert readable, f"received no {state}"
                assert self._socket in readable, self._started[-1].communicate()[1]
                if self._socket.recv(4096).decode() == state:
                    break
        finally:
            os.close(ended)

    def start(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of splitarrow."""
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
