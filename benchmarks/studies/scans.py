"""Parquet and filters beside pyarrow: ``python -m splitarrow.benchmarks.studies.scans``.

A Parquet file over tcp is compared with a pyarrow.flight server that reads the same file through
``pyarrow.dataset``. A filter over tcp is compared with that of ``pyarrow.dataset`` in this process,
which transfers nothing. Both sides take turns, and count the rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ... import open as open_stream
from ...testing import Daemon
from ..backends import find_backend
from ..backends.backend import Consumer, write_parquet
from ..datasets import ROW_BYTES, BatchFile, make_dataset
from ..statistics import format_interval, format_size, median_interval
from ..worker import WorkerJob, WorkerProcess, receive_replies

_SIZES = (64 << 10, 8 << 20)
_SHARES = (0.01, 0.5)
_FILTERED_BATCH_BYTES = 2 << 20
_SETUP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    read: Callable[[], int]
    """Reads all data once, and returns the number of rows."""
    server: int | None = None
    """The process that serves it; None for none."""

    def cpu_seconds(self) -> float:
        """Return the processor time of this process and the server."""
        used = time.process_time()
        if self.server is not None:
            fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rounds of two sides that read the same data."""

    label: str
    rows: int
    """The number of rows that are scanned in a round."""
    seconds: tuple[list[float], list[float]]
    """The time of each round of both sides, in seconds."""
    cpu_seconds: tuple[float, float]
    """The processor time of all rounds of both sides, in seconds."""

    @property
    def ratios(self) -> list[float]:
        """The rates of the first side, divided by those of the second."""
        ours, theirs = self.seconds
        return [other / own for own, other in zip(ours, theirs, strict=True)]

    def __str__(self) -> str:
        rate = self.rows / median(self.seconds[0]) / 1e6
        ours, theirs = (1e3 * each / len(self.seconds[0]) for each in self.cpu_seconds)
        interval = format_interval(median_interval(self.ratios))
        return (
            f"{self.label:<32}{median(self.ratios):>6.2f}  ({interval})"
            f"{rate:>8.0f} M rows/s{ours:>7.0f} /{theirs:>5.0f} ms"
        )


def compare(label: str, rows: int, sides: Sequence[Side], found: int, rounds: int) -> Comparison:
    """Let two sides take turns, after a round that warms up; `found` is the rows of a read."""
    seconds: tuple[list[float], list[float]] = ([], [])
    cpu = [0.0, 0.0]
    for number in range(-1, rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            side = sides[index]
            used, began = side.cpu_seconds(), time.perf_counter()
            count = side.read()
            elapsed, used = time.perf_counter() - began, side.cpu_seconds() - used
            if count != found:
                raise RuntimeError(f"{label}: a side read {count} instead of {found} rows")
            if number >= 0:
                seconds[index].append(elapsed)
                cpu[index] += used
    return Comparison(label, rows, seconds, (cpu[0], cpu[1]))


def compare_row_groups(folder: Path, nbytes: int, total: int, rounds: int) -> Comparison:
    """Compare the servers of a Parquet file with row groups of a size."""
    dataset = make_dataset(folder / "groups.arrow", nbytes, max(total // nbytes, 1))
    with (
        _start_server("splitarrow-parquet", dataset) as ours,
        _start_server("flight-parquet", dataset) as theirs,
    ):
        label = f"row groups of {format_size(nbytes)} / Flight"
        return compare(label, dataset.rows, (ours, theirs), dataset.rows, rounds)


@contextmanager
def _start_server(name: str, dataset: BatchFile) -> Generator[Side]:
    """Serve a file in a process of its own."""
    job = WorkerJob(name, dataset, "iterate", None, None)
    with WorkerProcess(f"the server of {name}", asdict(job)) as server:
        (reply,) = receive_replies([server], _SETUP_SECONDS)
        backend = find_backend(name)

        def read() -> int:
            consumer = Consumer(dataset)
            backend.read(reply["address"], consumer)
            return consumer.rows

        yield Side(read, server.pid)


def compare_filters(folder: Path, total: int, rounds: int) -> Generator[Comparison]:
    """Compare filters that select parts of the rows of an Arrow file and of a Parquet file."""
    from pyarrow import dataset

    datasets: Any = dataset
    batch_bytes = min(_FILTERED_BATCH_BYTES, total)
    file = make_dataset(folder / "rows.arrow", batch_bytes, total // batch_bytes)
    paths = {"arrow": Path(file.path), "parquet": write_parquet(file, "rows")}
    with Daemon(paths) as daemon:
        for kind, path in paths.items():
            for share in _SHARES:
                condition = datasets.field("a") < share
                uri = daemon.uri(kind)

                def read(uri: str = uri, share: float = share) -> int:
                    with open_stream(uri, filter=f"a < {share}") as stream:
                        return sum(batch.num_rows for batch in stream)

                def scan(path: Path = path, kind: str = kind, condition: Any = condition) -> int:
                    scanner = datasets.dataset(path, format=kind).scanner(filter=condition)
                    return sum(batch.num_rows for batch in scanner.to_reader())

                label = f"{share:.0%} of {kind} rows / dataset"
                sides = (Side(read, daemon.pid), Side(scan))
                yield compare(label, file.rows, sides, scan(), rounds)


def main() -> None:
    """Print the ratios of rates; more than 1 means that splitarrow is faster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--total", type=int, default=512 << 20, help="bytes of a read, decoded")
    options = parser.parse_args()
    if options.total < ROW_BYTES:
        parser.error(f"--total must be at least {ROW_BYTES}")
    with TemporaryDirectory(prefix="splitarrow-scans-") as name:
        folder = Path(name)
        print(
            "ratio of rates (95 % interval), rows scanned, processor time of a read: ours / theirs"
        )
        for nbytes in _SIZES:
            print(compare_row_groups(folder, nbytes, options.total, options.rounds), flush=True)
        for comparison in compare_filters(folder, options.total, options.rounds):
            print(comparison, flush=True)


if __name__ == "__main__":
    main()
