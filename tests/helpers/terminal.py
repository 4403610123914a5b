"""Commands that run in a shell at a terminal, as a person types them."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from helpers.signals import default_dispositions
from helpers.waiting import PATIENCE, wait_until

_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalCommand:
    """A command of the shell at a terminal of 100 columns that shows plain text."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.command = command
        self._master, slave = pty.openpty()
        self._pieces: list[bytes] = []
        try:
            with default_dispositions():
                self._process = subprocess.Popen(
                    ["bash", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=slave,
                    stderr=slave,
                    cwd=folder,
                    env={**environment, "TERM": "dumb", "COLUMNS": "100", "LINES": "50"},
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._master)
            raise
        finally:
            os.close(slave)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # The terminal reports an error once its last user has gone.
        with suppress(OSError):
            while piece := os.read(self._master, 1 << 16):
                self._pieces.append(piece)

    @property
    def output(self) -> str:
        """What the terminal has shown so far."""
        text = b"".join(self._pieces).decode(errors="replace").replace("\r\n", "\n")
        return _CONTROL_SEQUENCE.sub("", text)

    def wait(self, seconds: float) -> int:
        """Wait until the command ends, and return its exit status."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"{self.command!r} did not end:\n{self.output}") from None
        self._thread.join(PATIENCE)
        return status

    def wait_for(self, text: str, seconds: float = PATIENCE) -> bool:
        """Wait until the terminal shows a text; return whether it did before the command ended."""
        wait_until(
            lambda: text in self.output or self._process.poll() is not None, repr(text), seconds
        )
        if self._process.poll() is not None:
            self._thread.join(PATIENCE)
        return text in self.output

    def stop(self) -> None:
        """End the command and whatever it started. Idempotent."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
                break
        self._thread.join(PATIENCE)

    def close(self) -> None:
        """Stop the command, and close the terminal."""
        self.stop()
        os.close(self._master)


class Shell:
    """A person who types commands in a folder. `splitarrow` and `python` are the installed ones."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, seconds: float = PATIENCE
    ) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **(environment or {}),
        }
        self._seconds = seconds
        self._servers: list[TerminalCommand] = []

    def run(self, command: str, status: int = 0) -> str:
        """Run a command, and return what the terminal shows, with single spaces."""
        with closing(TerminalCommand(command, self.folder, self.environment)) as running:
            found = running.wait(self._seconds)
        assert found == status, f"{command}\nexit status {found}\n{running.output}"
        return " ".join(running.output.split())

    def run_python(self, code: str, status: int = 0) -> str:
        """Run a program from a file, and return what the terminal shows, with single spaces."""
        (self.folder / "program.py").write_text(code)
        return self.run("python program.py", status)

    def serve(self, command: str) -> str:
        """Start a server, and return what the terminal shows once it serves."""
        self._servers.append(TerminalCommand(f"exec {command}", self.folder, self.environment))
        server = self._servers[-1]
        assert server.wait_for("Press Ctrl-C to stop.", self._seconds), (
            f"{command}\n{server.output}"
        )
        return server.output

    def stop_servers(self) -> None:
        """Stop the servers. Idempotent."""
        while self._servers:
            self._servers.pop().close()
