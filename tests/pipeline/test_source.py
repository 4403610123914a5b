"""Reading with a real Spark from a real daemon: all rows once, filtered as Spark would."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException

from splitarrow.pipeline import filter_option

from .conftest import write_arrow, write_folder

ROWS = 1000


def part(index):
    numbers = range(index * ROWS, (index + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "f": pa.array([float("nan") if n % 11 == 0 else n / 2 - 500 for n in numbers]),
            "s": pa.array(
                [None if n % 5 == 0 else f"n{n % 7}" for n in numbers]
            ).dictionary_encode(),
            "u": pa.array([n % 256 for n in numbers], pa.uint8()),
            "b": pa.array([None if n % 3 == 0 else n % 2 == 0 for n in numbers]),
        }
    )


@pytest.fixture(scope="module")
def parts():
    return [part(index) for index in range(4)]


@pytest.fixture
def served(tmp_path, parts, daemon):
    folder = write_folder(tmp_path / "shards", parts)
    write_arrow(tmp_path / "one.arrow", parts[0])
    return daemon({"shards": folder, "one": tmp_path / "one.arrow"}).control_uri


@pytest.fixture
def read(spark, served):
    def load(dataset="shards", **options):
        reader = spark.read.format("splitarrow").option("uri", served).options(**options)
        return reader.load(dataset)

    return load


def plain(tables):
    table = pa.concat_tables(tables)
    types: dict[str, Any] = {"s": pa.string(), "u": pa.int16()}
    fields = [field.with_type(types.get(field.name, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def ordered(table):
    return table.sort_by("id").combine_chunks()


def test_each_shard_is_read_once(read, parts):
    frame = read()
    assert frame.rdd.getNumPartitions() == 4
    assert ordered(frame.toArrow()).to_pydict().keys() == set(parts[0].column_names)
    found = ordered(frame.select("id", "s", "u", "b").toArrow())
    assert found.equals(ordered(plain(parts)).select(["id", "s", "u", "b"]).cast(found.schema))


def test_columns_a_limit_and_shards_in_one_partition(read, parts):
    frame = read(columns="s,id", shards_per_partition="3")
    assert (frame.columns, frame.rdd.getNumPartitions()) == (["s", "id"], 2)
    assert frame.count() == 4 * ROWS
    first = read(limit="1500", columns='["id"]').toArrow()["id"].to_pylist()
    assert first == list(range(1500))
    assert read("one").agg({"id": "sum"}).collect()[0][0] == pc.sum(parts[0]["id"]).as_py()
    assert read(limit="0").count() == 0


CONDITIONS = [
    "f > 990",
    "not (f > 990)",
    "f >= double('NaN')",
    "f < 3.5 and f >= -2",
    "f = double('NaN')",
    "s = 'n3'",
    "s <> 'n3'",
    "s like 'n%'",
    "s like '%3' and id > 100",
    "s is null",
    "s is not null and not (s in ('n1', 'n2'))",
    "s in ('n1', 'n2', null)",
    "not (s <=> 'n1')",
    "s <=> null",
    "u >= 250 or u = 3",
    "u > 100 and u < 103",
    "b",
    "not b",
    "id in (1, 5, 3999)",
    "id > 5000",
]


@pytest.fixture(scope="module")
def expected(spark, parts):
    frame = spark.createDataFrame(plain(parts)).cache()
    names = [f"c{index}" for index in range(len(CONDITIONS))]
    columns = [
        f"({condition}) as {name}" for condition, name in zip(CONDITIONS, names, strict=True)
    ]
    rows = frame.selectExpr("id", *columns).toArrow()
    frame.unpersist()
    return [sorted(rows.filter(rows[name])["id"].to_pylist()) for name in names]


def ids(frame):
    return sorted(frame.select("id").toArrow()["id"].to_pylist())


def test_filters_that_are_pushed_down_leave_the_rows_that_spark_would_leave(read, expected):
    for condition, wanted in zip(CONDITIONS, expected, strict=True):
        assert ids(read(pushdown="true").where(condition)) == wanted, condition


def test_queries_of_one_frame_do_not_get_the_filters_of_each_other(read, expected):
    frame = read()
    for condition, wanted in zip(CONDITIONS[:6], expected, strict=False):
        assert ids(frame.where(condition)) == wanted, condition
        assert frame.count() == 4 * ROWS


def test_without_the_setting_spark_filters(spark, read, expected):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert ids(read(pushdown="true").where(CONDITIONS[0])) == expected[0]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_filter_is_left_to_the_daemon(read, parts):
    pushed = read(pushdown="true").where("s = 'n3' and f > 2")
    assert "Filter (" not in pushed._jdf.queryExecution().executedPlan().toString()
    text = filter_option(pc.field("id") >= 3990, pa.schema({"id": pa.int64()}))
    assert ids(read(filter=text)) == list(range(3990, 4000))
    with pytest.raises(PySparkException, match="filter_option"):
        read(filter="id > 3").collect()


def test_a_schema_of_ones_own_selects_and_casts(spark, served):
    reader = spark.read.format("splitarrow").option("uri", served)
    frame = reader.schema("u bigint, id decimal(20,0)").load("one")
    assert frame.where("id = 999").collect()[0].u == 999 % 256
    with pytest.raises(PySparkException, match=r"column 'id'.*exactly"):
        reader.schema("id tinyint").load("one").collect()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"colunms": "id"}, "no option 'colunms'; did you mean 'columns'"),
        ({"columns": "nix"}, "no column 'nix'; it has id, f, s, u, b"),
        ({"limit": "many"}, "option 'limit' is 'many', no whole number"),
        ({"transport": "pigeon"}, "not offered by 'pigeon'"),
        ({"version": "old"}, "its version is"),
        ({"uri": "tcp://127.0.0.1:1"}, "grpc"),
    ],
)
def test_what_is_wrong_is_told(read, options, text):
    with pytest.raises(PySparkException, match=text):
        read(**options).collect()


def test_a_dataset_that_is_not_there_is_told(read):
    with pytest.raises(PySparkException, match="no dataset 'nix'"):
        read("nix")


def test_a_token_is_needed_and_not_shown(spark, tmp_path, parts, daemon):
    path = write_arrow(tmp_path / "one.arrow", parts[0])
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[tokens]]\nname = "reader"\ntoken = "a-very-secret-token"\ndatasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    uri = daemon({"one": path}, "--token-file", str(tokens)).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    with pytest.raises(PySparkException, match="token"):
        reader.load("one")
    frame = reader.option("token", "a-very-secret-token").load("one")
    assert frame.count() == ROWS
    assert "secret" not in frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException) as caught:
        reader.option("columns", "nix").load("one")
    assert "very-secret" not in str(caught.value)
