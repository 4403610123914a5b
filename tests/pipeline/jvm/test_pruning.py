"""The shards that a query needs: by its filter, and by its sort order with a limit."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as hs
from pyspark.sql import functions as sf

from helpers.publication import publish
from splitarrow.pipeline.jvm.pruning import Order, ShardStatistics, VersionStatistics
from splitarrow.pipeline.spark_versions import VERSION
from splitarrow.publication.column_ranges import RangeTracker
from splitarrow.publication.version_store import VersionStore

LINE = tuple(int(part) for part in VERSION.split(".")[:2])
SCHEMA = pa.schema([("n", pa.float64()), ("s", pa.string())])
NUMBERS = hs.none() | hs.sampled_from([-0.0, 0.0, 1.0, 2.5, float("inf"), float("nan")])
TEXTS = hs.none() | hs.sampled_from(["", "a", "b", "\U0001f600", "\uffff", "x" * 65])


def describe(values: list[tuple[Any, Any]]) -> ShardStatistics:
    columns: Any = list(zip(*values, strict=True)) or [(), ()]
    tracker = RangeTracker(SCHEMA)
    tracker.add(
        pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
    )
    return ShardStatistics(len(values), tracker.ranges())


def sort_key(value: Any, order: Order) -> Any:
    """Return the key by which Spark sorts, ascending: NaN is the largest number."""
    if value is None:
        return (0 if order.nulls_first != order.descending else 2, 0, "")
    if isinstance(value, str):
        return (1, 0, value.encode())
    return (1, 1, 0.0) if value != value else (1, 0, value)


@given(
    hs.lists(hs.lists(hs.tuples(NUMBERS, TEXTS), max_size=4), max_size=5),
    hs.builds(Order, hs.sampled_from(["n", "s"]), hs.booleans(), hs.booleans(), hs.integers(1, 8)),
)
@example(
    [[(0.0, None), (2.5, None)], [(0.0, None)] * 2, [(1.0, None)]], Order("n", False, False, 4)
)
def test_each_of_the_first_rows_is_in_a_chosen_shard(shards, order):
    statistics = VersionStatistics(SCHEMA, SCHEMA, lambda columns: [describe(s) for s in shards])
    chosen = statistics.select(None, order)
    position = SCHEMA.names.index(order.column)
    keys = [
        (sort_key(row[position], order), index) for index, each in enumerate(shards) for row in each
    ]
    keys.sort(key=lambda pair: pair[0], reverse=order.descending)
    if chosen is not None and keys:
        last = keys[min(order.rows, len(keys)) - 1][0]
        needed = {index for key, index in keys if key == last} | {
            index for _, index in keys[: order.rows]
        }
        assert needed <= set(chosen)


def make_parts() -> list[pa.Table]:
    chance = random.Random(7)
    return [
        pa.table(
            {
                "id": pa.array([n * 1000 + i for i in range(1000)], pa.int64()),
                "word": pa.array([f"w{n}"] * 999 + [None]),
                "real": pa.array([chance.random() + n for _ in range(1000)], pa.float64()),
                "rough": pa.array([float("nan") if n == 1 else n + 0.5] * 1000, pa.float64()),
                "text": pa.array([f"{n} " + "x" * 5000] * 1000),
            }
        )
        for n in range(6)
    ]


@pytest.fixture
def parts(tmp_path):
    publish(VersionStore(tmp_path / "parts"), "one", *make_parts())
    return tmp_path / "parts"


@pytest.fixture
def load(spark, serve, parts):
    uri = serve({"parts": parts}).control_uri

    def read(**options: Any) -> Any:
        reader = spark.read.format("splitarrow").options(uri=uri, reader="jvm")
        return reader.options(shards_per_partition=1, **options).load("parts")

    return read


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def count_shards(frame: Any) -> int:
    """Run a query, and return the number of tasks of its scan, each of which reads one shard."""
    leaf = frame._jdf.queryExecution().sparkPlan().collectLeaves().head()
    return len(leaf.inputRDD().partitions())


@pytest.mark.parametrize(
    ("order", "shards"),
    [
        ("id", 1),
        pytest.param("id desc, word", 1, marks=pytest.mark.long),
        ("word, id", 6),  # nulls first, and each shard has one
        ("word nulls last, id desc", 1),
        ("real desc", 1),
        ("rough desc, id desc", 2),  # the range of a shard with a NaN is unknown
        ("id + 1", 6),
    ],
)
def test_the_first_rows_need_few_shards(load, order, shards):
    def query(frame: Any) -> Any:
        query = "select id, word, real, rough from {frame} order by " + order + " limit 10"
        return frame.sparkSession.sql(query, frame=frame)

    top = query(load())
    assert count_shards(top) == shards
    assert str(top.collect()) == str(query(load(pushdown="false")).collect())
    assert ("PushedTopN" in plan_of(top)) == (order != "id + 1")


def test_first_rows_after_a_filter_are_not_pushed(load):
    top = load().where("id > 1500").select("id").orderBy("id").limit(2)
    assert [row.id for row in top.collect()] == [1501, 1502]
    assert "PushedTopN" not in plan_of(top)


@pytest.mark.skipif(LINE < (4, 0), reason="Spark 3.5 has no collations")
def test_what_compares_with_a_collation_is_read(load):
    frame, plain = load(), load(pushdown="false")
    for query in (
        "select max(word collate utf8_lcase) from {f} where word collate utf8_lcase > 'W3'",
        "select word collate utf8_lcase as w, count(*) from {f} group by 1 order by 1",
        "select id from {f} order by word collate utf8_lcase desc, id limit 3",
        "select word from {f} where word collate utf8_lcase in ('W1', 'W2') group by word",
    ):
        found, expected = (
            [str(row) for row in f.sparkSession.sql(query, f=f).collect()] for f in (frame, plain)
        )
        assert sorted(found) == sorted(expected), query


def test_a_filter_selects_shards(load):
    frame = load().select("id", "real")
    for condition, shards in (("id between 2500 and 3500", 2), ("id < 0", 0), ("real > 5", 1)):
        assert count_shards(frame.where(condition)) == shards
        expected = load(pushdown="false").where(condition).count()
        assert frame.where(condition).agg(sf.count("real")).first()[0] == expected


def test_a_small_side_of_a_join_is_broadcast(load):
    """The whole dataset is larger than Spark's limit, but not its selected shard."""
    large = load(pushdown="false").withColumnRenamed("id", "other")
    assert "BroadcastHashJoin" not in plan_of(large.join(load(), sf.expr("id = other")))
    joined = large.join(load().where("id < 900"), sf.expr("id = other"))
    assert "BroadcastHashJoin" in plan_of(joined)
    assert joined.count() == 900


def test_columns_of_a_known_width_count_as_such(load):
    def size(frame: Any) -> int:
        return frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()

    assert 8 * 6000 <= size(load().select("id")) <= 3 * 8 * 6000
    assert size(load().select("text")) > 12_000_000
    assert size(load().select("text").where("id < 900")) < 10_000_000


@pytest.fixture
def keys(spark, tmp_path):
    """Return a frame of which a filter selects some identifiers and words, as a small table."""
    rows = [(n, n % 1000, f"w{n // 1000}", n / 2) for n in range(0, 6000, 7)]
    frame = spark.createDataFrame(rows, "key long, part int, label string, half double")
    frame.write.parquet(str(tmp_path / "keys"))
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield spark.read.parquet(str(tmp_path / "keys"))
    spark.conf.unset("spark.sql.adaptive.enabled")


def received_by_scan(frame: Any) -> int:
    """Run a query, and return the bytes that its scan of a dataset received."""
    frame._jdf.collectToPython()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    metrics = [leaves.apply(n).metrics() for n in range(leaves.size())]
    return sum(m.apply("bytesReceived").value() for m in metrics if m.contains("bytesReceived"))


@pytest.mark.parametrize(
    ("condition", "join", "most"),
    [
        ("key < 21", "id = key", 3000),  # 3 rows of one shard
        ("part = -1", "id = key", 0),  # no row
        ("part < 990 and label <> 'x'", "id = key", 80_000),  # all shards, but not all rows
        pytest.param("key between 2100 and 2900", "word = label", 40_000, marks=pytest.mark.long),
        ("key < 21", "real = half", None),  # floats are not pushed
        ("key < 21", "id = key and word = label", 3000),
        pytest.param("key < 21", "word <=> label", None, marks=pytest.mark.long),
    ],
)
def test_a_join_reads_the_rows_that_the_other_side_has(spark, load, keys, condition, join, most):
    def query(frame: Any) -> Any:
        frame = frame.select("id", "word", "real").where("real >= 0")
        return frame.join(sf.broadcast(keys.where(condition)), sf.expr(join))

    pruned = query(load())
    expected = sorted(str(row) for row in query(load(pushdown="false")).collect())
    assert sorted(str(row) for row in pruned.collect()) == expected
    received = received_by_scan(pruned)
    assert ("dynamicpruning" in plan_of(pruned)) == (most is not None)
    assert received <= most if most is not None else received > 100_000
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    assert sorted(str(row) for row in query(load()).collect()) == expected


def test_many_values_of_the_other_side_become_a_range(spark, load, keys):
    values = spark.range(2000, 3500).selectExpr("id as key", "id % 2 as bit").cache()
    frame = load().select("id").where("real >= 0")
    joined = frame.join(sf.broadcast(values.where("bit < 2")), sf.expr("id = key"))
    assert sorted(row.id for row in joined.collect()) == list(range(2000, 3500))
    assert "dynamicpruning" in plan_of(joined)
    assert received_by_scan(joined) < 8 * 2500
    two = frame.join(sf.broadcast(values.where("bit = 1")), sf.expr("id = key"))
    assert two.select("id").union(frame.where("id < 3")).count() == 753


def test_a_join_selects_files(spark, parts, keys):
    frame = spark.read.format("splitarrow").option("shards_per_partition", 1).load(str(parts))
    some = frame.select("id", "word").join(
        sf.broadcast(keys.where("key < 21")), sf.expr("id = key")
    )
    assert sorted(row.id for row in some.collect()) == [0, 7, 14]
    leaves = some._jdf.queryExecution().executedPlan().collectLeaves()
    mapped = [leaves.apply(n).metrics() for n in range(leaves.size())]
    mapped = [m.apply("bytesMapped").value() for m in mapped if m.contains("bytesMapped")]
    assert 0 < mapped[0] < 2 * 14 * 1000
