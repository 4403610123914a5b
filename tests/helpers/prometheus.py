"""A real Prometheus."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from helpers.service_manager import PATIENCE
from helpers.waiting import wait_until

_READY = "Server is ready to receive web requests"
_ADDRESS = re.compile(r'msg="Listening on" address=(\S+)')


class Prometheus:
    """A process of Prometheus, at a free port.

    Parameters
    ----------
    configuration : Path
        Its configuration.
    folder : Path
        The folder for its data and its log.
    """

    def __init__(self, configuration: Path, folder: Path) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("no Prometheus: Debian has it in the package prometheus")
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={folder / 'prometheus'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: _READY in self.log or not self.is_running, "Prometheus")
        found = _ADDRESS.search(self.log)
        assert found is not None, self.log
        self._uri = f"http://{found[1]}"

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response of its API."""
        uri = f"{self._uri}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(uri, timeout=PATIENCE) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now."""
        return self.get("query", query=expression)["result"]

    def value(self, expression: str) -> float:
        """Return the single value of an expression; NaN if it has none or several."""
        results = self.query(expression)
        return float(results[0]["value"][1]) if len(results) == 1 else math.nan

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(PATIENCE)
