"""Variant columns of Parquet files, served, uploaded and written."""

from __future__ import annotations

import json
import subprocess
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.catalog import read_dataset
from helpers.cli import COMMAND
from helpers.parquet_files import edit_schema, write_parquet
from splitarrow import variant
from splitarrow.errors import DatasetError, UsageError
from splitarrow.formats.parquet.logical_types import Kind, LogicalType
from splitarrow.formats.parquet.schema import annotate
from splitarrow.server.catalog.files.file_types import open_file

ROWS: list[Any] = [
    {"a": {"b": row, "c": f"c{row}"}, "tags": ["x", row], "rest": row / 8} for row in range(300)
]
ROWS += ["text", None, {"a": 1}, {"a": {"b": "not a number"}}]
EXTENSION = {b"ARROW:extension:name": b"arrow.parquet.variant", b"ARROW:extension:metadata": b""}


def _as_variant(element: Any) -> Any:
    return annotate(element, LogicalType(Kind.VARIANT))


def _write(path: Path, column: Any, **options: Any) -> Path:
    file = write_parquet(pa.table({"id": range(len(column)), "v": column}), **options)
    path.write_bytes(edit_schema(file, {"v": _as_variant}))
    return path


def _shredded(path: Path, **options: Any) -> Path:
    return _write(path, variant.shred(variant.from_python(ROWS)), **options)


def test_golden_files_are_served_unshredded(parquet_test_data: Path) -> None:
    folder = parquet_test_data / "shredded_variant"
    for case in json.loads((folder / "cases.json").read_text()):
        path = folder / case.get("parquet_file", "none")
        if not path.is_file():
            continue
        dataset = open_file(path)
        if "error_message" in case or "INVALID" in path.name:
            with pytest.raises(DatasetError, match="Variant in row 0 is invalid"):
                read_dataset(dataset)
            assert read_dataset(dataset, columns=("id",)).table.num_rows == 1
            continue
        table = read_dataset(dataset).table
        expected = variant.unshred(pq.read_table(path).column("var"))
        assert table.column("var").to_pylist() == expected.to_pylist()
        metadata = table.schema.field("var").metadata
        assert metadata.items() >= EXTENSION.items()


@pytest.mark.parametrize("scheme", ["tcp", "grpc"])
def test_a_variant_travels_to_a_client(tmp_path: Path, scheme: str) -> None:
    path = _shredded(tmp_path / "v.parquet")
    with splitarrow.serve({"v": path}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        if scheme == "tcp":
            with splitarrow.open(server.uri("v")) as stream:
                table = stream.read_all()
        else:
            import pyarrow.flight as flight

            with flight.connect(server.control_uri.replace("grpc://", "grpc+tcp://")) as stock:
                table = stock.do_get(flight.Ticket(b"v")).read_all()
    assert table.schema.field("v").metadata == EXTENSION
    assert table.schema.field("v").type == variant.field("v").type
    assert variant.to_python(table.column("v")) == ROWS


def test_duckdb_takes_a_variant(tmp_path: Path) -> None:
    import duckdb

    path = _shredded(tmp_path / "v.parquet")
    with splitarrow.serve({"v": path}) as server, splitarrow.open(server.uri("v")) as stream:
        table = stream.read_all()
    with duckdb.connect() as connection:
        connection.register("served", table)
        types = connection.sql("SELECT typeof(v) FROM served LIMIT 1").fetchall()
        found = connection.sql("SELECT v.a.b::INT FROM served WHERE id < 3 ORDER BY id").fetchall()
    assert types == [("VARIANT",)]
    assert found == [(0,), (1,), (2,)]


def test_a_malformed_variant_costs_only_its_column(tmp_path: Path) -> None:
    column = variant.from_python([1, 2])
    no_metadata = pa.StructArray.from_arrays([column.field("value")], ["value"])
    unsigned = pa.StructArray.from_arrays(
        [column.field("metadata"), pa.array([1, 2], pa.uint32())], ["metadata", "typed_value"]
    )
    for broken in (no_metadata, unsigned):
        dataset = open_file(_write(tmp_path / "v.parquet", broken))
        assert read_dataset(dataset, columns=("id",)).table.num_rows == 2
        with pytest.raises(DatasetError, match="'v'"):
            read_dataset(dataset)


def test_variants_inside_of_lists_and_structs_are_unshredded(tmp_path: Path) -> None:
    shredded = variant.shred(variant.from_python([1, "x", None]), pa.int64())
    lists = pa.ListArray.from_arrays([0, 2, 2, 3], shredded)
    path = tmp_path / "v.parquet"
    file = write_parquet(pa.table({"v": lists}))
    path.write_bytes(edit_schema(file, {"v.list.element": _as_variant}))
    table = read_dataset(open_file(path)).table
    elements = table.column("v").combine_chunks().values
    assert variant.to_python(elements) == [1, "x", None]


def test_a_written_file_is_a_variant_for_other_readers(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "v.parquet"
    column = variant.from_python(
        [{"a": row, "t": time(1, 2, 3), "d": Decimal(row)} for row in range(9)]
    )
    table = pa.table([range(9), column], pa.schema([("id", pa.int64()), variant.field("v")]))
    data_type = pa.struct([("a", pa.int64()), ("t", pa.time64("us")), ("d", pa.decimal128(9, 0))])
    for shred in ({}, {"v": None}, {"v": data_type}):
        variant.write_parquet(table, path, shred=shred)
        served = read_dataset(open_file(path)).table
        assert variant.to_python(served.column("v")) == variant.to_python(column)
        assert str(pq.ParquetFile(path).schema).count("(Variant(1))") == 1
        with duckdb.connect() as connection:
            found = connection.sql(
                f"SELECT typeof(v), sum(v.a::INT) FROM '{path}' GROUP BY ALL"
            ).fetchall()
        assert found == [("VARIANT", 36)], shred
    with pytest.raises(UsageError, match="no column"):
        variant.write_parquet(table, path, shred={"w": None})
    with pytest.raises(UsageError, match="no group"):
        variant.annotate(path, ["id"])


def test_fetch_writes_the_annotation(tmp_path: Path) -> None:
    path, copy = _shredded(tmp_path / "v.parquet"), tmp_path / "copy.parquet"
    with splitarrow.serve({"v": path}) as server:
        subprocess.run(
            [*COMMAND, "fetch", server.uri("v"), "-o", str(copy)], check=True, timeout=60
        )
    assert "(Variant(1))" in str(pq.ParquetFile(copy).schema)
    assert variant.to_python(read_dataset(open_file(copy)).table.column("v")) == ROWS


def test_an_uploaded_variant_is_served(tmp_path: Path) -> None:
    column = variant.from_python(ROWS)
    table = pa.table([column], pa.schema([variant.field("v")]))
    with splitarrow.serve({}, control="grpc://127.0.0.1:0", writable=tmp_path) as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            client.put("new", table)
            found = client.read("new").read_all()
    assert found.schema.field("v").metadata == EXTENSION
    assert variant.to_python(found.column("v")) == ROWS
