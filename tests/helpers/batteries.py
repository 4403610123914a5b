"""Long tests: their size, their results, and the figures of processes."""

from __future__ import annotations

import datetime
import json
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.reader_process import Checksum


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("batteries", "long tests")
    group.addoption(
        "--scale", type=float, default=1.0, help="the size of long tests; 1 is the full size"
    )
    group.addoption(
        "--results", type=Path, help="a folder for the results of long tests, as lines of JSON"
    )


class Battery:
    """The size and the figures of one long test."""

    def __init__(self, name: str, scale: float) -> None:
        self.name = name
        self.scale = scale
        self.figures: dict[str, Any] = {}
        self._begin = time.monotonic()

    def count(self, full: int, least: int = 1) -> int:
        """Return a number that is `full` at the full size."""
        return max(least, round(full * self.scale))

    def seconds(self, full: float, least: float = 1.0) -> float:
        """Return a duration that is `full` at the full size, in seconds."""
        return max(least, full * self.scale)

    def record(self, **figures: Any) -> None:
        """Add figures to the result."""
        self.figures |= figures

    def write(self, folder: Path, outcome: str) -> None:
        """Append the result to a file of the folder, as one line of JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        line = {
            "battery": self.name,
            "date": datetime.date.today().isoformat(),
            "outcome": outcome,
            "scale": self.scale,
            "seconds": round(time.monotonic() - self._begin, 1),
            **self.figures,
        }
        with (folder / "batteries.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def anonymous_kib(pid: int) -> int:
    """Return the anonymous memory of a process, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise AssertionError("the kernel reports no anonymous memory")


def descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class Peak:
    """The largest anonymous memory that a process had, in KiB."""

    def __init__(self) -> None:
        self.kib = 0


@contextmanager
def watch_memory(pid: int) -> Generator[Peak]:
    """Observe the memory of a process during a block."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.kib = max(peak.kib, anonymous_kib(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def numbered_batches(version: int, batches: int, rows: int) -> list[pa.RecordBatch]:
    """Return batches of consecutive numbers beside the number of a version."""
    fill = pa.repeat(pa.scalar(version, pa.int64()), rows)
    return [
        pa.record_batch(
            {"n": pa.array(range(first, first + rows), pa.int64()), "version": fill},
        )
        for first in range(0, batches * rows, rows)
    ]


def checksum_of(batches: list[pa.RecordBatch]) -> str:
    """Return what a reader reports of these batches."""
    checksum = Checksum()
    for batch in batches:
        checksum.add(batch)
    return str(checksum)
