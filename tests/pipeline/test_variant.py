"""Variants between Parquet files, the server and Spark."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

import splitarrow
from splitarrow import variant
from splitarrow.pipeline.publish import PublishJob, publish

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


def test_variants_that_spark_publishes_are_those_of_everyone(spark, tmp_path, serve):
    import duckdb

    frame = spark.sql(
        """SELECT * FROM VALUES
        (0, parse_json('{"a": 1, "b": [1, 2.50, "x", null, {"c": true}]}')),
        (1, parse_json('null')),
        (2, CAST(NULL AS VARIANT)),
        (3, to_variant_object(named_struct('d', DATE'2024-01-02', 'x', X'0102',
            't', TIMESTAMP_NTZ'2024-01-02 03:04:05.678', 'u', TIMESTAMP'2024-01-02 03:04:05Z',
            'f', CAST(1.5 AS FLOAT), 'e', CAST(1.25 AS DECIMAL(20, 2))))),
        (4, parse_json('12345678901234567890')) AS t(i, v)"""
    )
    columns = ("i", "v IS NULL", "is_variant_null(v)", "to_json(v)", "schema_of_variant(v)")
    expected = frame.selectExpr(*columns).orderBy("i").collect()
    frame.coalesce(1).write.format("splitarrow").mode("append").save(str(tmp_path / "sink"))
    frame.coalesce(1).write.parquet(str(tmp_path / "parquet"))
    source, data = str(tmp_path / "parquet"), tmp_path / "data"
    publish(spark, PublishJob(source, "v", [str(data)]))
    uri = serve({"sink": tmp_path / "sink", "published": data / "v"}).control_uri
    for name in ("sink", "published"):
        for reader in READERS:
            options = {"uri": uri, "reader": reader}
            read = spark.read.format("splitarrow").options(**options).load(name)
            assert read.schema["v"].dataType.simpleString() == "variant"
            assert read.selectExpr(*columns).orderBy("i").collect() == expected
        with splitarrow.connect(uri) as client:
            table = client.read(name).read_all()
        assert table.schema.field("v") == variant.field("v")
        assert table["v"].is_null().to_pylist() == [False, False, True, False, False]
        assert json.loads(variant.to_json(table["v"])[3].as_py())["u"] == (
            "2024-01-02T03:04:05.000000+00:00"
        )
        with duckdb.connect() as connection:
            connection.register("served", table)
            found = connection.sql(
                "SELECT typeof(v), v.b[2]::DECIMAL(9, 2) FROM served WHERE i = 0"
            ).fetchall()
            assert found[0] == ("VARIANT", Decimal("2.50"))


def test_variants_inside_of_other_types_are_read(spark, tmp_path, serve):
    frame = spark.sql(
        """SELECT id, array(parse_json('1'), NULL, parse_json('{"a": 2}')) AS l,
        named_struct('v', parse_json('[1]'), 'n', id) AS s, map('k', parse_json('null')) AS m
        FROM range(3)"""
    )
    frame.write.format("splitarrow").mode("append").save(str(tmp_path / "n"))
    uri = serve({"n": tmp_path / "n"}).control_uri
    columns = ("s.n", "to_json(s.v)", "to_json(m['k'])", "to_json(l[2])", "l[1] IS NULL")
    for reader in READERS:
        read = spark.read.format("splitarrow").options(uri=uri, reader=reader).load("n")
        for column in columns:  # each alone, because Spark then asks for a part of a struct
            found = sorted(read.selectExpr(column).collect())
            assert found == sorted(frame.selectExpr(column).collect()), (reader, column)
