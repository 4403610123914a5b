"""Variant columns of Parquet files, served, uploaded and written."""

from __future__ import annotations

import json
import subprocess
from datetime import date, time, timedelta
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
from splitarrow.cli.app import run as run_here
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import DatasetError, NotFoundError, UsageError
from splitarrow.formats.parquet.logical_types import Kind, LogicalType
from splitarrow.formats.parquet.schema import annotate
from splitarrow.server.catalog.files.file_types import open_file

OTHERS: list[Any] = ["text", None, {"a": 1}, {"a": {"b": "not a number"}}]
ROWS: list[Any] = [
    *({"a": {"b": row, "c": f"c{row}"}, "tags": ["x", row], "rest": row / 8} for row in range(300)),
    *OTHERS,
]
EXTENSION = {b"ARROW:extension:name": b"arrow.parquet.variant", b"ARROW:extension:metadata": b""}


def _make_table(columns: Any, fields: Any) -> Any:
    make: Any = pa.table
    return make(columns, schema=pa.schema(fields))


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
        metadata: Any = table.schema.field("var").metadata
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
    metadata: Any = table.schema.field("v").metadata
    assert metadata.items() >= EXTENSION.items()
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
    lists_read: Any = table.column("v").combine_chunks()
    elements = lists_read.values
    assert variant.to_python(elements) == [1, "x", None]


def test_a_written_file_is_a_variant_for_other_readers(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "v.parquet"
    column = variant.from_python(
        [{"a": row, "t": time(1, 2, 3), "d": Decimal(row)} for row in range(9)]
    )
    table = _make_table([range(9), column], [pa.field("id", pa.int64()), variant.field("v")])
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


@pytest.mark.parametrize(
    ("shred", "leaf"),
    [
        ("v", "v.typed_value.a.typed_value.b.typed_value"),
        ("v=struct<a: struct<b: int16, c: variant>>", "v.typed_value.a.typed_value.c.value"),
        ("v=list<string>", "v.typed_value.list.element.typed_value"),
        ("v=decimal(9, 2)", "v.typed_value"),
    ],
)
def test_fetch_shreds_a_column(tmp_path: Path, shred: str, leaf: str) -> None:
    path, copy = _shredded(tmp_path / "v.parquet"), tmp_path / "copy.parquet"
    with splitarrow.serve({"v": path}) as server:
        assert run_here(["fetch", server.uri("v"), "-o", str(copy), "--shred", shred, "-q"]) == 0
    group: Any = pq.read_metadata(copy).row_group(0)
    leaves = [group.column(index).path_in_schema for index in range(group.num_columns)]
    assert leaf in leaves
    assert variant.to_python(read_dataset(open_file(copy)).table.column("v")) == ROWS


@pytest.mark.parametrize(
    ("output", "shred", "problem"),
    [
        ("x.arrow", ["v"], "--shred is for a Parquet file"),
        ("x.parquet", ["v", "v=int64"], "names the column 'v' twice"),
        (
            "x.parquet",
            ["id"],
            "column 'id' is of the type int64; expected a Variant column; choose 'v'",
        ),
        ("x.parquet", ["id=int64"], "column 'id' is of the type int64; expected a Variant column"),
        ("x.parquet", ["ID"], "no column 'ID'; the nearest is 'id'"),
        ("x.parquet", ["w"], "no column 'w'; there are"),
        ("x.parquet", ["v=struct<a int>"], "expected the name of a field"),
        ("x.parquet", ["v=uint8"], "expected one of bool, int8"),
        ("x.parquet", ["v=list<int8"], "expected '>' at ''"),
        ("x.parquet", ["v=int8>"], "expected the end"),
        ("x.parquet", ["v=" + "list<" * 200], "at most 100 deep"),
    ],
    ids=range(11),
)
def test_a_wrong_shredding_is_refused(
    tmp_path: Path,
    output: str,
    shred: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = _shredded(tmp_path / "v.parquet")
    options = [text for each in shred for text in ("--shred", each)]
    with splitarrow.serve({"v": path}) as server:
        assert run_here(["fetch", server.uri("v"), "-o", str(tmp_path / output), *options]) == 2
    assert problem in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["v.parquet"]


def test_a_variant_inside_of_a_column_is_not_shredded(tmp_path: Path) -> None:
    inner = variant.field("v")
    number = pa.field("n", pa.int64())
    schema = pa.schema([pa.field("s", pa.struct([inner])), number, number])
    for name, problem in (
        ("s.v", "no column 's.v': this Variant is inside of a column"),
        ("s", "'s' is of the type struct<.*; leave --shred out"),
        ("n", "2 columns 'n'"),
    ):
        with pytest.raises(UsageError, match=problem):
            open_sink(".parquet", tmp_path / "x.parquet", schema, shred={name: None})


def test_a_stream_without_rows_is_written_unshredded(tmp_path: Path) -> None:
    path, copy = _shredded(tmp_path / "v.parquet"), tmp_path / "copy.parquet"
    with splitarrow.serve({"v": path}) as server:
        command = ["fetch", server.uri("v"), "-o", str(copy), "--shred", "v", "--limit", "0", "-q"]
        assert run_here(command) == 0
    assert "typed_value" not in str(pq.ParquetFile(copy).schema)
    assert read_dataset(open_file(copy)).table.num_rows == 0


def test_types_are_read_as_pyarrow_prints_them() -> None:
    types = [
        pa.struct([("a b", pa.timestamp("us", "UTC")), ("c", pa.list_(pa.date32()))]),
        pa.struct([('x: "<,>"', pa.decimal128(38, 38)), ("d", pa.time64("us"))]),
        pa.list_(pa.list_(pa.float32())),
    ]
    texts = [
        "struct<a b: timestamp[us, tz=UTC], c: list<date32[day]>>",
        r'struct<"x: \"<,>\"": decimal128(38, 38), d: time64[us]>',
        " list < list<float32> > ",
    ]
    assert [variant.parse_type(text) for text in texts] == types
    assert variant.parse_type(str(types[2]).replace("item: ", "")) == types[2]


def test_an_uploaded_variant_is_served(tmp_path: Path) -> None:
    column = variant.from_python(ROWS)
    table = _make_table([column], [variant.field("v")])
    with splitarrow.serve({}, control="grpc://127.0.0.1:0", writable=tmp_path) as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            client.put("new", table)
            found = client.read("new").read_all()
    assert found.schema.field("v").metadata == EXTENSION
    assert variant.to_python(found.column("v")) == ROWS


def _events(path: Path) -> Path:
    """Write ten row groups of 100 rows; ``v.other`` is not always an integer."""
    rows = [
        {
            "at": {"n": row, "x": row / 4 if row % 2 else None},
            "name": f"n{row:04}",
            "other": row if row < 500 else f"text {row}",
            "day": date(2024, 1, 1) + timedelta(days=row),
            "rest": "y" * 50,
        }
        for row in range(1000)
    ]
    data_type = pa.struct(
        [
            ("at", pa.struct([("n", pa.int64()), ("x", pa.float64())])),
            ("name", pa.string()),
            ("other", pa.int64()),
            ("day", pa.date32()),
        ]
    )
    table = _make_table(
        [range(1000), variant.from_python(rows)],
        [pa.field("id", pa.int64()), variant.field("v")],
    )
    variant.write_parquet(table, path, shred={"v": data_type}, row_group_size=100)
    return path


def test_shredded_fields_are_columns(tmp_path: Path) -> None:
    dataset = open_file(_events(tmp_path / "v.parquet"))
    table = read_dataset(dataset, columns=("v.at.n", "id", "v.name", "v.other")).table
    assert table.column_names == ["v.at.n", "id", "v.name", "v.other"]
    assert table.column("v.at.n").to_pylist() == list(range(1000))
    assert table.column("v.name")[7].as_py() == "n0007"
    assert table.column("v.other").to_pylist() == [*range(500), *[None] * 500]
    table = read_dataset(dataset, columns=("v.at", "v")).table
    assert variant.to_python(table.column("v.at"))[:2] == [
        {"n": 0, "x": None},
        {"n": 1, "x": 0.25},
    ]
    assert variant.to_python(table.column("v"))[3]["name"] == "n0003"
    with pytest.raises(NotFoundError, match="no column"):
        read_dataset(dataset, columns=("v.rest",))


def test_a_shredded_field_is_read_without_the_rest(tmp_path: Path) -> None:
    path = _events(tmp_path / "v.parquet")
    file = bytearray(path.read_bytes())
    metadata = pq.ParquetFile(path).metadata
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if not column.path_in_schema.startswith("v.typed_value.at.typed_value.n."):
                start = column.dictionary_page_offset or column.data_page_offset
                file[start : start + column.total_compressed_size] = bytes(
                    column.total_compressed_size
                )
    path.write_bytes(file)
    dataset = open_file(path)
    assert read_dataset(dataset, columns=("v.at.n",)).table.column(0).to_pylist() == list(
        range(1000)
    )
    with pytest.raises(DatasetError):
        read_dataset(dataset, columns=("v",))


@pytest.mark.parametrize(
    ("condition", "rows", "groups"),
    [
        (("v.at.n", ">", 949), range(950, 1000), [9]),
        (("v.name", "==", "n0250"), [250], [2]),
        (("v.at.x", "<", 10.0), range(1, 40, 2), [0]),
        (("v.at.x", "!=", 10.25), [n for n in range(1, 1000, 2) if n != 41], list(range(10))),
        (("v.other", "==", 499), [499], [4, 5, 6, 7, 8, 9]),
        ([("v.at.n", "<", 500), ("id", ">", 498)], [499], [4]),
        (("v.day", "<", date(2024, 1, 3)), [0, 1], [0]),
    ],
    ids=str,
)
def test_filters_on_shredded_fields_skip_row_groups(
    tmp_path: Path, condition: Any, rows: Any, groups: list[int], selected: list[list[int]]
) -> None:
    path = _events(tmp_path / "v.parquet")
    with splitarrow.serve({"v": path}, control="grpc://127.0.0.1:0") as server:
        assert server.control_uri is not None
        with splitarrow.connect(server.control_uri) as client:
            found = client.read("v", columns=["id"], filter=condition).read_all()
            everything = client.read("v", filter=condition).read_all()
    assert found.column_names == ["id"]
    assert found.column("id").to_pylist() == list(rows)
    assert everything.column_names == ["id", "v"]
    assert everything.column("id").to_pylist() == list(rows)
    assert selected
    assert selected == [groups] * len(selected)


def test_files_of_a_folder_may_be_shredded_differently(tmp_path: Path) -> None:
    table = _make_table([variant.from_python([{"a": 1}])], [variant.field("v")])
    types = (None, pa.struct([("a", pa.int64())]), pa.struct([("a", pa.string())]))
    for number, data_type in enumerate(types):
        shred = {} if data_type is None else {"v": data_type}
        variant.write_parquet(table, tmp_path / f"{number}.parquet", shred=shred)
    with splitarrow.serve({"v": tmp_path}) as server, splitarrow.open(server.uri("v")) as stream:
        found = stream.read_all()
    assert variant.to_python(found.column("v")) == [{"a": 1}] * 3
