"""What the figures of streams cost: ``python -m splitarrow.benchmarks.studies.counting``.

A server in this process sends a file to a client in another one, again and again. For each group of
messages, a coin decides whether the server counts it and measures its waits. What the two kinds of
groups cost is compared by the processor time of the thread that sends. Because they take turns
within each stream, neither other work on the machine nor the places of objects in memory matter.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ...errors import SplitArrowError
from ...server.data_stream import DataStream
from ...server.embedded import serve
from ...server.metrics import Metrics
from ...server.streams import ReaderWaits, StreamRegistry
from ..datasets import make_dataset
from ..statistics import format_size

_CASES = [(scheme, size) for scheme in ("tcp", "shm") for size in (4 << 10, 1 << 20)]
_FILE_BYTES = 64 << 20
_TRIMMED = 0.02
"""The share of the slowest groups that is left out on both sides: something interrupted them."""
_STREAMS = 2000
_CLIENT = """
import sys, time, splitarrow
for uri in sys.stdin:
    before = time.process_time_ns()
    with splitarrow.open(uri.strip()) as stream:
        rows = sum(batch.num_rows for batch in stream)
    print(rows, time.process_time_ns() - before, flush=True)
"""


class Addition(NamedTuple):
    """What counting adds to the processor time of a group, in nanoseconds."""

    mean: float
    margin: float
    """The half of the 95 % interval."""


@dataclass(slots=True)
class Comparison:
    """Groups of messages that were counted, and others that were not. Times are in nanoseconds."""

    counted: list[int] = field(default_factory=list[int])
    """The processor time of the server's thread for each group."""
    not_counted: list[int] = field(default_factory=list[int])
    client: int = 0
    """The processor time of the client for all groups."""

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.counted) + len(self.not_counted)

    @property
    def is_sufficient(self) -> bool:
        """Whether there are enough groups to compare."""
        return min(len(self.counted), len(self.not_counted)) > 1

    @property
    def server_time(self) -> float:
        """The time of the server for a group that is not counted."""
        return fmean(_trim(self.not_counted))

    @property
    def total_time(self) -> float:
        """The time of server and client for a group that is not counted."""
        return self.server_time + self.client / self.groups

    def addition(self) -> Addition:
        """Return what counting adds."""
        kept = _trim(self.counted), _trim(self.not_counted)
        error = math.sqrt(sum(variance(values) / len(values) for values in kept))
        return Addition(fmean(kept[0]) - fmean(kept[1]), 1.96 * error)


def _trim(values: Sequence[int]) -> list[int]:
    return sorted(values)[: math.ceil(len(values) * (1 - _TRIMMED))]


@contextmanager
def compare_groups() -> Generator[Comparison]:
    """Let streams of this process count half of their groups while the block runs."""
    compared = Comparison()
    draw = random.Random(0).random
    counts = True
    last: tuple[object, int] = (None, 0)
    send_group: Any = vars(DataStream)["_send_group"]
    count, begin, end = vars(DataStream)["_count"], ReaderWaits.begin, ReaderWaits.end

    def count_or_skip(self: Any, messages: object) -> None:
        if counts:
            count(self, messages)

    def begin_or_skip(self: ReaderWaits) -> None:
        if counts:
            begin(self)

    def end_or_skip(self: ReaderWaits) -> None:
        if counts:
            end(self)

    async def send_measured(self: Any, messages: object) -> None:
        nonlocal counts, last
        await send_group(self, messages)
        now = time.thread_time_ns()
        stream, before = last
        if stream is self:
            (compared.counted if counts else compared.not_counted).append(now - before)
        counts = draw() < 0.5  # for the next group
        last = self, time.thread_time_ns()

    replaced: list[tuple[type, str, Any]] = [
        (DataStream, "_count", count_or_skip),
        (DataStream, "_send_group", send_measured),
        (ReaderWaits, "begin", begin_or_skip),
        (ReaderWaits, "end", end_or_skip),
    ]
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    for owner, name, method in replaced:
        setattr(owner, name, method)
    try:
        yield compared
    finally:
        for owner, name, method in originals:
            setattr(owner, name, method)


def measure(scheme: str, batch_bytes: int, seconds: float) -> Comparison:
    """Read a file for some seconds, and compare its groups."""
    with TemporaryDirectory(prefix="splitarrow-counting-") as name:
        data = make_dataset(
            Path(name) / "data.arrow", batch_bytes, max(_FILE_BYTES // batch_bytes, 1)
        )
        listen = ["tcp://127.0.0.1:0", f"shm://{name}/socket"]
        client = subprocess.Popen(
            [sys.executable, "-P", "-c", _CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with client, serve({"data": data.path}, listen=listen) as server:
            assert client.stdin is not None
            assert client.stdout is not None
            uri = server.uri("data", scheme)
            with compare_groups() as compared:
                deadline = time.monotonic() + seconds
                while not compared.is_sufficient or time.monotonic() < deadline:
                    client.stdin.write(f"{uri}\n")
                    client.stdin.flush()
                    rows, client_time = map(int, client.stdout.readline().split())
                    if rows != data.rows:
                        raise SplitArrowError(f"the client read {rows} rows, not {data.rows}")
                    compared.client += client_time
            client.stdin.close()
    return compared


def measure_stream() -> float:
    """Return the processor time for registering and counting one stream, in seconds."""
    streams = StreamRegistry(Metrics())
    started = time.thread_time_ns()
    for _ in range(_STREAMS):
        stream = streams.begin(
            dataset="data", principal="", peer="", transport="tcp", cancel=lambda: None
        )
        stream.record_first_rows()
        streams.end(stream)
    return (time.thread_time_ns() - started) / _STREAMS / 1e9


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each transport and size."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.counting")
    parser.add_argument("--seconds", type=float, default=30, help="for each case (30)")
    options = parser.parse_args(arguments)
    print("what counting adds to the processor time of server and client, with 95 % intervals")
    for scheme, size in _CASES:
        compared = measure(scheme, size, options.seconds)
        added, total = compared.addition(), compared.total_time
        print(
            f"{scheme}, batches of {format_size(size):<6}{added.mean / total:7.2%} ± "
            f"{added.margin / total:.2%}: {added.mean / 1000:.2f} ± {added.margin / 1000:.2f} µs "
            f"of {total / 1000:.1f} µs for each of {compared.groups} groups",
            flush=True,
        )
    print(f"a stream: {measure_stream() * 1e6:.1f} µs for its own figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
