"""Aggregates that the manifest answers: exact, or left to Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from helpers.files import write_file
from helpers.publication import publish
from splitarrow.pipeline import publish_folder
from splitarrow.publication.version_store import VersionStore

DAY = dt.date(2026, 3, 1)
MOMENT = dt.datetime(2026, 3, 1, 12, 30, 15, 123456, dt.UTC)
COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "tiny": (pa.int8(), [-5, 7, None]),
    "small": (pa.uint8(), [255, 0, 3]),
    "whole": (pa.int32(), [None, None, 4]),
    "big": (pa.int64(), [2**62, -(2**62), 0]),
    "huge": (pa.uint64(), [2**64 - 1, 1, None]),
    "single": (pa.float32(), [1.1, -2.25, None]),
    "real": (pa.float64(), [0.1, 1e300, -3.0]),
    "text": (pa.string(), ["b", "\u00e9", "\U0001f600"]),
    "word": (pa.dictionary(pa.int8(), pa.string()), ["x", None, "a"]),
    "day": (pa.date32(), [DAY, None, DAY - dt.timedelta(days=20000)]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT - dt.timedelta(days=30000), None]),
    "local": (pa.timestamp("ns"), [MOMENT.replace(tzinfo=None), None, None]),
    "money": (pa.decimal128(20, 4), [Decimal("-12.3400"), Decimal("99.9999"), None]),
    "empty": (pa.int32(), [None, None, None]),
}
UNKNOWN: dict[str, tuple[Any, list[Any]]] = {
    "nan": (pa.float64(), [1.0, float("nan"), 2.0]),
    "infinite": (pa.float64(), [1.0, float("inf"), 2.0]),
    "long_text": (pa.string(), ["x" * 100, "a", "b"]),
    "flag": (pa.bool_(), [True, False, None]),
}


def make_table(columns: dict[str, tuple[Any, list[Any]]], reverse: bool) -> pa.Table:
    arrays = {
        name: pa.array(values[::-1] if reverse else values[:2], kind)
        for name, (kind, values) in columns.items()
    }
    return pa.table(arrays)


@pytest.fixture
def shards(tmp_path):
    store = VersionStore(tmp_path / "set")
    publish(store, "one", *(make_table(COLUMNS | UNKNOWN, reverse) for reverse in (False, True)))
    return tmp_path / "set"


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def expressions(names):
    return [f"{function}({name})" for name in names for function in ("min", "max", "count")]


def test_the_manifest_answers_what_spark_would_compute(spark, serve, shards):
    uri = serve({"set": shards}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    frame, slow = reader.load("set"), reader.option("reader", "python").load("set")
    pushed = frame.selectExpr(*expressions(COLUMNS), "count(*)")
    assert "PushedAggregates: [MIN(tiny), MAX(tiny), COUNT(tiny)" in plan_of(pushed)
    assert pushed.collect() == slow.selectExpr(*expressions(COLUMNS), "count(*)").collect()
    for name in UNKNOWN:
        assert "PushedAggregates" not in plan_of(frame.selectExpr(f"max({name})")), name
    assert "[COUNT(nan), COUNT(flag)]" in plan_of(frame.selectExpr("count(nan)", "count(flag)"))
    read = frame.selectExpr(*expressions(UNKNOWN))
    assert str(read.collect()) == str(slow.selectExpr(*expressions(UNKNOWN)).collect())
    for query in (
        frame.where("big > 0").selectExpr("min(big)"),
        frame.groupBy("word").count(),  # a shard has a value and nulls
        frame.selectExpr("count(distinct big)"),
        frame.selectExpr("sum(big)"),
        frame.limit(1).selectExpr("max(big)"),
    ):
        assert "PushedAggregates" not in plan_of(query)
    assert frame.where("big > 0").selectExpr("min(big)").collect()[0][0] == 2**62


def test_a_cluster_answers_while_a_daemon_holds_each_shard(writable_daemons, spark, shards):
    uris = [daemon.control_uri for daemon in writable_daemons]
    publish_folder(str(shards), "set", uris, replicas=1)
    reader = spark.read.format("splitarrow").option("uri", ",".join(uris))
    frame = reader.load("set").selectExpr("min(big)", "max(text)", "count(tiny)")
    assert "PushedAggregates" in plan_of(frame)
    assert list(frame.collect()[0]) == [-(2**62), "\U0001f600", 4]


def test_a_dataset_without_a_manifest_is_read(spark, tmp_path, serve):
    path = write_file(tmp_path / "t.arrow", pa.table({"n": [3, 1, 2]}))
    reader = spark.read.format("splitarrow").option("uri", serve({"t": path}).control_uri)
    frame = reader.load("t").selectExpr("min(n)", "count(*)")
    assert "PushedAggregates" not in plan_of(frame)
    assert list(frame.collect()[0]) == [1, 3]


GROUPS: dict[str, tuple[Any, list[Any]]] = {
    "day": (pa.date32(), [DAY, DAY, None, DAY - dt.timedelta(days=1), DAY]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["b", "a", None, "b", "b"]),
    "huge": (pa.uint64(), [2**64 - 1, 1, None, 1, 2**64 - 1]),
    "money": (
        pa.decimal128(9, 2),
        [Decimal("1.50"), Decimal("-0.01"), None, None, Decimal("1.50")],
    ),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT, None, None, MOMENT]),
    "zero": (pa.float64(), [0.0, -0.0, None, 2.5, -0.0]),
}


def make_groups() -> list[pa.Table]:
    """Return shards with one value of each grouping column, and one shard without rows."""
    tables = [
        pa.table(
            {
                **{name: pa.array([vs[n]] * 4, kind) for name, (kind, vs) in GROUPS.items()},
                "id": pa.array([n * 4, n * 4 + 1, None, n * 4 + 3], pa.int64()),
                "real": pa.array([0.5, float("nan") if n == 1 else 1.0, None, -n], pa.float64()),
                "mixed": pa.array([n, n, n, None], pa.int32()),
            }
        )
        for n in range(5)
    ]
    return [*tables[:3], tables[0].slice(0, 0), *tables[3:]]


@pytest.fixture
def groups(tmp_path):
    publish(VersionStore(tmp_path / "groups"), "one", *make_groups())
    return tmp_path / "groups"


@pytest.fixture(params=["daemon", pytest.param("folder", marks=pytest.mark.long)])
def load_groups(request, spark, serve, groups):
    """Load the groups with what is pushed, and without."""

    def load(pushdown: bool) -> Any:
        reader = spark.read.format("splitarrow").option("reader", "jvm")
        reader = reader.option("pushdown", pushdown)
        if request.param == "folder":
            return reader.load(str(groups))
        return reader.option("uri", serve({"groups": groups}).control_uri).load("groups")

    return load(True), load(False)


def rows_of(frame: Any) -> list[str]:
    return sorted(str(row) for row in frame.collect())


QUERIES = ("count(*)", "count(id)", "min(id)", "max(id)", "min(day)", "max(money)", "count(real)")


def test_groups_of_whole_shards_need_no_rows(load_groups):
    pushed, plain = load_groups
    for keys in (*([name] for name in GROUPS), ["kind", "day"], ["huge", "zero", "moment"]):
        query = pushed.groupBy(*keys).agg(*map(sf.expr, QUERIES))
        assert "PushedGroupBy: [" in plan_of(query), keys
        assert rows_of(query) == rows_of(plain.groupBy(*keys).agg(*map(sf.expr, QUERIES))), keys
        assert "PushedGroupBy: [" in plan_of(pushed.select(*keys).distinct()), keys
        assert rows_of(pushed.select(*keys).distinct()) == rows_of(plain.select(*keys).distinct())
    counts = pushed.groupBy("kind").count()
    first = counts.orderBy(sf.desc("count"), "kind").limit(2)
    assert [tuple(row) for row in first.collect()] == [("b", 12), (None, 4)]
    assert counts.where("kind is null").collect()[0][1] == 4
    assert pushed.groupBy("kind").agg(sf.expr("count(*) + 1")).where("kind = 'a'").first()[1] == 5


@pytest.mark.parametrize(
    ("keys", "query"),
    [
        (["id"], "count(*)"),  # several values
        (["mixed"], "count(*)"),  # a value and nulls
        (["kind"], "max(real)"),  # a shard has a NaN
        pytest.param(["kind"], "sum(id)", marks=pytest.mark.long),
        pytest.param(["kind"], "count(distinct id)", marks=pytest.mark.long),
    ],
)
def test_other_groups_are_read(load_groups, keys, query):
    pushed, plain = load_groups
    frame = pushed.groupBy(*keys).agg(sf.expr(query))
    assert "PushedAggregates" not in plan_of(frame)
    assert rows_of(frame) == rows_of(plain.groupBy(*keys).agg(sf.expr(query)))


@pytest.mark.parametrize(
    ("condition", "is_pushed"),
    [
        ("day = date '2026-03-01'", True),
        ("kind in ('a', 'c') or kind is null", True),
        ("not (huge = 1)", True),
        pytest.param("zero >= 0.0", True, marks=pytest.mark.long),
        pytest.param("zero > 9", True, marks=pytest.mark.long),
        ("id < 8 and day is not null", False),  # some rows of a shard are null
        pytest.param("id > 1", False, marks=pytest.mark.long),
    ],
)
def test_a_filter_that_selects_whole_shards_needs_no_rows(
    spark, serve, groups, condition, is_pushed
):
    uri = serve({"groups": groups}).control_uri
    reader = spark.read.format("splitarrow").options(uri=uri, reader="jvm")
    pushed, plain = reader.load("groups"), reader.option("pushdown", "false").load("groups")
    for keys in ([], ["kind"]):
        query = pushed.where(condition).groupBy(*keys).agg(*map(sf.expr, QUERIES))
        assert ("PushedAggregates" in plan_of(query)) == is_pushed
        expected = plain.where(condition).groupBy(*keys).agg(*map(sf.expr, QUERIES))
        assert rows_of(query) == rows_of(expected)
    assert pushed.where(condition).count() == plain.where(condition).count()


def test_a_dataset_without_rows_has_no_group(spark, tmp_path, serve):
    publish(VersionStore(tmp_path / "set"), "one", make_groups()[3])
    uri = serve({"set": tmp_path / "set"}).control_uri
    frame = spark.read.format("splitarrow").options(uri=uri, reader="jvm").load("set")
    assert frame.groupBy("kind").count().collect() == []
    assert list(frame.selectExpr("count(*)", "max(id)").collect()[0]) == [0, None]


def test_nulls_inside_of_runs_are_counted(spark, tmp_path, serve):
    """Arrow counts no nulls in a run-end encoded array."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array([None, 7]))
    publish(VersionStore(tmp_path / "set"), "one", pa.table({"runs": runs}))
    uri = serve({"set": tmp_path / "set"}).control_uri
    frame = spark.read.format("splitarrow").options(uri=uri, reader="jvm").load("set")
    assert frame.selectExpr("count(runs)").collect()[0][0] == 3
