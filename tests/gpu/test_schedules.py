"""Random programs that read, drop, fork, close and are killed, while the server replaces data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import cuda
from helpers.cuda_cases import Zygote
from helpers.waiting import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.long, pytest.mark.timeout(6 * 3600)]

SCHEDULES = int(os.environ.get("SCHEDULES", "10000"))
OWNER = """
    import gc, json, sys
    import numpy as np
    import pyarrow as pa
    import splitarrow
    from helpers import cuda
    from splitarrow.memory import CudaMemory

    table = pa.table({"n": np.arange(200_000)})
    cuda.Program()

    def make():
        return {"n": cuda.DeviceArray(np.arange(100_000))}

    server = splitarrow.serve(
        {"host": table, "device": make()},
        listen=["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"],
    )
    for line in sys.stdin:
        if "renew" in line:
            server.remove("device")
            server.add("device", make())
        gc.collect()
        uris = [server.uri("host", scheme) for scheme in ("tcp", "shm", "ucx")]
        uris += [server.uri("device", scheme) for scheme in ("tcp", "shm")]
        live = cuda.count_live()["device"] if cuda.is_checking() else 0
        print(json.dumps({"uris": uris, "live": live, "leases": server.stats()["leases"]}))
        sys.stdout.flush()
"""


class Owner:
    """The server, in a process of its own."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(OWNER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env=cuda.make_environment(),
            )

    def request(self, command: str) -> dict[str, Any]:
        """Return the URIs, and what the server holds, after a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or self.log.read_text())

    def count_descriptors(self) -> int:
        """Return the number of open descriptors of the process."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "owner")
    yield owner
    owner.close()


def run(owner: Owner, zygote: Zygote, seeds: range) -> dict[str, int]:
    """Run a schedule for each seed, and return how many ended in which way."""
    ends = {"0": 0, "-9": 0}
    uris = owner.request("begin")["uris"]
    for seed in seeds:
        zygote.start({"seed": seed, "uris": uris})
        if random.Random(seed).random() < 0.3:
            time.sleep(random.Random(seed).random() / 20)
            uris = owner.request("renew")["uris"]
        answer = zygote.wait()
        assert answer in ends, f"seed {seed}: {answer}\n{zygote.read_log()[-3000:]}"
        ends[answer] += 1
        uris = owner.request("count")["uris"]
    return ends


def check(owner: Owner, log: Path, seeds: range) -> None:
    live = owner.request("begin")["live"]
    zygote = Zygote(log, CHECKING_DRIVER_DELAY="300")

    def is_over() -> bool:
        now = owner.request("count")
        return now["live"] == live and not now["leases"]

    try:
        run(owner, zygote, range(seeds.start, seeds.start + 3))  # what is opened once is open now
        wait_until(is_over, "the release of the first arrays")
        descriptors = owner.count_descriptors()
        ends = run(owner, zygote, seeds)
        print(len(seeds), "schedules:", ends)
        wait_until(is_over, "the release of all arrays but the last")
        # A few are opened once, whenever the first reader needs them.
        wait_until(lambda: owner.count_descriptors() <= descriptors + 5, "the end of descriptors")
    finally:
        print("at the end:", owner.request("count"), "and before:", live)
        zygote.close()


def test_some_schedules(owner: Owner, tmp_path: Path) -> None:
    check(owner, tmp_path / "zygote", range(10))


def test_many_schedules(owner: Owner, tmp_path: Path) -> None:
    check(owner, tmp_path / "zygote", range(1000, 1000 + SCHEDULES))
