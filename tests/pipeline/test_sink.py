"""Writing with a real Spark: one version with every row once, or none, whatever fails."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import datasource as ds

from splitarrow.pipeline.options import Options
from splitarrow.pipeline.sink import OPTIONS, ShardSink, shard_plan
from splitarrow.server.catalog.versions import VersionStore

ROWS = 10_000


def frame_of(spark, rows=ROWS, partitions=3):
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        "id", "id * 0.5 as half", "concat('n', id % 13) as name"
    )


def write(frame, path, mode="append", **options):
    frame.write.format("splitarrow").options(**options).mode(mode).save(str(path))


def shards_of(path, version=None):
    """Read every shard of a version with Arrow alone; check what the manifest says of it."""
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


def stored(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())


def visible(path):
    """What a reader may come to see: what a killed worker has left in staging is not."""
    return [name for name in stored(path) if "/staging/" not in name]


def test_shards_have_the_rows_and_the_manifest_says_so(spark, tmp_path):
    write(frame_of(spark), tmp_path, rows_per_shard=1000)
    manifest, tables = shards_of(tmp_path)
    assert (manifest.version, manifest.rows, ids(tables)) == (1, ROWS, list(range(ROWS)))
    assert [table.num_rows for table in tables] == [1000, 1000, 1000, 333] * 2 + [1000] * 3 + [334]
    for shard, table in zip(manifest.shards, tables, strict=True):
        found = pc.min_max(table["id"]).as_py()
        column = shard.columns["id"]
        assert {"min": column.minimum, "max": column.maximum} == found
        assert column.nulls == 0


def test_shards_are_cut_by_bytes_and_hold_aligned_buffers(spark, tmp_path):
    write(frame_of(spark, 400_000, 1), tmp_path, bytes_per_shard="5MiB")
    manifest, tables = shards_of(tmp_path)
    assert len(tables) > 1
    assert ids(tables) == list(range(400_000))
    data = pa.py_buffer((tmp_path / manifest.shards[0].path).read_bytes())
    reader = pa.ipc.open_file(data)
    for index in range(reader.num_record_batches):
        for column in reader.get_batch(index).columns:
            places = [b.address - data.address for b in column.buffers() if b is not None]
            assert all(place % 64 == 0 for place in places)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_dictionaries_grow_over_the_batches_of_a_shard(spark, tmp_path, compression):
    frame = spark.range(0, 300_000, numPartitions=1).selectExpr(
        "id", "if(id % 7 = 0, null, concat('value ', id div 1000)) as name"
    )
    write(frame, tmp_path, dictionary="name", compression=compression)
    manifest, (table,) = shards_of(tmp_path)
    assert manifest.schema.field("name").type == pa.dictionary(pa.int32(), pa.string())
    expected = frame.toArrow()
    assert table["name"].cast(pa.string()).to_pylist() == expected["name"].to_pylist()
    assert len(pa.ipc.open_file(tmp_path / manifest.shards[0].path).get_batch(0)) < 300_000


def test_append_overwrite_and_a_job_that_is_done_again(spark, tmp_path):
    write(frame_of(spark, 100), tmp_path, job_id="one")
    write(frame_of(spark, 50), tmp_path, job_id="two")
    write(frame_of(spark, 50), tmp_path, job_id="two")
    store: Any = VersionStore(str(tmp_path))
    assert (store.versions(), store.load().rows) == ([1, 2], 150)
    write(frame_of(spark, 7), tmp_path, mode="overwrite")
    assert ids(shards_of(tmp_path)[1]) == list(range(7))
    assert ids(shards_of(tmp_path, 1)[1]) == list(range(100))
    write(frame_of(spark, 0), tmp_path, mode="overwrite")
    manifest, tables = shards_of(tmp_path)
    assert (manifest.version, tables, manifest.schema.names) == (4, [], ["id", "half", "name"])


def test_another_schema_is_not_appended(spark, tmp_path):
    write(frame_of(spark, 10), tmp_path)
    with pytest.raises(PySparkException, match="differs from version 1"):
        write(frame_of(spark, 10).drop("half"), tmp_path)
    assert VersionStore(str(tmp_path)).versions() == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rows_per_shard": 0}, "'rows_per_shard' is 0, less than 1"),
        ({"bytes_per_shard": "lots"}, "no number of bytes"),
        ({"compression": "gzip"}, "known are none, lz4, zstd"),
        ({"dictionary": "half"}, "'half', which is decimal"),
        ({"dictionary": "nix"}, "dictionary names 'nix'"),
        ({"dictionary": "auto"}, "dictionary_columns"),
        ({"job_id": "../up"}, "no name for a job"),
        ({"row_per_shard": 5}, "did you mean 'rows_per_shard'"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(spark, tmp_path, options, text):
    with pytest.raises(PySparkException, match=text):
        write(frame_of(spark, 10), tmp_path / "set", **options)
    assert not (tmp_path / "set").exists()


def failing(spark, kind, marks, *, times):
    """Rows whose second partition fails in the middle, `times` times."""

    def rows(batches):
        for index, batch in enumerate(batches):
            yield batch
            if batch["id"][0].as_py() >= ROWS // 2 and index == 0:
                before = len(list(marks.iterdir()))
                if before < times:
                    (marks / str(before)).touch()
                    if kind == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ValueError("this task fails")

    frame = spark.range(0, ROWS, numPartitions=2)
    return frame.mapInArrow(rows, frame.schema)


@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_a_task_that_fails_is_done_again_and_no_row_is_there_twice(spark, tmp_path, kind):
    (marks := tmp_path / "marks").mkdir()
    write(failing(spark, kind, marks, times=2), tmp_path / "set", rows_per_shard=100)
    assert len(list(marks.iterdir())) == 2
    manifest, tables = shards_of(tmp_path / "set")
    assert ids(tables) == list(range(ROWS))
    named = {shard.path for shard in manifest.shards}
    data = {name for name in visible(tmp_path / "set") if not name.startswith("_splitarrow")}
    assert data == named
    assert not [name for name in stored(tmp_path / "set") if "staging" in name]


@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_a_job_that_fails_leaves_what_was_there(spark, tmp_path, kind):
    (marks := tmp_path / "marks").mkdir()
    write(frame_of(spark, 10).select("id"), tmp_path / "set")
    before = visible(tmp_path / "set")
    with pytest.raises((PySparkException, Py4JJavaError)):
        write(failing(spark, kind, marks, times=99), tmp_path / "set", rows_per_shard=100)
    assert visible(tmp_path / "set") == before
    assert ids(shards_of(tmp_path / "set")[1]) == list(range(10))


def test_the_writer_process_killed_in_mid_shard_is_replaced(spark, tmp_path):
    (marks := tmp_path / "marks").mkdir()
    frame = spark.range(0, ROWS, numPartitions=2)

    class Killed(ShardSink):
        def write(self, iterator):
            def watched():
                for batch in iterator:
                    yield batch
                    if not list(marks.iterdir()):
                        (marks / "1").touch()
                        os.kill(os.getpid(), signal.SIGKILL)

            return super().write(watched())

    class Source(ds.DataSource):
        @classmethod
        def name(cls):
            return "killed_sink"

        def writer(self, schema, overwrite):
            return Killed(shard_plan(Options(self.options, OPTIONS), schema), overwrite)

    spark.dataSource.register(Source)
    frame.write.format("killed_sink").option("rows_per_shard", 100).mode("append").save(
        str(tmp_path / "set")
    )
    assert list(marks.iterdir())
    assert ids(shards_of(tmp_path / "set")[1]) == list(range(ROWS))
    assert not [name for name in stored(tmp_path / "set") if "staging" in name]
