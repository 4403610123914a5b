"""The modes of ``df.write`` through the source in the JVM, as Spark's users know them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from helpers.publication import read_version
from splitarrow.publication.version_store import VersionStore


@pytest.fixture
def write(spark, tmp_path):
    """Write the ids below a number; return the versions of the dataset, and its rows."""
    path = tmp_path / "set"

    def write(rows: int, mode: str | None, **options: Any) -> tuple[list[int], int]:
        writer = spark.range(0, rows, numPartitions=1).write.format("splitarrow")
        writer = writer.options(**options)
        (writer if mode is None else writer.mode(mode)).save(str(path))
        store: Any = VersionStore(path)
        return store.list_versions(), read_version(store, store.load()).num_rows

    return write


def test_append_and_overwrite_create_versions(write):
    assert write(5, "append") == ([1], 5)
    assert write(3, "append") == ([1, 2], 8)
    assert write(2, "overwrite") == ([1, 2, 3], 2)


@pytest.mark.parametrize("mode", ["error", None])
def test_error_refuses_a_dataset_that_exists(write, mode):
    assert write(5, mode) == ([1], 5)
    with pytest.raises(PySparkException, match="PATH_ALREADY_EXISTS") as caught:
        write(3, mode)
    assert "/set already exists" in str(caught.value)
    assert write(1, "append") == ([1, 2], 6)


def test_ignore_leaves_a_dataset_that_exists(write):
    assert write(5, "ignore") == ([1], 5)
    assert write(3, "ignore") == ([1], 5)


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_a_repeated_job_is_written_once(write, mode):
    assert write(5, mode, job_id="one") == ([1], 5)
    assert write(5, mode, job_id="one") == ([1], 5)


def test_a_table_of_the_session_takes_inserts(spark, tmp_path):
    path = tmp_path / "set"
    spark.sql(f"create table ids (id bigint) using splitarrow options (path '{path}')")
    try:
        spark.sql("insert into ids values (1), (2)")
        spark.sql("insert into ids values (3)")
        store: Any = VersionStore(path)
        assert read_version(store, store.load()).sort_by("id")["id"].to_pylist() == [1, 2, 3]
        spark.sql("insert overwrite ids values (4)")
        assert read_version(store, store.load())["id"].to_pylist() == [4]
    finally:
        spark.sql("drop table ids")


@pytest.mark.parametrize("partition", ["partitionBy", "clusterBy"])
def test_partitioned_writes_are_refused(spark, tmp_path, partition):
    writer = spark.range(3).write.format("splitarrow").mode("append")
    with pytest.raises(PySparkException, match="does not partition"):
        getattr(writer, partition)("id").save(str(tmp_path / "set"))
    assert not (tmp_path / "set").exists()
