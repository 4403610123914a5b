"""What shared memory costs: for a batch, a lease, a second reader.

``python -m splitarrow.benchmarks.sharing`` prints the figures as JSON. The server is a process of
its own; a batch's cost is that of many in one stream, connecting left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from .. import connect
from .. import open as open_stream
from ..server.shared.guards import lease_refusal
from .dataset import make_dataset

SIZES = (1 << 10, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
"""The sizes of batches, in bytes of body."""
ROUNDS = 5
_MOST_BYTES = 8 << 30
_MOST_BATCHES = 20_000
_LEAST_BATCHES = 128
_LEASES = 100_000
_COLUMNS = 4
_WHOLE = 1 << 30


@contextmanager
def _served(path: Path) -> Generator[tuple[str, str]]:
    ready = path.with_suffix(".json")
    command = [sys.executable, "-m", "splitarrow", "serve", f"data={path}"]
    command += ["--listen", "shm://", "--control", "grpc://127.0.0.1:0", "--ready-file", str(ready)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start")
            time.sleep(0.02)
        told: dict[str, Any] = json.loads(ready.read_text())
        yield told["datasets"]["data"]["shm"], told["control"]
    finally:
        server.terminate()
        server.wait()


def _batch_cost(uri: str) -> float:
    """Return what a batch costs in one stream, in microseconds."""
    with open_stream(uri) as stream:
        next(stream)
        begin, count = time.perf_counter(), 0
        for _ in stream:
            count += 1
        return (time.perf_counter() - begin) / count * 1e6


def _status(uri: str) -> dict[str, Any]:
    with connect(uri) as client:
        return client.status()["stats"]


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def _free_cost(uri: str, control: str) -> tuple[int, float]:
    """Return how many leases were given back at once, and in how many seconds."""
    with open_stream(uri) as stream:
        batches = list(stream)
    held = int(_status(control)["leases"])
    begin = time.perf_counter()
    batches.clear()
    while _status(control)["leases"]:
        time.sleep(0.002)
    return held, time.perf_counter() - begin


def _host_memory() -> int:
    """Return the host's memory in use that is not page cache of files, in bytes."""
    figures: dict[str, int] = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            figures[name] = int(rest.split()[0]) << 10
    return figures["AnonPages"] + figures["Shmem"]


def _second_reader(uri: str) -> dict[str, float]:
    """Return what two readers that hold everything add, as shares of the data."""
    before, own = _host_memory(), _anonymous()
    held: list[list[pa.RecordBatch]] = []
    shares: list[float] = []
    for _ in range(2):
        with open_stream(uri) as stream:
            held.append(list(stream))
        for batch in held[-1]:
            for column in batch.columns:
                column.sum()
        now = _host_memory()
        shares.append((now - before) / _WHOLE)
        before = now
    anonymous = _anonymous() - own
    return {"first": shares[0], "second": shares[1], "anonymous_bytes": anonymous}


def measure() -> dict[str, Any]:
    """Return all figures."""
    found: dict[str, Any] = {"us_per_batch": {}}
    with TemporaryDirectory(prefix="splitarrow-sharing-") as name:
        path = Path(name) / "data.arrow"
        for size in SIZES:
            count = max(min(_MOST_BYTES // size, _MOST_BATCHES), _LEAST_BATCHES)
            make_dataset(path, size, count)
            if refusal := lease_refusal(path):
                found["note"] = f"readers mapped a copy: {refusal}"
            with _served(path) as (uri, _):
                costs = sorted(_batch_cost(uri) for _ in range(ROUNDS))
            found["us_per_batch"][size] = round(costs[ROUNDS // 2], 1)
        make_dataset(path, 4096, _LEASES // _COLUMNS)
        with _served(path) as (uri, control):
            costs = sorted(_free_cost(uri, control) for _ in range(ROUNDS))
            leases, seconds = costs[ROUNDS // 2]
            found["free"] = {"leases": leases, "seconds": round(seconds, 3)}
        make_dataset(path, 64 << 20, _WHOLE // (64 << 20))
        with _served(path) as (uri, _):
            found["memory_of_readers"] = _second_reader(uri)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
