"""What Kubernetes does to the daemons of the chart: probes, the end of a pod, and a replacement.

The commands and requests are those of the manifests. The containers are processes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.kubernetes import Pod
from helpers.service_manager import DEPLOY
from helpers.waiting import wait_until
from splitarrow.errors import SplitArrowError

yaml: Any = pytest.importorskip("yaml")

pytestmark = pytest.mark.slow

MANIFESTS = DEPLOY / "kubernetes" / "splitarrow.yaml"
ROWS = 4_000_000

StartPod = Callable[[], Pod]


@pytest.fixture
def start_pod(node: Path) -> Iterator[StartPod]:
    """Start the daemon of the node. The first reads a dataset that no buffer holds."""
    table = pa.table({"x": pa.array(np.arange(ROWS))})
    write_file(node / "data" / "flights.arrow", table, batch_rows=1000)
    objects = list(yaml.safe_load_all(MANIFESTS.read_text()))
    started: list[Pod] = []

    def start() -> Pod:
        started.append(Pod(objects, node))
        started[-1].wait_started()
        return started[-1]

    yield start
    for pod in started:
        pod.close()


def connect(pod: Pod, node: Path) -> Any:
    tls = splitarrow.TlsOptions(ca_file=node / "ca.pem")
    token = (node / "root.token").read_text().strip()
    return splitarrow.connect(pod.ready["control"], token, tls=tls)


def count_rows(stream: Any) -> int:
    return sum(batch.num_rows for batch in stream)


@pytest.mark.parametrize("transport", ["tcp+tls", "shm"])
def test_a_rollout(start_pod: StartPod, node: Path, transport: str) -> None:
    old = start_pod()
    assert old.probe("liveness")
    assert old.probe("readiness")
    with connect(old, node) as client, client.read("flights", transport=transport) as stream:
        rows = next(iter(stream)).num_rows

        # Kubernetes waits before SIGTERM. Readers that come late are still served.
        old.run_pre_stop()
        assert old.probe("readiness")
        with connect(old, node) as late:
            assert late.info("flights").rows == ROWS

        old.terminate()
        wait_until(lambda: not old.probe("readiness"), "a failing readiness probe")
        assert old.probe("liveness"), "Kubernetes would restart a daemon that drains"
        with pytest.raises(SplitArrowError), connect(old, node) as refused:
            refused.read("flights").read_all()
        assert rows + count_rows(stream) == ROWS
    assert old.wait_ended() == 0

    new = start_pod()
    assert new.probe("readiness")
    with connect(new, node) as client, client.read("flights", transport=transport) as stream:
        assert stream.transport == transport
        assert count_rows(stream) == ROWS


def test_a_pod_that_was_killed_is_replaced(start_pod: StartPod, node: Path) -> None:
    """The socket that it leaves in the folder of the node does not disturb the next one."""
    killed = start_pod()
    killed.send_signal(signal.SIGKILL)
    assert killed.wait_ended() == -signal.SIGKILL
    assert not killed.probe("liveness")
    new = start_pod()
    with connect(new, node) as client:
        assert client.read("flights", transport="shm", columns=["x"]).read_all().num_rows == ROWS


def test_a_frozen_daemon_fails_its_probes(start_pod: StartPod) -> None:
    pod = start_pod()
    pod.send_signal(signal.SIGSTOP)
    try:
        assert not pod.probe("liveness")
    finally:
        pod.send_signal(signal.SIGCONT)
    wait_until(lambda: pod.probe("liveness") and pod.probe("readiness"), "probes")
