"""Reading while processes die: the query returns every row once, or fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds

from helpers.files import write_shards
from helpers.publication import read_version
from helpers.waiting import PATIENCE, wait_until
from splitarrow.pipeline.batch_queries import DatasetReader
from splitarrow.pipeline.folder_publication import publish_folder
from splitarrow.pipeline.options import SparkOptions
from splitarrow.pipeline.reader import READ_OPTIONS, RemoteDataset, dataset_schema
from splitarrow.publication.version_store import VersionStore

ROWS, SHARDS = 20_000, 4
SPARK_ERRORS = (PySparkException, Py4JJavaError)


def make_tables():
    rows = ROWS // SHARDS
    return [
        pa.table({"id": ids, "s": [f"row {n}" for n in ids]})
        for ids in (list(range(i * rows, (i + 1) * rows)) for i in range(SHARDS))
    ]


def digest(frame):
    """Compute values that a missing, duplicate or different row changes."""
    return tuple(frame.selectExpr("count(id)", "sum(id)", "bit_xor(xxhash64(id, s))").collect()[0])


def killing_source(marks, kills):
    """Return the data source, with tasks that kill their own process in the middle of a shard.

    Each kill leaves a file in the folder `marks`. After `kills` of them the tasks survive.
    """

    class Reader(DatasetReader):
        def read(self, partition):
            for index, batch in enumerate(super().read(partition)):
                for begin in range(0, batch.num_rows, 1000):
                    yield batch.slice(begin, 1000)
                    if begin == 2000 and not index and len(list(marks.iterdir())) < kills:
                        (marks / str(len(list(marks.iterdir())))).touch()
                        os.kill(os.getpid(), signal.SIGKILL)

    class Source(ds.DataSource):
        @classmethod
        def name(cls):
            return "killing_source"

        def schema(self):
            options = SparkOptions(self.options, READ_OPTIONS)
            return dataset_schema(RemoteDataset.from_options(options).info())

        def reader(self, schema):
            return Reader(SparkOptions(self.options, READ_OPTIONS), schema, None)

    return Source


@pytest.fixture
def read_and_kill(spark, serve, tmp_path):
    """Read through `killing_source`; return its rows and the folder of marks."""

    def read(kills):
        (marks := tmp_path / "marks").mkdir()
        write_shards(tmp_path / "set", make_tables())
        uri = serve({"set": tmp_path / "set"}).control_uri
        spark.dataSource.register(killing_source(marks, kills))
        reader = spark.read.format("killing_source").option("uri", uri)
        return reader.option("dataset", "set").load(), marks

    return read


def test_killed_workers_are_replaced_without_missing_or_duplicate_rows(spark, read_and_kill):
    frame, marks = read_and_kill(kills=2)
    assert digest(frame) == digest(spark.createDataFrame(pa.concat_tables(make_tables())))
    assert len(list(marks.iterdir())) == 2


@pytest.mark.long
def test_a_task_whose_worker_is_killed_each_time_fails_the_query(read_and_kill):
    frame, _ = read_and_kill(kills=99)
    with pytest.raises(SPARK_ERRORS):
        digest(frame)


def test_a_frame_keeps_its_version(spark, tmp_path, serve):
    location = str(tmp_path / "set")

    def write(rows, mode):
        frame = spark.range(0, rows, numPartitions=2)
        frame.write.format("splitarrow").mode(mode).save(location)

    write(100, "append")
    reader = spark.read.format("splitarrow")
    reader = reader.option("uri", serve({"set": tmp_path / "set"}).control_uri)
    old = reader.load("set")
    assert old.count() == 100
    write(7, "overwrite")
    assert VersionStore(location).list_versions() == [1, 2]
    wait_until(lambda: reader.load("set").count() == 7, "the new version")
    assert old.where("id >= 0").count() == 100


def test_replicas_replace_a_daemon_that_is_killed_during_a_query(spark, tmp_path, writable_daemons):
    source = str(tmp_path / "source")
    frame = spark.range(0, 3000, numPartitions=6).selectExpr("id", "concat('row ', id) as s")
    frame.write.format("splitarrow").mode("append").save(source)
    uris = [daemon.control_uri for daemon in writable_daemons]
    publish_folder(source, "rows", uris, replicas=2)
    received, killed = tmp_path / "received", tmp_path / "killed"

    def wait_for_kill(batches):
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        deadline = time.monotonic() + PATIENCE
        for batch in batches:
            if context.partitionId() == 0:
                received.touch()
                while not killed.exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield batch

    rows = spark.read.format("splitarrow").option("uri", ",".join(uris)).load("rows")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(digest, rows.mapInArrow(wait_for_kill, rows.schema))
        wait_until(received.exists, "the first batch")
        writable_daemons[0].kill()
        killed.touch()
        assert result.result(2 * PATIENCE) == digest(frame)
    writable_daemons[1].kill()
    with pytest.raises(SPARK_ERRORS, match="no daemon responds"):
        digest(rows)


@pytest.mark.long
@pytest.mark.slow
def test_speculative_tasks_write_each_row_once(tmp_path):
    """Needs a session of its own, because Spark reads the settings of speculation at startup."""
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
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr[-3000:]
    store = VersionStore(str(tmp_path / "set"))
    manifest: Any = store.load()
    ids: list[Any] = read_version(store, manifest)["id"].to_pylist()
    assert sorted(ids) == list(range(10000))
    files = [path for path in (tmp_path / "set" / "data").rglob("*") if path.is_file()]
    assert len(files) == len(manifest.shards)


@pytest.mark.long
def test_a_thousand_shards(spark, tmp_path, serve):
    frame = spark.range(0, 100_000, numPartitions=2).selectExpr("id", "concat('r', id) as s")
    location = str(tmp_path / "set")
    frame.write.format("splitarrow").option("rows_per_shard", 100).mode("append").save(location)
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    rows = reader.option("shards_per_partition", 100).load("set")
    assert rows.rdd.getNumPartitions() == 10
    assert digest(rows) == digest(frame)
