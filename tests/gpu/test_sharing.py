"""Memory of a server that readers of other processes open by CUDA IPC."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import splitarrow
from helpers import cuda
from helpers.waiting import wait_until
from splitarrow.memory import CudaMemory, DeviceBatch

pytestmark = pytest.mark.gpu

ROWS = 3_000_000  # more than a batch
OWNER = """
    import gc, logging, sys, weakref
    import numpy as np
    import pyarrow as pa
    import splitarrow
    from helpers.cuda import DeviceArray, Program
    from splitarrow.server.shm import exports

    exports.WARN_SECONDS = 0.5
    logging.basicConfig(format="%(message)s")
    program = Program()
    alive = weakref.WeakSet()

    def make(rows):
        columns = {name: DeviceArray(np.arange(rows)) for name in "nm"}
        alive.update(columns.values())
        return columns

    server = splitarrow.serve({"d": make(int(sys.argv[1]))}, listen="shm://")
    print(server.uri("d"), flush=True)
    for line in sys.stdin:
        if "close" in line:
            server.close()
        if "remove" in line:
            server.remove("d")
        if "replace" in line:
            server._daemon.catalog.replace("d", pa.table({"n": [1]}))
        gc.collect()
        print(len(alive), flush=True)
"""
READER = """
    import sys, splitarrow
    with splitarrow.open(sys.argv[1], memory="cuda:0") as stream:
        batches = list(stream)
    print(len(batches), flush=True)
    sys.stdin.read()
"""


class Owner:
    """A server in a process of its own, with two arrays on the device."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._input: Any = process.stdin
        self._output: Any = process.stdout
        self.uri = self._output.readline().strip()

    def request(self, command: str = "count") -> int:
        """Make the owner do something, and return how many arrays are alive."""
        self._input.write(command + "\n")
        self._input.flush()
        return int(self._output.readline())


@contextmanager
def start(code: str, *arguments: str, **options: Any) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=cuda.make_environment(),
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with (tmp_path / "log").open("wb") as log, start(OWNER, str(ROWS), stderr=log) as process:
        yield Owner(process)


def check(batches: list[Any]) -> None:
    assert all(isinstance(batch, DeviceBatch) for batch in batches)
    found = np.concatenate([batch["n"].to_numpy() for batch in batches])
    assert (found == np.arange(ROWS)).all()


@pytest.mark.parametrize("way", ["close", "remove", "replace"])
def test_the_server_keeps_what_a_reader_has_open(owner: Owner, way: str, tmp_path: Path) -> None:
    memory = CudaMemory(budget="64MiB")
    with splitarrow.open(owner.uri, memory=memory) as stream:
        batches: list[Any] = list(stream)
    assert len(batches) > 1
    assert memory.used_bytes == 0
    assert owner.request(way) == 2
    check(batches)
    if way == "close":
        log = tmp_path / "log"
        wait_until(lambda: "a reader still has it open" in log.read_text())
    last = batches.pop()
    batches.clear()
    assert owner.request() == 2  # the last batch has the allocations open
    del last
    wait_until(lambda: owner.request() == 0)


def test_a_stream_in_progress_keeps_all_memory(owner: Owner) -> None:
    with splitarrow.open(owner.uri, memory="cuda:0") as stream:
        first: Any = next(stream)
        del first
        assert owner.request("remove") == 2
        rest: list[Any] = list(stream)
        assert rest
    del rest
    wait_until(lambda: owner.request() == 0)


def test_a_reader_that_is_killed_keeps_nothing(owner: Owner) -> None:
    with start(READER, owner.uri) as reader:
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) > 1
        assert owner.request("close") == 2
        reader.kill()
    wait_until(lambda: owner.request() == 0)
