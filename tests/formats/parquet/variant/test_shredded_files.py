"""Shredded Parquet files of every kind that the specification allows, and those that it forbids."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from helpers.catalog import read_dataset
from helpers.parquet_files import edit_schema, field, write_parquet
from helpers.variant_encoding import encode_with
from splitarrow import variant
from splitarrow.errors import DatasetError
from splitarrow.formats.parquet.logical_types import Kind, LogicalType
from splitarrow.formats.parquet.schema import annotate
from splitarrow.formats.parquet.thrift import Type
from splitarrow.formats.parquet.variant.metadata import encode_metadata
from splitarrow.server.catalog.files.file_types import open_file

NAMES = ["a", "b", "c", "é", "zz"]
METADATA = encode_metadata(NAMES)
IDS = {name: index for index, name in enumerate(NAMES)}
VALUE = pa.field("value", pa.binary())
KINDS: dict[str, Any] = {each.name: each for each in Kind}


def enc(value: Any) -> bytes:
    return encode_with(value, IDS)


def group(typed: Any, *, value: bool = True) -> Any:
    return pa.struct([*([VALUE] if value else []), pa.field("typed_value", typed)])


def obj(**fields: Any) -> pa.DataType:
    return pa.struct([pa.field(name, each, nullable=False) for name, each in fields.items()])


def lst(element: Any) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable=False))


def typed(value: Any) -> dict[str, Any]:
    return {"typed_value": value}


def plain(value: Any) -> dict[str, Any]:
    return {"value": enc(value)}


def write(path: Path, column: Any, edits: Any = None) -> Path:
    file = write_parquet(
        pa.table({"v": column, "id": range(len(column))}), store_decimal_as_integer=True
    )
    edits = {f"v.{name}": edit for name, edit in (edits or {}).items()}
    path.write_bytes(edit_schema(file, {"v": mark("VARIANT"), **edits}))
    return path


def mark(kind: str, **parameters: Any) -> Any:
    return lambda element: annotate(element, LogicalType(KINDS[kind], **parameters))


def make_column(typed_value: Any, rows: list[Any]) -> Any:
    fields = [pa.field("metadata", pa.binary()), VALUE, pa.field("typed_value", typed_value)]
    data_type = pa.struct(fields)
    return pa.array(
        [None if row is None else {"metadata": METADATA, **row} for row in rows], data_type
    )


def read(path: Path) -> list[Any]:
    return variant.to_python(read_dataset(open_file(path)).table.column("v"))


WORD = group(pa.string())
LOCAL_TIME = {"typed_value": mark("TIME", utc=False, unit="MICROS")}
UUIDS = [UUID(int=1), UUID(int=2**127)]
VALID: list[Any] = [
    (pa.int8(), [typed(-128), plain(128), plain("x"), plain(None)], [-128, 128, "x", None]),
    (pa.int16(), [typed(-32768), plain({"a": [1]})], [-32768, {"a": [1]}]),
    (pa.int32(), [typed(2**31 - 1), {}], [2**31 - 1, None]),
    (pa.int64(), [typed(-(2**63)), None], [-(2**63), None]),
    (pa.bool_(), [typed(False), typed(True), plain(False)], [False, True, False]),
    (pa.float64(), [typed(float("inf")), typed(-0.0), typed(1e-320)], [float("inf"), -0.0, 1e-320]),
    (pa.string(), [typed(""), typed("é" * 100), plain("a")], ["", "é" * 100, "a"]),
    (pa.binary(), [typed(b""), typed(bytes(range(256)))], [b"", bytes(range(256))]),
    (pa.date32(), [typed(date.min), typed(date.max)], [date.min, date.max]),
    (pa.decimal128(1, 0), [typed(Decimal(-9))], [Decimal(-9)]),
    (pa.decimal128(9, 9), [typed(Decimal("-0.999999999"))], [Decimal("-0.999999999")]),
    (
        pa.decimal128(18, 2),
        [typed(Decimal("-9999999999999999.99"))],
        [Decimal("-9999999999999999.99")],
    ),
    (pa.decimal128(38, 38), [typed(Decimal("0." + "9" * 38))], [Decimal("0." + "9" * 38)]),
    (obj(a=WORD), [typed({"a": {}}), typed({"a": plain(None)})], [{}, {"a": None}]),
    (
        obj(zz=group(pa.int8()), a=group(pa.int8()), é=WORD),
        [
            {
                "value": enc({"b": 1, "c": {"b": 2}}),
                "typed_value": {"zz": typed(1), "a": typed(2), "é": typed("")},
            }
        ],
        [{"a": 2, "b": 1, "c": {"b": 2}, "zz": 1, "é": ""}],
    ),
    (
        obj(a=WORD),
        [{"value": enc({}), "typed_value": {"a": {}}}, plain([{"a": 1}])],
        [{}, [{"a": 1}]],
    ),
    (
        obj(a=group(obj(b=group(lst(WORD)), c=group(pa.int64(), value=False)))),
        [
            typed(
                {
                    "a": typed(
                        {"b": typed([typed("x"), plain({"a": 1}), plain(None)]), "c": typed(7)}
                    )
                }
            ),
            typed(
                {"a": {"value": enc({"zz": 1}), "typed_value": {"b": plain("no list"), "c": {}}}}
            ),
            typed({"a": plain("no object")}),
        ],
        [
            {"a": {"b": ["x", {"a": 1}, None], "c": 7}},
            {"a": {"b": "no list", "zz": 1}},
            {"a": "no object"},
        ],
    ),
    (
        lst(group(obj(a=WORD))),
        [
            typed(
                [
                    typed({"a": typed("x")}),
                    {"value": enc({"b": 1}), "typed_value": {"a": {}}},
                    plain(3),
                ]
            ),
            typed([]),
            plain({"a": []}),
        ],
        [[{"a": "x"}, {"b": 1}, 3], [], {"a": []}],
    ),
    (
        lst(group(lst(group(pa.int32())))),
        [typed([typed([typed(1)]), typed([]), plain("x")])],
        [[[1], [], "x"]],
    ),
    (lst(WORD), [typed([{}, typed("x")])], [[None, "x"]]),
    (
        pa.struct([pa.field("a", WORD)]),
        [typed({"a": None}), typed({"a": typed("x")})],
        [{}, {"a": "x"}],
    ),
    (obj(a=pa.struct([VALUE])), [typed({"a": plain([1])}), typed({"a": {}})], [{"a": [1]}, {}]),
]


@pytest.mark.parametrize(("data_type", "rows", "expected"), VALID, ids=range(len(VALID)))
def test_valid_files_are_reconstructed(
    tmp_path: Path, data_type: Any, rows: Any, expected: Any
) -> None:
    path = write(tmp_path / "v.parquet", make_column(data_type, rows))
    found = read(path)
    assert found == expected
    assert str(found) == str(expected)  # -0.0, False and the scale of decimals


@pytest.mark.parametrize(
    ("data_type", "values", "expected", "edits"),
    [
        (pa.time64("us"), [0, 86399999999], [time(), time.max], LOCAL_TIME),
        (pa.timestamp("us", "UTC"), [0], ["1970-01-01T00:00:00.000000+00:00"], {}),
        (pa.timestamp("us"), [-1], ["1969-12-31T23:59:59.999999"], {}),
        (pa.timestamp("ns"), [-1], ["1969-12-31T23:59:59.999999999"], {}),
        (pa.timestamp("ns", "UTC"), [2**63 - 1], ["2262-04-11T23:47:16.854775807+00:00"], {}),
        (pa.float32(), [np.float32(0.1)], ["0.1"], {}),
        (pa.uuid(), [each.bytes for each in UUIDS], UUIDS, {}),
    ],
)
def test_valid_types_are_reconstructed(
    tmp_path: Path, data_type: Any, values: Any, expected: Any, edits: Any
) -> None:
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    array: Any = pa.array(values, storage)
    if storage is not data_type:
        array = pa.ExtensionArray.from_storage(data_type, array)
    fields = [pa.field("metadata", pa.binary()), pa.field("typed_value", array.type)]
    column = pa.StructArray.from_arrays([pa.array([METADATA] * len(values)), array], fields=fields)
    path = write(tmp_path / "v.parquet", column, edits)
    table = read_dataset(open_file(path)).table
    texts = variant.to_json(table.column("v")).to_pylist()
    assert [text.strip('"') for text in texts] == [
        str(each) if not isinstance(each, time) else each.isoformat("microseconds")
        for each in expected
    ]


INT = pa.array([1], pa.int32())
LONG = pa.array([1], pa.int64())
TEXT = pa.array(["a"])
INVALID_TYPES: list[Any] = [
    ("unsigned 8", pa.array([1], pa.uint8()), {}),
    ("unsigned 64", pa.array([1], pa.uint64()), {}),
    ("fixed 4", pa.array([b"abcd"], pa.binary(4)), {}),
    ("fixed 16", pa.array([b"a" * 16], pa.binary(16)), {}),
    ("float16", pa.array([1.0], pa.float16()), {}),
    ("enum", TEXT, {"typed_value": mark("ENUM")}),
    ("json", TEXT, {"typed_value": mark("JSON")}),
    ("bson", pa.array([b"a"]), {"typed_value": mark("BSON")}),
    ("time utc", LONG, {"typed_value": mark("TIME", utc=True, unit="MICROS")}),
    (
        "time millis",
        pa.array([1], pa.time32("ms")),
        {"typed_value": mark("TIME", utc=False, unit="MILLIS")},
    ),
    (
        "time nanos",
        pa.array([1], pa.time64("ns")),
        {"typed_value": mark("TIME", utc=False, unit="NANOS")},
    ),
    ("timestamp millis", pa.array([1], pa.timestamp("ms")), {}),
    ("interval", pa.array([b"a" * 12], pa.binary(12)), {"typed_value": mark("INTERVAL")}),
    ("geometry", pa.array([b"a"]), {"typed_value": mark("GEOMETRY")}),
    (
        "variant",
        pa.array([{"metadata": METADATA, "value": enc(1)}]),
        {"typed_value": mark("VARIANT")},
    ),
    ("future", LONG, {"typed_value": mark("FUTURE")}),
    ("null", pa.nulls(1), {}),
    ("map", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), {}),
    ("list of strings", pa.array([["a"]], pa.list_(pa.string())), {}),
    ("struct of strings", pa.array([{"a": "b"}]), {}),
    ("empty field", pa.array([{"a": {"other": b""}}]), {}),
    ("value of text in a field", pa.array([{"a": {"value": "x"}}]), {}),
    ("value of number in a field", pa.array([{"a": {"value": 1}}]), {}),
    ("more than value and typed_value", pa.array([{"a": {"value": b"\0", "x": 1}}]), {}),
    ("repeated", pa.array([[1]]), {}),
]


@pytest.mark.parametrize(
    ("name", "array", "edits"), INVALID_TYPES, ids=[each[0] for each in INVALID_TYPES]
)
def test_other_types_are_refused(tmp_path: Path, name: str, array: Any, edits: Any) -> None:
    fields = [pa.field("metadata", pa.binary()), VALUE, pa.field("typed_value", array.type)]
    column = pa.StructArray.from_arrays(
        [pa.array([METADATA]), pa.nulls(1, pa.binary()), array], fields=fields
    )
    refuse(write(tmp_path / "v.parquet", column, edits))


def refuse(path: Path, problem: str | None = None) -> None:
    """Check that only the Variant cannot be read, and that the error is one line about it."""
    dataset = open_file(path)
    assert read_dataset(dataset, columns=("id",)).table.num_rows
    with pytest.raises(DatasetError, match=problem) as caught:
        read_dataset(dataset, columns=("v",))
    assert "\n" not in caught.value.message
    assert "ariant" in caught.value.message


BAD_METADATA = encode_metadata(["a"])
INVALID_ROWS: list[Any] = [
    (pa.int64(), {"value": enc(1), "typed_value": 1}, "both value and typed_value are set"),
    (pa.int64(), {"value": enc(None), "typed_value": 1}, "both value and typed_value are set"),
    (pa.string(), {"value": enc({"a": 1}), "typed_value": "x"}, "both value and typed_value"),
    (lst(WORD), {"value": enc([1]), "typed_value": None}, "an array is in value"),
    (lst(WORD), {"value": enc({}), "typed_value": []}, "both value and typed_value are set"),
    (lst(WORD), typed([{"value": enc(1), "typed_value": "x"}]), "both value and typed_value"),
    (
        obj(a=WORD),
        {"value": enc({"a": 1}), "typed_value": {"a": {}}},
        "a shredded field is in value",
    ),
    (obj(a=WORD), {"value": enc({"a": 1}), "typed_value": {"a": typed("x")}}, "a shredded field"),
    (obj(a=WORD), plain({"b": 1}), "an object is in value"),
    (obj(a=WORD), {"value": enc([]), "typed_value": {"a": {}}}, "value is not an object"),
    (obj(a=WORD), {"value": enc(None), "typed_value": {"a": {}}}, "value is not an object"),
    (obj(a=WORD), typed({"a": {"value": enc(1), "typed_value": "x"}}), "both value and typed"),
    (obj(q=WORD), typed({"q": typed("x")}), "'q' is not in the metadata"),
    (
        obj(a=group(obj(q=WORD))),
        typed({"a": typed({"q": plain(None)})}),
        "'q' is not in the metadata",
    ),
    (pa.int64(), {"value": b"\x02\x01\x09\0\x01\0"}, "Variant in row 0 is invalid"),
    (pa.int64(), {"value": enc("x") + b"x"}, "Variant in row 0 is invalid"),
    (pa.int64(), {"value": b""}, "its value is empty"),
    (pa.int64(), {"value": bytes([21 << 2])}, "Variant in row 0 is invalid"),
    (pa.int64(), {"metadata": b""}, "Variant in row 0 is invalid"),
    (pa.int64(), {"metadata": b"\x02\0\0", "typed_value": 1}, "Variant in row 0 is invalid"),
    (pa.int64(), {"metadata": METADATA[:-1], "typed_value": 1}, "Variant in row 0 is invalid"),
]


@pytest.mark.parametrize(
    ("data_type", "row", "problem"), INVALID_ROWS, ids=range(len(INVALID_ROWS))
)
def test_contradictions_are_refused(tmp_path: Path, data_type: Any, row: Any, problem: str) -> None:
    refuse(write(tmp_path / "v.parquet", make_column(data_type, [row])), problem)


@pytest.mark.parametrize(
    "fields",
    [
        {"value": [enc(1)]},
        {"metadata": [METADATA]},
        {"metadata": [METADATA], "value": ["text"]},
        {"metadata": ["text"], "value": [enc(1)]},
        {"metadata": [METADATA], "value": [1]},
        {"metadata": [METADATA], "value": [enc(1)], "other": [1]},
        {"metadata": [[METADATA]], "value": [enc(1)]},
        {"metadata": [METADATA], "value": [[enc(1)]]},
        {"metadata": [METADATA], "typed_value": [{"value": enc(1)}], "value": [None], "x": [1]},
        {"metadata": [None], "value": [enc(1)]},
    ],
    ids=range(10),
)
def test_groups_of_other_fields_are_refused(tmp_path: Path, fields: Any) -> None:
    column = pa.StructArray.from_arrays([pa.array(each) for each in fields.values()], list(fields))
    refuse(write(tmp_path / "v.parquet", column))


def test_fields_are_found_by_name(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("typed_value", pa.string()), VALUE])
    fields = [pa.field("typed_value", obj(b=inner)), VALUE, pa.field("metadata", pa.binary())]
    rows = [
        {"metadata": METADATA, "typed_value": {"b": typed("x")}},
        {"metadata": METADATA, **plain(1)},
    ]
    column = pa.array(rows, pa.struct(fields))
    assert read(write(tmp_path / "v.parquet", column)) == [{"b": "x"}, 1]


def test_decimals_are_read_from_every_physical_type(tmp_path: Path) -> None:
    number = Decimal("-12.34")
    arrays = {
        "INT32": pa.array([number], pa.decimal128(9, 2)),
        "INT64": pa.array([number], pa.decimal128(18, 2)),
        "FIXED": pa.array([number], pa.decimal128(38, 2)),
    }
    metadata = pa.array([METADATA])
    for array in arrays.values():
        column = pa.StructArray.from_arrays([metadata, array], ["metadata", "typed_value"])
        assert read(write(tmp_path / "v.parquet", column)) == [number]
    unscaled = pa.array([(-1234).to_bytes(2, "big", signed=True)], pa.binary())
    column = pa.StructArray.from_arrays([metadata, unscaled], ["metadata", "typed_value"])
    edits = {"typed_value": mark("DECIMAL", precision=20, scale=2)}
    assert read(write(tmp_path / "v.parquet", column, edits)) == [number]


def test_annotations_of_older_files_count(tmp_path: Path) -> None:
    """A ConvertedType without a LogicalType names the type of a shredded value."""
    for converted, data_type, value in (
        (15, pa.int32(), -5),
        (0, pa.binary(), b"text"),
        (6, pa.int32(), 1),
    ):
        column = pa.StructArray.from_arrays(
            [pa.array([METADATA]), pa.array([value], data_type)], ["metadata", "typed_value"]
        )
        path = write(tmp_path / "v.parquet", column, {"typed_value": field(6, Type.I32, converted)})
        (found,) = read(path)
        assert found == {15: -5, 0: "text", 6: date(1970, 1, 2)}[converted]
