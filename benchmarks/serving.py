"""A daemon as a process of its own, for benchmarks that fork: gRPC does not outlive a fork."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from ..errors import SplitArrowError

_PATIENCE = 60.0
_POLL_SECONDS = 0.02


class Daemon:
    """A daemon with a control plane on this machine: a context manager that ends it.

    Parameters
    ----------
    datasets : mapping
        Names and paths.
    arguments : str
        Further arguments of ``splitarrow serve``.

    Raises
    ------
    SplitArrowError
        If it does not start.
    """

    def __init__(self, datasets: Mapping[str, Path], *arguments: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="splitarrow-daemon-")
        ready = Path(self._folder.name, "ready.json")
        command = [sys.executable, "-P", "-m", "splitarrow", "serve"]
        command += [f"{name}={path}" for name, path in datasets.items()]
        command += ["--listen", "tcp://127.0.0.1:0", "--control", "grpc://127.0.0.1:0"]
        command += ["--ready-file", str(ready), *arguments]
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._told = self._await(ready)
        except BaseException:
            self.close()
            raise

    @property
    def control_uri(self) -> str:
        """The address of the control plane."""
        return str(self._told["control"])

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def _await(self, ready: Path) -> dict[str, object]:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if ready.is_file() and (text := ready.read_text()).endswith("\n"):
                return json.loads(text)
            if self._process.poll() is not None:
                break
            time.sleep(_POLL_SECONDS)
        said = self._log.read_text(errors="replace")[-2000:]
        raise SplitArrowError(f"the daemon does not start: {said}")

    def close(self) -> None:
        """End it. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
