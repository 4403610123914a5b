"""Parquet files are read as their annotations state, where pyarrow reads something else."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.catalog import read_dataset
from helpers.parquet_files import (
    Edit,
    edit_schema,
    field,
    footer_of,
    with_footer,
    write_parquet,
)
from helpers.parquet_types import list_columns
from helpers.sources import encode_filter
from splitarrow.errors import DatasetError
from splitarrow.formats.parquet.conversions import ParquetOptions
from splitarrow.formats.parquet.logical_types import Converted, Kind, LogicalType
from splitarrow.formats.parquet.schema import (
    CHILDREN,
    CONVERTED,
    LENGTH,
    LOGICAL,
    NAME,
    REPETITION,
    TYPE,
    Physical,
    annotate,
)
from splitarrow.formats.parquet.thrift import CompactReader, Type, Value, encode_struct
from splitarrow.server.catalog.dataset import Budget, Encoding
from splitarrow.server.catalog.files import parquet
from splitarrow.server.catalog.files.file_types import open_file

ENTRY = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.int64())])
PAIRS = pa.list_(pa.field("element", ENTRY, nullable=False))


def as_kind(kind: Kind, **parameters: Any) -> Edit:
    """Return an edit that annotates a column."""
    return lambda element: annotate(element, LogicalType(kind, **parameters))


def converted_only(converted: Converted, **fields: Any) -> Edit:
    """Return an edit that leaves only a ConvertedType."""

    def edit(element: Any) -> Any:
        return without_logical(element) | {CONVERTED: Value(Type.I32, int(converted))} | fields

    return edit


def integer(number: int, value: int) -> Edit:
    """Return an edit that sets a field to an integer."""
    return field(number, Type.I32, value)


def chain(*edits: Edit) -> Edit:
    """Return an edit that makes several edits."""

    def edit(element: Any) -> Any:
        for each in edits:
            element = each(element)
        return element

    return edit


beside_unknown = field(LOGICAL, Type.STRUCT, {Kind.UNKNOWN.value: Value(Type.STRUCT, {})})


def without_logical(element: Any) -> Any:
    """Return an element with its ConvertedType only."""
    return {number: value for number, value in element.items() if number != LOGICAL}


def fixed(width: int) -> Edit:
    """Return an edit that makes a column one of fixed-length values."""
    physical = integer(TYPE, Physical.FIXED_LEN_BYTE_ARRAY)
    return chain(physical, integer(LENGTH, width))


def read(tmp_path: Path, file: bytes, options: ParquetOptions | None = None, **request: Any) -> Any:
    """Serve a file, and return its table."""
    path = tmp_path / "x.parquet"
    path.write_bytes(file)
    encoding = Encoding() if options is None else Encoding(budget=Budget(parquet_options=options))
    return read_dataset(open_file(path), encoding, **request).table


def read_column(tmp_path: Path, values: Any, edit: Edit, **options: Any) -> tuple[Any, Any]:
    """Return the field and the values of a column with an edited schema element."""
    file = edit_schema(write_parquet(pa.table({"a": values}), **options), {"a": edit})
    table = read(tmp_path, file)
    return table.schema.field("a"), table["a"].to_pylist()


def mark_of(column: Any) -> bytes | None:
    return (column.metadata or {}).get(b"PARQUET:logical_type")


@pytest.mark.parametrize("edit", [as_kind(Kind.ENUM), converted_only(Converted.ENUM)])
def test_an_enum_is_a_string(tmp_path, edit):
    column, values = read_column(tmp_path, pa.array(["é", None], pa.string()), edit)
    assert (column.type, mark_of(column), values) == (pa.string(), b"ENUM", ["é", None])


def test_bson_stays_binary_and_is_marked(tmp_path):
    column, values = read_column(tmp_path, pa.array([b"\x05\0\0\0\0"]), as_kind(Kind.BSON))
    assert (column.type, mark_of(column), values) == (pa.binary(), b"BSON", [b"\x05\0\0\0\0"])


INTERVALS = [as_kind(Kind.INTERVAL), chain(as_kind(Kind.INTERVAL), beside_unknown)]
"""The annotation that most writers give an INTERVAL, and that of parquet-java."""


@pytest.mark.parametrize("edit", INTERVALS)
def test_an_interval_is_months_days_and_nanoseconds(tmp_path, edit):
    intervals = [struct.pack("<III", 1, 2, 3), None, struct.pack("<III", 0, 0, (1 << 32) - 1)]
    column, values = read_column(tmp_path, pa.array(intervals, pa.binary(12)), edit)
    assert column.type == pa.month_day_nano_interval()
    assert values == [(1, 2, 3_000_000), None, (0, 0, ((1 << 32) - 1) * 1_000_000)]
    with pytest.raises(DatasetError, match="'a' has an INTERVAL of more months"):
        read_column(tmp_path, pa.array([b"\xff" * 12], pa.binary(12)), edit)


def test_a_converted_type_wins_beside_unknown(tmp_path):
    """parquet-java writes both."""
    columns = list_columns()
    arrays = {name: values for name, (values, _) in columns.items()}
    struct = pa.StructArray.from_arrays(list(arrays.values()), list(arrays))
    nested = {"l": pa.array([["x"]]), "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))}
    edits = {name: edit for name, (_, edit) in columns.items()}
    edits |= {f"s.{name}": edit for name, edit in edits.items()}
    file = edit_schema(write_parquet(pa.table({**arrays, "s": struct, **nested})), edits)

    def drop_logical(element: Any) -> Any:
        return without_logical(element) if CONVERTED in element else element

    def hide(element: Any) -> Any:
        return beside_unknown(element) if CONVERTED in element else element

    places = [*edits, *nested]
    expected = read(tmp_path, edit_schema(file, dict.fromkeys(places, drop_logical)))
    found = read(tmp_path, edit_schema(file, dict.fromkeys(places, hide)))
    assert found.equals(expected, check_metadata=True)
    assert found.schema.field("INTERVAL").type == pa.month_day_nano_interval()


def test_int96_covers_all_years_of_microseconds(tmp_path):
    stamps = pa.array([datetime(1, 1, 1), None, datetime(9999, 12, 31)], pa.timestamp("us"))
    for dictionary in (True, False):
        file = write_parquet(
            pa.table({"a": stamps}),
            use_deprecated_int96_timestamps=True,
            use_dictionary=dictionary,
        )
        table = read(tmp_path, file)
        assert table["a"].to_pylist() == stamps.to_pylist()
        assert table.schema.field("a").type == pa.timestamp("us")


def int96_file(*values: tuple[int, int]) -> bytes:
    """Return a file with a column of INT96: nanoseconds of the day, and Julian days."""
    data = pa.array([struct.pack("<qi", *value) for value in values], pa.binary(12))
    return edit_schema(
        write_parquet(pa.table({"a": data}), use_dictionary=False, write_statistics=False),
        {"a": integer(TYPE, Physical.INT96)},
    )


def test_int96_never_wraps_around(tmp_path):
    assert read(tmp_path, int96_file((1_999, 2_440_588)))["a"].cast("int64").to_pylist() == [1]
    last = read(tmp_path, int96_file((0, 2_440_588 + 106_751_990)))["a"]
    assert last.cast("int64").to_pylist() == [106_751_990 * 86_400_000_000]
    for wrapping in ((0, (1 << 31) - 1), (0, -(1 << 31)), ((1 << 63) - 1, 109_192_578)):
        with pytest.raises(DatasetError, match="outside of the years"):
            read(tmp_path, int96_file(wrapping))
    exact = ParquetOptions(int96="exact")
    assert len(read(tmp_path, int96_file((1_000, 2_440_588)), exact)) == 1
    with pytest.raises(DatasetError, match="digits below a microsecond"):
        read(tmp_path, int96_file((1_999, 2_440_588)), exact)


@pytest.mark.parametrize("utc", [True, False])
@pytest.mark.parametrize(("unit", "short"), [("MILLIS", "ms"), ("MICROS", "us"), ("NANOS", "ns")])
def test_times_and_timestamps_keep_their_adjustment(tmp_path, utc, unit, short):
    integers = pa.array([7], pa.int32() if unit == "MILLIS" else pa.int64())
    column, _ = read_column(tmp_path, integers, as_kind(Kind.TIME, utc=utc, unit=unit))
    expected = pa.time32("ms") if unit == "MILLIS" else pa.time64(short)
    assert column.type == expected
    assert column.metadata[b"PARQUET:isAdjustedToUTC"] == str(utc).lower().encode()
    edit = as_kind(Kind.TIMESTAMP, utc=utc, unit=unit)
    column, _ = read_column(tmp_path, pa.array([7]), edit)
    zone: Any = "UTC" if utc else None
    assert column.type == pa.timestamp(short, zone)
    assert column.metadata[b"PARQUET:isAdjustedToUTC"] == str(utc).lower().encode()


FUTURE_UNIT = {
    8: Value(
        Type.STRUCT, {1: Value(Type.TRUE, True), 2: Value(Type.STRUCT, {7: Value(Type.STRUCT, {})})}
    )
}
FUTURE_TYPE = {2555: Value(Type.STRUCT, {})}


@pytest.mark.parametrize(
    ("edit", "mark"),
    [
        (
            field(LOGICAL, Type.STRUCT, FUTURE_UNIT),
            b"TIMESTAMP(isAdjustedToUTC=true, unit=7)",
        ),
        (field(LOGICAL, Type.STRUCT, FUTURE_TYPE), b"unknown logical type 2555"),
        (integer(CONVERTED, 99), b"unknown converted type 99"),
    ],
)
def test_an_unknown_annotation_costs_only_the_column(tmp_path, edit, mark):
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", "z"], "s": [{"a": n} for n in range(3)]})
    file = edit_schema(write_parquet(table), {"a": edit, "s.a": edit})
    result = read(tmp_path, file)
    assert result.to_pydict() == table.to_pydict()
    assert mark_of(result.schema.field("a")) == mark
    assert mark_of(result.schema.field("s").type.field("a")) == mark


def test_a_known_annotation_wins_over_an_unknown_converted_type(tmp_path):
    edit = chain(as_kind(Kind.STRING), integer(CONVERTED, 99))
    column, values = read_column(tmp_path, pa.array([b"x"]), edit)
    assert (column.type, values) == (pa.string(), ["x"])


DECIMALS = [Decimal("-1.50"), None, Decimal("123456.78"), Decimal(0), Decimal("-1.28")]


def to_bytes(value: Decimal | None) -> bytes | None:
    """Return the fewest bytes of an unscaled value."""
    if value is None:
        return None
    unscaled = int(value.scaleb(2))
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, signed=True)


@pytest.mark.parametrize("precision", [9, 38, 39, 76])
def test_a_decimal_is_read_from_every_physical_type(tmp_path, precision):
    edit = as_kind(Kind.DECIMAL, precision=precision, scale=2)
    unscaled = [None if value is None else int(value.scaleb(2)) for value in DECIMALS]
    arrays: list[Any] = [pa.array(map(to_bytes, DECIMALS), pa.binary())]
    if precision == 9:
        arrays += [pa.array(unscaled, pa.int32()), pa.array(unscaled, pa.int64())]
    wide = [None if n is None else n.to_bytes(32, signed=True) for n in unscaled]
    arrays.append(pa.array(wide, pa.binary(32)))
    for array in arrays if precision == 76 else arrays[:-1]:
        column, values = read_column(tmp_path, array, edit)
        assert (column.type.precision, column.type.scale, values) == (precision, 2, DECIMALS)
        stored = (column.metadata or {}).get(b"PARQUET:physical_type")
        assert stored == (b"BYTE_ARRAY" if array.type == pa.binary() else None)


def test_a_decimal_that_arrow_cannot_hold_stays_binary(tmp_path):
    edit = as_kind(Kind.DECIMAL, precision=100, scale=2)
    column, values = read_column(tmp_path, pa.array([b"\x01"]), edit)
    assert (column.type, mark_of(column), values) == (pa.binary(), b"DECIMAL(100, 2)", [b"\x01"])


def entries_file(rows: Any, *edits: dict[str, Edit]) -> bytes:
    """Return a file in which a MAP named m has optional keys, with further edits."""
    file = write_parquet(pa.table({"m": pa.array(rows, PAIRS)}), write_statistics=False)
    flat: dict[str, Edit] = {
        "m.list.element": lambda element: None,
        "m.list": integer(CHILDREN, 2),
        "m": as_kind(Kind.MAP),
    }
    for each in ({}, *edits):
        file = edit_schema(file, flat | each)
        flat = {}
    return file


ROWS = [[{"key": "a", "value": 1}, {"key": "b", "value": None}], None, []]
MAPS = [[("a", 1), ("b", None)], None, []]


@pytest.mark.parametrize(
    "edit",
    [
        {},
        {"m": converted_only(Converted.MAP)},
        {"m": converted_only(Converted.MAP_KEY_VALUE)},
        {"m.list": integer(CONVERTED, Converted.MAP_KEY_VALUE)},
        {"m.list": field(NAME, Type.BINARY, b"array")},
        {"m.list": field(NAME, Type.BINARY, b"m_tuple")},
        {"m.list.key": field(NAME, Type.BINARY, b"str")},
    ],
)
def test_a_map_may_have_optional_keys(tmp_path, edit):
    file = entries_file(ROWS, edit)
    requests: list[dict[str, Any]] = [{}, {"columns": ("m",)}, {"limit": 3}]
    for request in requests:
        table = read(tmp_path, file, **request)
        assert table.schema.field("m").type == pa.map_(pa.string(), pa.int64())
        assert table["m"].to_pylist() == MAPS


def test_a_null_key_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="the column 'm' has a map with a null key"):
        read(tmp_path, entries_file([[{"key": None, "value": 1}]]))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_last_value_of_a_key_wins(tmp_path, rows):
    maps = [[("a", 1), ("b", 2), ("a", 3)], None, [("a", 4)], [], [("c", 5), ("c", None)]]
    file = write_parquet(pa.table({"m": pa.array(maps, pa.map_(pa.string(), pa.int64()))}))
    table = read(tmp_path, file, batch_rows=rows)
    assert table["m"].to_pylist() == [
        [("b", 2), ("a", 3)], None, [("a", 4)], [], [("c", None)]
    ]  # fmt: skip
    kept = read(tmp_path, file, ParquetOptions(duplicate_keys="keep"))
    assert kept["m"].to_pylist() == maps


@pytest.mark.parametrize("edit", INTERVALS)
def test_nested_keys_and_values_are_converted(tmp_path, edit):
    interval = struct.pack("<III", 1, 2, 3)
    value = pa.struct([pa.field("i", pa.list_(pa.binary(12)))])
    maps = [[(b"k", {"i": [interval, None]}), (b"k", None)], [], None, [(b"k", {"i": None})]] * 3
    lists = pa.array([[each] for each in maps], pa.list_(pa.map_(pa.binary(), value)))
    file = edit_schema(
        write_parquet(pa.table({"l": lists}), write_statistics=False),
        {
            "l.list.element.key_value.key": as_kind(Kind.ENUM),
            "l.list.element.key_value.value.i.list.element": edit,
        },
    )
    options = ParquetOptions(duplicate_keys="keep")
    for rows in (100, 5, 1):
        table = read(tmp_path, file, options, batch_rows=rows)
        table.validate(full=True)
        first = [("k", {"i": [(1, 2, 3_000_000), None]}), ("k", None)]
        assert table["l"].to_pylist() == [[first], [[]], [None], [[("k", {"i": None})]]] * 3
    assert len(read(tmp_path, file)["l"][0].as_py()[0]) == 1


def test_a_map_without_values_is_a_list_of_keys(tmp_path):
    table = pa.table({"m": pa.array([["a", "b"], None, []], pa.list_(pa.string()))})
    edits = {"m": as_kind(Kind.MAP), "m.list": field(NAME, Type.BINARY, b"key_value")}
    for repetition in (0, 1):
        key = {} if repetition else {"m.list.element": integer(REPETITION, 0)}
        source = table
        if not repetition:
            strict = pa.list_(pa.field("element", pa.string(), nullable=False))
            source = table.cast(pa.schema([("m", strict)]))
        file = edit_schema(write_parquet(source), edits | key)
        assert read(tmp_path, file)["m"].to_pylist() == [["a", "b"], None, []]


TWO_LEVELS = pa.list_(pa.field("element", pa.int32(), nullable=False))
ONE_TUPLE = pa.list_(
    pa.field("element", pa.struct([pa.field("str", pa.string(), nullable=False)]), nullable=False)
)


def list_file(rows: Any, data_type: Any, edits: dict[str, Edit]) -> bytes:
    file = write_parquet(pa.table({"l": pa.array(rows, data_type)}), write_statistics=False)
    return edit_schema(file, edits)


def remove(element: Any) -> None:
    return None


def repeat(name: bytes) -> Edit:
    """Return an edit that makes an element repeated, with a name."""
    return chain(integer(REPETITION, 2), field(NAME, Type.BINARY, name))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param(
            list_file(
                [[1, 2], None, []], TWO_LEVELS, {"l.list": remove, "l.list.element": repeat(b"e")}
            ),
            [[1, 2], None, []],
            id="rule 1",
        ),
        pytest.param(
            list_file(
                [[{"key": "a", "value": 1}], None],
                PAIRS,
                {"l.list": remove, "l.list.element": repeat(b"element")},
            ),
            [[{"key": "a", "value": 1}], None],
            id="rule 2",
        ),
        pytest.param(
            list_file(
                [[{"str": "a"}], None],
                ONE_TUPLE,
                {"l.list": remove, "l.list.element": repeat(b"array")},
            ),
            [[{"str": "a"}], None],
            id="rule 4, array",
        ),
        pytest.param(
            list_file(
                [[{"str": "a"}], None],
                ONE_TUPLE,
                {"l.list": remove, "l.list.element": repeat(b"l_tuple")},
            ),
            [[{"str": "a"}], None],
            id="rule 4, tuple",
        ),
        pytest.param(
            list_file(
                [["a", None], None],
                pa.list_(pa.string()),
                {"l.list": field(NAME, Type.BINARY, b"element")},
            ),
            [["a", None], None],
            id="rule 5",
        ),
    ],
)
def test_lists_follow_the_rules_of_older_writers(tmp_path, file, expected):
    assert read(tmp_path, file)["l"].to_pylist() == expected


def test_lists_of_older_writers_are_converted_inside(tmp_path):
    intervals = pa.list_(pa.field("element", pa.binary(12), nullable=False))
    element = chain(repeat(b"e"), as_kind(Kind.INTERVAL))
    values = [[struct.pack("<III", 1, 0, 0)], None, []]
    file = list_file(values, intervals, {"l.list": remove, "l.list.element": element})
    assert read(tmp_path, file)["l"].to_pylist() == [[(1, 0, 0)], None, []]


def test_a_repeated_field_without_annotation_is_a_list(tmp_path):
    strict = pa.field(
        "l", pa.list_(pa.field("element", pa.binary(12), nullable=False)), nullable=False
    )
    values = pa.array([[b"\1\0\0\0" + bytes(8)], []], strict.type)
    table = pa.Table.from_arrays([values], schema=pa.schema([strict]))
    file = edit_schema(
        write_parquet(table, write_statistics=False),
        {
            "l": remove,
            "l.list": remove,
            "l.list.element": chain(repeat(b"l"), as_kind(Kind.INTERVAL)),
        },
    )
    assert read(tmp_path, file)["l"].to_pylist() == [[(1, 0, 0)], []]


def test_selections_give_the_rows_and_types_of_the_whole_file(tmp_path):
    count = 40
    table = pa.table(
        {
            "n": pa.array(range(count), pa.int64()),
            "e": [f"{n:03}" for n in range(count)],
            "i": pa.array([struct.pack("<III", n, 0, 0) for n in range(count)], pa.binary(12)),
            "t": pa.array([datetime(1, 1, 1 + n % 28) for n in range(count)], pa.timestamp("us")),
        }
    )
    file = edit_schema(
        write_parquet(table, row_group_size=7, use_deprecated_int96_timestamps=True),
        {"e": as_kind(Kind.ENUM), "i": as_kind(Kind.INTERVAL)},
    )
    whole = read(tmp_path, file)
    for text in (
        pc.field("n") >= 33,
        pc.field("e") >= "033",
        pc.field("t") == pa.scalar(datetime(1, 1, 7), pa.timestamp("us")),
    ):
        encoded = encode_filter(text, whole.schema)
        for columns in (("i", "n"), ("t",), ("e", "i", "t", "n")):
            part = read(tmp_path, file, columns=columns, filter=encoded)
            expected = whole.filter(text).select(list(columns))
            assert part.equals(expected, check_metadata=True)
            part = read(tmp_path, file, columns=columns, filter=encoded, limit=2)
            assert part.equals(expected.slice(0, 2))


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64(), pa.float16()])
def test_statistics_without_nan_rule_out_no_nan(tmp_path, data_type):
    import numpy as np

    numbers = pa.array(np.array([1, np.nan, 1, 5], data_type.to_pandas_dtype()), data_type)
    file = write_parquet(pa.table({"x": numbers}), row_group_size=3)
    x = pc.field("x")
    for text, expected in ((x != 1.0, 2), (~(x <= 3.0), 2), (x > 2.0, 1), (x <= 3.0, 2)):
        encoded = encode_filter(text, pa.schema([("x", pa.float64())]))
        assert len(read(tmp_path, file, filter=encoded)) == expected, text


def test_comparisons_skip_row_groups_of_numbers(tmp_path, monkeypatch):
    chosen: list[int] = []
    former: Any = parquet.__dict__["select_row_groups"]

    def record(*arguments: Any) -> list[int]:
        groups = former(*arguments)
        chosen.extend(groups)
        return groups

    monkeypatch.setattr(parquet, "select_row_groups", record)
    numbers = {"x": [1.0, 2.0, 5.0, 6.0], "e": ["a", "b", "c", "d"]}
    file = write_parquet(pa.table(numbers), row_group_size=2)
    file = edit_schema(file, {"e": as_kind(Kind.ENUM)})
    schema = pa.schema([("x", pa.float64()), ("e", pa.string())])
    for text in (pc.field("x") > 4.0, (pc.field("x") >= 1.0) & (pc.field("e") > "b")):
        chosen.clear()
        encoded = encode_filter(text, schema)
        assert len(read(tmp_path, file, filter=encoded)) == 2
        assert chosen == [1]


def test_a_page_that_does_not_fit_its_checksum_is_refused(tmp_path):
    file = bytearray(
        write_parquet(
            pa.table({"a": [b"0123456789" * 9]}),
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
    )
    file[file.index(b"0123456789") + 3] ^= 1
    with pytest.raises(DatasetError, match=r"[Cc]hecksum|CRC"):
        read(tmp_path, bytes(file))


def test_utc_timestamps_have_a_time_zone(tmp_path):
    column, values = read_column(
        tmp_path, pa.array([0]), converted_only(Converted.TIMESTAMP_MILLIS)
    )
    assert column.type == pa.timestamp("ms", "UTC")
    assert values == [datetime(1970, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("rows", [2, 4])
def test_a_column_with_another_number_of_rows_is_refused(tmp_path, rows):
    file = write_parquet(pa.table({"a": [1, 2, 3]}))
    footer = CompactReader(footer_of(file)).read_struct()
    footer[3] = Value(Type.I64, rows)
    footer[4].content.items[0][3] = Value(Type.I64, rows)
    with pytest.raises(DatasetError, match=r"rows (less|more) than|[Rr]ows|values"):
        read(tmp_path, with_footer(file, encode_struct(footer)))
