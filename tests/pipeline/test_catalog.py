"""The catalog of datasets in Spark SQL, and tables of the session: of daemons, and of folders."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import splitarrow
from helpers.daemons import StartDaemon
from helpers.publication import publish
from splitarrow.pipeline.spark_versions import HAS_PYTHON_SOURCES
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

Sql = Callable[[str], Any]
CATALOG = "io.splitarrow.spark.Catalog"


needs_session_tables = pytest.mark.skipif(
    not HAS_PYTHON_SOURCES, reason="Spark 3.5 has no tables of such data sources in the session"
)


@pytest.fixture
def server(tmp_path: Path, daemon: StartDaemon) -> Daemon:
    store = VersionStore(str(tmp_path / "trips"))
    publish(store, "first", *(pa.table({"n": range(at, at + 10)}) for at in range(0, 200, 10)))
    publish(store, "second", pa.table({"n": range(5)}))
    return daemon(
        {"trips": store.location},
        control="grpc://127.0.0.1:0",
        listen=["tcp://127.0.0.1:0"],
        writable=tmp_path / "uploads",
    )


@pytest.fixture
def catalog(spark: Any, server: Daemon) -> str:
    name = f"c{uuid.uuid4().hex[:8]}"
    spark.conf.set(f"spark.sql.catalog.{name}", CATALOG)
    spark.conf.set(f"spark.sql.catalog.{name}.uri", str(server.control_uri))
    return name


@pytest.fixture
def sql(spark: Any) -> Sql:
    return lambda query: [tuple(row) for row in spark.sql(query).collect()]


@pytest.mark.spark_short
def test_datasets_are_tables(sql: Sql, catalog: str, server: Daemon) -> None:
    with splitarrow.connect(str(server.control_uri)) as client:
        client.put("two words", pa.table({"x": [1, 2]}))
    assert sql(f"SHOW TABLES IN {catalog}") == [("", "trips", False), ("", "two words", False)]
    assert sql(f"SELECT count(*), sum(n) FROM {catalog}.trips") == [(5, 10)]
    assert sql(f"SELECT x FROM {catalog}.`two words` JOIN {catalog}.trips ON x = n") == [(1,), (2,)]
    assert sql(f"DESCRIBE {catalog}.trips") == [("n", "bigint", None)]
    assert sql(f"DROP TABLE {catalog}.`two words`") == []
    assert sql(f"SHOW TABLES IN {catalog}") == [("", "trips", False)]


def test_a_version_is_named_by_its_number(sql: Sql, catalog: str, server: Daemon) -> None:
    for version, rows in (("1", 200), ("2", 5)):
        query = f"SELECT count(*), max(n) FROM {catalog}.trips VERSION AS OF {version}"
        assert sql(query) == [(rows, rows - 1)]
    with splitarrow.connect(str(server.control_uri)) as client:
        assert client.read("trips", version="1").read_all().num_rows == 200


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM {}.nothing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM {}.trips VERSION AS OF 7", "never had the version 7"),
        ("SELECT * FROM {}.trips TIMESTAMP AS OF '2020-01-01'", "use VERSION AS OF"),
        ("DROP TABLE {}.nothing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("DROP TABLE {}.trips", "it belongs to the configuration"),
        ("CREATE TABLE {}.new (a INT) PARTITIONED BY (b)", "b"),
        ("CREATE TABLE {}.new (a INT) PARTITIONED BY (bucket(4, a))", "not by bucket"),
        ("ALTER TABLE {}.trips ADD COLUMN a INT", "changes no columns"),
        ("INSERT INTO {}.trips VALUES (1)", "a dataset that was not published has this name"),
    ],
)
def test_errors_say_what_is_wrong(sql: Sql, catalog: str, query: str, message: str) -> None:
    with pytest.raises(PySparkException) as raised:
        sql(query.format(catalog))
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_catalog_needs_a_uri(spark: Any, sql: Sql) -> None:
    spark.conf.set("spark.sql.catalog.nowhere", CATALOG)
    with pytest.raises(PySparkException, match=r"setting spark\.sql\.catalog\.nowhere\.uri"):
        sql("SELECT * FROM nowhere.trips")


def test_sql_selects_the_column_metadata(sql: Sql, catalog: str) -> None:
    query = "SELECT _metadata.shard, count(*) FROM {} VERSION AS OF 1 GROUP BY 1 ORDER BY 1"
    assert sql(query.format(f"{catalog}.trips")) == [(shard, 10) for shard in range(20)]
    assert sql(f"SELECT DISTINCT _metadata.dataset FROM {catalog}.trips") == [("trips",)]


@needs_session_tables
def test_a_table_of_the_session_names_a_dataset(sql: Sql, server: Daemon) -> None:
    options = f"uri '{server.control_uri}', dataset 'trips', version '1'"
    sql(f"CREATE TABLE trips_of_a_daemon USING splitarrow OPTIONS ({options})")
    try:
        assert sql("SELECT count(*), sum(n) FROM trips_of_a_daemon") == [(200, 19900)]
        assert sql("SELECT max(_metadata.shard) FROM trips_of_a_daemon") == [(19,)]
    finally:
        sql("DROP TABLE trips_of_a_daemon")


@pytest.mark.parametrize(("options", "partitions"), [({}, 2), ({"shards_per_partition": 1}, 20)])
def test_small_shards_share_a_task(
    spark: Any, server: Daemon, options: dict[str, Any], partitions: int
) -> None:
    for reader in ("jvm", "python") if HAS_PYTHON_SOURCES else ("jvm",):
        read = spark.read.format("splitarrow").option("uri", str(server.control_uri))
        frame = read.options(reader=reader, version="1", **options).load("trips")
        found = frame.rdd.getNumPartitions()
        assert found == partitions if options else found < 20
        assert sorted(row.n for row in frame.collect()) == list(range(200))


@needs_session_tables
def test_a_table_in_a_folder_reads_what_was_written(spark: Any, sql: Sql, tmp_path: Path) -> None:
    folder = tmp_path / "squares"
    location = f"USING splitarrow LOCATION '{folder}'"
    sql(f"CREATE TABLE squares {location} AS SELECT id, id * id AS square FROM range(10)")
    try:
        assert sql("SELECT count(*), sum(square) FROM squares") == [(10, 285)]
        sql("INSERT INTO squares VALUES (10, 100)")
        assert sql("SELECT max(square) FROM squares WHERE id > 8") == [(100,)]
        sql("INSERT OVERWRITE squares SELECT id, 1L FROM range(3)")
        assert sql("SELECT id, square FROM squares ORDER BY id") == [(0, 1), (1, 1), (2, 1)]
    finally:
        sql("DROP TABLE squares")
    read = spark.read.format("splitarrow")
    assert read.load(str(folder)).count() == 3
    old = read.option("version", "2").option("columns", "square").load(str(folder))
    assert (old.columns, old.agg({"square": "sum"}).first()[0]) == (["square"], 385)


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({}, "nothing", "has no version of a dataset"),
        ({"version": "9"}, "trips", "has no version 9"),
        ({"version": "1-abc"}, "trips", "versions by their number"),
        ({"columns": "x"}, "trips", "has no column 'x'"),
        ({"filter": "n > 1"}, "trips", "needs a daemon"),
    ],
)
def test_errors_about_a_folder(
    spark: Any, server: Daemon, tmp_path: Path, options: dict[str, str], path: str, message: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.read.format("splitarrow").options(**options).load(str(tmp_path / path)).collect()
    assert message in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_damaged_file_without_a_daemon_is_an_error(
    spark: Any, server: Daemon, tmp_path: Path
) -> None:
    frame = spark.read.format("splitarrow").load(str(tmp_path / "trips"))
    assert frame.count() == 5
    (shard,) = (path for path in (tmp_path / "trips" / "data" / "second").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises((PySparkException, Py4JJavaError), match="cannot read shard 0 of"):
        frame.collect()


def test_a_table_is_created_filled_and_replaced(sql: Sql, catalog: str, server: Daemon) -> None:
    table = f"{catalog}.rides"
    assert sql(f"CREATE TABLE {table} (n BIGINT, day STRING) PARTITIONED BY (day)") == []
    assert sql(f"SELECT count(*) FROM {table}") == [(0,)]
    sql(f"INSERT INTO {table} VALUES (1, 'mo'), (2, 'tu'), (3, 'mo')")
    sql(f"INSERT INTO {table} (day, n) SELECT 'we', n FROM {catalog}.trips WHERE n > 3")
    assert sorted(sql(f"SELECT * FROM {table}")) == [
        (1, "mo"),
        (2, "tu"),
        (3, "mo"),
        (4, "we"),
    ]
    assert sql(f"SELECT count(*) FROM {table} VERSION AS OF 2") == [(3,)]
    assert ("Part 0", "day", "") in sql(f"DESCRIBE {table}") or ("day", "string", None) in sql(
        f"DESCRIBE {table}"
    )
    sql(f"INSERT OVERWRITE {table} VALUES (9, 'su')")
    assert sql(f"SELECT * FROM {table}") == [(9, "su")]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql(f"CREATE TABLE {table} (n INT)")
    sql(f"CREATE OR REPLACE TABLE {table} AS SELECT 'x' AS name, n FROM {catalog}.trips")
    assert sql(f"SELECT name, sum(n) FROM {table} GROUP BY name") == [("x", 10)]
    with splitarrow.connect(str(server.control_uri)) as client:
        assert client.read("rides").read_all().column_names == ["name", "n"]
    sql(f"DROP TABLE {table}")
    assert sql(f"SHOW TABLES IN {catalog}") == [("", "trips", False)]


def test_a_table_of_few_shards_takes_inserts(
    spark: Any, sql: Sql, writable_daemons: list[Daemon]
) -> None:
    uris = ",".join(str(daemon.control_uri) for daemon in writable_daemons)
    spark.conf.set("spark.sql.catalog.several", CATALOG)
    spark.conf.set("spark.sql.catalog.several.uri", uris)
    sql("CREATE TABLE several.one AS SELECT 1 AS n")
    sql("INSERT INTO several.one SELECT 2")
    assert sorted(sql("SELECT n FROM several.one")) == [(1,), (2,)]


def test_a_query_that_fails_creates_no_table(sql: Sql, catalog: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="too many"):
        sql(
            f"CREATE TABLE {catalog}.broken OPTIONS (staging '{tmp_path}') AS "
            f"SELECT n, CASE WHEN n = 4 THEN raise_error('too many') END AS e FROM {catalog}.trips"
        )
    assert sql(f"SHOW TABLES IN {catalog}") == [("", "trips", False)]
    assert not list(tmp_path.glob("splitarrow-write-*"))


def test_a_frame_is_written_to_daemons(spark: Any, server: Daemon, tmp_path: Path) -> None:
    def write(mode: str, rows: int) -> int:
        writer = spark.range(rows).write.format("splitarrow").mode(mode)
        options = {"uri": str(server.control_uri), "staging": str(tmp_path / "staging")}
        writer.options(**options).save("ids")
        with splitarrow.connect(str(server.control_uri)) as client:
            return client.read("ids").read_all().num_rows

    assert write("error", 3) == 3
    assert write("ignore", 5) == 3
    assert write("append", 4) == 7
    with pytest.raises(PySparkException, match="PATH_ALREADY_EXISTS"):
        write("error", 1)
    assert write("overwrite", 2) == 2
    assert list((tmp_path / "staging").iterdir()) == []
