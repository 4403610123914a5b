"""Aggregates that the manifest answers: exact, or left to Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

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
        frame.groupBy("word").count(),
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
