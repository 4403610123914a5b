"""The costs of shared memory, as JSON: ``python -m splitarrow.benchmarks.studies.sharing``.

It measures the time per batch, the time to free leases, and the memory of readers. The server is
another process. The time per batch is that within a stream, without the connect.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from ... import connect
from ... import open as open_stream
from ...errors import SplitArrowError
from ...server.shm.mapped_files import guard_refusal
from ...testing import Daemon
from ..datasets import COLUMNS, make_dataset
from ..machine import host_memory_in_use, read_memory

SIZES = (1 << 10, 4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
"""The sizes of batch bodies, in bytes."""
ROUNDS = 5
_MAX_FILE_BYTES = 8 << 30
_MAX_BATCHES = 20_000
_MIN_BATCHES = 128
_LEASES = 100_000
_LEASE_BATCH_BYTES = 4 << 10
_READER_BYTES = 1 << 30
_READER_BATCH_BYTES = 64 << 20
_POLL_SECONDS = 0.002
_FREE_TIMEOUT_SECONDS = 60.0


def measure() -> dict[str, Any]:
    """Return all figures.

    ``us_per_batch`` (by batch size in bytes), ``free`` (the number of leases and the seconds until
    the server has freed them) and ``memory_of_readers``; see `measure_reader_memory`.
    """
    figures: dict[str, Any] = {"us_per_batch": {}}
    with TemporaryDirectory(prefix="splitarrow-sharing-") as folder:
        path = Path(folder) / "data.arrow"
        for size in SIZES:
            count = max(min(_MAX_FILE_BYTES // size, _MAX_BATCHES), _MIN_BATCHES)
            make_dataset(path, size, count)
            if refusal := guard_refusal(path):
                figures["note"] = f"readers mapped a copy: {refusal}"
            with _daemon(path) as daemon:
                uri = daemon.uri("data")
                seconds = median(measure_batch_seconds(uri) for _ in range(ROUNDS))
            figures["us_per_batch"][size] = round(seconds * 1e6, 1)
        make_dataset(path, _LEASE_BATCH_BYTES, _LEASES // COLUMNS)
        with _daemon(path) as daemon:
            uri, control_uri = daemon.uri("data"), daemon.control_uri
            frees = [measure_free(uri, control_uri) for _ in range(ROUNDS)]
        leases, _ = frees[0]
        seconds = median(seconds for _, seconds in frees)
        figures["free"] = {"leases": leases, "seconds": round(seconds, 3)}
        make_dataset(path, _READER_BATCH_BYTES, _READER_BYTES // _READER_BATCH_BYTES)
        with _daemon(path) as daemon:
            figures["memory_of_readers"] = measure_reader_memory(daemon.uri("data"))
    return figures


def measure_batch_seconds(uri: str) -> float:
    """Return the time per batch in one stream, in seconds, without the first batch."""
    with open_stream(uri) as stream:
        next(stream)
        begin, count = time.perf_counter(), 0
        for _ in stream:
            count += 1
        return (time.perf_counter() - begin) / count


def measure_free(uri: str, control_uri: str) -> tuple[int, float]:
    """Free all leases of a stream at once; return their number and the seconds that it took."""
    with open_stream(uri) as stream:
        batches = list(stream)
    leases = _count_leases(control_uri)
    begin = time.perf_counter()
    batches.clear()
    while remaining := _count_leases(control_uri):
        if time.perf_counter() - begin > _FREE_TIMEOUT_SECONDS:
            raise SplitArrowError(
                f"the server still has {remaining} leases after {_FREE_TIMEOUT_SECONDS:g} s"
            )
        time.sleep(_POLL_SECONDS)
    return leases, time.perf_counter() - begin


def measure_reader_memory(uri: str) -> dict[str, float]:
    """Let two readers hold all batches, one after the other."""
    in_use, anonymous = host_memory_in_use(), _anonymous_bytes()
    readers: list[list[pa.RecordBatch]] = []
    growth: list[float] = []
    for _ in range(2):
        with open_stream(uri) as stream:
            readers.append(list(stream))
        for batch in readers[-1]:
            for column in batch.columns:
                column.sum()
        in_use_before, in_use = in_use, host_memory_in_use()
        growth.append((in_use - in_use_before) / _READER_BYTES)
    return {
        "first": growth[0],
        "second": growth[1],
        "anonymous_bytes": _anonymous_bytes() - anonymous,
    }


def _daemon(path: Path) -> Daemon:
    return Daemon({"data": path}, listen=["shm://"], control="grpc://127.0.0.1:0")


def _count_leases(control_uri: str) -> int:
    with connect(control_uri) as client:
        return int(client.status()["stats"]["leases"])


def _anonymous_bytes() -> int:
    anonymous = read_memory(os.getpid()).anonymous
    if anonymous is None:
        raise SplitArrowError("this benchmark needs /proc, which this system does not have")
    return anonymous


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
