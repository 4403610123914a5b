"""A standalone cluster of two workers: reading, writing and streaming with ``spark-submit``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.publication import read_version
from helpers.spark_cluster import SparkCluster, kill_session, running_cluster
from helpers.waiting import wait_until
from splitarrow.pipeline import publish_folder
from splitarrow.pipeline.submit import SCRIPT
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark_cluster"), pytest.mark.timeout(1500)]
ROWS, SHARDS = 40_000, 8
PATIENCE = 400.0
WITH_PACKAGES = {"spark.pyspark.python": sys.executable}
"""The setting by which the documentation names the interpreter of the executors."""
DRIVER = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin"])
}
"""The environment in which splitarrow is installed for the driver alone."""
DIGEST = ["count(id)", "sum(id)", "bit_xor(xxhash64(id, s))"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers, which find a ``python3`` without packages."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two daemons, each with all shards of the dataset ``rows``."""
    (folder := tmp_path / "daemons").mkdir()
    store = VersionStore(folder / "source")
    rows = ROWS // SHARDS
    shards: list[Any] = []
    for index in range(SHARDS):
        ids = range(index * rows, (index + 1) * rows)
        table = pa.table({"id": pa.array(ids, pa.int64()), "s": [f"row {n}" for n in ids]})
        batches = table.to_batches(max_chunksize=1000)
        shards.append(store.write_shard("job", f"{index:05}.arrow", table.schema, batches))
    store.commit("job", pa.schema([("id", pa.int64()), ("s", pa.string())]), shards, append=False)
    started: list[Daemon] = []
    try:
        for name in ("a", "b"):
            (folder / name).mkdir()
            started.append(Daemon(control="grpc://127.0.0.1:0", writable=folder / name))
            started[-1].start()
        publish_folder(str(folder / "source"), "rows", uris(started), replicas=2)
        yield started
    finally:
        for daemon in started:
            if daemon.is_running:
                daemon.kill()
            daemon.close()


def uris(daemons: list[Daemon]) -> list[str]:
    return [daemon.control_uri for daemon in daemons]


def write_script(folder: Path, body: str) -> Path:
    """Write a script whose JSON output `result` returns."""
    lines = "\n".join(line.removeprefix("    ") for line in body.strip("\n").splitlines())
    path = folder / "script.py"
    path.write_text(
        "import json, os, sys, time\n"
        "from pyspark.sql import SparkSession\n"
        f"DIGEST, EXPECTED = {DIGEST!r}, {ROWS}\n{lines}\n"
    )
    return path


def result(process: Any) -> Any:
    assert process.returncode == 0, process.stderr[-4000:]
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("[")]
    return json.loads(line)


EXPECTED = [ROWS, sum(range(ROWS))]


@pytest.mark.long
def test_the_source_and_read_run_the_interpreter_that_the_setting_names(
    cluster: SparkCluster, daemons: list[Daemon], tmp_path: Path
) -> None:
    script = write_script(
        tmp_path,
        """
    from splitarrow import pipeline
    spark = SparkSession.builder.getOrCreate()
    uri, out = sys.argv[1:]
    begin = time.process_time(), time.monotonic()
    pipeline.register(spark)
    seconds = time.monotonic() - begin[1]
    pipeline.register(spark)
    print("register", seconds, time.monotonic() - begin[1] - seconds, file=sys.stderr)
    source = spark.read.format("splitarrow").option("uri", uri).load("rows")
    parts = pipeline.read(spark, uri, "rows", filter="id >= 30000")
    frame = spark.range(0, 1000, 1, 4).selectExpr("id", "concat('row ', id) as s")
    frame.write.format("splitarrow").mode("append").save(out)
    stream = spark.readStream.format("splitarrow").option("uri", uri).load("rows")
    def run():
        writer = stream.writeStream.format("splitarrow").option("checkpointLocation", out + ".c")
        query = writer.trigger(availableNow=True).start(out + ".s")
        query.awaitTermination()
        return str(query.id)
    queries = [run(), run()]
    digests = [list(frame.selectExpr(*DIGEST).collect()[0]) for frame in (source, parts)]
    plan = source._jdf.queryExecution().executedPlan().toString()
    print(json.dumps([digests, queries, plan]))
    """,
    )
    out = tmp_path / "out"
    arguments = (script, ",".join(uris(daemons)), str(out))
    process = cluster.submit(
        *arguments, settings=WITH_PACKAGES, environment=DRIVER, seconds=PATIENCE
    )
    print(process.stderr[-2000:])
    (source, parts), queries, plan = result(process)
    assert "ReadSchema: struct<id:bigint,s:string>" in plan  # the reader in the JVM
    assert source[:2] == EXPECTED
    assert parts[:2] == [10_000, sum(range(30_000, ROWS))]
    manifest: Any = VersionStore(out).load()
    assert (manifest.version, manifest.rows) == (1, 1000)
    streamed: Any = VersionStore(f"{out}.s").load()
    assert (streamed.version, streamed.rows) == (1, ROWS)
    assert queries[0] == queries[1]
    assert streamed.job == f"{queries[0]}-0"


@pytest.mark.long
def test_a_missing_package_is_one_line(cluster: SparkCluster, tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
    from splitarrow import pipeline
    spark = SparkSession.builder.getOrCreate()
    messages = []
    for register in range(2):
        try:
            pipeline.register(spark)
        except Exception as error:
            messages.append(str(error))
    spark.sparkContext.pythonExec = "/absent/python"
    try:
        pipeline.register(spark)
    except Exception as error:
        messages.append(str(error))
    print(json.dumps(messages))
    """,
    )
    process = cluster.submit(script, environment=DRIVER, seconds=PATIENCE)
    registered, again, absent = result(process)
    assert registered == again
    assert registered.startswith(f"the interpreter {cluster.bare_python} of the executor on host ")
    assert "has no module 'pyarrow'; install the same version" in registered
    assert "/absent/python does not run on an executor: on host 127.0.0.1: " in absent
    assert not {"\n"} & set(registered + absent)


@pytest.mark.long
def test_publish_as_the_guide_shows(
    cluster: SparkCluster, daemons: list[Daemon], tmp_path: Path
) -> None:
    path = tmp_path / "trips.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path)
    arguments = [str(path), "trips", "--json"]
    for uri in uris(daemons):
        arguments += ["--to", uri]
    process = cluster.submit(
        SCRIPT,
        *arguments,
        *("--replicas", "2", "--staging", str(tmp_path / "staging")),
        settings=WITH_PACKAGES,
        environment=DRIVER,
        seconds=PATIENCE,
    )
    (published,) = result(process)
    assert (published["dataset"], published["rows"]) == ("trips", 1000)


SLOW_JOB = """
    from splitarrow import pipeline
    spark = SparkSession.builder.getOrCreate()
    pipeline.register(spark)
    uri, folder = sys.argv[1:]
    def hold(name):
        def hold(batches):
            from pyspark import TaskContext
            for batch in batches:
                with open(f"{folder}/{name}-{TaskContext.get().partitionId()}", "w") as file:
                    file.write(str(os.getpid()))
                while not os.path.exists(f"{folder}/go-{name}"):
                    time.sleep(0.05)
                yield batch
        return hold
    rows = spark.read.format("splitarrow").option("uri", uri).load("rows")
    parts = pipeline.read(spark, uri, "rows")
    held = rows.mapInArrow(hold("executor"), rows.schema)
    held.write.format("splitarrow").mode("append").save(folder + "/out")
    made = spark.range(EXPECTED).selectExpr("id", "concat('row ', id) as s")
    held = [rows.mapInArrow(hold(name), rows.schema) for name in ("worker", "daemon")]
    for frame in (*held, rows, parts, made):
        print(json.dumps(list(frame.selectExpr(*DIGEST).collect()[0])), flush=True)
"""


@pytest.mark.long
def test_a_killed_executor_worker_or_daemon_loses_and_repeats_no_row(
    cluster: SparkCluster, daemons: list[Daemon], tmp_path: Path
) -> None:
    script = write_script(tmp_path, SLOW_JOB)
    process = cluster.start_submit(
        script,
        ",".join(uris(daemons)),
        str(tmp_path),
        settings=WITH_PACKAGES,
        environment=DRIVER,
    )

    def running(name: str, executor: psutil.Process | None) -> bool:
        """Return whether a task of a round runs: one of an executor, if that is named."""
        assert process.poll() is None, "".join(process.communicate())[-4000:]
        for path in tmp_path.glob(f"{name}-*"):
            with suppress(psutil.Error, ValueError):
                if executor is None or executor in psutil.Process(int(path.read_text())).parents():
                    return True
        return False

    try:
        for name, worker in (("executor", "a"), ("worker", "b"), ("daemon", None)):
            executor = None
            if worker is not None:
                wait_until(lambda w=worker: cluster.executors(w), "an executor", PATIENCE)
                (executor,) = cluster.executors(worker)
            wait_until(lambda n=name, e=executor: running(n, e), f"a task: {name}", PATIENCE)
            if name == "executor":
                assert executor is not None
                executor.kill()
            elif name == "worker":
                cluster.kill_worker("b")
            else:
                daemons[0].kill()
            (tmp_path / f"go-{name}").touch()
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        kill_session(process)
        cluster.start_missing_workers()
    assert process.returncode == 0, errors[-4000:]
    *digests, made = [line for line in output.splitlines() if line.startswith("[")]
    assert digests == [made] * 4
    store = VersionStore(tmp_path / "out")
    written = read_version(store, store.load()).sort_by("id")
    assert written["id"].to_pylist() == list(range(ROWS))
    assert written["s"].to_pylist() == [f"row {n}" for n in range(ROWS)]


STREAMING_JOB = """
    from splitarrow import pipeline
    spark = SparkSession.builder.getOrCreate()
    pipeline.register(spark)
    uri, folder, sink = sys.argv[1:]
    def hold(batch):
        def hold(batches):
            from pyspark import TaskContext
            for rows in batches:
                with open(f"{folder}/task-{batch}-{TaskContext.get().partitionId()}", "w") as file:
                    file.write(str(os.getpid()))
                while not os.path.exists(f"{folder}/go-{batch}"):
                    time.sleep(0.05)
                yield rows
        return hold
    def save(rows, batch):
        held = rows.mapInArrow(hold(batch), rows.schema)
        if sink == "dataset":
            writer = held.write.format("splitarrow").option("job_id", f"batch-{batch}")
            writer.mode("append").save(folder + "/out")
        else:
            held = held.where("s = concat('row ', id)").select("id")
            with open(f"{folder}/ids-{batch}", "w") as file:
                json.dump([row.id for row in held.collect()], file)
    stream = spark.readStream.format("splitarrow").option("uri", uri)
    stream = stream.options(maxShardsPerTrigger=2, shards_per_partition=1).load("rows")
    stream = stream.writeStream.foreachBatch(save).trigger(availableNow=True)
    stream.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
"""


@pytest.mark.long
@pytest.mark.parametrize("sink", ["rows", "dataset"])
def test_killed_executors_daemons_and_drivers_leave_nothing(
    cluster: SparkCluster, daemons: list[Daemon], tmp_path: Path, sink: str
) -> None:
    script = write_script(tmp_path, STREAMING_JOB)

    def start() -> Any:
        return cluster.start_submit(
            script,
            ",".join(uris(daemons)),
            str(tmp_path),
            sink,
            settings=WITH_PACKAGES,
            environment=DRIVER,
        )

    def find_executors(batch: int) -> list[psutil.Process]:
        """Return the executors whose tasks hold a micro-batch, once one of them does."""
        assert process.poll() is None, "".join(process.communicate())[-4000:]
        found = [cluster.executors(name) for name in ("a", "b")]
        executors = [executor for each in found for executor in each]
        holding: list[psutil.Process] = []
        for path in tmp_path.glob(f"task-{batch}-*"):
            with suppress(psutil.Error, ValueError):
                parents = psutil.Process(int(path.read_text())).parents()
                holding += [executor for executor in executors if executor in parents]
        return holding

    process = start()
    try:
        wait_until(lambda: find_executors(0), "the first micro-batch", PATIENCE)
        find_executors(0)[0].kill()
        (tmp_path / "go-0").touch()
        wait_until(lambda: find_executors(1), "the second micro-batch", PATIENCE)
        daemons[0].kill()
        (tmp_path / "go-1").touch()
        wait_until(lambda: find_executors(2), "the third micro-batch", PATIENCE)
        kill_driver(process)
        wait_until(lambda: not cluster.processes_of_jobs(), "the end of all processes", PATIENCE)
        for batch in (2, 3):
            (tmp_path / f"go-{batch}").touch()
        kill_session(process)
        process = start()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors[-4000:]
    finally:
        kill_session(process)
    wait_until(lambda: not cluster.processes_of_jobs(), "the end of all processes", PATIENCE)
    with splitarrow.connect(daemons[1].control_uri) as client:
        wait_until(lambda: not busy(client.status()["stats"]), "the end of all streams")
    assert not list((cluster.folder / "tmp").glob("*splitarrow*"))
    assert not list((tmp_path / "checkpoint").rglob("*.tmp"))
    if sink == "rows":
        batches = [json.loads((tmp_path / f"ids-{batch}").read_text()) for batch in range(4)]
        assert sorted(n for batch in batches for n in batch) == list(range(ROWS))
        return
    store = VersionStore(tmp_path / "out")
    assert store.list_versions() == [1, 2, 3, 4]
    manifest: Any = store.load()
    written = read_version(store, manifest).sort_by("id")
    assert written["id"].to_pylist() == list(range(ROWS))
    assert written["s"].to_pylist() == [f"row {n}" for n in range(ROWS)]
    files = {
        str(path.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.suffix != ".json"
    }
    assert files == {shard.path for shard in manifest.shards}


def busy(stats: dict[str, Any]) -> list[str]:
    """Return what a daemon still holds for readers."""
    return [name for name in ("connections", "streams", "leases", "leased_bytes") if stats[name]]


def kill_driver(process: Any) -> None:
    """Kill the Java and Python of a driver. The planner must end by itself."""
    for candidate in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            planner = "splitarrow.pipeline.plan" in candidate.cmdline()
            if os.getsid(candidate.pid) == process.pid and not planner:
                candidate.kill()
