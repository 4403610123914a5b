"""One run of the Spark benchmark: its datasets, its jobs, and what they take."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ... import pipeline
from ...errors import SplitArrowError
from ...formats.arrow.file_writer import AlignedFileWriter
from ...pipeline.jvm import FORMAT
from ...pipeline.workers import run_probe
from ...publication.atomic_files import write_atomic
from ...publication.manifest import ShardEntry
from ...publication.version_store import VersionStore
from ...testing import Daemon
from ..machine import MemorySampler, machine_properties, max_known, software_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_BATCH_ROWS = 1 << 16
_CARRIERS = np.array([f"carrier {index:03}" for index in range(1000)])
SCHEMA = pa.schema(
    {"id": pa.int64(), "delay": pa.float64(), "airport": pa.int32(), "carrier": pa.string()}
)


def publish_shards(folder: Path, rows: int, shards: int) -> None:
    """Publish a dataset with a number of rows, divided evenly among Arrow IPC files."""
    random = np.random.default_rng(1)
    shard_rows = -(-rows // shards)
    ranges = ((min(rows, n * shard_rows), min(rows, (n + 1) * shard_rows)) for n in range(shards))
    _publish(folder, SCHEMA, (_batches(random, begin, end) for begin, end in ranges))


def publish_wide(folder: Path, rows: int, shards: int, columns: int) -> None:
    """Publish a dataset with columns of float64, whose names are ``c0``, ``c1`` and so on."""
    random = np.random.default_rng(2)
    names = [f"c{index}" for index in range(columns)]
    schema = pa.schema({name: pa.float64() for name in names})
    parts = (
        pa.table([pa.array(random.random(-(-rows // shards))) for _ in names], schema=schema)
        for _ in range(shards)
    )
    _publish(folder, schema, (part.to_batches(_BATCH_ROWS) for part in parts))


def _publish(folder: Path, schema: pa.Schema, shards: Iterable[Iterable[pa.RecordBatch]]) -> None:
    store = VersionStore(folder)
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[ShardEntry] = []
    for index, batches in enumerate(shards):
        path = folder / f"{index:05}.arrow"
        writer = AlignedFileWriter(schema)
        with path.open("wb") as file:
            file.writelines(writer.begin())
            for batch in batches:
                file.writelines(writer.add(batch))
            file.writelines(writer.end())
        entries.append(store.stage_file("benchmark", path.name, path)[1])
    store.commit("benchmark", schema, entries, append=False)


def _batches(random: np.random.Generator, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    for first in range(begin, end, _BATCH_ROWS):
        ids = np.arange(first, min(end, first + _BATCH_ROWS))
        count = len(ids)
        columns = [
            pa.array(ids),
            pa.array(random.random(count)),
            pa.array(random.integers(0, 1 << 30, count, dtype=np.int32)),
            pa.array(_CARRIERS[random.integers(0, len(_CARRIERS), count)].tolist(), pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class CountingRelay:
    """A context in which a port of this host forwards connections to another one."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.nbytes = 0
        """The bytes forwarded so far."""

    @property
    def port(self) -> int:
        """The port that accepts connections."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> CountingRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is not connected any more
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
            except OSError:
                return  # the context has ended
            with self._lock:
                self._sockets += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.nbytes += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one side has closed its connection


Job = Callable[[], object]

PARQUET = "`spark.read.parquet` of the same rows"
OVER_TCP = "JVM reader, TCP"
MAPPED = "JVM reader, mapped files"
PARTS = "`pipeline.read`, shared memory"
PYTHON = "Python source, shared memory"
PYTHON_FILES = "a Python source that returns mapped files, without a daemon"
FLIGHT = "a Python source over `DoGet` of the same daemon"
SINK = '`df.write.format("splitarrow")`'
PARQUET_WRITER = "Spark's own Parquet writer"
READS = (MAPPED, OVER_TCP, PARQUET, PARTS, PYTHON, PYTHON_FILES, FLIGHT)
WRITES = (SINK, PARQUET_WRITER)

WIDE_COLUMNS = 20
_SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "4g"}
_ADAPTIVE = "spark.sql.adaptive.enabled"
_SAMPLE_SECONDS = 0.05
"""The interval of the memory samples. Each one walks the process tree, so it is a long one."""
_MEMORY_LIMIT = 1 << 30
"""The default of the option ``memory_limit`` of the reader in the JVM."""


class SparkRun:
    """A run, whose figures are saved after every step."""

    def __init__(
        self,
        rows: int,
        shards: int,
        rounds: int,
        master: str,
        folder: Path,
        output: Path | None = None,
        wide_rows: int = 1_000_000,
    ) -> None:
        self._wide_rows = wide_rows
        self._folder = folder
        self._output = output
        self.figures: dict[str, Any] = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": machine_properties(),
            "versions": {**software_versions(), "pyspark": metadata.version("pyspark")},
            "master": master,
            "rows": rows,
            "shards": shards,
            "rounds": rounds,
            "seconds": {},
            "cpu_seconds": {},
            "check_workers": {},
            "bytes": {},
            "memory": {},
        }
        """The figures: the ``seconds`` and ``cpu_seconds`` of each round by job, the seconds of
        ``check_workers``, the ``bytes`` that queries transfer, and the largest ``memory``."""

    def run(self) -> None:
        """Measure everything."""
        with self._spark() as spark:
            self.measure(spark)

    def measure(self, spark: SparkSession) -> None:
        """Measure everything in a session that has the reader in the JVM."""
        from .spark_peers import FileDataSource, FlightDataSource

        for peer in (FlightDataSource, FileDataSource):
            spark.dataSource.register(peer)
        figures, folder = self.figures, self._folder
        publish_shards(folder / "rows", figures["rows"], figures["shards"])
        publish_wide(folder / "wide", self._wide_rows, 4, WIDE_COLUMNS)
        with self._daemon() as daemon:
            for name in ("first", "again"):
                begin = time.perf_counter()
                run_probe(spark.sparkContext, spark.sparkContext.defaultParallelism)
                figures["check_workers"][name] = time.perf_counter() - begin
            self._save()
            self._count_bytes(spark, daemon)
            jobs = self._create_jobs(spark, daemon.control_uri)
            workers = partial(_python_workers, _jvm_process_id(spark))
            with MemorySampler(workers, _SAMPLE_SECONDS) as memory:
                self._measure(jobs)
            used = memory.maxima.values()
            figures["memory"] |= {
                "task_peak_bytes": self._task_peak(spark, daemon.control_uri),
                "task_limit_bytes": _MEMORY_LIMIT,
                "worker_peak_bytes": max_known(each.peak for each in used) or 0,
                "worker_own_bytes": max_known(each.anonymous for each in used) or 0,
            }
            self._save()

    @contextmanager
    def _spark(self) -> Generator[SparkSession]:
        spark = pipeline.session(
            "splitarrow benchmark",
            master=self.figures["master"],
            settings=_SETTINGS,
            jvm_reader=True,
        )
        with ExitStack() as stack:
            stack.callback(spark.stop)
            spark.sparkContext.setLogLevel("ERROR")
            yield spark

    @contextmanager
    def _daemon(self) -> Generator[Daemon]:
        listen = ["tcp://127.0.0.1:0", f"shm://{self._folder}/data.sock"]
        datasets = {name: self._folder / name for name in ("rows", "wide")}
        with Daemon(datasets, listen=listen, control="grpc://127.0.0.1:0") as daemon:
            yield daemon

    def _create_jobs(self, spark: SparkSession, uri: str) -> dict[str, Job]:
        """Return the jobs by name, after writing the rows as Parquet and checking their number."""
        folder = self._folder
        by_columns = spark.read.format(FORMAT).option("reader", "jvm").option("uri", uri)
        over_tcp = by_columns.load("rows")
        over_tcp.write.mode("overwrite").parquet(str(folder / "parquet"))
        parquet = spark.read.parquet(str(folder / "parquet"))
        by_rows = spark.read.format(FORMAT).option("reader", "python").option("uri", uri)
        flight = spark.read.format("splitarrow_flight_peer").option("uri", uri)
        files = str(folder / "rows" / "data" / "benchmark")
        frames = {
            MAPPED: by_columns.option("folder", str(folder / "rows")).load("rows"),
            OVER_TCP: over_tcp,
            PARQUET: parquet,
            PARTS: pipeline.read(spark, uri, "rows"),
            PYTHON: by_rows.load("rows"),
            PYTHON_FILES: spark.read.format("splitarrow_file_peer").load(files),
            FLIGHT: flight.option("dataset", "rows").load(),
        }
        expected = _aggregate(parquet)[0]
        for name, frame in frames.items():
            count = _aggregate(frame)[0]
            if count != expected or count != self.figures["rows"]:
                raise SplitArrowError(f"{name} read {count} rows of {self.figures['rows']}")

        def write_with_sink() -> None:
            shutil.rmtree(folder / "sink", ignore_errors=True)
            parquet.write.format("splitarrow").mode("append").save(str(folder / "sink"))

        def write_parquet() -> None:
            parquet.write.mode("overwrite").parquet(str(folder / "written"))

        reads = {name: partial(_aggregate, frame) for name, frame in frames.items()}
        return {**reads, SINK: write_with_sink, PARQUET_WRITER: write_parquet}

    def _measure(self, jobs: dict[str, Job]) -> None:
        """Run each job once to warm up, and then in turns."""
        for job in jobs.values():
            job()
        for _ in range(self.figures["rounds"]):
            for name, job in jobs.items():
                cpu, begin = _cpu_seconds(), time.perf_counter()
                job()
                elapsed = time.perf_counter() - begin
                self.figures["seconds"].setdefault(name, []).append(elapsed)
                self.figures["cpu_seconds"].setdefault(name, []).append(_cpu_seconds() - cpu)
            self._save()

    def _count_bytes(self, spark: SparkSession, daemon: Daemon) -> None:
        """Count the bytes of the control plane and the data plane for two queries."""
        host, _, port = daemon.control_uri.partition("://")[2].rpartition(":")
        queries: dict[str, Callable[[DataFrame], DataFrame]] = {
            "one column": lambda frame: frame.select("c3"),
            "count": lambda frame: frame.groupBy().count(),
        }
        for name, query in queries.items():
            with CountingRelay(host, int(port)) as relay:
                uri = f"grpc://127.0.0.1:{relay.port}"
                reader = spark.read.format(FORMAT).options(uri=uri, reader="jvm")
                received = _metric(query(reader.load("wide")), "bytesReceived")
                self.figures["bytes"][name] = {"control": relay.nbytes, "data": received}
        self.figures["bytes"]["one column"]["column"] = 8 * self._wide_rows
        self._save()

    def _task_peak(self, spark: SparkSession, uri: str) -> int:
        """Return the largest memory of a task of the reader in the JVM outside of the heap."""
        spark.conf.set(_ADAPTIVE, "false")  # an adaptive plan hides its scans
        reader = spark.read.format(FORMAT).options(uri=uri, reader="jvm")
        # Spark adds the metrics of tasks up, so all shards go to one of them.
        frame = reader.option("shards_per_partition", self.figures["shards"]).load("rows")
        peak = _metric(_sums(frame), "peakMemory")
        spark.conf.unset(_ADAPTIVE)
        return peak

    def _save(self) -> None:
        if self._output is not None:
            write_atomic(self._output, (json.dumps(self.figures, indent=2) + "\n").encode())


def _sums(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "count(1)", "sum(id)", "sum(delay)", "sum(airport)", "sum(length(carrier))"
    )


def _aggregate(frame: DataFrame) -> Any:
    return _sums(frame).collect()[0]


def _metric(frame: Any, name: str) -> int:
    """Run a query, and return a metric of its scan."""
    execution = frame._jdf.queryExecution()
    frame._jdf.collectToPython()
    return int(execution.executedPlan().collectLeaves().head().metrics().apply(name).value())


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it has started."""
    import psutil

    total = 0.0
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has exited
        total += times.user + times.system
    return total


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
