"""The modes of ``df.write`` through the source in the JVM, as Spark's users know them."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from helpers.publication import read_version
from splitarrow.pipeline.shards import partition_columns
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES
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


@pytest.mark.skipif(
    not HAS_PYTHON_SOURCES, reason="Spark 3.5 has no tables of such data sources in the session"
)
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


def test_clustered_writes_are_refused(spark, tmp_path):
    writer = spark.range(3).write.format("splitarrow").mode("append")
    with pytest.raises(Exception, match="use partitionBy instead"):
        # What clusterBy sets, which Spark 3.5 does not have.
        writer.option("__clustering_columns", '["id"]').save(str(tmp_path / "set"))
    assert not (tmp_path / "set").exists()


@pytest.fixture
def write_days(spark, tmp_path):
    """Write rows of a day and a number; return the days of the shards, and all rows."""
    path = tmp_path / "days"

    def write(rows: list[tuple[Any, int]], mode: str, **options: str) -> tuple[list[Any], Any]:
        frame = spark.createDataFrame(rows, "day date, n int").repartition(2)
        writer = frame.write.format("splitarrow").mode(mode).options(**options)
        writer.partitionBy("day").save(str(path))
        store: Any = VersionStore(path)
        manifest = store.load()
        days = [shard.columns["day"].minimum for shard in manifest.shards]
        table = read_version(store, manifest).sort_by([("day", "ascending"), ("n", "ascending")])
        return days, list(zip(*table.to_pydict().values(), strict=True))

    return write


MONDAY, TUESDAY, SUNDAY = date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 7)


def test_each_shard_has_one_partition(write_days):
    rows = [(MONDAY, 1), (TUESDAY, 2), (None, 3), (MONDAY, 4), (None, 5), (TUESDAY, 6)] * 3
    days, found = write_days(rows, "append")
    assert set(days) == {None, "2024-01-01", "2024-01-02"}
    assert sorted(found, key=str) == sorted(rows, key=str)


def test_dynamic_overwrite_replaces_the_partitions_that_it_writes(write_days):
    write_days([(MONDAY, 1), (TUESDAY, 2), (None, 3)], "append")
    dynamic = {"partitionOverwriteMode": "dynamic"}
    _, found = write_days([(TUESDAY, 9), (SUNDAY, 8), (None, 7)], "overwrite", **dynamic)
    assert sorted(found, key=str) == [
        (None, 7),
        (MONDAY, 1),
        (TUESDAY, 9),
        (SUNDAY, 8),
    ]
    _, found = write_days([(TUESDAY, 5)], "overwrite")
    assert found == [(TUESDAY, 5)]


def test_other_partition_columns_are_refused(spark, write_days, tmp_path):
    write_days([(MONDAY, 1)], "append")
    frame = spark.createDataFrame([(MONDAY, 1)], "day date, n int")
    writer = frame.write.format("splitarrow").mode("append").partitionBy("n")
    with pytest.raises(Exception, match="is partitioned by day, not by n"):
        writer.save(str(tmp_path / "days"))
    with pytest.raises(Exception, match="cannot partition by 'x', which is double"):
        spark.sql("select 1.5D x").write.format("splitarrow").partitionBy("x").save(
            str(tmp_path / "numbers")
        )


def test_an_append_keeps_the_partitions(spark, write_days, tmp_path):
    write_days([(MONDAY, 1)], "append")
    frame = spark.createDataFrame([(SUNDAY, 1), (MONDAY, 2), (SUNDAY, 3)], "day date, n int")
    frame.coalesce(1).write.format("splitarrow").mode("append").save(str(tmp_path / "days"))
    days, _ = write_days([], "append")
    assert days == ["2024-01-01", "2024-01-01", "2024-01-07"]


@pytest.fixture
def append(spark, tmp_path):
    """Append the rows of a query; return the columns of the dataset, and its rows."""
    path = tmp_path / "merged"

    def append(query: str, **options: Any) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
        writer = spark.sql(query).write.format("splitarrow").mode("append").options(**options)
        writer.save(str(path))
        store: Any = VersionStore(path)
        table = read_version(store, store.load())
        columns = {field.name: str(field.type) for field in table.schema}
        return columns, list(zip(*table.to_pydict().values(), strict=True))

    return append


def test_an_append_follows_the_columns_of_the_dataset(append):
    append("select 1L as id, 'a' as name", dictionary="name")
    columns, rows = append("select 'b' as name, 2 as id")
    assert columns["id"] == "int64"
    assert columns["name"].startswith("dictionary")
    assert rows == [(1, "a"), (2, "b")]
    for query, difference in (
        ("select 1L as id, 'a' as name, 1 as more", "additional column 'more'"),
        ("select 1L as id", "lacks the column 'name'"),
        ("select 'x' as id, 'a' as name", "'id' is string, not int64"),
    ):
        with pytest.raises(Exception, match=f"{difference}; the option mergeSchema"):
            append(query)


def test_merging_schemas_adds_columns_and_widens_numbers(append):
    merge = {"mergeSchema": True}
    append("select 1 as id, 1.5F as x", **merge)
    columns, rows = append("select 2D as x, 'b' as name, 3000000000 as id", **merge)
    assert columns == {"id": "int64", "x": "double", "name": "string"}
    assert rows == [(1, 1.5, None), (3000000000, 2.0, "b")]
    columns, rows = append("select 4 as id", **merge)
    assert rows[2:] == [(4, None, None)]
    with pytest.raises(Exception, match="'x' is string, not double"):
        append("select 'no' as x", **merge)


def test_partition_columns_may_be_quoted(spark, tmp_path):
    rows = spark.sql("select id as `the ``day`, id as `é` from range(2)")
    for mode in ("error", "append"):
        writer = rows.write.format("splitarrow").partitionBy("`the ``day`", "`é`").mode(mode)
        writer.save(str(tmp_path / "set"))
    store: Any = VersionStore(tmp_path / "set")
    assert partition_columns(store.load().schema) == ["the `day", "é"]


@pytest.mark.parametrize("overwrites", ["static", "dynamic"])
def test_merging_schemas_keeps_partitions_and_dictionaries(spark, append, tmp_path, overwrites):
    rows = spark.sql("select explode(array(1, 2)) as day, 'a' as name")
    writer = rows.write.format("splitarrow").partitionBy("day").option("dictionary", "name")
    writer.save(str(tmp_path / "merged"))
    append("select 1 as day, 'b' as name, 7 as more", mergeSchema=True)
    more = spark.sql("select 2 as day, 'c' as name, 8L as more").write.format("splitarrow")
    more = more.options(mergeSchema=True, partitionOverwriteMode=overwrites).mode("append")
    more.partitionBy("day").save(str(tmp_path / "merged"))
    frame = spark.read.format("splitarrow").load(str(tmp_path / "merged"))
    assert sorted(map(tuple, frame.select("day", "name", "more").collect())) == [
        (1, "a", None),
        (1, "b", 7),
        (2, "a", None),
        (2, "c", 8),
    ]
    store: Any = VersionStore(tmp_path / "merged")
    schema = store.load().schema
    assert partition_columns(schema) == ["day"]
    assert str(schema.field("name").type).startswith("dictionary")
    with pytest.raises(Exception, match="the dataset is partitioned by day, not by name"):
        more.option("mergeSchema", "true").partitionBy("name").save(str(tmp_path / "merged"))


def test_a_version_published_meanwhile_is_not_lost(spark, append, tmp_path):
    append("select 1 as id")
    append("select 2 as id")
    writer = spark.sql("select 1 as id, 2 as more").write.format("splitarrow").mode("overwrite")
    with pytest.raises(Exception, match="version 2 was published after version 1 was read"):
        writer.option("__base", 1).save(str(tmp_path / "merged"))
    assert append("select 3 as id")[1] == [(1,), (2,), (3,)]


@pytest.mark.skipif(
    not HAS_PYTHON_SOURCES, reason="Spark 3.5 has no tables of such data sources in the session"
)
def test_a_statement_overwrites_one_partition(spark, tmp_path):
    spark.sql(
        "create table days (day date, n int) using splitarrow partitioned by (day) "
        f"options (path '{tmp_path / 'set'}')"
    )

    def rows() -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in spark.sql("select day, n from days").collect())

    try:
        spark.sql("insert into days values (date'2024-01-01', 1), (date'2024-01-02', 2)")
        spark.sql("insert overwrite days partition (day = date'2024-01-02') values (5), (6)")
        assert rows() == [(MONDAY, 1), (TUESDAY, 5), (TUESDAY, 6)]
        frame = spark.createDataFrame([(SUNDAY, 7), (SUNDAY, 8)], "day date, n int").coalesce(1)
        frame.writeTo("days").overwrite(sf.col("day") >= TUESDAY)
        assert rows() == [(MONDAY, 1), (SUNDAY, 7), (SUNDAY, 8)]
        with pytest.raises(Exception, match="would replace some rows of the shard"):
            frame.writeTo("days").overwrite(sf.col("n") == 7)
        assert rows() == [(MONDAY, 1), (SUNDAY, 7), (SUNDAY, 8)]
    finally:
        spark.sql("drop table days")
