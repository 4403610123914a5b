"""The throughput of the pipeline: ``python -m splitarrow.benchmarks.spark``.

All jobs process the same rows and take turns; the figures are medians. A job that reads computes
an aggregate of every column. A job that writes writes to a folder of this machine. The job "mapped
files" uses a data source that only returns batches from mapped memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .. import pipeline
from ..errors import SplitArrowError, UsageError
from ..testing import Daemon
from .memory import MemorySampler, max_known
from .spark_dataset import write_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = Callable[[], object]

_SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "4g"}
_SAMPLE_SECONDS = 0.05
"""The interval of the memory samples. Each one walks the process tree, so it is a long one."""
_RATIOS = {
    "source / parquet": ("source", "spark.read.parquet"),
    "source / flight": ("source", "flight DoGet"),
    "sink / parquet": ("sink", "parquet writer"),
}
_TARGETS = {"source / parquet": 1.2, "source / flight": 1.5, "sink / parquet": 0.8}


def run(rows: int, shards: int, rounds: int, master: str, folder: Path) -> dict[str, Any]:
    """Measure all jobs.

    Parameters
    ----------
    rows : int
        The number of rows.
    shards : int
        The number of files that they are divided among.
    rounds : int
        The number of counted rounds.
    master : str
        The Spark master.
    folder : Path
        An existing folder for all data.

    Returns
    -------
    dict
        ``rows_per_second`` by job, ``ratios`` of jobs with their ``targets``, the maximum memory
        of a Python worker in bytes (``worker_peak_bytes`` with mapped files, ``worker_own_bytes``
        without), and the arguments.

    Raises
    ------
    SplitArrowError
        If Spark does not start, or reads another number of rows than were written.
    """
    from .spark_peers import FileDataSource, FlightDataSource

    source = folder / "source"
    write_shards(source, rows, shards)
    with ExitStack() as stack:
        spark = pipeline.session("splitarrow benchmark", master=master, settings=_SETTINGS)
        stack.callback(spark.stop)
        for peer in (FlightDataSource, FileDataSource):
            spark.dataSource.register(peer)
        spark.sparkContext.setLogLevel("ERROR")
        daemon = stack.enter_context(
            Daemon(
                {"rows": source},
                listen=["tcp://127.0.0.1:0", f"shm://{folder}/data.sock"],
                control="grpc://127.0.0.1:0",
            )
        )
        jobs = _create_jobs(spark, daemon.control_uri, folder, source, rows)
        find_workers = partial(_python_workers, _jvm_process_id(spark))
        with MemorySampler(find_workers, _SAMPLE_SECONDS) as memory:
            seconds = _measure(jobs, rounds)
    rates = {name: rows / median(samples) for name, samples in seconds.items()}
    ratios = {name: rates[job] / rates[peer] for name, (job, peer) in _RATIOS.items()}
    return {
        "rows": rows,
        "shards": shards,
        "rounds": rounds,
        "master": master,
        "rows_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "targets": _TARGETS,
        "worker_peak_bytes": max_known(used.peak for used in memory.maxima.values()) or 0,
        "worker_own_bytes": max_known(used.anonymous for used in memory.maxima.values()) or 0,
    }


def _create_jobs(
    spark: SparkSession, control_uri: str, folder: Path, source: Path, rows: int
) -> dict[str, Job]:
    """Return the jobs by name, after writing the rows as Parquet and checking their number."""
    options = {"uri": control_uri, "dataset": "rows"}
    over_shm = spark.read.format("splitarrow").options(**options).load()
    over_tcp = spark.read.format("splitarrow").options(**options, transport="tcp").load()
    over_flight = spark.read.format("splitarrow_flight_peer").options(**options).load()
    parts = pipeline.read(spark, control_uri, "rows")
    mapped_files = spark.read.format("splitarrow_file_peer").load(str(source))
    over_shm.write.mode("overwrite").parquet(str(folder / "parquet"))
    parquet = spark.read.parquet(str(folder / "parquet"))
    if (count := _aggregate(over_shm)[0]) != rows:
        raise SplitArrowError(f"the source read {count} rows, but the files have {rows}")

    def write_with_sink() -> None:
        shutil.rmtree(folder / "sink", ignore_errors=True)
        parquet.write.format("splitarrow").mode("append").save(str(folder / "sink"))

    def write_parquet() -> None:
        parquet.write.mode("overwrite").parquet(str(folder / "written"))

    return {
        "source": lambda: _aggregate(over_shm),
        "source over tcp": lambda: _aggregate(over_tcp),
        "pipeline.read": lambda: _aggregate(parts),
        "mapped files": lambda: _aggregate(mapped_files),
        "spark.read.parquet": lambda: _aggregate(parquet),
        "flight DoGet": lambda: _aggregate(over_flight),
        "sink": write_with_sink,
        "parquet writer": write_parquet,
    }


def _aggregate(frame: DataFrame) -> Any:
    return frame.selectExpr(
        "count(1)", "sum(id)", "sum(delay)", "sum(airport)", "sum(length(carrier))"
    ).collect()[0]


def _measure(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """Run each job once to warm up and then `rounds` times; return the seconds of each run."""
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            begin = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def _jvm_process_id(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jvm.java.lang.ProcessHandle.current().pid())


def _python_workers(jvm: int) -> Iterator[int]:
    """Yield the process ids of the Python workers of a JVM on this machine."""
    import psutil

    try:
        processes = psutil.Process(jvm).children(recursive=True)
    except psutil.Error:
        return
    for process in processes:
        try:
            is_worker = "pyspark.daemon" in " ".join(process.cmdline())
        except psutil.Error:
            continue  # it has exited
        if is_worker:
            yield process.pid


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark from the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.spark")
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    try:
        if min(options.rows, options.shards, options.rounds) < 1:
            raise UsageError("--rows, --shards and --rounds must be at least 1")
        with tempfile.TemporaryDirectory(prefix="splitarrow-bench-") as folder:
            figures = run(
                options.rows, options.shards, options.rounds, options.master, Path(folder)
            )
    except (SplitArrowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    _print(figures)
    return 0


def _print(figures: dict[str, Any]) -> None:
    for name, rate in figures["rows_per_second"].items():
        print(f"{name:20} {rate / 1e6:8.2f} M rows/s")
    for name, ratio in figures["ratios"].items():
        print(f"{name:20} {ratio:8.2f}   (target {_TARGETS[name]})")
    for name in ("worker_peak_bytes", "worker_own_bytes"):
        print(f"{name:20} {figures[name] / (1 << 20):8.0f} MiB")


if __name__ == "__main__":
    raise SystemExit(main())
