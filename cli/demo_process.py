"""A daemon of its own for the demonstration."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import SplitArrowError

_START_SECONDS = 30.0
_END_SECONDS = 5.0
_POLL_SECONDS = 0.02


class DaemonProcess:
    """``splitarrow serve`` in a process of its own; a context manager that ends it.

    Parameters
    ----------
    name : str
        The dataset's name.
    path : Path
        Where the data lies.
    folder : Path
        A folder for the ready file.

    Attributes
    ----------
    pid : int
        The process's number.
    uri, shared_uri : str
        The complete URIs of the dataset over TCP and over shared memory, inside the context.

    Raises
    ------
    SplitArrowError
        If it does not begin to serve.
    """

    def __init__(self, name: str, path: Path, folder: Path) -> None:
        self._name = name
        self._ready = folder / "ready.json"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        command = [sys.executable, "-P", "-m", "splitarrow", "serve", f"{name}={path}"]
        command += ["--listen", "tcp://127.0.0.1:0", "--listen", "shm://"]
        command += ["--ready-file", str(self._ready)]
        # A session of its own: an interrupt from the terminal is this process's to handle.
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._log, start_new_session=True
        )
        self.pid = self._process.pid
        self.uri = self.shared_uri = ""

    def __enter__(self) -> DaemonProcess:
        try:
            uris = self._wait()["datasets"][self._name]
            self.uri, self.shared_uri = uris["tcp"], uris["shm"]
        except BaseException:
            self._end()
            raise
        return self

    def _wait(self) -> dict[str, Any]:
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self._log.seek(0)
                wrote = self._log.read().decode(errors="replace").strip()
                how = "took too long to start" if status is None else f"ended with {status}"
                raise SplitArrowError(f"the daemon {how}; it wrote: {wrote or 'nothing'}")
            time.sleep(_POLL_SECONDS)
        return json.loads(self._ready.read_text())

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._log.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
