"""Reading while things break: every row once, or a failure; and datasets of many shards."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds

from splitarrow.pipeline.options import Options
from splitarrow.pipeline.source import OPTIONS, ShardReader, origin_of, schema_of
from splitarrow.server.catalog.versions import VersionStore

from .conftest import write_folder

ROWS, SHARDS = 20_000, 4
SUMS = ("count(id)", "sum(id)", "bit_xor(xxhash64(id, s))")


def tables(rows=ROWS, shards=SHARDS):
    share = rows // shards
    return [
        pa.table({"id": numbers, "s": [f"row {n}" for n in numbers]})
        for numbers in (list(range(i * share, (i + 1) * share)) for i in range(shards))
    ]


def sums(frame):
    return tuple(frame.selectExpr(*SUMS).collect()[0])


def killing(marks, times):
    """The source, but for tasks that kill their process in the middle of a shard."""

    class Reader(ShardReader):
        def read(self, partition):
            for index, batch in enumerate(super().read(partition)):
                for begin in range(0, batch.num_rows, 1000):
                    yield batch.slice(begin, 1000)
                    if begin == 2000 and not index and len(list(marks.iterdir())) < times:
                        (marks / str(len(list(marks.iterdir())))).touch()
                        os.kill(os.getpid(), signal.SIGKILL)

    class Source(ds.DataSource):
        @classmethod
        def name(cls):
            return "killed_source"

        def schema(self):
            return schema_of(origin_of(Options(self.options, OPTIONS)).info(), None)

        def reader(self, schema):
            return Reader(Options(self.options, OPTIONS), schema, None)

    return Source


@pytest.mark.parametrize("times", [2, 99])
def test_a_killed_worker_loses_and_doubles_no_row(spark, tmp_path, daemon, times):
    (marks := tmp_path / "marks").mkdir()
    uri = daemon({"set": write_folder(tmp_path / "set", tables())}).control_uri
    spark.dataSource.register(killing(marks, times))
    expected = sums(spark.createDataFrame(pa.concat_tables(tables())))
    frame = spark.read.format("killed_source").option("uri", uri).option("dataset", "set").load()
    if times == 2:
        assert sums(frame) == expected
        assert len(list(marks.iterdir())) == 2
    else:
        with pytest.raises((PySparkException, Py4JJavaError)):
            sums(frame)


def test_a_frame_keeps_its_version(spark, tmp_path, daemon):
    place = str(tmp_path / "set")

    def write(rows, mode):
        frame = spark.range(0, rows, numPartitions=2)
        frame.write.format("splitarrow").mode(mode).save(place)

    write(100, "append")
    uri = daemon({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    old = reader.load("set")
    assert old.count() == 100
    write(7, "overwrite")
    assert VersionStore(place).versions() == [1, 2]
    deadline = time.monotonic() + 60
    while reader.load("set").count() != 7:
        assert time.monotonic() < deadline
    assert old.where("id >= 0").count() == 100


def test_a_daemon_killed_in_mid_job_is_replaced_by_a_replica(spark, tmp_path, daemon):
    from splitarrow.pipeline.spread import publish_folder

    source = str(tmp_path / "source")
    frame = spark.range(0, 3000, numPartitions=6).selectExpr("id", "concat('row ', id) as s")
    frame.write.format("splitarrow").mode("append").save(source)
    daemons = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        daemons.append(daemon({}, "--writable", str(tmp_path / name)))
    uris = [found.control_uri for found in daemons]
    publish_folder(source, "rows", uris, replicas=2)
    reached, killed = tmp_path / "reached", tmp_path / "killed"

    def held(batches):
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for batch in batches:
            if context.partitionId() == 0:
                reached.touch()
                until = time.monotonic() + 60
                while not killed.exists() and time.monotonic() < until:
                    time.sleep(0.01)
            yield batch

    read = spark.read.format("splitarrow").option("uri", ",".join(uris)).load("rows")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(sums, read.mapInArrow(held, read.schema))
        deadline = time.monotonic() + 60
        while not reached.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(daemons[0].pid, signal.SIGKILL)
        killed.touch()
        assert result.result(120) == sums(frame)
    os.kill(daemons[1].pid, signal.SIGKILL)
    with pytest.raises((PySparkException, Py4JJavaError), match="no daemon answers"):
        sums(read)


@pytest.mark.long
def test_speculative_copies_of_tasks_are_counted_once(tmp_path):
    """Of a session of its own: speculation is settled when Spark starts."""
    import subprocess
    import sys

    script = f"""if True:
        import time
        from splitarrow.pipeline import session
        spark = session(master="local[4]", settings={{
            "spark.ui.enabled": "false", "spark.speculation": "true",
            "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.25",
            "spark.speculation.interval": "50ms", "spark.speculation.minTaskRuntime": "100ms"}})
        def slow(batches):
            from pyspark import TaskContext
            context = TaskContext.get()
            for batch in batches:
                if context.partitionId() == 0 and context.attemptNumber() == 0:
                    time.sleep(8)
                yield batch
        frame = spark.range(0, 10000, numPartitions=4)
        frame.mapInArrow(slow, frame.schema).write.format("splitarrow").mode("append").save(
            {str(tmp_path / "set")!r})
        spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    manifest: Any = VersionStore(str(tmp_path / "set")).load()
    found: list[Any] = []
    for shard in manifest.shards:
        found += pa.ipc.open_file(str(tmp_path / "set" / shard.path)).read_all()["id"].to_pylist()
    assert sorted(found) == list(range(10000))
    files = [path for path in (tmp_path / "set" / "data").rglob("*") if path.is_file()]
    assert len(files) == len(manifest.shards)


@pytest.mark.long
def test_a_thousand_shards(spark, tmp_path, daemon):
    frame = spark.range(0, 100_000, numPartitions=2).selectExpr("id", "concat('r', id) as s")
    place = str(tmp_path / "set")
    frame.write.format("splitarrow").option("rows_per_shard", 100).mode("append").save(place)
    uri = daemon({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    found = reader.option("shards_per_partition", 100).load("set")
    assert found.rdd.getNumPartitions() == 10
    assert sums(found) == sums(frame)
