"""Random programs that read, drop, fork, close and are killed, while the server replaces data."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import cuda
from helpers.cuda_cases import Zygote
from helpers.waiting import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.long, pytest.mark.timeout(6 * 3600)]

SCHEDULES = int(os.environ.get("SCHEDULES", "10000"))
PER_PROCESS, PER_CHECK = 20, 100
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
    gc.freeze()  # so that a collection takes little time
    for line in sys.stdin:
        if "renew" in line:
            server._daemon.catalog.replace("device", make())
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


def run(owner: Owner, zygote: Zygote, seeds: Iterable[int | None]) -> Counter[str]:
    """Run a schedule for each seed, and return how many processes ended in which way.

    A process runs schedules until one of them kills it.
    """
    ends: Counter[str] = Counter()
    uris = owner.request("begin")["uris"]
    rest = list(seeds)
    while rest:
        chosen = random.Random(rest[0] or 0)
        zygote.start({"seeds": rest[:PER_PROCESS], "uris": uris})
        while not zygote.has_ended(chosen.uniform(0.01, 0.5)):
            owner.request("renew")
        status, count = zygote.wait().split()
        assert status in ("0", "-9"), f"seed {rest[int(count)]}: {zygote.read_log()[-3000:]}"
        del rest[: int(count) + (status == "-9")]
        ends[status] += 1
    owner.request("renew")  # the copies of the last device table in shared memory end with it
    return ends


def check(owner: Owner, log: Path, seeds: range) -> None:
    live = owner.request("begin")["live"]
    zygote = Zygote(log, CHECKING_DRIVER_DELAY="300")

    def is_over() -> bool:
        now = owner.request("count")
        return now["live"] == live and not now["leases"]

    try:
        run(owner, zygote, [None])  # what is opened once is open now
        wait_until(is_over, "the release of the first arrays")
        descriptors = owner.count_descriptors()
        for begin in seeds[::PER_CHECK]:
            block = range(begin, min(begin + PER_CHECK, seeds.stop))
            started = time.monotonic()
            ends = run(owner, zygote, block)
            wait_until(is_over, f"the release of all arrays but the last after {block}")
            wait_until(
                lambda: owner.count_descriptors() == descriptors,
                f"the end of all descriptors but {descriptors} after {block}",
            )
            print(block, ends, f"{time.monotonic() - started:.0f} s")
    finally:
        print("at the end:", owner.request("count"), "and before:", live)
        zygote.close()


def test_some_schedules(owner: Owner, tmp_path: Path) -> None:
    check(owner, tmp_path / "zygote", range(10))


def test_many_schedules(owner: Owner, tmp_path: Path) -> None:
    check(owner, tmp_path / "zygote", range(1000, 1000 + SCHEDULES))
