"""Variants between Parquet files, the server and Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

import splitarrow
from splitarrow import variant

READERS = ("jvm", "python")
ROWS: list[Any] = [
    {"id": row, "name": f"n{row}", "tags": ["x", row, None], "at": {"ok": row % 2 == 0}}
    for row in range(100)
]
ROWS.extend(["text", 1, [1, {"a": "b"}], {}, {"id": "not a number"}])


def test_spark_reads_shredded_variants_of_parquet_files(spark, tmp_path, serve):
    path = tmp_path / "v.parquet"
    make_table: Any = pa.table
    schema = pa.schema([pa.field("row", pa.int64()), variant.field("v")])
    table = make_table([range(len(ROWS)), variant.from_python(ROWS)], schema=schema)
    variant.write_parquet(table, path, shred={"v": None})
    expected = [json.loads(text) for text in variant.to_json(table.column("v")).to_pylist()]
    direct = spark.read.parquet(str(path)).selectExpr("row", "to_json(v)")
    uri = serve({"v": path}).control_uri
    reader = spark.read.format("splitarrow").option("uri", uri)
    reads = [reader.option("reader", name).load("v") for name in READERS]
    for read in (direct, *(each.selectExpr("row", "to_json(v)") for each in reads)):
        found = [json.loads(text) for _, text in sorted(read.collect())]
        assert found == expected
    for read in reads:
        ids = read.selectExpr("try_variant_get(v, '$.id', 'bigint')").collect()
        assert sum(row[0] or 0 for row in ids) == sum(range(100))


def test_shredded_files_of_spark_are_served(spark, tmp_path, serve):
    texts = [json.dumps(row) for row in ROWS]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    frame.selectExpr("parse_json(text) as v").coalesce(1).write.parquet(str(tmp_path / "spark"))
    (path,) = (tmp_path / "spark").glob("*.parquet")
    with splitarrow.connect(serve({"v": path}).control_uri) as client:
        table = client.read("v").read_all()
    assert variant.is_valid(table.column("v")).to_pylist() == [True] * len(ROWS)
    assert [json.loads(text) for text in variant.to_json(table.column("v")).to_pylist()] == ROWS
