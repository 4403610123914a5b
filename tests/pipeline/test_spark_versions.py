"""What works in each version of Spark; ``make test-spark SPARK=3.5`` runs this module in another.

Every test runs in every version: where one lacks a feature, the test expects the error. Continuous
integration runs those marked ``spark_short`` at each change, in three versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from helpers.files import write_file, write_shards
from helpers.publication import publish as publish_tables
from helpers.publication import read_version
from helpers.spark_types import make_frame, show_rows, type_names, write, write_months
from splitarrow import errors
from splitarrow.pipeline import read, register
from splitarrow.pipeline.publish import PublishJob, publish
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES, VERSION
from splitarrow.publication.version_store import VersionStore

ROWS = 300
NO_PYTHON_SOURCES = r"Spark 3\.5[.\d]* has no data sources in Python"
READERS = ["jvm", "python"] if HAS_PYTHON_SOURCES else ["jvm"]
LINE = tuple(int(part) for part in VERSION.split(".")[:2])


def make_table(first: int) -> pa.Table:
    numbers = range(first, first + ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "payment": pa.array([("card", "cash", None)[n % 3] for n in numbers]),
            "tip": pa.array([n / 4 for n in numbers]),
        }
    )


CATEGORIES: Any = pa.DictionaryArray.from_arrays(
    pa.array([1, None], pa.uint32()), pa.array(["a", "longer than twelve bytes"], pa.string_view())
)
TYPES = pa.table(
    {
        # The categories of polars.
        "category": CATEGORIES,
        "categories": pa.LargeListArray.from_arrays(pa.array([0, 1, 2], pa.int64()), CATEGORIES),
        "decimal": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "when": pa.array([1_000_000, None], pa.timestamp("us", "UTC")),
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
        "view": pa.array(["short", "longer than twelve bytes"], pa.string_view()),
        "views": pa.array([["x"], ["longer than twelve bytes", None]], pa.list_(pa.string_view())),
        "list_view": pa.array([[1, 2], None], pa.list_view(pa.int32())),
        "runs": pa.array([7, 7], pa.run_end_encoded(pa.int32(), pa.int64())),
        "struct": pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])),
        "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.fixture
def uri(tmp_path, serve):
    trips = write_shards(tmp_path / "trips", [make_table(0), make_table(ROWS)])[0].parent
    names = pa.table({"payment": ["card", "cash"], "name": ["Card", "Cash"]})
    times = pa.table({"t": pa.array([1], pa.time64("us"))})
    versions = VersionStore(str(tmp_path / "versions"))
    for count in (1, 2):
        publish_tables(versions, f"job-{count}", pa.table({"n": range(count)}))
    datasets = {
        "versions": tmp_path / "versions",
        "trips": trips,
        "names": write_file(tmp_path / "names.arrow", names),
        "types": write_file(tmp_path / "types.arrow", TYPES),
        "times": write_file(tmp_path / "times.arrow", times),
    }
    return serve(datasets).control_uri


@pytest.fixture(params=READERS)
def load(request, spark, uri):
    """Load a dataset through the reader in the JVM, or through the source in Python."""

    def load(dataset: str = "trips", **options: Any) -> Any:
        reader = spark.read.format("splitarrow").option("reader", request.param)
        return reader.option("uri", uri).options(**options).load(dataset)

    return load


def rows_of(location: Any) -> list[dict[str, Any]]:
    store = VersionStore(str(location))
    return sorted(read_version(store, store.load()).to_pylist(), key=lambda row: row["id"])


@pytest.mark.spark_short
def test_columns_and_filters(load):
    frame = load(columns="tip,id").where("id >= 290 and id < 310").select("id")
    assert sorted(row.id for row in frame.collect()) == list(range(290, 310))
    cards = load().where("payment = 'card' and tip > 1")
    assert cards.count() == sum(n % 3 == 0 and n > 4 for n in range(2 * ROWS))


@pytest.mark.spark_short
def test_the_jvm_pushes_filters_and_aggregates(spark, uri, capsys):
    frame = spark.read.format("splitarrow").options(uri=uri, reader="jvm").load("trips")
    frame.where("id in (1, 2) and not (payment <> 'cash')").select("tip").explain()
    frame.where("payment like 'ca%'").limit(3).explain()
    plan = capsys.readouterr().out
    assert "id IN (1, 2)" in plan.partition("PushedFilters: [")[2].partition("]")[0]
    assert "payment LIKE 'ca%" in plan.rpartition("PushedFilters: [")[2].partition("]")[0]
    assert "PushedLimit: 3" in plan
    assert frame.where("id in (1, 2) and not (payment <> 'cash')").collect()[0].tip == 0.25
    assert frame.count() == 2 * ROWS


@pytest.mark.spark_short
def test_aggregates(load):
    rows = load().groupBy("payment").agg(sf.count("*").alias("n"), sf.max("tip").alias("m"))
    assert {row.payment: (row.n, row.m) for row in rows.collect()} == {
        "card": (200, 149.25),
        "cash": (200, 149.5),
        None: (200, 149.75),
    }


@pytest.fixture(params=["tcp", "mapped", "folder"])
def numbers(request, spark, tmp_path, serve):
    """A published dataset of three shards with 1, 2 and 3 rows, read in one of three ways."""
    path = str(tmp_path / "set")
    store = VersionStore(path)
    publish_tables(
        store, "job", *(pa.table({"n": range(rows), "m": ["x"] * rows}) for rows in (1, 2, 3))
    )
    reader = spark.read.format("splitarrow")
    if request.param == "folder":
        return reader.load(path)
    uri = serve({"set": tmp_path / "set"}).control_uri
    options = {"folder": path} if request.param == "mapped" else {}
    return reader.options(uri=uri, **options).load("set")


def test_the_column_metadata_states_where_rows_are_stored(numbers):
    assert "_metadata" not in numbers.columns
    groups = numbers.groupBy("_metadata.shard").count()
    assert sorted(map(tuple, groups.collect())) == [(0, 1), (1, 2), (2, 3)]
    rows = numbers.select("_metadata", "m", "n").where("n = 1 and _metadata.shard > 1").collect()
    assert [row.n for row in rows] == [1]
    found = rows[0]["_metadata"]
    assert (found.shard, found.shard_rows) == (2, 3)
    assert found.dataset.rpartition("/")[2] == "set"
    assert found.version.partition("-")[0] == "1"
    assert numbers.where("_metadata.shard < 2").count() == 3
    assert numbers.select("_metadata.shard").limit(2).count() == 2
    assert numbers.selectExpr("max(_metadata.shard)", "count(*)").collect() == [(2, 6)]
    assert numbers.select("n").count() == 6


def test_the_column_metadata_alone_needs_no_rows(numbers):
    execution = numbers.select("_metadata.shard")._jdf.queryExecution()
    assert execution.toRdd().count() == 6
    metrics = execution.executedPlan().collectLeaves().head().metrics()
    assert metrics.apply("numOutputRows").value() == 6
    assert metrics.apply("bytesReceived").value() == metrics.apply("bytesMapped").value() == 0


def test_a_column_of_the_same_name_hides_the_metadata(spark, tmp_path):
    publish_tables(VersionStore(str(tmp_path / "set")), "job", pa.table({"_metadata": [7]}))
    frame = spark.read.format("splitarrow").load(str(tmp_path / "set"))
    assert frame.select("_metadata").collect() == [(7,)]


def test_joins(load):
    joined = load().join(load("names"), "payment").groupBy("name").count()
    assert {row.name: row["count"] for row in joined.collect()} == {"Card": 200, "Cash": 200}


@pytest.mark.spark_short
def test_types(load):
    first, second = sorted(load("types").collect(), key=lambda row: row.dictionary)
    assert (first.decimal, first.when.timestamp(), first.runs) == (Decimal("1.50"), 1.0, 7)
    assert (first.view, second.view) == ("short", "longer than twelve bytes")
    assert (first.views, second.views) == (["x"], ["longer than twelve bytes", None])
    assert (first.category, second.category) == ("longer than twelve bytes", None)
    assert (first.categories, second.categories) == (["longer than twelve bytes"], [None])
    assert (first.list_view, second.list_view) == ([1, 2], None)
    assert (first.struct.a, second.struct, first.map, second.map) == (1, None, {"k": 1}, {})
    assert (second.decimal, second.when) == (None, None)


@pytest.mark.spark_short
def test_all_types_return(spark, tmp_path):
    frame = make_frame(spark)
    write(frame, str(tmp_path / "set"))
    read = spark.read.format("splitarrow").load(str(tmp_path / "set"))
    assert type_names(read.schema) == type_names(frame.schema)
    assert show_rows(read) == show_rows(frame)


def test_months_return(spark, tmp_path):
    write_months(str(tmp_path / "set"))
    frame = spark.read.format("splitarrow").load(str(tmp_path / "set"))
    assert type_names(frame.schema) == [
        "interval year",
        "interval year to month",
        "array<interval year to month>",
        "map<string,interval year>",
        "struct<f:interval month>",
    ]
    names = [f"cast({name} as string)" for name in frame.columns]
    assert [list(row) for row in frame.selectExpr(*names).collect()] == [
        [
            "INTERVAL '2' YEAR",
            "INTERVAL '178956970-7' YEAR TO MONTH",
            "[INTERVAL '-0-1' YEAR TO MONTH, null]",
            "{k -> INTERVAL '-1' YEAR}",
            "{INTERVAL '5' MONTH}",
        ],
        [None, "INTERVAL '-178956970-8' YEAR TO MONTH", None, "{}", "{null}"],
    ]


def test_a_type_that_spark_lacks_is_named(spark, uri):
    frame = read(spark, uri, "trips", columns=["id"])
    assert frame.count() == 2 * ROWS
    if LINE >= (4, 1):
        assert read(spark, uri, "times").schema["t"].dataType.simpleString() == "time(6)"
    else:
        with pytest.raises(errors.InvalidDataError, match=f"TIME, which Spark {VERSION} does not"):
            read(spark, uri, "times")


def test_read_has_columns_filters_and_limits(spark, uri):
    frame = read(spark, uri, "trips", columns=["id", "tip"], filter="payment = 'cash'")
    assert frame.agg(sf.sum("id")).collect()[0][0] == sum(range(1, 2 * ROWS, 3))
    assert read(spark, uri, "trips", limit=7).count() == 7
    assert len(read(spark, uri, "types").collect()) == 2


@pytest.mark.spark_short
def test_sql(spark, uri):
    query = "select payment, sum(tip) s from {} where id < 6 group by payment"
    expected = {"card": 0.75, "cash": 1.25, None: 1.75}
    frame = spark.read.format("splitarrow").option("uri", uri).load("trips")
    frame.createOrReplaceTempView("trips_view")
    rows = spark.sql(query.format("trips_view")).collect()
    assert {row.payment: row.s for row in rows} == expected
    options = f"options (uri '{uri}', dataset 'trips')"
    spark.sql(f"create or replace temporary view trips using splitarrow {options}")
    rows = spark.sql(query.format("trips")).collect()
    assert {row.payment: row.s for row in rows} == expected


@pytest.mark.spark_short
def test_modes_of_writes(spark, tmp_path):
    def write(first: int, last: int, mode: str) -> None:
        writer = spark.range(first, last, numPartitions=3).write.format("splitarrow")
        writer.mode(mode).save(str(tmp_path / "ids"))

    write(0, 5, "error")
    write(5, 9, "append")
    write(9, 10, "ignore")
    assert [row["id"] for row in rows_of(tmp_path / "ids")] == list(range(9))
    with pytest.raises(PySparkException, match="PATH_ALREADY_EXISTS"):
        write(0, 5, "error")
    write(0, 2, "overwrite")
    assert [row["id"] for row in rows_of(tmp_path / "ids")] == [0, 1]


@pytest.mark.spark_short
def test_streams(spark, tmp_path, serve):
    (tmp_path / "in").mkdir()
    publish(spark, PublishJob(str(write_parquet(tmp_path)), "in", [str(tmp_path)]))
    uri = serve({"in": tmp_path / "in"}).control_uri
    reader = spark.readStream.format("splitarrow").option("uri", uri)

    def run(writer: Any, name: str) -> Any:
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start(str(tmp_path / f"{name}-out"))
        query.awaitTermination()

    run(reader.load("in").writeStream.format("parquet"), "parquet")
    assert spark.read.parquet(str(tmp_path / "parquet-out")).count() == 2 * ROWS
    copy = reader.load("in").writeStream.format("splitarrow")
    run(copy, "copy")
    assert len(rows_of(tmp_path / "copy-out")) == 2 * ROWS


def write_parquet(folder: Any) -> Any:
    path = folder / "trips.parquet"
    pq.write_table(pa.concat_tables([make_table(0), make_table(ROWS)]), path)
    return path


def test_publish_to_a_folder(spark, tmp_path):
    source = str(write_parquet(tmp_path))
    job = PublishJob(
        source,
        "trips",
        [str(tmp_path)],
        filter="id < 100",
        cast={"tip": "float"},
        shuffle_seed=1,
        repartition=2,
        dictionary="auto",
        mode="append",
    )
    (result,) = publish(spark, job)
    assert (result.rows, result.version) == (100, 1)
    assert rows_of(tmp_path / "trips")[99] == {"id": 99, "payment": "card", "tip": 24.75}
    (other,) = publish(spark, PublishJob(source, "empty", [str(tmp_path)], filter="id < 0"))
    assert other.rows == 0
    shares = PublishJob(source, "parts", [str(tmp_path)], split={"a": 0.5, "b": 0.5})
    assert sum(result.rows for result in publish(spark, shares)) == 2 * ROWS


def test_a_failed_publication_leaves_nothing(spark, tmp_path):
    job = PublishJob(
        str(write_parquet(tmp_path)), "trips", [str(tmp_path)], cast={"payment": "int"}
    )
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        with pytest.raises(errors.SplitArrowError, match="CAST_INVALID_INPUT") as caught:
            publish(spark, job)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert "Traceback" not in str(caught.value)
    assert VersionStore(str(tmp_path / "trips")).load() is None
    assert not list((tmp_path / "trips").rglob("*.arrow"))


def test_publish_to_daemons(spark, tmp_path, writable_daemons):
    job = PublishJob(
        str(write_parquet(tmp_path)),
        "trips",
        [daemon.control_uri for daemon in writable_daemons],
        mode="append",
        repartition=2,
    )
    (result,) = publish(spark, job)
    assert (result.rows, result.shards) == (2 * ROWS, 2)
    uris = ",".join(job.to)
    assert read(spark, uris, "trips").count() == 2 * ROWS


@pytest.mark.spark_short
def test_the_source_in_python_is_named_where_it_is_missing(spark, uri):
    if HAS_PYTHON_SOURCES:
        register(spark, jvm_reader=False)
        register(spark, jvm_reader=True)
        return
    with pytest.raises(errors.UsageError, match=NO_PYTHON_SOURCES):
        register(spark, jvm_reader=False)
    with pytest.raises(Exception, match=NO_PYTHON_SOURCES):
        spark.read.format("splitarrow").options(uri=uri, reader="python").load("trips").count()


@pytest.mark.spark_short
def test_sessions_are_registered_again(spark, uri):
    other = spark.newSession()
    for session in (other, other, spark):
        register(session)
    assert type(spark).getActiveSession()._jsparkSession.equals(spark._jsparkSession)
    for session in (other, spark):
        reader = session.read.format("splitarrow").option("uri", uri)
        for name in READERS:
            assert reader.option("reader", name).load("names").count() == 2


@pytest.mark.slow
@pytest.mark.spark_short
def test_the_installed_command_publishes(tmp_path):
    command = Path(sys.executable).with_name("splitarrow")
    arguments = ["publish", write_parquet(tmp_path), "trips", "--to", tmp_path]
    subprocess.run([command, *arguments], check=True, capture_output=True, timeout=200)
    assert len(rows_of(tmp_path / "trips")) == 2 * ROWS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "many"}, "option 'limit' is 'many'; it must be an integer"),
        ({"colums": "id"}, "has no option 'colums'; did you mean 'columns'?"),
        ({"columns": "absent"}, "absent"),
        ({"version": "7"}, "7"),
        ({"dataset": "absent"}, "absent"),
    ],
)
def test_wrong_options_of_a_read_raise_one_sentence(load, options, message):
    options = dict(options)
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        load(options.pop("dataset", "trips"), **options).count()
    assert "Traceback" not in str(caught.value)
    assert "File " not in str(caught.value)


@pytest.mark.parametrize("name", ["version", "versionAsOf", "VERSIONASOF"])
def test_a_version_is_read_as_of_its_number(load, name, uri):
    assert load("versions", **{name: 1}).count() == 1
    assert load("versions").count() == 2


def test_options_as_of_that_contradict_raise_one_sentence(load):
    wrong = {
        "but 'versionAsOf' is '1'": {"version": "2", "versionAsOf": "1"},
        "use the option 'versionAsOf'": {"timestampAsOf": "2026-01-01"},
    }
    for message, options in wrong.items():
        with pytest.raises(Exception, match=message) as caught:
            load("versions", **options).count()
        assert "Traceback" not in str(caught.value)
    assert load("versions", version="1", versionAsOf="1").count() == 1


def test_a_missing_folder_raises_one_sentence(spark, uri, tmp_path):
    reader = spark.read.format("splitarrow").options(uri=uri, folder=str(tmp_path / "absent"))
    with pytest.raises(Exception, match="has no version") as caught:
        reader.load("trips").select("id").collect()
    assert "Traceback" not in str(caught.value)


@pytest.mark.skipif(not HAS_PYTHON_SOURCES, reason="Spark 3.5 cannot write")
@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("ids", {"rows_per_shard": "many"}, "'many'; it must be an integer"),
        ("ids", {"compresion": "lz4"}, "did you mean 'compression'?"),
        ("file/ids", {}, "file"),
    ],
)
def test_wrong_options_of_a_write_raise_one_sentence(spark, tmp_path, path, options, message):
    (tmp_path / "file").touch()
    writer = spark.range(3).write.format("splitarrow").options(**options).mode("append")
    with pytest.raises(PySparkException, match=re.escape(message)) as caught:
        writer.save(str(tmp_path / path))
    assert "Traceback" not in str(caught.value)
