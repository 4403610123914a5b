"""What a relay saves and costs at the near end of a slow link, as JSON.

``make bench-relay`` runs it as root in a checkout, whose ``tests/network/link.py`` emulates a link
of 1 Gbit/s with round trips of 10 ms. The upstream is behind the link; relays, jobs and a fetch are
on this side of it. Where Mosaic Streaming is installed, its jobs read the same number of bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from network.link import SERVER, Link, LinkUnavailableError

from ...publication.version_store import VersionStore
from ...testing import Daemon

_PARTS = ("first-batch", "jobs", "processor", "warm", "peers", "mosaic")
_ROWS, _SMALL_ROWS, _LARGE_ROWS = 1 << 20, 200_000, 1 << 22
_COLUMNS = "abcd"
_SHARDS, _JOBS, _EPOCHS, _RELAYS, _ROUNDS = 16, 8, 3, 64, 5
_QUICK = {
    "_ROWS": 1 << 15,
    "_LARGE_ROWS": 1 << 15,
    "_SHARDS": 4,
    "_JOBS": 2,
    "_EPOCHS": 2,
    "_RELAYS": 3,
    "_ROUNDS": 1,
}
_PORT = 5999

_FIRST = """
import sys, time, splitarrow
splitarrow.connect(sys.argv[1]).close()
begin = time.perf_counter()
with splitarrow.connect(sys.argv[1]) as client, client.read("data") as stream:
    next(stream)
    print(time.perf_counter() - begin)
"""
_JOB = """
import random, sys, splitarrow
uri, seed, shards, epochs = sys.argv[1], *map(int, sys.argv[2:])
order, draws, rows = list(range(shards)), random.Random(seed), 0
with splitarrow.connect(uri) as client:
    for _ in range(epochs):
        draws.shuffle(order)
        for shard in order:
            rows += sum(batch.num_rows for batch in client.read("data", shards=[shard]))
print(rows)
"""
_READ = """
import sys, splitarrow
with splitarrow.open(f"{sys.argv[1]}/{sys.argv[2]}") as stream:
    print(sum(batch.num_rows for batch in stream))
"""
_WARM = """
import sys, time
from pathlib import Path
import pyarrow as pa, pyarrow.compute as pc
import splitarrow

def add(batches):
    return sum(pc.sum(column).as_py() for batch in batches for column in batch.columns)

def map_files():
    for path in files:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))

files = sorted(Path(sys.argv[2]).iterdir())
size = sum(path.stat().st_size for path in files)
uri = sys.argv[1] + "/large"
for _ in range(int(sys.argv[3]) + 1):
    times = []
    begin = time.perf_counter(); mapped = add(map_files())
    times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    with splitarrow.open(uri, transport="shm") as stream:
        read = add(stream)
    times.append(time.perf_counter() - begin)
    assert abs(read - mapped) < 1e-6 * mapped
    print(*(size / each for each in times))
"""
_MOSAIC_SETUP = """
import os, sys
from types import ModuleType
os.environ.update(S3_ENDPOINT_URL=sys.argv[1], AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
os.environ.update(AWS_DEFAULT_REGION="us-east-1")
for name in ("multimodal", "text", "vision"):  # they need further packages
    sys.modules.setdefault(f"streaming.{name}", ModuleType(f"streaming.{name}"))
"""
_MOSAIC = """
from streaming import StreamingDataset
folder, seed, epochs = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
found = StreamingDataset(
    remote="s3://bucket/data", local=folder, shuffle=True, shuffle_seed=seed, batch_size=64
)
print(sum(1 for _ in range(epochs) for _ in found))
"""
_MOSAIC_WRITE = """
import time
import boto3
from botocore.exceptions import EndpointConnectionError
from streaming import MDSWriter
while True:
    try:
        boto3.client("s3", endpoint_url=sys.argv[1]).create_bucket(Bucket="bucket")
    except EndpointConnectionError:  # the server starts
        time.sleep(0.1)
    else:
        break
with MDSWriter(out="s3://bucket/data", columns={"x": "bytes"}, size_limit=1 << 23) as writer:
    for _ in range(int(sys.argv[2])):
        writer.write({"x": os.urandom(4096)})
"""


class Study:
    """An upstream behind a link, and what is measured through it."""

    def __init__(self, link: Link, folder: Path) -> None:
        self._link = link
        self._folder = folder
        self._nbytes = _publish(folder / "data", _ROWS)
        self._small_bytes = _publish(folder / "small", _SMALL_ROWS)
        _publish(folder / "large", _LARGE_ROWS)
        uri = f"grpc://{SERVER}:0"
        with link.inside("server"):
            self._upstream = Daemon(
                {name: folder / name for name in ("data", "small", "large")},
                listen=[f"tcp://{SERVER}:0"],
                control=uri,
                arguments=["--insecure"],
            )
            self._upstream.start()
        self._uri = str(self._upstream.control_uri)

    @contextmanager
    def relay(self, name: str, *arguments: str, control: str = "") -> Generator[Daemon]:
        """Run a relay whose cache is empty. With a `control`, it may not be ready yet."""
        folder = self._folder / name
        options = ["--cache", str(folder), "--cache-bytes", "8GiB", *arguments]
        with ExitStack() as stack:
            with self._link.inside("client"):
                made = Daemon(
                    control=control or "grpc://127.0.0.1:0",
                    listen=["tcp://127.0.0.1:0", f"shm://{folder}.sock"],
                    upstream=self._uri,
                    arguments=options,
                )
                made.start(wait=False)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(made.close)
            stack.callback(made.kill)
            if not control:
                made.wait_ready()
            yield made

    def measure_first_batch(self) -> dict[str, float]:
        """Return the times to the first batch, in ms, of a client that has its modules."""
        found: dict[str, list[float]] = {"direct": [], "cold relay": [], "warm relay": []}
        for index in range(_ROUNDS):
            found["direct"].append(float(self._run(_FIRST, self._uri)))
            with self.relay(f"first{index}") as relay:
                uri = str(relay.control_uri)
                found["cold relay"].append(float(self._run(_FIRST, uri)))
                self._run(_READ, uri, "data")
                found["warm relay"].append(float(self._run(_FIRST, uri)))
        times = {name: round(median(each) * 1e3, 1) for name, each in found.items()}
        return {**times, "cold / direct": round(times["cold relay"] / times["direct"], 2)}

    def measure_jobs(self) -> dict[str, Any]:
        """Return the bytes that crossed the link for the epochs of all jobs, to the dataset's."""
        with self.relay("jobs") as relay:
            uri = str(relay.control_uri)
            sent, seconds = self._measure_traffic(
                [_JOB, uri, str(seed), str(_SHARDS), str(_EPOCHS)] for seed in range(_JOBS)
            )
        return {"jobs": _JOBS, "epochs": _EPOCHS, "sent": sent / self._nbytes, "seconds": seconds}

    def measure_processor(self) -> dict[str, float]:
        """Return the processor time of a relay and of a fetch for a gigabyte, in seconds."""
        relayed: list[float] = []
        fetched: list[float] = []
        for index in range(_ROUNDS):
            with self.relay(f"processor{index}") as relay:
                assert relay.pid is not None
                before = _processor_seconds(relay.pid)
                self._run(_READ, str(relay.control_uri), "data")
                relayed.append(_processor_seconds(relay.pid) - before)
            target = self._folder / "fetched.arrow"
            command = [sys.executable, "-m", "splitarrow", "fetch", f"{self._uri}/data"]
            process = self._link.popen(
                "client", [*command, "-o", str(target)], stderr=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            fetched.append(usage.ru_utime + usage.ru_stime)
            target.unlink()
        giga = 1e9 / self._nbytes
        relay_seconds, fetch_seconds = median(relayed) * giga, median(fetched) * giga
        return {
            "relay": round(relay_seconds, 2),
            "fetch": round(fetch_seconds, 2),
            "relay / fetch": round(relay_seconds / fetch_seconds, 2),
        }

    def measure_warm(self) -> dict[str, float]:
        """Return the rates of sums over mapped files, and through a warm relay, in GB/s.

        The shards have 128 MiB, the size by default.
        """
        with self.relay("warm") as relay:
            uri, files = str(relay.control_uri), str(self._folder / "warm" / "objects")
            self._run(_READ, uri, "large")
            lines = self._run(_WARM, uri, files, str(_ROUNDS)).splitlines()[1:]
        pairs = [tuple(map(float, line.split())) for line in lines]
        return {
            "mapped": round(median(mapped for mapped, _ in pairs) * 1e-9, 2),
            "relay": round(median(read for _, read in pairs) * 1e-9, 2),
            "relay / mapped": round(median(read / mapped for mapped, read in pairs), 2),
        }

    def measure_peers(self) -> dict[str, Any]:
        """Return how often the upstream sends each byte of 100 MB to relays of one level."""
        controls = [f"grpc://127.0.0.1:{21000 + index}" for index in range(_RELAYS)]
        peers = ("--peers", ",".join(controls))
        with ExitStack() as stack:
            relays = [
                stack.enter_context(self.relay(f"peer{index}", *peers, control=control))
                for index, control in enumerate(controls)
            ]
            for relay in relays:
                relay.wait_ready()
            sent, seconds = self._measure_traffic([_READ, control, "small"] for control in controls)
        return {"relays": _RELAYS, "sent": sent / self._small_bytes, "seconds": seconds}

    def measure_mosaic(self) -> dict[str, Any]:
        """Return the bytes that crossed the link for jobs of Mosaic Streaming, to the dataset's."""
        if find_spec("streaming") is None:
            return {"missing": "mosaicml-streaming is not installed"}
        url = f"http://{SERVER}:{_PORT}"
        server = [sys.executable, "-m", "moto.server", "-H", SERVER, "-p", str(_PORT)]
        process = self._link.popen("server", server, stderr=subprocess.DEVNULL)
        rows = max(_ROWS // 64, 1024)
        try:
            self._run(_MOSAIC_SETUP + _MOSAIC_WRITE, url, str(rows), side="server")
            sent, seconds = self._measure_traffic(
                [
                    _MOSAIC_SETUP + _MOSAIC,
                    url,
                    f"{self._folder}/mosaic{job}",
                    f"{job}",
                    f"{_EPOCHS}",
                ]
                for job in range(_JOBS)
            )
        finally:
            process.kill()
        dataset = rows * 4100
        return {"jobs": _JOBS, "epochs": _EPOCHS, "sent": sent / dataset, "seconds": seconds}

    def _measure_traffic(self, programs: Any) -> tuple[int, float]:
        """Run programs at a time; return the bytes that crossed the link for them, and seconds."""
        before, begin = self._link.stats().to_client.payload, time.monotonic()
        started = [
            self._link.popen(
                "client", [sys.executable, "-P", "-c", *arguments], stdout=subprocess.DEVNULL
            )
            for arguments in programs
        ]
        assert [process.wait() for process in started] == [0] * len(started)
        seconds = round(time.monotonic() - begin, 1)
        return self._link.stats().to_client.payload - before, seconds

    def _run(self, program: str, *arguments: str, side: Any = "client") -> str:
        command = [sys.executable, "-P", "-c", program, *arguments]
        ended = self._link.run(side, command, stdout=subprocess.PIPE, text=True)
        assert ended.returncode == 0
        return str(ended.stdout)

    def close(self) -> None:
        """Stop the upstream."""
        self._upstream.close()


def _publish(folder: Path, rows: int) -> int:
    """Publish shards of so many rows; return the size of all of them in bytes."""
    numbers = np.random.default_rng(1)
    store, entries = VersionStore(str(folder)), list[Any]()
    schema = pa.schema([(name, pa.float64()) for name in _COLUMNS])
    for index in range(_SHARDS):
        arrays = [pa.array(numbers.random(rows)) for _ in _COLUMNS]
        batches = pa.Table.from_arrays(arrays, schema=schema).to_batches(1 << 15)
        entries.append(store.write_shard("first", f"{index:05d}.arrow", schema, batches))
    shards = store.commit("first", schema, entries, append=False).shards
    return sum(shard.nbytes for shard in shards)


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(parts: Sequence[str] = _PARTS, rate_mbit: float = 1000, delay_ms: float = 10) -> Any:
    """Return the figures of each part."""
    with (
        TemporaryDirectory(prefix="splitarrow-relay-") as folder,
        Link(delay_ms=delay_ms, rate_mbit=rate_mbit) as link,
    ):
        study = Study(link, Path(folder))
        try:
            found: dict[str, Any] = {}
            for part in parts:
                run: Callable[[], Any] = getattr(study, f"measure_{part.replace('-', '_')}")
                found[part] = run()
                print(f"{part}: {found[part]}", file=sys.stderr)
            return found
        finally:
            study.close()


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the figures as JSON, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.relay_link")
    parser.add_argument("--only", nargs="+", default=list(_PARTS), choices=_PARTS)
    parser.add_argument("--quick", action="store_true", help="measure little, to try it")
    options = parser.parse_args(arguments)
    if options.quick:
        globals().update(_QUICK)
    try:
        print(json.dumps(measure(options.only), indent=2))
    except LinkUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
