"""The source: a read returns every row once, filtered exactly as Spark filters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from helpers.files import write_file, write_shards
from splitarrow.errors import UsageError
from splitarrow.pipeline import filter_option
from splitarrow.pipeline.batch_queries import DatasetReader
from splitarrow.pipeline.datasource import SplitArrowDataSource

ROWS = 1000


def make_part(index):
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
    return [make_part(index) for index in range(4)]


@pytest.fixture
def control_uri(tmp_path, parts, serve):
    folder = tmp_path / "shards"
    write_shards(folder, parts)
    write_file(tmp_path / "one.arrow", parts[0])
    return serve({"shards": folder, "one": tmp_path / "one.arrow"}).control_uri


@pytest.fixture
def read(spark, control_uri):
    def load(dataset="shards", **options):
        reader = spark.read.format("splitarrow").option("uri", control_uri).options(**options)
        return reader.load(dataset)

    return load


@pytest.fixture(params=["jvm", "python"])
def read_by_either(request, read):
    """Read through the reader in the JVM, or through the source in Python."""

    def load(dataset="shards", **options):
        return read(dataset, reader=request.param, **options)

    return load


def as_spark_reads(tables):
    table = pa.concat_tables(tables)
    types: dict[str, Any] = {"s": pa.string(), "u": pa.int16()}
    fields = [field.with_type(types.get(field.name, field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def sort(table):
    return table.sort_by("id").combine_chunks()


def test_each_shard_is_read_once(read_by_either, parts):
    frame = read_by_either()
    assert frame.rdd.getNumPartitions() == 4
    assert sort(frame.toArrow()).to_pydict().keys() == set(parts[0].column_names)
    names = ["id", "s", "u", "b"]
    rows = sort(frame.select(*names).toArrow())
    assert rows.equals(sort(as_spark_reads(parts)).select(names).cast(rows.schema))


def test_the_options_columns_limit_and_shards_per_partition(read_by_either, parts):
    frame = read_by_either(columns="s,id", shards_per_partition="3")
    assert (frame.columns, frame.rdd.getNumPartitions()) == (["s", "id"], 2)
    assert frame.count() == 4 * ROWS
    first = read_by_either(limit="1500", columns='["id"]').toArrow()["id"].to_pylist()
    assert first == list(range(1500))
    assert (
        read_by_either("one").agg({"id": "sum"}).collect()[0][0] == pc.sum(parts[0]["id"]).as_py()
    )
    assert read_by_either(limit="0").count() == 0


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
    frame = spark.createDataFrame(as_spark_reads(parts)).cache()
    names = [f"c{index}" for index in range(len(CONDITIONS))]
    columns = [
        f"({condition}) as {name}" for condition, name in zip(CONDITIONS, names, strict=True)
    ]
    rows = frame.selectExpr("id", *columns).toArrow()
    frame.unpersist()
    return [sorted(rows.filter(rows[name])["id"].to_pylist()) for name in names]


def ids(frame):
    return sorted(frame.select("id").toArrow()["id"].to_pylist())


def test_pushed_filters_keep_the_rows_that_spark_keeps(read_by_either, expected):
    for condition, rows in zip(CONDITIONS, expected, strict=True):
        assert ids(read_by_either(pushdown="true").where(condition)) == rows, condition


def test_queries_of_a_frame_do_not_share_filters(read_by_either, expected):
    frame = read_by_either()
    for condition, rows in zip(CONDITIONS[:6], expected, strict=False):
        assert ids(frame.where(condition)) == rows, condition
        assert frame.count() == 4 * ROWS


def test_spark_filters_if_pushdown_is_disabled(spark, read, expected):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        frame = read(pushdown="true", reader="python")
        assert ids(frame.where(CONDITIONS[0])) == expected[0]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_spark_leaves_pushed_filters_to_the_daemon(read_by_either, parts):
    read = read_by_either
    pushed = read(pushdown="true").where("s = 'n3' and f > 2")
    assert "Filter (" not in pushed._jdf.queryExecution().executedPlan().toString()
    text = filter_option(pc.field("id") >= 3990, pa.schema({"id": pa.int64()}))
    assert ids(read(filter=text)) == list(range(3990, 4000))
    with pytest.raises(PySparkException, match="filter_option"):
        read(filter="id > 3").collect()


def test_a_custom_schema_selects_and_casts(spark, control_uri):
    reader = spark.read.format("splitarrow").option("uri", control_uri)
    frame = reader.schema("u bigint, id decimal(20,0)").load("one")
    assert frame.where("id = 999").collect()[0].u == 999 % 256
    with pytest.raises(PySparkException, match=r"column 'id'.*exactly"):
        reader.schema("id tinyint").load("one").collect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colunms": "id"}, "no option 'colunms'; did you mean 'columns'"),
        ({"columns": "absent"}, "no column 'absent'; the columns are id, f, s, u, b"),
        ({"limit": "many"}, "option 'limit' is 'many'; it must be an integer"),
        ({"transport": "pigeon"}, "not available over 'pigeon'"),
        ({"version": "old"}, "its version is"),
        ({"uri": "tcp://127.0.0.1:1"}, "grpc"),
    ],
)
def test_a_wrong_option_is_an_error(read, options, message):
    with pytest.raises(PySparkException, match=message):
        read("one", **options).collect()


def test_an_unknown_dataset_is_an_error(read):
    with pytest.raises(PySparkException, match="no dataset 'absent'"):
        read("absent")


def test_a_token_grants_access_and_is_not_shown(spark, tmp_path, parts, serve):
    path = write_file(tmp_path / "one.arrow", parts[0])
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[tokens]]\nname = "reader"\ntoken = "a-very-secret-token"\ndatasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    uri = serve({"one": path}, token_file=tokens).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    with pytest.raises(PySparkException, match="token"):
        reader.load("one")
    frame = reader.option("token", "a-very-secret-token").load("one")
    assert frame.count() == ROWS
    assert "secret" not in frame._jdf.queryExecution().toString()
    file = tmp_path / "token"
    file.write_text("a-very-secret-token\n")
    from_file = spark.read.format("splitarrow").options(uri=uri, token_file=str(file)).load("one")
    assert from_file.count() == ROWS
    with pytest.raises(PySparkException) as caught:
        reader.option("columns", "absent").load("one")
    assert "very-secret" not in str(caught.value)


def test_without_the_jar_its_reader_cannot_be_selected():
    def reader(name):
        options = {"reader": name, "uri": "grpc://host", "path": "trips"}
        return SplitArrowDataSource(options).reader(st.StructType())

    assert isinstance(reader("python"), DatasetReader)
    with pytest.raises(UsageError, match="has not loaded the reader in the JVM"):
        reader("jvm")


def test_spark_finds_the_source_in_the_installed_modules() -> None:
    """PySpark imports the modules of this name in a process of its own, by their names alone."""
    script = "import pyspark_splitarrow; print(pyspark_splitarrow.DefaultSource.name())"
    found = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert (found.stdout, found.returncode) == ("splitarrow\n", 0), found.stderr
