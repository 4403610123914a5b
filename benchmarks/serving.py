"""A daemon as a process of its own, for the demonstration and for benchmarks."""

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
from typing import Any

from ..errors import SplitArrowError

_PATIENCE = 60.0
_POLL_SECONDS = 0.02
_TAIL = 2000


class Daemon:
    """A daemon that serves over TCP, shared memory and a control plane: a context that ends it.

    Parameters
    ----------
    datasets : mapping
        Names and paths.
    arguments : str
        Further arguments of ``splitarrow serve``.
    control : str
        Where its control plane listens.

    Raises
    ------
    SplitArrowError
        If it does not start.
    """

    def __init__(
        self,
        datasets: Mapping[str, Path],
        *arguments: str,
        control: str = "grpc://127.0.0.1:0",
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="splitarrow-daemon-")
        ready = Path(self._folder.name, "ready.json")
        command = [sys.executable, "-P", "-m", "splitarrow", "serve"]
        command += [f"{name}={path}" for name, path in datasets.items()]
        command += ["--listen", "tcp://127.0.0.1:0", "--listen", "shm://"]
        command += ["--control", control]
        command += ["--ready-file", str(ready), *arguments]
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            # A session of its own: an interrupt from the terminal is this process's to handle.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._told = self._await(ready)
        except BaseException:
            self.close()
            raise

    @property
    def control_uri(self) -> str:
        """The address of the control plane."""
        return str(self._told["control"])

    def uris(self, dataset: str) -> Mapping[str, str]:
        """Return the complete URIs of a dataset, by transport."""
        return self._told["datasets"][dataset]

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def _await(self, ready: Path) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            if ready.is_file() and (text := ready.read_text()).endswith("\n"):
                return json.loads(text)
            if self._process.poll() is not None:
                break
            time.sleep(_POLL_SECONDS)
        status = self._process.poll()
        how = "takes too long to start" if status is None else f"ended with {status}"
        said = self._log.read_text(errors="replace")[-_TAIL:].strip() or "nothing"
        raise SplitArrowError(f"the daemon {how}; it said: {said}")

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
