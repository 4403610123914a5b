"""A stand-in for a node of Kubernetes: it runs the container of a DaemonSet as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from helpers.service_manager import COMMAND, PATIENCE
from helpers.waiting import wait_until

_MOUNTS = re.compile(r"/(etc/splitarrow|run/splitarrow|data|uploads)(?=[/\"]|$)")
_ADDRESS = re.compile(r"0\.0\.0\.0:\d+")


class Pod:
    """The pod of a DaemonSet on one node.

    Paths of the container are those below the folder of the node, and ports are free ones. All
    else is as in the manifests: arguments, variables, probes and the end.

    Parameters
    ----------
    objects : list of dict
        The manifests.
    node : Path
        The root of the node.
    """

    def __init__(self, objects: list[dict[str, Any]], node: Path) -> None:
        (daemons,) = [each for each in objects if each["kind"] == "DaemonSet"]
        (files,) = [each for each in objects if each["kind"] == "ConfigMap"]
        self.spec = daemons["spec"]["template"]["spec"]
        (self._container,) = self.spec["containers"]
        self._node = node
        (volume,) = [each for each in self.spec["volumes"] if "configMap" in each]
        (mount,) = [
            each for each in self._container["volumeMounts"] if each["name"] == volume["name"]
        ]
        folder = Path(self._here(mount["mountPath"]))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files["data"].items():
            (folder / name).write_text(self._here(text))
        self._ready_file = node / "ready.json"
        self._ready_file.unlink(missing_ok=True)
        self._log = (node / "log").open("ab")
        self._process = subprocess.Popen(
            [*COMMAND, *map(self._here, self._container["args"])],
            env={**os.environ, **self._variables(), "SPLITARROW_READY_FILE": str(self._ready_file)},
            stdout=self._log,
            stderr=self._log,
        )

    def _here(self, text: str) -> str:
        return _ADDRESS.sub("127.0.0.1:0", _MOUNTS.sub(rf"{self._node}/\1", text))

    def _variables(self) -> dict[str, str]:
        return {
            each["name"]: self._here(each["value"]) if "value" in each else "127.0.0.1"
            for each in self._container["env"]
        }

    def wait_started(self) -> None:
        """Wait until the startup probe succeeds."""
        wait_until(
            lambda: self._ready_file.exists() or self._process.poll() is not None, "a daemon"
        )
        assert self._process.poll() is None, self.log
        self.ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        wait_until(lambda: self.probe("startup"), "the startup probe")

    def probe(self, name: str) -> bool:
        """Call a probe once, and return whether it succeeds."""
        probe = self._container[f"{name}Probe"]
        get = probe["httpGet"]
        assert get["port"] in {port["name"] for port in self._container["ports"]}
        uri = f"{self.ready['http']}{get['path']}"
        assert uri.partition(":")[0] == get["scheme"].lower()
        context = ssl.create_default_context()
        context.check_hostname = False  # Kubernetes does not check certificates of probes
        context.verify_mode = ssl.CERT_NONE
        try:
            with urllib.request.urlopen(uri, timeout=probe["timeoutSeconds"], context=context):
                return True
        except (urllib.error.URLError, TimeoutError):
            return False

    def run_pre_stop(self) -> None:
        """Run the command before SIGTERM."""
        subprocess.run(self._container["lifecycle"]["preStop"]["exec"]["command"], check=True)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait_ended(self) -> int:
        """Return the exit status. It must come within the grace period."""
        return self._process.wait(min(PATIENCE, self.spec["terminationGracePeriodSeconds"]))

    def send_signal(self, number: signal.Signals) -> None:
        """Send another signal."""
        self._process.send_signal(number)

    @property
    def log(self) -> str:
        """What the daemons of the node have logged."""
        return (self._node / "log").read_text()

    def close(self) -> None:
        """Kill the daemon if it runs. Idempotent."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._log.close()
