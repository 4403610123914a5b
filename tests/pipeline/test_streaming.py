"""Streaming reads: the rows of each version once, across restarts of the query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import splitarrow
from helpers.files import write_file
from helpers.publication import read_version
from helpers.waiting import wait_until
from splitarrow.publication.version_store import VersionStore


@pytest.fixture
def write(spark, tmp_path):
    """Write a range of ids as the next version of the dataset."""

    def write(begin, end, mode="append"):
        frame = spark.range(begin, end, numPartitions=1)
        writer = frame.write.format("splitarrow").option("rows_per_shard", 40).mode(mode)
        writer.save(str(tmp_path / "set"))

    return write


@pytest.fixture
def run_query(spark, tmp_path):
    """Run the query until it has read the current version; return the ids of all runs.

    The source in Python reads; `test_jvm_streaming` is about the reader in the JVM.
    """

    def run_query(uri):
        query = (
            spark.readStream.format("splitarrow")
            .options(uri=uri, reader="python")
            .load("set")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())

    return run_query


def wait_for_rows(uri, rows):
    with splitarrow.connect(uri) as client:
        wait_until(lambda: client.info("set").rows == rows, f"a version of {rows} rows")


def test_each_version_is_read_once(serve, write, run_query, tmp_path):
    write(0, 100)
    uri = serve({"set": tmp_path / "set"}).control_uri
    assert run_query(uri) == list(range(100))
    write(100, 130)
    write(130, 131)
    wait_for_rows(uri, 131)
    assert run_query(uri) == list(range(131))
    write(500, 510, "overwrite")
    wait_for_rows(uri, 10)
    assert run_query(uri) == [*range(131), *range(500, 510)]


def test_a_dataset_without_versions_is_an_error(spark, serve, tmp_path):
    path = write_file(tmp_path / "one.arrow", pa.table({"id": [1]}))
    uri = serve({"one": path}).control_uri
    stream = spark.readStream.format("splitarrow").option("uri", uri).load("one")
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="is not a published dataset"):
        query.awaitTermination(60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards_per_partition": "x"}, "'x'; it must be an integer"),
        ({"version": "9"}, "never had the version 9"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ({"limit": "1"}, "does not support the option 'limit'"),
                ({"versionAsOf": "1"}, "does not support the option 'version'"),
                ({"transport": "pigeon"}, "not available over 'pigeon'"),
                ({"bogus": "1"}, "no option 'bogus'"),
            )
        ),
    ],
)
def test_a_wrong_option_of_a_stream_raises_no_traceback(
    spark, serve, write, tmp_path, options, message
):
    write(0, 10)
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.readStream.format("splitarrow").options(uri=uri, reader="python", **options)

    def run(trigger):
        reader.load("set").writeStream.format("noop").trigger(**trigger).start().awaitTermination()

    for trigger in ({"availableNow": True}, {"processingTime": "0 seconds"}):
        with pytest.raises(PySparkException, match=message) as caught:
            run(trigger)
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("out", {"compression": "x"}, "'x'; it must be one of none, lz4, zstd"),
        ("out", {"bogus": "1"}, "no option 'bogus'"),
        ("file/out", {}, "Not a directory"),
    ],
)
def test_a_wrong_option_of_a_streamed_write_raises_no_traceback(
    spark, serve, write, tmp_path, path, options, message
):
    write(0, 10)
    (tmp_path / "file").touch()
    reader = spark.readStream.format("splitarrow")
    frame = reader.option("uri", serve({"set": tmp_path / "set"}).control_uri).load("set")
    writer = frame.writeStream.format("splitarrow").options(**options).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=message) as caught:
        writer.start(str(tmp_path / path)).awaitTermination(60)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    "option", ["limit", *(pytest.param(o, marks=pytest.mark.long) for o in ("filter", "version"))]
)
def test_options_of_batch_reads_are_errors(spark, serve, tmp_path, option):
    path = write_file(tmp_path / "one.arrow", pa.table({"id": [1]}))
    uri = serve({"one": path}).control_uri
    reader = spark.readStream.format("splitarrow").options(uri=uri, reader="python")
    stream = reader.schema("id bigint").option(option, "1").load("one")
    with pytest.raises(PySparkException, match=f"does not support the option '{option}'"):
        stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination(60)


def test_each_micro_batch_becomes_one_version(spark, serve, write, tmp_path):
    write(0, 100)
    uri = serve({"set": tmp_path / "set"}).control_uri
    target = tmp_path / "target"

    def run_query():
        query = (
            spark.readStream.format("splitarrow")
            .option("uri", uri)
            .load("set")
            .writeStream.format("splitarrow")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("rows_per_shard", 64)
            .trigger(availableNow=True)
            .start(str(target))
        )
        assert query.awaitTermination(90)
        store = VersionStore(target)
        rows: Any = read_version(store, store.load()).sort_by("id")
        return store.list_versions(), rows["id"].to_pylist()

    assert run_query() == ([1], list(range(100)))
    assert run_query() == ([1], list(range(100)))
    write(100, 130)
    wait_for_rows(uri, 130)
    assert run_query() == ([1, 2], list(range(130)))
    # The query stopped after the commit of the sink and before that of the checkpoint.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert run_query() == ([1, 2], list(range(130)))


def test_the_output_mode_complete_replaces_the_version(spark, serve, write, tmp_path):
    write(0, 100)
    uri = serve({"set": tmp_path / "set"}).control_uri
    stream = spark.readStream.format("splitarrow").option("uri", uri).load("set")
    for last in (100, 120):
        if last > 100:
            write(100, last)
            wait_for_rows(uri, last)
        query = (
            stream.groupBy()
            .count()
            .writeStream.format("splitarrow")
            .outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(90)
        store = VersionStore(tmp_path / "target")
        assert read_version(store, store.load())["count"].to_pylist() == [last]
