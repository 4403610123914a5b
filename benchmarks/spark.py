"""What the Spark source and sink reach: ``python -m splitarrow.benchmarks.spark``.

All jobs handle the same rows of int64, float64, int32 and string, take turns, and are reported by
their medians. A read sums up every column; a write goes to a folder on this machine. "mapped
files" is a data source that does nothing but hand over batches that lie in memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..errors import SplitArrowError, UsageError
from ..formats.arrow.aligned import AlignedFile
from ..pipeline import session
from .memory import memory_of
from .serving import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 1 << 16
_POLL_SECONDS = 0.05
_TARGETS = {
    "source / parquet": 1.2,
    "source / flight": 1.5,
    "sink / parquet": 0.8,
}


def write_shards(folder: Path, rows: int, shards: int) -> None:
    """Write the rows that are read, as Arrow IPC files."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(1)
    share = -(-rows // shards)
    for index in range(shards):
        begin, end = index * share, min(rows, (index + 1) * share)
        with (folder / f"{index:05}.arrow").open("wb") as out:
            file: AlignedFile | None = None
            for at in range(begin, end, _BATCH_ROWS):
                batch = _batch(numbers, at, min(end, at + _BATCH_ROWS))
                if file is None:
                    file = AlignedFile(batch.schema)
                    out.writelines(file.begin())
                out.writelines(file.add(batch))
            if file is not None:
                out.writelines(file.end())


def _batch(numbers: np.random.Generator, begin: int, end: int) -> pa.RecordBatch:
    count = end - begin
    words = np.array([f"carrier {index:03}" for index in range(1000)])
    return pa.record_batch(
        {
            "id": pa.array(np.arange(begin, end)),
            "delay": pa.array(numbers.random(count)),
            "airport": pa.array(numbers.integers(0, 1 << 30, count, dtype=np.int32)),
            "carrier": pa.array(words[numbers.integers(0, 1000, count)].tolist(), pa.string()),
        }
    )


class WorkerMemory:
    """A context that watches the Python workers of a Spark on this machine.

    Parameters
    ----------
    pid : int
        The process whose descendants they are.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0
        """The most that one of them had resident, in bytes, mapped files included."""
        self.own = 0
        """The most that one of them had of its own, in bytes."""

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        while not self._stop.wait(_POLL_SECONDS):
            try:
                found = psutil.Process(self._pid).children(recursive=True)
            except psutil.Error:
                return
            for process in found:
                try:
                    if "pyspark.daemon" not in " ".join(process.cmdline()):
                        continue
                except psutil.Error:
                    continue
                memory = memory_of(process.pid)
                self.peak = max(self.peak, memory.peak or 0)
                self.own = max(self.own, memory.anonymous or 0)


def _sums(frame: DataFrame) -> Any:
    return frame.selectExpr(
        "count(1)", "sum(id)", "sum(delay)", "sum(airport)", "sum(length(carrier))"
    ).collect()[0]


def run(rows: int, shards: int, rounds: int, master: str, folder: Path) -> dict[str, Any]:
    """Run everything; return the figures: rows per second by job, ratios, memory.

    Raises
    ------
    SplitArrowError
        If a part of it cannot work here, or two jobs see different rows.
    """
    from .spark_peers import FileDataSource, FlightDataSource

    source = folder / "source"
    write_shards(source, rows, shards)
    with ExitStack() as stack:
        spark = session("splitarrow benchmark", master=master, settings=_settings())
        stack.callback(spark.stop)
        for peer in (FlightDataSource, FileDataSource):
            spark.dataSource.register(peer)
        spark.sparkContext.setLogLevel("ERROR")
        daemon = stack.enter_context(
            Daemon({"rows": source}, "--listen", f"shm://{folder}/data.sock")
        )
        jobs, frames = _jobs(spark, daemon.control_uri, folder, source)
        expected = _sums(frames["splitarrow"])
        if expected[0] != rows:
            raise SplitArrowError(f"{expected[0]} rows were read, not {rows}")
        memory = stack.enter_context(WorkerMemory(_jvm(spark)))
        for job in jobs.values():  # what starts and compiles on the way is not counted
            job()
        seconds: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(rounds):
            for name, job in jobs.items():
                began = time.perf_counter()
                job()
                seconds[name].append(time.perf_counter() - began)
        peak, own = memory.peak, memory.own
    rates = {name: rows / statistics.median(taken) for name, taken in seconds.items()}
    ratios = {
        "source / parquet": rates["source"] / rates["spark.read.parquet"],
        "source / flight": rates["source"] / rates["flight DoGet"],
        "sink / parquet": rates["sink"] / rates["parquet writer"],
    }
    return {
        "rows": rows,
        "shards": shards,
        "rounds": rounds,
        "master": master,
        "rows_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "targets": _TARGETS,
        "worker_peak_bytes": peak,
        "worker_own_bytes": own,
    }


def _settings() -> dict[str, str]:
    return {"spark.ui.enabled": "false", "spark.driver.memory": "4g"}


def _jvm(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jvm.java.lang.ProcessHandle.current().pid())


def _jobs(
    spark: SparkSession, control: str, folder: Path, source: Path
) -> tuple[dict[str, Callable[[], Any]], dict[str, DataFrame]]:
    options = {"uri": control, "dataset": "rows"}
    ours = spark.read.format("splitarrow").options(**options).load()
    over_tcp = spark.read.format("splitarrow").options(**options, transport="tcp").load()
    peer = spark.read.format("splitarrow_flight_peer").options(**options).load()
    files = spark.read.format("splitarrow_file_peer").load(str(source))
    ours.write.mode("overwrite").parquet(str(folder / "parquet"))
    parquet = spark.read.parquet(str(folder / "parquet"))
    sunk, written = folder / "sunk", folder / "written"

    def sink() -> None:
        shutil.rmtree(sunk, ignore_errors=True)
        parquet.write.format("splitarrow").mode("append").save(str(sunk))

    jobs: dict[str, Callable[[], Any]] = {
        "source": lambda: _sums(ours),
        "source over tcp": lambda: _sums(over_tcp),
        "mapped files": lambda: _sums(files),
        "spark.read.parquet": lambda: _sums(parquet),
        "flight DoGet": lambda: _sums(peer),
        "sink": sink,
        "parquet writer": lambda: parquet.write.mode("overwrite").parquet(str(written)),
    }
    return jobs, {"splitarrow": ours}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.spark")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    chosen = parser.parse_args(arguments)
    try:
        if min(chosen.rows, chosen.shards, chosen.rounds) < 1:
            raise UsageError("rows, shards and rounds are at least 1")
        with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
            found = run(chosen.rows, chosen.shards, chosen.rounds, chosen.master, Path(folder))
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    for name, rate in found["rows_per_second"].items():
        print(f"{name:20} {rate / 1e6:8.2f} M rows/s")
    for name, ratio in found["ratios"].items():
        print(f"{name:20} {ratio:8.2f}   (target {_TARGETS[name]})")
    for name in ("worker_peak_bytes", "worker_own_bytes"):
        print(f"{name:20} {found[name] / (1 << 20):8.0f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
