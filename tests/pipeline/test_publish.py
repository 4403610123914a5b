"""The job: any source, prepared and split, to a folder or to daemons; errors in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from pyarrow import csv, orc

import splitarrow
from splitarrow import errors
from splitarrow.benchmarks.serving import Daemon
from splitarrow.pipeline.batching import batches_for
from splitarrow.pipeline.publish import Publication, format_of, publish
from splitarrow.pipeline.session import BATCH_BYTES, BATCH_ROWS, DEFAULTS
from splitarrow.server.catalog.versions import VersionStore
from splitarrow.transport.certificates import TlsOptions

ROWS = 2000


@pytest.fixture(scope="module")
def table():
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "group": pa.array([f"g{n % 50}" for n in range(ROWS)]),
            "fare": pa.array([n / 4 for n in range(ROWS)]),
        }
    )


@pytest.fixture(scope="module")
def source(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    (folder / "parquet").mkdir()
    pq.write_table(table.slice(0, 1500), folder / "parquet" / "a.parquet")
    pq.write_table(table.slice(1500), folder / "parquet" / "b.parquet")
    csv.write_csv(table, folder / "t.csv")
    orc.write_table(table, folder / "t.orc")
    with (folder / "t.jsonl").open("w") as out:
        out.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return folder


def rows_of(place):
    store: Any = VersionStore(str(place))
    found: list[Any] = []
    for shard in store.load().shards:
        with store.open_shard(shard) as file:
            found += pa.ipc.open_file(file).read_all().to_pylist()
    return found


@pytest.mark.parametrize("name", ["parquet", "t.csv", "t.orc", "t.jsonl"])
def test_every_kind_of_source(spark, source, table, tmp_path, name):
    (done,) = publish(spark, Publication(str(source / name), "trips", [str(tmp_path)]))
    assert (done.rows, done.version, done.name) == (ROWS, 1, "trips")
    found = sorted(rows_of(tmp_path / "trips"), key=lambda row: row["id"])
    assert [(row["id"], row["group"], row["fare"]) for row in found] == [
        tuple(row.values()) for row in table.to_pylist()
    ]


def test_rows_are_chosen_cast_and_sorted(spark, source, tmp_path):
    wanted = Publication(
        str(source / "parquet"),
        "trips",
        [str(tmp_path)],
        select="id, fare * 2 as twice, group",
        filter="fare >= 100",
        cast={"id": "int"},
        sort=["-id"],
        rows_per_shard=500,
        dictionary="auto",
        compression="zstd",
    )
    (done,) = publish(spark, wanted)
    manifest: Any = VersionStore(str(tmp_path / "trips")).load()
    assert manifest.schema.field("id").type == pa.int32()
    assert pa.types.is_dictionary(manifest.schema.field("group").type)
    found = rows_of(tmp_path / "trips")
    assert [row["id"] for row in found] == list(range(ROWS - 1, 399, -1))
    assert found[0]["twice"] == (ROWS - 1) / 2
    assert done.rows == ROWS - 400


def test_a_split_is_a_partition_that_keeps_groups_together(spark, source, tmp_path):
    wanted = Publication(
        str(source / "parquet"),
        "trips",
        [str(tmp_path)],
        split={"train": 0.8, "validation": 0.2},
        split_by=["group"],
        shuffle_seed=7,
        repartition=1,
    )
    names = [done.name for done in publish(spark, wanted)]
    assert names == ["trips-train", "trips-validation"]
    train, validation = (rows_of(tmp_path / name) for name in names)
    assert sorted(row["id"] for row in train + validation) == list(range(ROWS))
    assert validation
    assert not {row["group"] for row in train} & {row["group"] for row in validation}
    assert [row["id"] for row in train] != sorted(row["id"] for row in train)
    again = tmp_path / "again"
    publish(spark, replace(wanted, to=[str(again)]))
    assert rows_of(again / "trips-train") == train


def test_modes_and_a_job_that_is_done_again(spark, source, tmp_path):
    def run(mode, job=None):
        wanted = Publication(
            str(source / "parquet"), "t", [str(tmp_path)], mode=mode, job_id=job, filter="id < 5"
        )
        return publish(spark, wanted)[0].version

    assert run("error", "one") == 1
    assert run("error", "one") == 1
    with pytest.raises(errors.DatasetError, match="exists, in version 1"):
        run("error")
    assert run("ignore") == 1
    assert (run("append", "two"), run("append", "two")) == (2, 2)
    assert len(rows_of(tmp_path / "t")) == 10
    assert run("overwrite") == 3
    assert len(rows_of(tmp_path / "t")) == 5


def test_to_daemons(spark, source, tmp_path, daemon):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    daemons = [daemon({}, "--writable", str(folder)) for folder in folders]
    uris = [found.control_uri for found in daemons]
    wanted = Publication(
        str(source / "parquet"), "trips", uris, mode="overwrite", rows_per_shard=100, sort=["id"]
    )
    (done,) = publish(spark, wanted)
    assert done.rows == ROWS
    frame = spark.read.format("splitarrow").option("uri", ",".join(uris)).load("trips")
    assert frame.agg({"id": "sum", "*": "count"}).collect()[0].asDict() == {
        "sum(id)": sum(range(ROWS)),
        "count(1)": ROWS,
    }
    with splitarrow.connect(uris) as client:
        assert client.read("trips").read_all()["id"].to_pylist() == list(range(ROWS))


def test_to_a_daemon_with_tls(spark, source, tmp_path):
    authority = trustme.CA()
    pem, ca, folder = tmp_path / "server.pem", tmp_path / "ca.pem", tmp_path / "data"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    served = ("--writable", str(folder), "--tls-cert", str(pem))
    with Daemon({}, *served, control="grpc+tls://127.0.0.1:0") as daemon:
        uri = daemon.control_uri
        wanted = Publication(str(source / "t.csv"), "trips", [uri], mode="overwrite")
        with pytest.raises(errors.SplitArrowError, match="certificate"):
            publish(spark, wanted)
        (done,) = publish(spark, replace(wanted, tls=TlsOptions(str(ca))))
        assert done.rows == ROWS
        reader = spark.read.format("splitarrow").option("uri", uri).option("tls_ca", str(ca))
        assert reader.load("trips").count() == ROWS


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"source": "nix.parquet"}, errors.UsageError, "nix.parquet"),
        ({"source": "nix"}, errors.UsageError, "no name says it; say the format"),
        ({"select": "nix"}, errors.UsageError, "nix"),
        ({"filter": "id >"}, errors.UsageError, "[Ss]yntax|PARSE"),
        ({"cast": {"nix": "int"}}, errors.UsageError, "no column 'nix' to cast"),
        ({"cast": {"group": "int"}}, errors.DatasetError, "g\\d"),
        ({"sort": ["nix"]}, errors.UsageError, "no column 'nix'"),
        ({"to": []}, errors.UsageError, "where to publish"),
        ({"to": ["a", "grpc://b"]}, errors.UsageError, "one folder, or to control planes"),
        ({"split": {"a": 0.9, "b": 0.3}}, errors.UsageError, "add up to 1.2"),
        ({"mode": "replace"}, errors.UsageError, "known are append"),
        ({"dictionary": "fare"}, errors.DatasetError, "dictionary names 'fare', which is double"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(spark, source, tmp_path, more, error, text):
    given: dict[str, Any] = {"source": str(source / "parquet"), "name": "t", "to": [str(tmp_path)]}
    given |= more
    with pytest.raises(error, match=text) as caught:
        publish(spark, Publication(**given))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "t" / "_splitarrow" / "versions").exists()


def test_malformed_rows_fail_the_job(spark, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(errors.DatasetError):
        publish(spark, Publication(str(tmp_path / "t.jsonl"), "t", [str(tmp_path / "out")]))


def test_the_format_is_what_the_names_say(tmp_path):
    (tmp_path / "x.csv").touch()
    assert format_of(str(tmp_path)) == "csv"
    (tmp_path / "x.parquet").touch()
    with pytest.raises(errors.UsageError, match="it has csv and parquet"):
        format_of(str(tmp_path))


@pytest.mark.parametrize(("width", "limited"), [(10, False), (100_000, True)])
def test_batches_are_bounded_by_bytes_where_rows_are_wide(spark, width, limited):
    frame = spark.createDataFrame([(1, "x" * width)], "id int, text string")
    with batches_for(spark, frame):
        assert (int(spark.conf.get(BATCH_BYTES)) < 1 << 30) == limited
        assert (int(spark.conf.get(BATCH_ROWS)) > 1000) == (not limited)
    assert {
        key: spark.conf.get(key) for key in (BATCH_BYTES, BATCH_ROWS)
    }.items() <= DEFAULTS.items()


def test_a_bound_that_the_user_has_set_stays(spark):
    frame = spark.createDataFrame([(1, "x" * 100_000)], "id int, text string")
    spark.conf.set(BATCH_BYTES, "12345678")
    try:
        with batches_for(spark, frame):
            assert spark.conf.get(BATCH_BYTES) == "12345678"
    finally:
        spark.conf.set(BATCH_BYTES, DEFAULTS[BATCH_BYTES])


def test_wide_rows_are_written(spark, tmp_path):
    frame = spark.range(0, 2000, numPartitions=2).selectExpr("id", "repeat('x', 300000) as image")
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "images"))
    manifest: Any = VersionStore(str(tmp_path / "images")).load()
    assert sum(shard.rows for shard in manifest.shards) == 2000
