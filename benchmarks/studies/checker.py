"""The cost of checking messages: ``python -m splitarrow.benchmarks.studies.checker``.

It compares the time to check a batch of about 1 MiB with the time to transfer it over TCP on this
host. The check is that of a batch whose metadata is new: a stream whose batches repeat their
metadata, and are not compressed, checks it once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from ... import open as open_stream
from ...formats.arrow.checker import MessageChecker
from ...testing import Daemon

_BATCH_BYTES = 1 << 20
_BATCHES = 256
_CHECKS = 2000
ROUNDS = 7


class Cost(NamedTuple):
    """The cost of checking the batches of one table."""

    table: str
    """The columns, and the compression."""
    check: float
    """The time to check a batch in seconds."""
    transfer: float
    """The time to transfer a batch in seconds, with its check where the client makes one."""

    @property
    def share(self) -> float:
        """The time to check as a fraction of the time to transfer."""
        return self.check / self.transfer


Compression = Literal["zstd"] | None


def make_tables() -> dict[str, tuple[pa.RecordBatch, Compression]]:
    """Return a batch of about 1 MiB for each table, and its compression."""
    random = np.random.default_rng(7)

    def make_floats(columns: int) -> pa.RecordBatch:
        rows = _BATCH_BYTES // 8 // columns
        return pa.record_batch({f"c{i}": pa.array(random.random(rows)) for i in range(columns)})

    words = [
        f"station {number:04d}" for number in random.integers(0, 9999, _BATCH_BYTES // 8 // 16)
    ]
    texts = pa.record_batch({f"t{i}": pa.array(words) for i in range(8)})
    return {
        "4 × float64": (make_floats(4), None),
        "16 × float64": (make_floats(16), None),
        "8 × string": (texts, None),
        "4 × float64, zstd": (make_floats(4), "zstd"),
    }


def measure_check(batch: pa.RecordBatch, compression: Compression) -> float:
    """Return the time to check a batch in seconds: the best of several rounds."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    _schema, message = reader.read_next_message(), reader.read_next_message()
    assert message.body is not None
    metadata, body = message.metadata.to_pybytes(), memoryview(message.body)
    checker = MessageChecker(batch.schema, {})
    rounds: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(_CHECKS):
            checker.check(metadata, body)
        rounds.append((time.perf_counter() - begin) / _CHECKS)
    return min(rounds)


def measure_transfer(batch: pa.RecordBatch, compression: Compression, folder: Path) -> float:
    """Return the time to transfer a batch over TCP in seconds: the median of several reads."""
    path = folder / "data.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, batch.schema, options=options) as writer,
    ):
        for _ in range(_BATCHES):
            writer.write_batch(batch)
    reads: list[float] = []
    with Daemon({"data": path}, listen=["tcp://127.0.0.1:0"]) as daemon:
        uri = daemon.uri("data")
        for _ in range(ROUNDS):
            with open_stream(uri) as stream:
                next(stream)
                begin, count = time.perf_counter(), sum(1 for _ in stream)
                reads.append((time.perf_counter() - begin) / count)
    return median(reads)


def measure() -> list[Cost]:
    """Return the costs of all tables."""
    costs: list[Cost] = []
    for name, (batch, compression) in make_tables().items():
        with TemporaryDirectory(prefix="splitarrow-checker-") as folder:
            transfer = measure_transfer(batch, compression, Path(folder))
        costs.append(Cost(name, measure_check(batch, compression), transfer))
    return costs


def format_table(costs: Iterable[Cost]) -> str:
    """Return a Markdown table."""
    lines = [
        "| batches of 1 MiB | check, µs | transfer, µs | share |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {cost.table} | {cost.check * 1e6:.1f} | {cost.transfer * 1e6:.0f} | {cost.share:.1%} |"
        for cost in costs
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_table(measure()))
