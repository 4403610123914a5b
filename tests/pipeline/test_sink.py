"""The sink: a write publishes one version with every row once, or none, whatever fails."""

from __future__ import annotations

import hashlib
import os
import signal
import struct
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds

import splitarrow
from splitarrow.errors import DatasetError
from splitarrow.pipeline.batch_queries import ShardWriter
from splitarrow.pipeline.options import SparkOptions
from splitarrow.pipeline.shards import WriteJob, write_shards
from splitarrow.pipeline.writer import WRITE_OPTIONS, plan_write
from splitarrow.publication.version_store import VersionStore

ROWS = 10_000


def make_frame(spark, rows=ROWS, partitions=3):
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        "id", "id * 0.5 as half", "concat('n', id % 13) as name"
    )


def write(frame, path, mode="append", **options):
    frame.write.format("splitarrow").options(**options).mode(mode).save(str(path))


def read_shards(path, version=None):
    """Read the shards of a version with Arrow alone, and compare them with the manifest."""
    store = VersionStore(str(path))
    manifest: Any = store.load(version)
    tables = []
    for shard in manifest.shards:
        data = (path / shard.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard.nbytes, shard.sha256)
        reader = pa.ipc.open_file(pa.py_buffer(data))
        table = reader.read_all()
        table.validate(full=True)
        assert table.num_rows == shard.rows
        assert table.schema.equals(manifest.schema)
        tables.append(table)
    return manifest, tables


def ids(tables):
    return sorted(value for table in tables for value in table["id"].to_pylist())


def list_files(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def list_visible_files(path):
    """Return the files that a reader can see. Those that a killed worker staged are not."""
    return [name for name in list_files(path) if "/staging/" not in name]


def test_the_manifest_describes_the_shards(spark, tmp_path):
    write(make_frame(spark), tmp_path, rows_per_shard=1000)
    manifest, tables = read_shards(tmp_path)
    assert (manifest.version, manifest.rows, ids(tables)) == (1, ROWS, list(range(ROWS)))
    assert [table.num_rows for table in tables] == [1000, 1000, 1000, 333] * 2 + [1000] * 3 + [334]
    for shard, table in zip(manifest.shards, tables, strict=True):
        found = pc.min_max(table["id"]).as_py()
        column = shard.columns["id"]
        assert {"min": column.minimum, "max": column.maximum} == found
        assert column.nulls == 0


def test_geometries_are_published_with_their_boxes(spark, tmp_path):
    spark.conf.set("spark.sql.geospatial.enabled", "true")
    near, far = (struct.pack("<BIdd", 1, 1, x, 5).hex() for x in (4, 10))
    frame = spark.range(0, 4, numPartitions=2).selectExpr(
        "id", f"case id when 0 then X'{near}' when 1 then null else X'{far}' end as wkb"
    )
    located = frame.selectExpr(
        "id", "ST_SetSRID(ST_GeomFromWKB(wkb), 3857) as g", "ST_GeogFromWKB(wkb) as e"
    )
    write(located, tmp_path)
    manifest, tables = read_shards(tmp_path)
    assert [shard.columns["g"].box for shard in manifest.shards] == [(4, 5, 4, 5), (10, 5, 10, 5)]
    assert manifest.shards[0].columns["e"].box == (4, 5, 4, 5)
    assert manifest.shards[0].columns["g"].nulls == 1
    metadata = manifest.schema.field("g").metadata
    assert metadata[b"ARROW:extension:name"] == b"geoarrow.wkb"
    assert metadata[b"ARROW:extension:metadata"] == (
        b'{"crs": "EPSG:3857", "crs_type": "authority_code"}'
    )
    assert b"spherical" in manifest.schema.field("e").metadata[b"ARROW:extension:metadata"]
    assert tables[0]["g"].to_pylist() == tables[0]["e"].to_pylist()
    box = splitarrow.geo.intersects("g", (9, 0, 11, 6))
    with (
        splitarrow.serve({"places": str(tmp_path)}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
        client.read("places", filter=box) as stream,
    ):
        assert stream.read_all()["id"].to_pylist() == [2, 3]


def test_bytes_per_shard_limits_files_with_aligned_buffers(spark, tmp_path):
    write(make_frame(spark, 400_000, 1), tmp_path, bytes_per_shard="5MiB")
    manifest, tables = read_shards(tmp_path)
    assert len(tables) > 1
    assert ids(tables) == list(range(400_000))
    data = pa.py_buffer((tmp_path / manifest.shards[0].path).read_bytes())
    reader = pa.ipc.open_file(data)
    for index in range(reader.num_record_batches):
        for column in reader.get_batch(index).columns:
            offsets = [b.address - data.address for b in column.buffers() if b is not None]
            assert all(offset % 64 == 0 for offset in offsets)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_shard_has_one_dictionary_that_its_batches_extend(spark, tmp_path, compression):
    frame = spark.range(0, 300_000, numPartitions=1).selectExpr(
        "id", "if(id % 7 = 0, null, concat('value ', id div 1000)) as name"
    )
    write(frame, tmp_path, dictionary="name", compression=compression)
    manifest, (table,) = read_shards(tmp_path)
    assert manifest.schema.field("name").type == pa.dictionary(pa.int32(), pa.string())
    expected = frame.toArrow()
    assert table["name"].cast(pa.string()).to_pylist() == expected["name"].to_pylist()
    assert len(pa.ipc.open_file(tmp_path / manifest.shards[0].path).get_batch(0)) < 300_000


def test_modes_and_a_repeated_job(spark, tmp_path):
    write(make_frame(spark, 100), tmp_path, job_id="one")
    write(make_frame(spark, 50), tmp_path, job_id="two")
    write(make_frame(spark, 50), tmp_path, job_id="two")
    store: Any = VersionStore(str(tmp_path))
    assert (store.list_versions(), store.load().rows) == ([1, 2], 150)
    write(make_frame(spark, 7), tmp_path, mode="overwrite")
    assert ids(read_shards(tmp_path)[1]) == list(range(7))
    assert ids(read_shards(tmp_path, 1)[1]) == list(range(100))
    write(make_frame(spark, 0), tmp_path, mode="overwrite")
    manifest, tables = read_shards(tmp_path)
    assert (manifest.version, tables, manifest.schema.names) == (4, [], ["id", "half", "name"])


def test_appending_another_schema_is_an_error(spark, tmp_path):
    write(make_frame(spark, 10), tmp_path)
    with pytest.raises(PySparkException, match="lacks the column 'half'"):
        write(make_frame(spark, 10).drop("half"), tmp_path)
    assert VersionStore(str(tmp_path)).list_versions() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_shard": 0}, "'rows_per_shard' is 0; it must be at least 1"),
        ({"bytes_per_shard": "lots"}, "'lots' is not a size"),
        ({"compression": "gzip"}, "must be one of none, lz4, zstd"),
        ({"dictionary": "half"}, "column 'half' of type decimal"),
        ({"dictionary": "absent"}, "no unique column 'absent'"),
        ({"dictionary": "auto"}, "dictionary_columns"),
        ({"job_id": "../up"}, "not a valid job name"),
        ({"row_per_shard": 5}, "did you mean 'rows_per_shard'"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_written(spark, tmp_path, options, message):
    with pytest.raises(PySparkException, match=message):
        write(make_frame(spark, 10), tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()


def failing_frame(spark, failure, marks, *, times):
    """Return rows whose second partition fails in the middle, `times` times.

    Each failure leaves a file in the folder `marks`.
    """

    def rows(batches):
        for index, batch in enumerate(batches):
            yield batch
            if batch["id"][0].as_py() >= ROWS // 2 and index == 0:
                before = len(list(marks.iterdir()))
                if before < times:
                    (marks / str(before)).touch()
                    if failure == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if failure == "raise":
                        raise ValueError("this task fails")
                    kill_writers(jvm)

    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    frame = spark.range(0, ROWS, numPartitions=2)
    return frame.mapInArrow(rows, frame.schema)


def kill_writers(jvm):
    """Kill the processes that make shards of the rows of a JVM."""
    for process in psutil.Process(jvm).children():
        if "splitarrow.pipeline.plan" in process.cmdline():
            process.kill()


FAILURES = [pytest.param("raise", marks=pytest.mark.long), "kill", "kill the writer"]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_task_that_fails_is_repeated_without_duplicate_rows(spark, tmp_path, failure):
    (marks := tmp_path / "marks").mkdir()
    write(failing_frame(spark, failure, marks, times=2), tmp_path / "set", rows_per_shard=100)
    assert len(list(marks.iterdir())) == 2
    manifest, tables = read_shards(tmp_path / "set")
    assert ids(tables) == list(range(ROWS))
    visible = list_visible_files(tmp_path / "set")
    assert {name for name in visible if not name.startswith("_splitarrow")} == {
        shard.path for shard in manifest.shards
    }
    assert list((tmp_path / "set" / "_splitarrow" / "staging").iterdir()) == []


@pytest.mark.parametrize("failure", FAILURES)
def test_a_job_that_fails_changes_nothing(spark, tmp_path, failure):
    (marks := tmp_path / "marks").mkdir()
    write(make_frame(spark, 10).select("id"), tmp_path / "set")
    before = list_visible_files(tmp_path / "set")
    with pytest.raises((PySparkException, Py4JJavaError)):
        write(failing_frame(spark, failure, marks, times=99), tmp_path / "set", rows_per_shard=100)
    assert list_visible_files(tmp_path / "set") == before
    staging = tmp_path / "set" / "_splitarrow" / "staging"
    assert list(staging.iterdir()) == []
    assert ids(read_shards(tmp_path / "set")[1]) == list(range(10))


@pytest.mark.parametrize("begin", ["before the abort", "after the abort"])
def test_a_task_that_runs_after_its_job_was_aborted_leaves_nothing(tmp_path, begin):
    schema = pa.schema([("id", pa.int64())])
    job = WriteJob(str(tmp_path), "job", schema, rows_per_shard=2)
    store = VersionStore(job.location)
    store.create_staging("job")

    def batches():
        for first in range(0, 8, 2):
            yield pa.record_batch([pa.array([first, first + 1])], schema=schema)
            if begin == "before the abort" and first == 4:
                store.discard("job")

    if begin == "after the abort":
        store.discard("job")
    with pytest.raises(DatasetError, match=r"does not exist|No such file"):
        write_shards(job, "00000-0", batches())
    assert list((tmp_path / "_splitarrow" / "staging").iterdir()) == []


def test_a_worker_killed_while_it_writes_a_shard_is_replaced(spark, tmp_path):
    (marks := tmp_path / "marks").mkdir()
    frame = spark.range(0, ROWS, numPartitions=2)

    class KillingWriter(ShardWriter):
        def write(self, iterator):
            def batches():
                for batch in iterator:
                    yield batch
                    if not list(marks.iterdir()):
                        (marks / "1").touch()
                        os.kill(os.getpid(), signal.SIGKILL)

            return super().write(batches())

    class Source(ds.DataSource):
        @classmethod
        def name(cls):
            return "killing_sink"

        def writer(self, schema, overwrite):
            return KillingWriter(
                plan_write(SparkOptions(self.options, WRITE_OPTIONS), schema), overwrite
            )

    spark.dataSource.register(Source)
    frame.write.format("killing_sink").option("rows_per_shard", 100).mode("append").save(
        str(tmp_path / "set")
    )
    assert list(marks.iterdir())
    assert ids(read_shards(tmp_path / "set")[1]) == list(range(ROWS))
    assert not [name for name in list_files(tmp_path / "set") if "staging" in name]
