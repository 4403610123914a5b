"""Parquet files that `fetch` writes have every annotation, and are read back unchanged."""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.catalog import read_dataset
from helpers.parquet_files import edit_schema, footer_of
from helpers.round_trips import list_values
from helpers.wkb import write_wkb
from splitarrow import serve
from splitarrow.cli.app import run
from splitarrow.cli.output_formats import open_sink
from splitarrow.errors import UsageError
from splitarrow.formats.parquet.footer import Footer
from splitarrow.formats.parquet.geo.crs import extension_metadata
from splitarrow.formats.parquet.logical_types import EDGES, Converted, Kind, LogicalType
from splitarrow.formats.parquet.schema import Node, Physical, annotate
from splitarrow.server.catalog.files.file_types import open_file

INTERVALS = pa.array([(1, 2, 3_000_000), None, (0, 0, 0)], pa.month_day_nano_interval())


def write(path: Path, table: Any) -> Path:
    sink = open_sink(".parquet", path, table.schema)
    for batch in table.to_batches(max_chunksize=2):
        sink.write(batch)
    sink.close()
    return path


def one_column(array: Any, metadata: dict[str, str] | None = None) -> Any:
    schema = pa.schema([pa.field("a", array.type, metadata=metadata)])
    return pa.Table.from_arrays([array], schema=schema)


def node_of(path: Path, name: str = "a") -> Node:
    nodes = {
        child.name: child for child in Footer.parse(footer_of(path.read_bytes())).root.children
    }
    return nodes[name]


LOCAL = {"PARQUET:isAdjustedToUTC": "false"}
UTC = {"PARQUET:isAdjustedToUTC": "true"}
DECIMALS = [Decimal("-1.28"), None, Decimal("1.27"), Decimal("1.28"), Decimal(0), Decimal("-1.29")]
CASES: list[Any] = [
    (pa.array(["a", None]), {"PARQUET:logical_type": "ENUM"}, "ENUM", Converted.ENUM),
    (pa.array([b"\x05\0\0\0\0"]), {"PARQUET:logical_type": "BSON"}, "BSON", Converted.BSON),
    (INTERVALS, {"PARQUET:logical_type": "INTERVAL"}, "INTERVAL", Converted.INTERVAL),
    (pa.array(["a"]), None, "STRING", Converted.UTF8),
    (pa.array(["{}"], pa.json_()), None, "JSON", Converted.JSON),
    (pa.array([b"0123456789abcdef"], pa.uuid()), None, "UUID", None),
    (pa.array([1.5], pa.float16()), None, "FLOAT16", None),
    (pa.nulls(2), None, "UNKNOWN", None),
    (pa.array([1], pa.uint8()), None, "INT(8, false)", Converted.UINT_8),
    (pa.array([1], pa.date32()), None, "DATE", Converted.DATE),
    *(
        (
            pa.array([1], data_type),
            {"PARQUET:isAdjustedToUTC": utc},
            f"TIME(isAdjustedToUTC={utc}, unit={unit})",
            None if unit == "NANOS" else Converted[f"TIME_{unit}"],
        )
        for utc in ("true", "false")
        for data_type, unit in (
            (pa.time32("ms"), "MILLIS"),
            (pa.time64("us"), "MICROS"),
            (pa.time64("ns"), "NANOS"),
        )
    ),
    *(
        (
            pa.array([1], pa.timestamp(short, "UTC" if utc is UTC else None)),  # pyright: ignore
            utc,
            f"TIMESTAMP(isAdjustedToUTC={utc['PARQUET:isAdjustedToUTC']}, unit={unit})",
            None if unit == "NANOS" else Converted[f"TIMESTAMP_{unit}"],
        )
        for utc in (UTC, LOCAL)
        for short, unit in (("ms", "MILLIS"), ("us", "MICROS"), ("ns", "NANOS"))
    ),
    *(
        (
            pa.array(DECIMALS, data_type),
            {"PARQUET:physical_type": "BYTE_ARRAY"},
            f"DECIMAL({data_type.precision}, 2)",
            Converted.DECIMAL,
        )
        for data_type in (pa.decimal128(9, 2), pa.decimal128(38, 2), pa.decimal256(76, 2))
    ),
    (pa.array(DECIMALS, pa.decimal128(9, 2)), None, "DECIMAL(9, 2)", Converted.DECIMAL),
]


@pytest.mark.parametrize(("array", "metadata", "logical", "converted"), CASES)
def test_a_column_has_the_annotations_that_the_specification_demands(
    tmp_path, array, metadata, logical, converted
):
    table = one_column(array, metadata)
    path = write(tmp_path / "x.parquet", table)
    node = node_of(path)
    assert (str(node.logical), node.converted) == (logical, converted)
    if metadata and "PARQUET:physical_type" in metadata:
        assert node.physical is Physical.BYTE_ARRAY
    result = read_dataset(open_file(path)).table
    assert result.equals(table, check_metadata=True)
    assert pq.read_metadata(path).num_rows == len(table)


def test_rows_without_columns_are_refused(tmp_path):
    batch = pa.record_batch({"a": [1, 2, 3]}).select([])
    with pytest.raises(UsageError, match=r"^a Parquet file cannot store rows without columns"):
        write(tmp_path / "x.parquet", pa.Table.from_batches([batch]))


def nest_dates(days: int) -> list[Any]:
    """Return a date64, alone and in other types."""
    arrow: Any = pa
    dates: Any = pa.array([days * 86_400_000, 0], pa.int64()).view(pa.date64())
    offsets, sizes = pa.array([1, 0], pa.int32()), pa.array([1, 1], pa.int32())
    return [
        dates,
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), dates),
        arrow.ListViewArray.from_arrays(offsets, sizes, dates),
        pa.StructArray.from_arrays([dates], ["d"]),
        pa.MapArray.from_arrays(pa.array([0, 1, 2]), pa.array([1, 2]), dates),
        pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), dates),
    ]


@pytest.mark.parametrize("index", range(6))
def test_dates_in_milliseconds_have_days_of_32_bits(tmp_path, index):
    column = nest_dates(3_000_000)[index]
    path = write(tmp_path / "x.parquet", pa.table({"a": column}))
    assert list_values(read_dataset(open_file(path)).table["a"]) == list_values(column)
    with pytest.raises(UsageError, match="cannot store this data: Casting from date64"):
        write(tmp_path / "y.parquet", pa.table({"a": nest_dates(1 << 32)[index]}))


def test_intervals_in_list_views_are_written(tmp_path):
    values = [[None, (0, 0, 0)], [(1, 2, 3_000_000)]]
    views = pa.array(values, pa.list_view(pa.month_day_nano_interval()))
    path = write(tmp_path / "x.parquet", pa.table({"a": views}))
    table = read_dataset(open_file(path)).table
    assert list_values(table["a"]) == values


def test_decimals_on_byte_arrays_have_the_fewest_bytes(tmp_path):
    table = one_column(pa.array(DECIMALS, pa.decimal128(9, 2)), CASES[-2][1])
    path = write(tmp_path / "x.parquet", table.slice(1))
    plain = pq.ParquetFile(path).read()
    assert plain["a"].to_pylist() == DECIMALS[1:]
    from splitarrow.formats.parquet.write_plan import encode_decimals

    encoded = encode_decimals(pa.array(DECIMALS, pa.decimal128(9, 2)).slice(0, 6)).to_pylist()
    assert encoded == [b"\x80", None, b"\x7f", b"\x00\x80", b"\x00", b"\xff\x7f"]
    assert not chunk_of(path, 0).statistics.has_min_max


def test_annotations_inside_of_lists_maps_and_structs(tmp_path):
    enum = pa.field("e", pa.string(), metadata={"PARQUET:logical_type": "ENUM"})
    interval = pa.field(
        "i", pa.month_day_nano_interval(), metadata={"PARQUET:logical_type": "INTERVAL"}
    )
    inner = pa.struct([enum, interval])
    schema = pa.schema(
        [
            pa.field("n", pa.int64()),
            pa.field("l", pa.list_(pa.field("element", inner))),
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.field("element", inner)))),
        ]
    )
    value = {"e": "x", "i": (1, 0, 0)}
    rows = {
        "n": [1, 2, 3],
        "l": [[value, None], None, []],
        "m": [[("k", [value])], None, [("k", None)]],
    }
    table = pa.table(rows, schema=schema)
    result = read_dataset(open_file(write(tmp_path / "x.parquet", table))).table
    assert result.to_pydict() == table.to_pydict()
    read: Any = result.schema
    assert read.field("l").type.value_field.type.field("e").metadata == enum.metadata
    assert read.field("m").type.item_type.value_type.field("i").metadata == interval.metadata
    metadata: Any = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
    statistics = {
        metadata.column(index).path_in_schema: metadata.column(index).statistics.has_min_max
        for index in range(metadata.num_columns)
    }
    assert statistics["n"]
    assert not statistics["l.list.element.i"]


@pytest.mark.parametrize(
    "interval", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 1), (0, 0, 1 << 62)]
)
def test_an_interval_that_parquet_cannot_hold_is_refused(tmp_path, interval):
    table = one_column(pa.array([interval], pa.month_day_nano_interval()))
    with pytest.raises(UsageError, match="is not one of Parquet"):
        write(tmp_path / "x.parquet", table)


def geo_column(name: str, values: list[Any], **annotation: Any) -> tuple[Any, Any]:
    key_values = annotation.pop("key_values", {})
    fields: dict[str, Any] = {"kind": Kind.GEOMETRY, **annotation}
    metadata: Any = extension_metadata(LogicalType(**fields), key_values)
    return pa.field(name, pa.binary(), metadata=metadata), pa.array(values, pa.binary())


CRS = [None, "srid:5070", "srid:0", "EPSG:4326", "any text", "projjson:k", "projjson:lost"]


@pytest.mark.parametrize("crs", CRS)
@pytest.mark.parametrize("edges", [None, "spherical", "karney"])
def test_geospatial_columns_keep_their_crs_and_edges(tmp_path, crs, edges):
    kind = Kind.GEOMETRY if edges is None else Kind.GEOGRAPHY
    key_values = {b"k": b'{"id": {"code": 5070}}'}
    field, values = geo_column(
        "a", [write_wkb(1, (1, 2)), None], kind=kind, crs=crs, edges=edges, key_values=key_values
    )
    table = pa.Table.from_arrays([values], schema=pa.schema([field]))
    path = write(tmp_path / "x.parquet", table)
    logical = node_of(path).logical
    assert logical is not None
    assert logical.kind is kind
    assert (logical.crs, logical.edges) == (crs, edges)
    if crs == "projjson:k":
        table = table.replace_schema_metadata(key_values)  # pyright: ignore[reportArgumentType]
    assert read_dataset(open_file(path)).table.equals(table, check_metadata=True)


@pytest.mark.parametrize("store_schema", [False, True])
@pytest.mark.parametrize("edges", EDGES)
def test_fetch_keeps_edges_and_the_keys_of_each_crs(
    tmp_path: Path, edges: str, store_schema: bool
) -> None:
    key_values = {b"wgs": b'{ "id": {"code": 4979} }', b"utm": b'{"id": {"code": 32632}}'}
    annotations = {
        "a": LogicalType(Kind.GEOGRAPHY, crs="projjson:wgs", edges=edges),
        "b": LogicalType(Kind.GEOMETRY, crs="projjson:utm"),
        "c": LogicalType(Kind.GEOGRAPHY, crs="srid:4979", edges=edges),
    }
    point = write_wkb(1, (1, 2))
    table = pa.table({name: pa.array([point], pa.binary()) for name in annotations})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=store_schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(key_values)  # pyright: ignore[reportArgumentType]
    file = sink.getvalue().to_pybytes()
    source, result = tmp_path / "x.parquet", tmp_path / "y.parquet"
    source.write_bytes(
        edit_schema(
            file,
            {
                name: lambda element, logical=logical: annotate(element, logical)
                for name, logical in annotations.items()
            },
        )
    )
    with serve({"x": source}, listen=["tcp://127.0.0.1:0"]) as server:
        assert run(["fetch", server.uri("x"), "-o", str(result)]) == 0
    converted = tmp_path / "z.parquet"
    assert run(["convert", str(result), str(converted)]) == 0
    for path in (result, converted):
        assert {name: node_of(path, name).logical for name in annotations} == annotations
        found: Any = pq.read_metadata(path).metadata
        assert {key: value for key, value in found.items() if key != b"ARROW:schema"} == key_values


def test_columns_of_the_same_name_keep_different_crs(tmp_path: Path) -> None:
    point = pa.array([write_wkb(1, (1, 2))], pa.binary())
    structs: list[Any] = []
    for code in (1, 2, 2):
        key_values = {b"k": b'{"id": %d}' % code}
        field, _ = geo_column("g", [], crs="projjson:k", key_values=key_values)
        structs.append(pa.StructArray.from_arrays([point], fields=[field]))
    table = pa.table(structs, names=["x", "y", "z"]).replace_schema_metadata({"k": "other"})
    path = write(tmp_path / "x.parquet", table)
    crs = [node_of(path, name).children[0].logical for name in "xyz"]
    assert [each.crs for each in crs if each] == [f"projjson:k_{n}" for n in (2, 3, 3)]
    found: Any = pq.read_metadata(path).metadata
    assert [found[key] for key in (b"k", b"k_2", b"k_3")] == [b"other", b'{"id": 1}', b'{"id": 2}']


def chunk_of(path: Path, index: int, group: int = 0) -> Any:
    return pq.read_metadata(path).row_group(group).column(index)


def test_geospatial_columns_have_boxes_and_types_but_no_order(tmp_path):
    values = [
        write_wkb(1, (170, 1, 5), flavor=1),
        None,
        write_wkb(2, [(-179, 2, 7), (-178, float("nan"), 9)], flavor=1, order=">"),
    ]
    geometry, planar = geo_column("a", values)
    geography, round_ = geo_column("b", values, kind=Kind.GEOGRAPHY)
    empty_field, empty = geo_column("c", [None, write_wkb(2, []), None])
    number, numbers = pa.field("n", pa.int64()), pa.array([1, 2, 3])
    table = pa.Table.from_arrays(
        [numbers, planar, round_, empty],
        schema=pa.schema([number, geometry, geography, empty_field]),
    )
    path = write(tmp_path / "x.parquet", table)
    names = ("xmin", "xmax", "ymin", "ymax", "zmin", "zmax", "mmin", "mmax")
    found = [chunk_of(path, index).geo_statistics for index in (1, 2, 3)]
    assert [getattr(found[0], name) for name in names] == [-179, 170, 1, 2, 5, 9, None, None]
    assert [getattr(found[1], name) for name in names][:3] == [170, -178, 1]
    assert found[0].geospatial_types == [1001, 1002]
    assert found[2].geospatial_types == [2]
    assert found[2].xmin is None
    assert chunk_of(path, 0).statistics.max == 3
    statistics = [chunk_of(path, index).statistics for index in (1, 2, 3)]
    assert [(each.null_count, each.has_min_max) for each in statistics] == [
        (1, False), (1, False), (2, False)
    ]  # fmt: skip
    assert read_dataset(open_file(path)).table.equals(table, check_metadata=True)


def test_columns_without_order_keep_their_number_of_nulls(tmp_path):
    decimals = pa.array(DECIMALS, pa.decimal128(9, 2))
    field = pa.field("d", decimals.type, metadata={"PARQUET:physical_type": "BYTE_ARRAY"})
    schema = pa.schema([field, pa.field("i", INTERVALS.type), pa.field("n", pa.int64())])
    intervals = pa.concat_arrays([INTERVALS, INTERVALS])
    numbers = pa.array(range(6), pa.int64())
    path = write(tmp_path / "x.parquet", pa.table([decimals, intervals, numbers], schema=schema))
    found = [chunk_of(path, index).statistics for index in range(3)]
    assert [(each.null_count, each.has_min_max) for each in found] == [
        (1, False), (2, False), (0, True)
    ]  # fmt: skip


def test_nested_geospatial_columns_have_boxes(tmp_path):
    field, values = geo_column("g", [write_wkb(1, (x, 9 - x)) for x in range(4)])
    structs = pa.StructArray.from_arrays(
        [pa.array(range(4), pa.int64()), values],
        fields=[pa.field("n", pa.int64()), field],
        mask=pa.array([False, False, False, True]),
    )
    ends: Any = pa.array([0, 1, None, 2, 4], pa.int32())
    list_array: Any = pa.ListArray
    lists = list_array.from_arrays(ends, values, type=pa.list_(field.with_name("element")))
    keys = pa.array(["a", "b", "c", "d"])
    map_type: Any = pa.map_
    offsets: Any = pa.array([0, 2, 2, 4, 4], pa.int32())
    maps = pa.MapArray.from_arrays(offsets, keys, values).cast(
        map_type(pa.string(), field.with_name("value"))
    )
    table = pa.table({"s": structs, "l": lists, "m": maps})
    path = write(tmp_path / "x.parquet", table)
    leaves: Any = pq.read_metadata(path).row_group(0)
    boxes = {
        leaves.column(index).path_in_schema: leaves.column(index).geo_statistics
        for index in range(leaves.num_columns)
    }
    sides = {
        name: (box.xmin, box.ymin, box.xmax, box.ymax)
        for name, box in boxes.items()
        if box is not None
    }
    assert sides == {
        "s.g": (0, 7, 2, 9),
        "l.list.element": (0, 6, 3, 9),
        "m.key_value.value": (0, 6, 3, 9),
    }
    assert read_dataset(open_file(path)).table.to_pydict() == table.to_pydict()


def test_an_extension_type_of_another_library_is_written(tmp_path):
    class Wkb(pa.ExtensionType):
        def __init__(self) -> None:
            super().__init__(pa.binary(), "geoarrow.wkb")

        def __arrow_ext_serialize__(self) -> bytes:
            return b'{"crs": "3857", "crs_type": "srid"}'

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Any:
            return cls()

    array = pa.ExtensionArray.from_storage(Wkb(), pa.array([write_wkb(1, (1, 2))]))
    path = write(tmp_path / "x.parquet", one_column(array))
    logical = node_of(path).logical
    assert logical == LogicalType(Kind.GEOMETRY, crs="srid:3857")


def test_invalid_wkb_is_refused(tmp_path):
    field, values = geo_column("a", [b"\1\1"])
    table = pa.Table.from_arrays([values], schema=pa.schema([field]))
    with pytest.raises(UsageError, match="invalid WKB in value 0"):
        write(tmp_path / "x.parquet", table)


def test_a_file_that_needs_no_annotation_is_that_of_pyarrow(tmp_path):
    table = pa.table({"a": [1, None], "b": ["x", "y"], "l": [[1.5], None]})
    path = write(tmp_path / "x.parquet", table)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert path.read_bytes() == sink.getvalue().to_pybytes()


def test_a_file_without_rows_has_its_annotations(tmp_path):
    field, values = geo_column("a", [])
    table = pa.Table.from_arrays([values], schema=pa.schema([field]))
    path = write(tmp_path / "x.parquet", table)
    assert node_of(path).kind is Kind.GEOMETRY
    assert read_dataset(open_file(path)).table.equals(table, check_metadata=True)


def test_intervals_are_little_endian(tmp_path):
    path = write(tmp_path / "x.parquet", one_column(INTERVALS))
    stored: Any = pq.ParquetFile(path).read()["a"]
    assert stored[0].as_py() == struct.pack("<III", 1, 2, 3)
