"""Joins by partitions: each shard has one value of some columns, and Spark moves no rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

from helpers.publication import publish
from splitarrow.pipeline.shards import PARTITION_KEY
from splitarrow.pipeline.spark_versions import VERSION
from splitarrow.pipeline.stored_types import TYPE_KEY
from splitarrow.publication.version_store import VersionStore

LINE = tuple(int(part) for part in VERSION.split(".")[:2])
DAY = dt.date(2026, 3, 1)
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "word": (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "", None, "b"]),
    "day": (pa.date32(), [DAY, DAY - dt.timedelta(days=30000), DAY + dt.timedelta(1), None, DAY]),
    "money": (pa.decimal128(9, 2), [Decimal(n) / 4 for n in (1, 2, 3)] + [None, Decimal("0.25")]),
    "huge": (pa.uint64(), [2**64 - 1, 0, 5, None, 2**64 - 1]),
    "number": (pa.int16(), [3, -1, 7, None, 3]),
    "real": (pa.float64(), [0.5, 1.5, 2.5, None, 0.5]),
}
SETTINGS = {
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
}


def make_shard(n: int, begin: int, rows: int = 3) -> pa.Table:
    columns = {name: pa.array([values[n]] * rows, kind) for name, (kind, values) in TYPES.items()}
    return pa.table({**columns, "id": pa.array(range(begin, begin + rows), pa.int64())})


def mark(table: pa.Table, *names: str) -> pa.Table:
    text = "[" + ", ".join(f'"{name}"' for name in names) + "]"
    return table.replace_schema_metadata({PARTITION_KEY: text.encode()})


@pytest.fixture
def settings(spark):
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name in SETTINGS:
        spark.conf.unset(name)


@pytest.fixture
def join(spark, tmp_path, serve, settings):
    """Publish two datasets with the same partition columns; return how to join them."""

    def publish_both(*names: str) -> Any:
        left = [make_shard(n, n * 10) for n in (0, 1, 2, 3, 4, 4)]
        left.insert(2, make_shard(0, 0, rows=0))
        right = [make_shard(n, n * 100) for n in (4, 1, 0, 3)]
        for name, tables in (("left", left), ("right", right)):
            publish(VersionStore(tmp_path / name), "one", *(mark(each, *names) for each in tables))
        uri = serve({name: tmp_path / name for name in ("left", "right")}).control_uri

        def query(keys: list[str], condition: str = "true", **options: str) -> Any:
            reader = spark.read.format("splitarrow").options(uri=uri, reader="jvm", **options)
            frames = [reader.load(name) for name in ("left", "right")]
            one = frames[0].select(*keys, "id").where(condition)
            other = frames[1].select(*keys, sf.col("id").alias("other"))
            return one.join(other, keys)

        return query

    return publish_both


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def rows_of(frame: Any) -> list[str]:
    return sorted(str(row) for row in frame.collect())


@pytest.mark.parametrize(
    "keys",
    [
        ["word"],
        *(pytest.param([key], marks=pytest.mark.long) for key in ("day", "money", "huge")),
        ["number", "word"],
    ],
)
def test_a_join_by_the_partition_columns_moves_no_rows(join, keys):
    query = join(*keys)
    expected = rows_of(query(keys, pushdown="false"))
    assert len(expected) == 9 * 3 * 2 + 3 * 3
    for options in ({}, {"shards_per_partition": "1"}):
        joined = query(keys, **options)
        assert "Exchange" not in plan_of(joined)
        assert rows_of(joined) == expected


@pytest.mark.parametrize("condition", ["id >= 10", "id > 0 and id < 12", "word < 'b'", "id < 0"])
def test_the_partitions_that_a_filter_leaves_are_joined(join, condition):
    query = join("word")
    joined = query(["word"], condition)
    assert ("Exchange" in plan_of(joined)) == (condition == "id < 0")  # no partition
    assert rows_of(joined) == rows_of(query(["word"], condition, pushdown="false"))


def test_a_join_needs_no_column_whose_name_differs_only_in_case(spark, tmp_path, settings):
    tables = [pa.table({"id": [n], "word": ["ab"[n]], "Word": ["x"]}) for n in range(2)]
    publish(VersionStore(tmp_path / "set"), "one", *(mark(each, "word") for each in tables))
    frame = spark.read.format("splitarrow").load(str(tmp_path / "set"))
    numbers = spark.createDataFrame([(1, 1), (0, 0)], "id long, flag int").cache()
    few = sf.broadcast(numbers.where("flag = 1"))
    joined = frame.join(few, "id")
    assert joined.collect() == [(1, "b", "x", 1)]
    assert "dynamicpruning" in plan_of(joined)
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE"):
        frame.select("word")


def test_partitions_are_pruned_by_another_join(spark, join):
    query = join("word")
    words = spark.createDataFrame([("a", 1), ("b", 0), (None, 1)], "word string, flag int").cache()
    few = sf.broadcast(words.where("flag = 1"))
    joined = query(["word"]).join(few, "word")
    assert "Exchange hash" not in plan_of(joined)
    assert "dynamicpruning" in plan_of(joined)
    assert len(rows_of(joined)) == 9
    assert rows_of(joined) == rows_of(query(["word"], pushdown="false").join(few, "word"))


def test_a_join_of_other_columns_moves_rows(join):
    query = join("real")  # 0.0 would equal -0.0
    assert "Exchange" in plan_of(query(["real"]))
    assert rows_of(query(["real"])) == rows_of(query(["real"], pushdown="false"))
    assert "Exchange" in plan_of(query(["word"]))


def test_shards_with_several_values_are_no_partitions(spark, tmp_path, serve, settings):
    mixed = pa.concat_tables([make_shard(0, 0), make_shard(1, 5)]).drop_columns("word")
    publish(VersionStore(tmp_path / "set"), "one", mark(mixed, "number"))
    uri = serve({"set": tmp_path / "set"}).control_uri
    frame = spark.read.format("splitarrow").options(uri=uri, reader="jvm").load("set")
    joined = frame.join(frame.select("number", sf.col("id").alias("other")), "number")
    assert "Exchange" in plan_of(joined)
    assert joined.count() == 18


def test_groups_of_partitions_move_no_rows(spark, join, tmp_path):
    join("word")
    frame = spark.read.format("splitarrow").load(str(tmp_path / "left"))
    sums = frame.groupBy("word").agg(sf.sum("id").alias("total"))
    assert "Exchange" not in plan_of(sums)
    plain = spark.read.format("splitarrow").option("pushdown", "false").load(str(tmp_path / "left"))
    expected = plain.groupBy("word").agg(sf.sum("id").alias("total"))
    assert "Exchange" in plan_of(expected)
    assert rows_of(sums) == rows_of(expected)


def test_partitions_have_the_shards_of_their_rows(spark, join, tmp_path):
    join("word")
    frame = spark.read.format("splitarrow").load(str(tmp_path / "left"))
    shards = sf.sort_array(sf.collect_set("shard")).alias("shards")
    found = frame.select("word", "_metadata.shard").groupBy("word").agg(shards)
    assert "Exchange" not in plan_of(found)
    expected = {"b": [0, 5, 6], "a": [1], "": [3], None: [4]}
    assert {row.word: row.shards for row in found.collect()} == expected


@pytest.mark.skipif(LINE < (4, 0), reason="Spark 3.5 has no collations")
def test_values_with_a_collation_are_no_keys_and_have_no_groups(spark, tmp_path, serve, settings):
    collated = pa.field("word", pa.string()).with_metadata(
        {TYPE_KEY: b'"string collate UTF8_LCASE"'}
    )
    schema = pa.schema([collated, pa.field("id", pa.int64())])
    words = ["b", "A", None, "B", "a"]
    tables = [
        pa.table({"word": [w] * 2, "id": [n, n + 10]}, schema=schema) for n, w in enumerate(words)
    ]
    publish(VersionStore(tmp_path / "set"), "one", *(mark(each, "word") for each in tables))
    uri = serve({"set": tmp_path / "set"}).control_uri
    reader = spark.read.format("splitarrow").options(uri=uri, reader="jvm")
    frame, plain = reader.load("set"), reader.option("pushdown", "false").load("set")
    for of in (
        lambda f: f.groupBy("word").count().select("count"),
        lambda f: f.selectExpr("lower(max(word))", "lower(min(word))", "count(word)"),
        lambda f: f.where("word = 'A'").select("id"),
        lambda f: f.orderBy(sf.desc("word"), "id").limit(3).select("id"),
        lambda f: f.join(f.select("word", sf.col("id").alias("other")), "word").select("other"),
    ):
        assert rows_of(of(frame)) == rows_of(of(plain))
    assert frame.groupBy("word").count().count() == 3
    joined = frame.join(frame.select("word", sf.col("id").alias("other")), "word")
    assert joined.count() == 32
