"""Streaming reads: the rows of each version once, over restarts of the query."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import splitarrow

from .conftest import write_arrow


@pytest.fixture
def published(spark, tmp_path):
    def write(begin, end, mode="append"):
        frame = spark.range(begin, end, numPartitions=1)
        frame.write.format("splitarrow").option("rows_per_shard", 40).mode(mode).save(
            str(tmp_path / "set")
        )

    return write


@pytest.fixture
def drain(spark, tmp_path):
    """Run the query until it has read what there is; return all rows that it has ever written."""

    def run(uri):
        query = (
            spark.readStream.format("splitarrow")
            .option("uri", uri)
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

    return run


def await_rows(uri, rows):
    deadline = time.monotonic() + 30
    with splitarrow.connect(uri) as client:
        while client.info("set").rows != rows:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_each_version_is_read_once(daemon, published, drain, tmp_path):
    published(0, 100)
    uri = daemon({"set": tmp_path / "set"}).control_uri
    assert drain(uri) == list(range(100))
    published(100, 130)
    published(130, 131)
    await_rows(uri, 131)
    assert drain(uri) == list(range(131))
    published(500, 510, "overwrite")
    await_rows(uri, 10)
    assert drain(uri) == [*range(131), *range(500, 510)]


def test_a_dataset_without_versions_is_refused(spark, daemon, tmp_path):
    path = write_arrow(tmp_path / "one.arrow", pa.table({"id": [1]}))
    uri = daemon({"one": path}).control_uri
    stream = spark.readStream.format("splitarrow").option("uri", uri).load("one")
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="no published dataset"):
        query.awaitTermination(60)
