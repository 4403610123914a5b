"""The reader in the JVM: the rows of the Python source, and no more bytes than the query needs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import splitarrow
from helpers.files import write_file, write_shards, write_stream
from helpers.pki import Pki
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError
from splitarrow.pipeline import register
from splitarrow.pipeline.jvm import FORMAT
from splitarrow.pipeline.jvm import reader as jvm_reader

ROWS, SHARDS, COLUMNS = 5000, 4, 20


def wide_part(index: int) -> pa.Table:
    chance = random.Random(index)
    return pa.table(
        {
            f"c{column}": pa.array([chance.random() for _ in range(ROWS)], pa.float64())
            for column in range(COLUMNS)
        }
    )


@pytest.fixture
def wide(tmp_path, serve):
    write_shards(tmp_path / "wide", [wide_part(index) for index in range(SHARDS)])
    return serve({"wide": tmp_path / "wide"})


@pytest.fixture
def load(spark):
    def read(uri, name, reader="jvm", **options):
        frame = spark.read.format(FORMAT).option("uri", uri).option("reader", reader)
        return frame.options(**options).load(name)

    return read


def plan_of(frame: Any) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def bytes_received(frame: Any) -> int:
    """Run a query, and return the bytes that its scan received, which Spark counts."""
    execution = frame._jdf.queryExecution()
    frame._jdf.collectToPython()
    metrics = execution.executedPlan().collectLeaves().head().metrics()
    return metrics.apply("bytesReceived").value() if metrics.contains("bytesReceived") else 0


def nested_values(index: int) -> dict[str, Any]:
    return {
        "text": None if index % 3 == 0 else f"value {index}",
        "list": None if index % 4 == 0 else list(range(index % 5)),
        "inner": {"a": index, "b": None if index % 2 else "x" * (index % 20)},
    }


def test_nested_and_encoded_columns_equal_those_of_the_python_source(tmp_path, serve, load):
    rows = 2000
    numbers = range(rows)
    words = pa.array([None if n % 7 == 0 else f"word {n % 13}" for n in numbers])
    structs = pa.array([None if n % 11 == 0 else nested_values(n) for n in numbers])
    maps = pa.array(
        [None if n % 5 == 0 else [(f"k{i}", i) for i in range(n % 3)] for n in numbers],
        pa.map_(pa.string(), pa.int64()),
    )
    lists = pa.array([[nested_values(n)] * (n % 3) for n in numbers])
    table = pa.table(
        {
            "words": words.dictionary_encode(),
            "runs": pa.RunEndEncodedArray.from_arrays(
                pa.array([n * 10 + 10 for n in range(rows // 10)], pa.int32()),
                pa.array([None if n % 4 == 0 else n for n in range(rows // 10)], pa.int16()),
            ),
            "structs": structs,
            "maps": maps,
            "lists": lists,
            "views": pa.array([None if n % 6 == 0 else "v" * (n % 40) for n in numbers]).cast(
                pa.string_view()
            ),
            "flags": pa.array([None if n % 9 == 0 else n % 2 == 0 for n in numbers]),
            "halves": pa.array([None if n % 8 == 0 else n / 4 for n in numbers], pa.float16()),
            "big": pa.array([2**63 + n for n in numbers], pa.uint64()),
        }
    )
    paths = {
        codec or "plain": write_file(
            tmp_path / f"{codec}.arrow", table, batch_rows=300, compression=codec
        )
        for codec in (None, "lz4", "zstd")
    }
    uri = serve(paths).control_uri
    expected = load(uri, "plain", reader="python").toArrow()
    assert expected.num_rows == rows
    for name in paths:
        assert load(uri, name).toArrow().equals(expected), name


def test_dictionaries_that_grow_and_change(tmp_path, serve, load):
    kind = pa.dictionary(pa.int8(), pa.string())
    values: list[Any] = [pa.array(words) for words in (["a", "b"], ["a", "b", "c"], ["x"])]
    batches = [
        pa.record_batch(
            [pa.DictionaryArray.from_arrays(pa.array([0, None, len(words) - 1], pa.int8()), words)],
            schema=pa.schema({"s": kind}),
        )
        for words in values
    ]
    path = write_stream(tmp_path / "d.arrows", batches, emit_dictionary_deltas=True)
    uri = serve({"d": path}).control_uri
    found = load(uri, "d").toArrow()["s"].to_pylist()
    assert found == ["a", None, "b", "a", None, "c", "x", None, "x"]


def test_a_query_transfers_only_its_columns(wide, load):
    frame = load(wide.control_uri, "wide")
    assert bytes_received(frame.select("c3")) <= 1.2 * 8 * ROWS * SHARDS
    assert "ReadSchema: struct<c3:double>" in plan_of(frame.select("c3"))


def test_the_shards_of_a_task_share_connections(wide, load):
    def accepted() -> int:
        with splitarrow.connect(wide.control_uri) as client:
            return client.status()["stats"]["connections_total"]

    before = accepted()
    frame = load(wide.control_uri, "wide", shards_per_partition=SHARDS)
    assert frame.agg({"c1": "sum"}).first()[0] > 0
    assert len(frame.select("c2").collect()) == SHARDS * ROWS
    # Two tasks, which read a shard and ask for the next one.
    assert accepted() - before <= 4


def test_a_count_reads_nothing(wide, load):
    frame = load(wide.control_uri, "wide")
    assert frame.count() == ROWS * SHARDS
    counted = frame.groupBy().count()
    assert bytes_received(counted) == 0
    assert "PushedAggregates: [COUNT(*)]" in plan_of(counted)
    assert frame.where("c3 < 2").count() == ROWS * SHARDS


def test_filters_and_limits_reach_the_daemon(wide, load):
    frame = load(wide.control_uri, "wide")
    rare = frame.where("c1 < 0.001 or c1 is null").select("c1")
    assert bytes_received(rare) < 50_000
    assert "PushedFilters: [" in plan_of(rare)
    assert "Filter (" not in plan_of(rare)
    first = frame.limit(10)
    assert len(first.collect()) == 10
    assert "PushedLimit: 10" in plan_of(first)
    assert bytes_received(frame.limit(10).select("c1")) < 50_000


def test_statistics_reach_the_optimizer(wide, load):
    frame = load(wide.control_uri, "wide")

    def size(query):
        return query._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()

    assert 8 * ROWS * SHARDS * COLUMNS <= size(frame) < 2**31
    assert size(frame.select("c1")) < size(frame) / 5


def test_repeated_tasks_renew_their_tickets(spark, tmp_path, serve, load):
    """A signed ticket can be used once: a second job of the same plan needs new ones."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[tokens]]\nname = "r"\ntoken = "a-very-secret-word-of-some-length"\ndatasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    write_shards(tmp_path / "set", [wide_part(0).slice(0, 100), wide_part(1).slice(0, 100)])
    uri = serve({"set": tmp_path / "set"}, token_file=tokens).control_uri
    frame = load(uri, "set", token="a-very-secret-word-of-some-length").select("c0")
    rows = frame.rdd
    assert rows.count() == rows.count() == 200
    (tmp_path / "token").write_text("a-very-secret-word-of-some-length\n")
    again = load(uri, "set", token_file=str(tmp_path / "token")).select("c0").rdd
    assert again.count() == again.count() == 200
    assert "secret" not in frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException, match="token"):
        load(uri, "set", token="a-wrong-word")


def test_a_killed_daemon_is_replaced_in_the_middle_of_a_shard(tmp_path, writable_daemons, load):
    from splitarrow.pipeline import publish_folder
    from splitarrow.publication.version_store import VersionStore

    table = pa.table({"id": pa.array(range(400_000)), "s": ["x" * 50] * 400_000})
    store = VersionStore(str(tmp_path / "source"))
    entry = store.write_shard("job", "0.arrow", table.schema, table.to_batches(20_000))
    store.commit("job", table.schema, [entry], append=False)
    uris = [daemon.control_uri for daemon in writable_daemons]
    publish_folder(str(tmp_path / "source"), "rows", uris, replicas=2)
    rows = load(",".join(uris), "rows").rdd.toLocalIterator()
    assert next(rows).id == 0
    writable_daemons[0].kill()
    wait_until(lambda: not writable_daemons[0].is_running, "the end of the daemon")
    assert sum(row.id for row in rows) == sum(range(400_000))


@pytest.mark.parametrize("client", [False, True], ids=["server", "mutual"])
def test_tls_checks_the_name_and_presents_the_certificate(tmp_path, daemon, load, client):
    pki = Pki(tmp_path)
    rows = 50_000
    table = pa.table({"n": range(rows), "s": [f"row {n}" for n in range(rows)]})
    path = write_file(tmp_path / "t.arrow", table, batch_rows=7000)
    settings = {"tls_client_ca": pki.path("ca")} if client else {}
    uri = daemon(
        {"t": path},
        listen=["tcp+tls://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        tls_cert=pki.path("server"),
        **settings,
    ).control_uri
    options: dict[str, Any] = {"tls_ca": pki.path("ca")}
    if client:
        options["tls_cert"] = pki.path("client")
        with pytest.raises(PySparkException, match="not in the form PKCS #8"):
            load(uri, "t", **options)
        key = load_pem_private_key(pki.path("client-key").read_bytes(), None)
        options["tls_key"] = tmp_path / "pkcs8.pem"
        options["tls_key"].write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
    assert load(uri, "t", **options).toArrow().equals(table)
    for wrong in (
        {"tls_server_name": "elsewhere.example"},
        {"tls_ca": pki.path("foreign-ca")},
        *([{"tls_cert": "", "tls_key": ""}] if client else []),
    ):
        with pytest.raises((PySparkException, Py4JJavaError), match=r"127\.0\.0\.1"):
            load(uri, "t", **{**options, **wrong}).collect()


def test_the_python_source_reads_what_the_reader_cannot(tmp_path, serve, load):
    path = write_file(tmp_path / "t.arrow", pa.table({"n": [1, 2, 3]}))
    uri = serve({"t": path}).control_uri
    assert load(uri, "t", reader="auto", transport="shm").count() == 3
    with pytest.raises(PySparkException, match="transport is 'shm'"):
        load(uri, "t", transport="shm")
    with pytest.raises(PySparkException, match="one of auto, jvm, python"):
        load(uri, "t", reader="fast")


def test_registering_twice_loads_the_reader_once(spark):
    jars = spark.sparkContext._jsc.sc().listJars().size()
    register(spark)
    register(spark, jvm_reader=True)
    assert spark.sparkContext._jsc.sc().listJars().size() == jars == 1


def test_a_session_reads_by_columns_unless_it_selects_the_python_source(spark, wide):
    def plan():
        reader = spark.read.format("splitarrow").option("uri", wide.control_uri)
        return plan_of(reader.load("wide").select("c1"))

    assert "ReadSchema: struct<c1:double>" in plan()
    register(spark, jvm_reader=False)
    try:
        assert "ReadSchema" not in plan()
    finally:
        register(spark, jvm_reader=True)
    assert "ReadSchema: struct<c1:double>" in plan()


def test_without_the_jar_one_line_says_that_python_reads(spark, monkeypatch, capsys, tmp_path):
    jar = tmp_path / "absent.jar"
    monkeypatch.setattr(jvm_reader, "JAR", jar)
    register(spark)
    register(spark)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("splitarrow: this Spark session cannot load the reader in the JVM")
    assert line.endswith(f"{jar} is missing; run make jar; Python reads instead, by rows")
    with pytest.raises(ConfigError, match="is missing"):
        register(spark, jvm_reader=True)


@pytest.mark.parametrize(("jvm", "version"), [(None, "4.3.0"), (object(), "4.4.0")])
def test_other_sessions_read_with_python(monkeypatch, capsys, jvm, version):
    monkeypatch.setattr(jvm_reader, "_notices", set())
    session: Any = SimpleNamespace(_jvm=jvm, version=version)
    jvm_reader.choose_reader(session, None)
    reason = f"it needs Spark 3.5 to 4.3, not {version}" if jvm else "a Spark Connect session"
    assert reason in capsys.readouterr().err
