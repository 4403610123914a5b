"""Spark reads Vortex files and streams of a server as any other dataset."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from helpers.vortex_messages import encode_arrow, make_file, write_stream

ROWS = 3000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "s": pa.array([None if n % 5 == 0 else f"text {n % 7}" for n in range(ROWS)]),
        "x": pa.array([n / 100 for n in range(ROWS)]),
        "t": pa.array([dt.datetime(2026, 1, 1 + n % 28) for n in range(ROWS)], pa.timestamp("us")),
        "l": pa.array([[n] * (n % 3) for n in range(ROWS)], pa.list_(pa.int32())),
    }
)


@pytest.mark.parametrize("reader", ["jvm", "python"])
def test_vortex_datasets_are_read(spark, serve, tmp_path, reader):
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(2):
        part = TABLE.slice(number * 1500, 1500)
        (folder / f"{number}.vortex").write_bytes(make_file(part))
    stream = tmp_path / "rows.vortexs"
    (batch,) = TABLE.combine_chunks().to_batches()
    stream.write_bytes(write_stream(*encode_arrow(batch.to_struct_array())))
    uri = serve({"folder": folder, "stream": stream}).control_uri
    for name in ("folder", "stream"):
        source = spark.read.format("splitarrow").option("uri", uri).option("reader", reader)
        rows = source.load(name).orderBy("id").toArrow()
        assert rows.cast(TABLE.schema) == TABLE
        late = source.load(name).where("x > 29.5 and s = 'text 3'").select("id")
        expected = [n for n in range(2951, ROWS) if n % 5 and n % 7 == 3]
        assert sorted(row.id for row in late.collect()) == expected
