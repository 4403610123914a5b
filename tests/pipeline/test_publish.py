"""The publishing job: sources, row operations, destinations, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme
from deltalake import DeltaTable, write_deltalake
from pyarrow import csv, orc

import splitarrow
from helpers.publication import read_version
from splitarrow import errors
from splitarrow.pipeline.publish import PublishJob, detect_format, publish
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon
from splitarrow.transport.tls_options import TlsOptions

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
    """A folder with the table in every format."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "parquet").mkdir()
    pq.write_table(table.slice(0, 1500), folder / "parquet" / "a.parquet")
    pq.write_table(table.slice(1500), folder / "parquet" / "b.parquet")
    csv.write_csv(table, folder / "t.csv")
    orc.write_table(table, folder / "t.orc")
    with (folder / "t.jsonl").open("w") as out:
        out.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    return folder


def read_rows(location):
    """Return the rows of the current version of a published dataset."""
    store = VersionStore(str(location))
    return read_version(store, store.load()).to_pylist()


@pytest.mark.parametrize("name", ["parquet", "t.csv", "t.orc", "t.jsonl"])
def test_every_format_is_read(spark, source, table, tmp_path, name):
    (result,) = publish(spark, PublishJob(str(source / name), "trips", [str(tmp_path)]))
    assert (result.rows, result.version, result.name) == (ROWS, 1, "trips")
    rows = sorted(read_rows(tmp_path / "trips"), key=lambda row: row["id"])
    assert [(row["id"], row["group"], row["fare"]) for row in rows] == [
        tuple(row.values()) for row in table.to_pylist()
    ]


def test_a_table_is_read(spark, table, tmp_path):
    spark.createDataFrame(table).createOrReplaceTempView("trips_of_the_tests")
    job = PublishJob("trips_of_the_tests", "trips", [str(tmp_path)], format="table")
    (result,) = publish(spark, job)
    assert result.rows == ROWS
    assert sorted(row["id"] for row in read_rows(tmp_path / "trips")) == list(range(ROWS))


def test_the_format_is_detected_by_file_names(tmp_path):
    (tmp_path / "x.csv").touch()
    assert detect_format(str(tmp_path)) == "csv"
    (tmp_path / "x.parquet").touch()
    with pytest.raises(errors.UsageError, match="it has files of csv and parquet"):
        detect_format(str(tmp_path))


def test_the_files_of_a_delta_table_are_refused(spark, table, tmp_path):
    lake = tmp_path / "a lake"
    write_deltalake(lake / "trips", table.slice(0, 4), partition_by=["group"])
    DeltaTable(lake / "trips").delete("id > 0")
    (tmp_path / "other").mkdir()
    pq.write_table(table, tmp_path / "other" / "x.parquet")

    def publish_from(source, format):
        return publish(spark, PublishJob(str(source), "trips", [str(tmp_path)], format=format))

    sources = [(lake, "parquet"), (lake / "t*", "parquet"), (lake / "trips", None)]
    sources += [(lake / "trips" / name, "parquet") for name in ("", "group=g1", "*/*.parquet")]
    for source, format in [*sources, (f"parquet.`{lake}/trips`", "table")]:
        with pytest.raises(errors.DatasetError, match=f"{lake}/trips is a Delta table, and its"):
            publish_from(source, format)
    assert not (tmp_path / "trips").exists()
    (result,) = publish_from(tmp_path / "o*", "parquet")
    assert result.rows == ROWS


def test_the_files_of_an_iceberg_table_are_refused(spark, table, tmp_path):
    (tmp_path / "trips" / "data").mkdir(parents=True)
    (tmp_path / "trips" / "metadata").mkdir()
    (tmp_path / "trips" / "metadata" / "v1.metadata.json").touch()
    pq.write_table(table, tmp_path / "trips" / "data" / "x.parquet")
    for name in ("", "data", "data/*.parquet"):
        job = PublishJob(str(tmp_path / "trips" / name), "x", [str(tmp_path)], format="parquet")
        with pytest.raises(errors.DatasetError, match="trips is an Apache Iceberg table, and its"):
            publish(spark, job)


def test_rows_are_filtered_selected_cast_and_sorted(spark, source, tmp_path):
    job = PublishJob(
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
    (result,) = publish(spark, job)
    manifest: Any = VersionStore(str(tmp_path / "trips")).load()
    assert manifest.schema.field("id").type == pa.int32()
    assert pa.types.is_dictionary(manifest.schema.field("group").type)
    rows = read_rows(tmp_path / "trips")
    assert [row["id"] for row in rows] == list(range(ROWS - 1, 399, -1))
    assert rows[0]["twice"] == (ROWS - 1) / 2
    assert result.rows == ROWS - 400


def test_a_split_puts_each_group_into_one_share(spark, source, tmp_path):
    job = PublishJob(
        str(source / "parquet"),
        "trips",
        [str(tmp_path)],
        split={"train": 0.8, "validation": 0.2},
        split_by=["group"],
        shuffle_seed=7,
        repartition=1,
    )
    names = [result.name for result in publish(spark, job)]
    assert names == ["trips-train", "trips-validation"]
    train, validation = (read_rows(tmp_path / name) for name in names)
    assert sorted(row["id"] for row in train + validation) == list(range(ROWS))
    assert validation
    assert not {row["group"] for row in train} & {row["group"] for row in validation}
    assert [row["id"] for row in train] != sorted(row["id"] for row in train)
    repeated = tmp_path / "repeated"
    publish(spark, replace(job, to=[str(repeated)]))
    assert read_rows(repeated / "trips-train") == train


def test_modes_and_a_repeated_job(spark, source, tmp_path):
    def run(mode, job_id=None):
        job = PublishJob(
            str(source / "parquet"), "t", [str(tmp_path)], mode=mode, job_id=job_id, filter="id < 5"
        )
        return publish(spark, job)[0].version

    assert run("error", "one") == 1
    assert run("error", "one") == 1
    with pytest.raises(errors.DatasetError, match="exists, in version 1"):
        run("error")
    assert run("ignore") == 1
    assert (run("append", "two"), run("append", "two")) == (2, 2)
    assert len(read_rows(tmp_path / "t")) == 10
    assert run("overwrite") == 3
    assert len(read_rows(tmp_path / "t")) == 5


def test_daemons_receive_all_rows_in_order(spark, source, writable_daemons):
    uris = [daemon.control_uri for daemon in writable_daemons]
    job = PublishJob(
        str(source / "parquet"), "trips", uris, mode="overwrite", rows_per_shard=100, sort=["id"]
    )
    steps: list[str] = []
    (result,) = publish(spark, job, steps.append)
    assert result.rows == ROWS
    assert steps == ["trips", *(f"trips: {n} of 20 shards uploaded" for n in range(1, 21))]
    frame = spark.read.format("splitarrow").option("uri", ",".join(uris)).load("trips")
    assert frame.agg({"id": "sum", "*": "count"}).collect()[0].asDict() == {
        "sum(id)": sum(range(ROWS)),
        "count(1)": ROWS,
    }
    with splitarrow.connect(uris) as client:
        assert client.read("trips").read_all()["id"].to_pylist() == list(range(ROWS))


def test_a_daemon_with_tls_receives_rows(spark, source, tmp_path):
    authority = trustme.CA()
    pem, ca, folder = tmp_path / "server.pem", tmp_path / "ca.pem", tmp_path / "data"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    with Daemon(control="grpc+tls://127.0.0.1:0", writable=folder, tls_cert=pem) as daemon:
        uri = daemon.control_uri
        job = PublishJob(str(source / "t.csv"), "trips", [uri], mode="overwrite")
        with pytest.raises(errors.SplitArrowError, match="certificate"):
            publish(spark, job)
        (result,) = publish(spark, replace(job, tls=TlsOptions(str(ca))))
        assert result.rows == ROWS
        reader = spark.read.format("splitarrow").option("uri", uri).option("tls_ca", str(ca))
        assert reader.load("trips").count() == ROWS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"to": []}, "no destination; pass"),
        ({"to": ["a", "grpc://b"]}, "either one folder or only control planes"),
        ({"to": ["grpc://b"]}, "for daemons it must be 'append' or 'overwrite'"),
        ({"split": {"a": 0.9, "b": 0.3}}, "add up to 1.2"),
        ({"split": {"a": -1.0}}, "the share 'a' of the split is -1.0"),
        ({"split_by": ["id"]}, "split_by requires a split"),
        ({"mode": "replace"}, "must be one of append"),
        ({"format": "xml"}, "must be one of parquet"),
        ({"sort": ["id"], "shuffle_seed": 1}, "exclude each other"),
    ],
)
def test_contradictory_settings_are_an_error(change, message):
    settings: dict[str, Any] = {"source": "trips.parquet", "to": ["sets"]}
    with pytest.raises(errors.UsageError, match=message):
        PublishJob(name="t", **{**settings, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"source": "absent.parquet"}, errors.UsageError, "absent.parquet"),
        ({"source": "absent"}, errors.UsageError, "it has no known suffix; set the format"),
        ({"select": "absent"}, errors.UsageError, "absent"),
        ({"filter": "id >"}, errors.UsageError, "[Ss]yntax|PARSE"),
        ({"cast": {"absent": "int"}}, errors.UsageError, "no column 'absent'; the columns are"),
        ({"cast": {"group": "int"}}, errors.DatasetError, "g\\d"),
        ({"sort": ["absent"]}, errors.UsageError, "no column 'absent'"),
        (
            {"dictionary": "fare"},
            errors.DatasetError,
            "cannot dictionary-encode column 'fare' of type double",
        ),
    ],
)
def test_an_error_is_one_line(spark, source, tmp_path, change, error, message):
    settings: dict[str, Any] = {"source": str(source / "parquet"), "to": [str(tmp_path)]}
    with pytest.raises(error, match=message) as caught:
        publish(spark, PublishJob(name="t", **{**settings, **change}))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "t" / "_splitarrow" / "versions").exists()


def test_a_malformed_row_fails_the_job(spark, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(errors.DatasetError):
        publish(spark, PublishJob(str(tmp_path / "t.jsonl"), "t", [str(tmp_path / "out")]))
