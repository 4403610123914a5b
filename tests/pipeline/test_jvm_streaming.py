"""Streaming reads in the JVM: exactly once, with rates, across restarts, in each Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import splitarrow
from helpers.publication import publish, read_version
from helpers.waiting import wait_until
from splitarrow.filters import encode_filter
from splitarrow.pipeline import publish_folder
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

pytestmark = pytest.mark.slow
ROWS = 10
"""The rows of a shard."""


def make_shard(index: int) -> pa.Table:
    ids = range(index * ROWS, (index + 1) * ROWS)
    texts = [f"row {n}" for n in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "s": pa.array(texts, pa.string())})


def ids(*shards: int) -> list[int]:
    return [n for shard in shards for n in range(shard * ROWS, (shard + 1) * ROWS)]


class Source:
    """A published folder, and the daemon that serves it."""

    def __init__(self, folder: Path) -> None:
        self.store = VersionStore(folder)
        self.uri = ""
        self._jobs = 0

    def publish(self, *shards: int, append: bool = True) -> None:
        """Publish shards by their numbers, and wait until the daemon serves the version."""
        self._jobs += 1
        manifest = publish(self.store, f"job-{self._jobs}", *map(make_shard, shards), append=append)
        if self.uri:
            with splitarrow.connect(self.uri) as client:
                number = f"{manifest.version}-"
                wait_until(lambda: client.info("set").version.startswith(number), number)


@pytest.fixture
def source(serve: Callable[..., Daemon], tmp_path: Path) -> Source:
    """A dataset ``set`` whose first version has the shards 0 to 4."""
    source = Source(tmp_path / "set")
    source.publish(0, 1, 2, 3, 4)
    source.uri = serve({"set": tmp_path / "set"}).control_uri
    return source


class Query:
    """A streaming query that collects the identifiers of each micro-batch in a file."""

    def __init__(self, spark: Any, folder: Path, reader: str = "jvm") -> None:
        self._spark = spark
        self._folder = folder
        self._reader = reader
        self.trigger: dict[str, Any] = {"availableNow": True}
        (folder / "batches").mkdir(parents=True, exist_ok=True)

    def start(self, path: str = "set", reader: str | None = None, **options: Any) -> Any:
        stream = self._spark.readStream.format("splitarrow").options(**options)
        stream = stream.option("reader", reader or self._reader).load(path)

        def write(rows: Any, batch: int) -> None:
            found = [row.id for row in rows.select("id").collect()]
            (self._folder / "batches" / str(batch)).write_text(json.dumps(sorted(found)))

        writer = stream.writeStream.foreachBatch(write).trigger(**self.trigger)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def run(self, path: str = "set", reader: str | None = None, **options: Any) -> list[list[int]]:
        """Read everything that is new; return the micro-batches of all runs."""
        query = self.start(path, reader, **options)
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return self.batches

    @property
    def batches(self) -> list[list[int]]:
        paths = sorted((self._folder / "batches").iterdir(), key=lambda path: int(path.name))
        return [json.loads(path.read_text() or "[]") for path in paths]

    def forget_commit(self, batch: int) -> None:
        """Make the checkpoint that of a driver that died before it committed a micro-batch."""
        self._forget("commits", batch)
        (self._folder / "batches" / str(batch)).unlink()

    def forget_offset(self, batch: int) -> None:
        """Make the checkpoint that of a driver that died before it began a micro-batch."""
        self._forget("offsets", batch)

    def _forget(self, log: str, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (self._folder / "checkpoint" / log / name).unlink(missing_ok=True)


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path / "query")


def test_each_version_is_read_once(source: Source, query: Query):
    assert query.run(uri=source.uri) == [ids(0, 1, 2, 3, 4)]
    assert query.run(uri=source.uri) == [ids(0, 1, 2, 3, 4)]
    source.publish(5)
    source.publish(6)
    assert query.run(uri=source.uri)[1:] == [ids(5, 6)]
    source.publish(7, append=False)
    assert query.run(uri=source.uri)[2:] == [ids(7)]
    query.forget_commit(2)
    source.publish(8, append=False)
    assert query.run(uri=source.uri)[2:] == [ids(7), ids(8)]


def test_rates_divide_a_version(source: Source, query: Query):
    assert query.run(uri=source.uri, maxShardsPerTrigger=2) == [ids(0, 1), ids(2, 3), ids(4)]
    source.publish(5, 6)
    assert query.run(uri=source.uri, maxBytesPerTrigger="1")[3:] == [ids(5), ids(6)]
    query.trigger = {"once": True}
    source.publish(7, 8)
    assert query.run(uri=source.uri, maxShardsPerTrigger=1)[5:] == [ids(7, 8)]


def test_a_version_that_is_overwritten_in_the_middle_is_read_to_its_end(
    source: Source, query: Query
):
    query.run(uri=source.uri, maxShardsPerTrigger=2)
    for batch in (2, 1):
        query.forget_commit(batch)
    query.forget_offset(2)  # the driver died in its second micro-batch
    source.publish(7, 8, append=False)
    batches = query.run(uri=source.uri, maxShardsPerTrigger=2)
    assert batches == [ids(0, 1), ids(2, 3), ids(4), ids(7, 8)]


def test_a_query_continues_while_versions_come(source: Source, query: Query):
    query.trigger = {"processingTime": "100 milliseconds"}
    running = query.start(uri=source.uri, maxShardsPerTrigger=3)
    try:
        wait_until(lambda: len(query.batches) == 2 and query.batches[1], "the first version")
        source.publish(5)
        wait_until(lambda: len(query.batches) == 3 and query.batches[2], "the second version")
        source.publish(6, append=False)
        wait_until(lambda: len(query.batches) == 4 and query.batches[3], "the third version")
    finally:
        running.stop()
    assert query.batches == [ids(0, 1, 2), ids(3, 4), ids(5), ids(6)]


def test_a_query_starts_at_a_version(source: Source, spark: Any, tmp_path: Path):
    source.publish(5)
    source.publish(6)
    with splitarrow.connect(source.uri) as client:
        name = client.info("set").version
    query = Query(spark, tmp_path / "query")
    for version, expected in [("2", [ids(5, 6)]), (name, [ids(6)]), ("latest", [[]])]:
        query = Query(spark, tmp_path / version)
        assert query.run(uri=source.uri, startingVersion=version) == expected
    query.forget_commit(0)
    query.forget_offset(0)
    source.publish(7)
    assert query.run(uri=source.uri, startingVersion="latest") == [ids(7)]


def test_columns_and_filters(spark: Any, source: Source, query: Query):
    text = encode_filter("id >= 15 and id < 45", make_shard(0).schema)
    batches = query.run(
        uri=source.uri, columns="id", filter=text, maxShardsPerTrigger=2, shards_per_partition=1
    )
    assert batches == [list(range(15, 20)), ids(2, 3), list(range(40, 45))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "1"}, "a streaming read does not support the option 'limit'"),
        ({"version": "1"}, "a streaming read does not support the option 'version'"),
        ({"maxShardsPerTrigger": "0"}, "option 'maxshardspertrigger' is 0"),
        ({"startingVersion": "first"}, "it must be latest, or the number or name"),
        ({"startingVersion": "9"}, "version 8"),
        ({"maxShardPerTrigger": "1"}, "did you mean 'maxshardspertrigger'"),
    ],
)
def test_wrong_options_raise_one_sentence(source: Source, query: Query, options, message):
    with pytest.raises(Exception, match=message) as caught:
        query.run(uri=source.uri, **options)
    assert "Traceback" not in str(caught.value).partition("JVM stacktrace")[0]


def test_options_of_streams_are_errors_in_batch_queries(spark: Any, source: Source):
    for reader in ("jvm", "python") if HAS_PYTHON_SOURCES else ("jvm",):
        frame = spark.read.format("splitarrow").options(uri=source.uri, reader=reader)
        with pytest.raises(Exception, match=r"is for spark\.readStream only"):
            frame.option("startingVersion", "latest").load("set").collect()


@pytest.mark.long
def test_a_checkpoint_of_the_python_source_continues(source: Source, query: Query):
    if not HAS_PYTHON_SOURCES:
        with pytest.raises(Exception, match="has no data sources in Python"):
            query.run(uri=source.uri, reader="python")
        return
    assert query.run(uri=source.uri, reader="python") == [ids(0, 1, 2, 3, 4)]
    source.publish(5, 6)
    assert query.run(uri=source.uri, maxShardsPerTrigger=1)[1:] == [ids(5), ids(6)]
    source.publish(7)
    assert query.run(uri=source.uri, reader="python")[3:] == [ids(7)]
    with pytest.raises(PySparkException, match="only the reader in the JVM supports"):
        query.run(uri=source.uri, reader="python", maxShardsPerTrigger=1)


def test_a_stream_of_a_folder_without_a_daemon(spark: Any, source: Source, query: Query):
    folder = source.store.location
    assert query.run(folder, maxShardsPerTrigger=3) == [ids(0, 1, 2), ids(3, 4)]
    source.publish(5)
    source.publish(6, append=False)
    assert query.run(folder)[2:] == [ids(6)]
    source.publish(7)
    assert query.run(uri=source.uri)[3:] == [ids(7)]


def test_files_that_can_be_mapped(source: Source, query: Query):
    batches = query.run(uri=source.uri, folder=source.store.location, maxShardsPerTrigger=4)
    assert batches == [ids(0, 1, 2, 3), ids(4)]


def test_two_queries_at_once(spark: Any, source: Source, tmp_path: Path):
    queries = [Query(spark, tmp_path / name) for name in ("a", "b")]
    running = [
        query.start(uri=source.uri, maxShardsPerTrigger=rate)
        for query, rate in zip(queries, (1, 2), strict=True)
    ]
    for query in running:
        assert query.awaitTermination(120)
    assert queries[0].batches == [ids(n) for n in range(5)]
    assert queries[1].batches == [ids(0, 1), ids(2, 3), ids(4)]


def test_a_version_without_rows(source: Source, query: Query):
    source.store.commit("empty", make_shard(0).schema, [], append=False)
    with splitarrow.connect(source.uri) as client:
        wait_until(lambda: client.info("set").rows == 0, "the empty version")
    assert query.run(uri=source.uri) == [[]]
    source.publish(1)
    assert query.run(uri=source.uri) == [[], ids(1)]


def test_a_schema_that_changes_is_an_error(source: Source, query: Query):
    query.run(uri=source.uri)
    query.trigger = {"processingTime": "100 milliseconds"}
    running = query.start(uri=source.uri)
    try:
        other = pa.table({"id": ["text"], "s": ["text"]})
        publish(source.store, "other", other, append=False)
        with pytest.raises(PySparkException, match="id"):
            running.awaitTermination(60)
    finally:
        running.stop()
    assert query.batches == [ids(0, 1, 2, 3, 4)]


@pytest.fixture
def replicas(writable_daemons: list[Daemon], tmp_path: Path) -> Callable[..., str]:
    """Publish shards to both of two daemons; return their URIs."""
    uris = [daemon.control_uri for daemon in writable_daemons]
    rounds = iter(range(100))

    def add(*shards: int, mode: str = "append") -> str:
        job = f"job-{next(rounds)}"
        folder = tmp_path / job
        publish(VersionStore(folder), job, *map(make_shard, shards))
        publish_folder(str(folder), "set", uris, replicas=2, mode=mode)
        return ",".join(uris)

    return add


def test_a_daemon_that_dies_is_replaced(
    spark: Any, query: Query, replicas: Callable[..., str], writable_daemons: list[Daemon]
):
    uris = replicas(0, 1, 2)
    assert query.run(uri=uris, maxShardsPerTrigger=2) == [ids(0, 1), ids(2)]
    replicas(3, 4)
    query.trigger = {"processingTime": "100 milliseconds"}
    running = query.start(uri=uris, maxShardsPerTrigger=1)
    try:
        wait_until(lambda: len(query.batches) >= 3, "the first new shard")
        writable_daemons[0].kill()
        wait_until(lambda: len(query.batches) == 4 and query.batches[3], "the second new shard")
    finally:
        running.stop()
    assert query.batches == [ids(0, 1), ids(2), ids(3), ids(4)]
    query.forget_commit(3)
    query.trigger = {"availableNow": True}
    assert query.run(uri=uris)[3:] == [ids(4)]


def test_the_rows_reach_a_sink_of_files_once(spark: Any, source: Source, tmp_path: Path):
    def run() -> list[int]:
        stream = spark.readStream.format("splitarrow").option("uri", source.uri)
        writer = stream.option("maxShardsPerTrigger", 2).load("set").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(120)
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert run() == ids(0, 1, 2, 3, 4)
    source.publish(5)
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert run() == ids(0, 1, 2, 3, 4, 5)
    assert read_version(source.store, source.store.load()).num_rows == 6 * ROWS
