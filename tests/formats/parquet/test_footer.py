"""Footers: every schema is read and written back; mutated footers give an error or a schema."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.parquet_files import edit_schema, field, footer_of, with_footer, write_parquet
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.parquet.conversions import correct_schema
from splitarrow.formats.parquet.footer import (
    Footer,
    find_malformed_statistics,
    read_footer_size,
    wrap_footer,
)
from splitarrow.formats.parquet.logical_types import (
    Converted,
    Kind,
    LogicalType,
    parse_converted_type,
)
from splitarrow.formats.parquet.schema import (
    CONVERTED,
    LENGTH,
    LOGICAL,
    NAME,
    REPETITION,
    TYPE,
    Physical,
    annotate,
)
from splitarrow.formats.parquet.thrift import (
    MAX_DEPTH,
    CompactReader,
    ThriftList,
    Type,
    Value,
    encode_struct,
)

TABLE = pa.table(
    {
        "a": pa.array([1], pa.int16()),
        "s": pa.array([{"x": [1.5], "y": "z"}]),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "t": pa.array([0], pa.time64("us")),
        "d": pa.array([None], pa.decimal128(10, 2)),
    }
)
FILE = write_parquet(TABLE)
FOOTER = footer_of(FILE)

ANNOTATIONS = [
    (LogicalType(Kind.STRING), Converted.UTF8),
    (LogicalType(Kind.ENUM), Converted.ENUM),
    (LogicalType(Kind.DECIMAL, precision=9, scale=2), Converted.DECIMAL),
    (LogicalType(Kind.DATE), Converted.DATE),
    (LogicalType(Kind.TIME, utc=True, unit="MILLIS"), Converted.TIME_MILLIS),
    (LogicalType(Kind.TIME, utc=False, unit="MICROS"), Converted.TIME_MICROS),
    (LogicalType(Kind.TIME, utc=False, unit="NANOS"), None),
    (LogicalType(Kind.TIMESTAMP, utc=False, unit="MILLIS"), Converted.TIMESTAMP_MILLIS),
    (LogicalType(Kind.TIMESTAMP, utc=True, unit="MICROS"), Converted.TIMESTAMP_MICROS),
    (LogicalType(Kind.TIMESTAMP, utc=True, unit="NANOS"), None),
    (LogicalType(Kind.INT, bits=8, signed=True), Converted.INT_8),
    (LogicalType(Kind.INT, bits=64, signed=False), Converted.UINT_64),
    (LogicalType(Kind.UNKNOWN), None),
    (LogicalType(Kind.JSON), Converted.JSON),
    (LogicalType(Kind.BSON), Converted.BSON),
    (LogicalType(Kind.UUID), None),
    (LogicalType(Kind.FLOAT16), None),
    (LogicalType(Kind.GEOMETRY, crs="srid:5070"), None),
    (LogicalType(Kind.GEOGRAPHY, crs=None, edges="karney"), None),
    (LogicalType(Kind.INTERVAL), Converted.INTERVAL),
]


BINARY = (Physical.BYTE_ARRAY, 0)
PLACES = {
    Kind.DATE: (Physical.INT32, 0),
    Kind.UUID: (Physical.FIXED_LEN_BYTE_ARRAY, 16),
    Kind.FLOAT16: (Physical.FIXED_LEN_BYTE_ARRAY, 2),
    Kind.INTERVAL: (Physical.FIXED_LEN_BYTE_ARRAY, 12),
}


def find_place(logical):
    """Return the physical type, and its length, of a column that may have an annotation."""
    if logical.kind in (Kind.TIME, Kind.TIMESTAMP, Kind.INT):
        is_long = logical.kind is Kind.TIMESTAMP or logical.unit in ("MICROS", "NANOS")
        return (Physical.INT64 if is_long or logical.bits == 64 else Physical.INT32), 0
    return PLACES.get(logical.kind, BINARY)


def read_annotated(edit, physical, length):
    """Return the first column of a footer with an edited element and a physical type."""

    def place(element):
        placed = element | {TYPE: Value(Type.I32, int(physical))}
        return edit(placed | ({LENGTH: Value(Type.I32, length)} if length else {}))

    return Footer.parse(footer_of(edit_schema(FILE, {"a": place}))).root.children[0]


@pytest.mark.parametrize(("logical", "converted"), ANNOTATIONS, ids=lambda value: str(value))
def test_an_annotation_is_read_as_it_was_written_with_its_converted_type(logical, converted):
    column = read_annotated(lambda element: annotate(element, logical), *find_place(logical))
    assert column.logical == logical
    assert column.converted == converted
    if logical.kind is not Kind.UNKNOWN:
        column = read_annotated(lambda element: annotate(element, logical), Physical.DOUBLE, 0)
        assert column.logical == LogicalType(Kind.FUTURE, mark=str(logical))


def test_a_variant_is_a_group():
    variant = LogicalType(Kind.VARIANT)
    file = edit_schema(FILE, {"s": lambda element: annotate(element, variant)})
    assert Footer.parse(footer_of(file)).root.children[1].logical == variant


@pytest.mark.parametrize(
    ("physical", "length", "digits"),
    [
        (Physical.INT32, 0, 9),
        (Physical.INT64, 0, 18),
        (Physical.FIXED_LEN_BYTE_ARRAY, 1, 2),
        (Physical.FIXED_LEN_BYTE_ARRAY, 4, 9),
        (Physical.FIXED_LEN_BYTE_ARRAY, 16, 38),
        (Physical.FIXED_LEN_BYTE_ARRAY, 32, 76),
    ],
)
def test_a_decimal_has_no_more_digits_than_fit(physical, length, digits):
    for precision, scale, kind in (
        (digits, digits, Kind.DECIMAL),
        (digits + 1, 0, Kind.FUTURE),
        (0, 0, Kind.FUTURE),
        (1, 2, Kind.FUTURE),
        (1, -1, Kind.FUTURE),
    ):
        decimal = LogicalType(Kind.DECIMAL, precision=precision, scale=scale)
        column = read_annotated(partial(annotate, logical=decimal), physical, length)
        assert column.kind is kind, str(decimal)


@pytest.mark.parametrize("converted", list(Converted))
def test_a_converted_type_alone_gives_the_logical_type(converted):
    def keep_converted(element):
        element = {k: v for k, v in element.items() if k != LOGICAL}
        return element | {CONVERTED: Value(Type.I32, int(converted)), 8: Value(Type.I32, 4)}

    logical = parse_converted_type(converted, 4, 0)
    if logical.kind in (Kind.LIST, Kind.MAP):
        file = edit_schema(FILE, {"m": keep_converted})
        column = Footer.parse(footer_of(file)).root.children[2]
    else:
        column = read_annotated(keep_converted, *find_place(logical))
    assert column.logical == logical
    written = annotate({}, column.logical)[CONVERTED].content
    expected = Converted.MAP if converted is Converted.MAP_KEY_VALUE else converted
    assert written == expected


def test_unknown_annotations_are_described():
    def column_of(*edits):
        file = FILE
        for edit in edits:
            file = edit_schema(file, {"t": edit})
        return Footer.parse(footer_of(file)).root.children[3]

    future = {2555: Value(Type.STRUCT, {1: Value(Type.BINARY, b"x")})}
    assert str(column_of(field(LOGICAL, Type.STRUCT, future)).logical) == (
        "unknown logical type 2555"
    )
    unit = {1: Value(Type.TRUE, False), 2: Value(Type.STRUCT, {4: Value(Type.STRUCT, {})})}
    time = {8: Value(Type.STRUCT, unit)}
    assert str(column_of(field(LOGICAL, Type.STRUCT, time)).logical) == (
        "TIMESTAMP(isAdjustedToUTC=false, unit=4)"
    )
    edges = {18: Value(Type.STRUCT, {2: Value(Type.I32, 9)})}
    assert str(column_of(field(LOGICAL, Type.STRUCT, edges)).logical) == "GEOGRAPHY(algorithm=9)"


def test_a_rewritten_schema_leaves_the_rest_of_the_footer_unchanged():
    footer = Footer.parse(FOOTER)
    assert footer.with_elements(footer.elements) == FOOTER
    assert encode_struct(CompactReader(FOOTER).read_struct()) == FOOTER
    renamed = [element | {NAME: Value(Type.BINARY, b"n")} for element in footer.elements[:2]]
    changed = footer.with_elements([*renamed, *footer.elements[2:]])
    metadata = pq.read_metadata(pa.BufferReader(wrap_footer(changed)))
    assert metadata.schema.to_arrow_schema().names == ["n", "s", "m", "t", "d"]
    assert metadata.row_group(0).num_rows == 1


def test_every_footer_of_parquet_testing_is_written_back_unchanged(parquet_test_data):
    files = list(parquet_test_data.rglob("*.parquet"))
    assert files
    for path in files:
        footer = footer_of(path.read_bytes())
        assert encode_struct(CompactReader(footer).read_struct()) == footer, path
        parsed = Footer.parse(footer)
        assert parsed.with_elements(parsed.elements) == footer, path


def test_errors_name_the_place():
    def message(edit, path="s.y"):
        with pytest.raises(InvalidDataError) as caught:
            Footer.parse(footer_of(edit_schema(FILE, {path: edit})))
        return caught.value.message

    assert "element 6 of the schema, 'y', is malformed: its physical type is 77" in message(
        field(1, Type.I32, 77)
    )
    assert "its repetition is None" in message(lambda e: {k: v for k, v in e.items() if k != 3})
    assert "its field 3 has the wrong type" in message(field(3, Type.BINARY, b"1"))
    assert "it has -1 fields" in message(field(5, Type.I32, -1))
    assert "a DECIMAL has no precision" in message(
        lambda e: {k: v for k, v in e.items() if k != LOGICAL} | {CONVERTED: Value(Type.I32, 5)}
    )
    assert "the schema ends after 5 of the 200 fields of 's'" in message(
        field(5, Type.I32, 200), "s"
    )
    assert "a logical type has 0 members" in message(field(LOGICAL, Type.STRUCT, {}))
    assert "belongs to no group" in message(field(5, Type.I32, 1), "")


def test_sizes_are_checked_before_memory_is_taken():
    with pytest.raises(InvalidDataError, match="100 bytes, but the file has only 50"):
        read_footer_size((100).to_bytes(4, "little") + b"PAR1", 50)
    with pytest.raises(InvalidDataError, match="ends with b'XXXX'"):
        read_footer_size(b"0000XXXX", 50)
    with pytest.raises(InvalidDataError, match="elements, but only 2 bytes follow"):
        Footer.parse(b"\x15\x02\x19\xfc\xff\xff\xff\xff\x0f\x00\x00")
    deep = b"\x1c" * 1000 + b"\x00" * 1000
    with pytest.raises(LimitError, match=f"more than {MAX_DEPTH} levels"):
        Footer.parse(deep)
    with pytest.raises(LimitError, match="levels"):
        Footer.parse(b"\x29" + b"\x19" * 1000 + b"\x00")


def test_a_deeply_nested_schema_is_refused():
    root = {NAME: Value(Type.BINARY, b"r"), 5: Value(Type.I32, 1)}
    group = root | {3: Value(Type.I32, 0)}
    leaf = {1: Value(Type.I32, 1), 3: Value(Type.I32, 0), NAME: Value(Type.BINARY, b"x")}
    footer = Footer.parse(FOOTER)
    with pytest.raises(LimitError, match="levels deep"):
        Footer.parse(footer.with_elements([root, *[group] * 5000, leaf]))


def make_footers() -> list[bytes]:
    """Return small footers with every type and annotation."""
    arrays: list[Any] = [
        *(TABLE[name] for name in TABLE.schema.names),
        pa.array([[1]], pa.list_(pa.int8())),
        pa.array([b"x"]),
        pa.array([0], pa.timestamp("us")),
    ]
    plain = [write_parquet(pa.table({"a": array}), use_dictionary=False) for array in arrays]
    files = plain + [
        edit_schema(plain[6], {"a": partial(annotate, logical=logical)})
        for logical in (
            LogicalType(Kind.GEOMETRY, crs="x"),
            LogicalType(Kind.GEOGRAPHY, edges="karney"),
            LogicalType(Kind.DECIMAL, precision=3, scale=2),
        )
    ]
    return [footer_of(file) for file in files]


def check_mutated_footers(seed: int, count: int) -> Counter[str]:
    """Check that mutated footers give an error or a schema that can be written; count both."""
    rng = random.Random(seed)
    footers = [(footer, Footer.parse(footer).span[1]) for footer in make_footers()]
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        footer, schema_end = rng.choice(footers)
        mutated = bytearray(footer)
        for _ in range(rng.choice((1, 1, 2, 4))):
            end = schema_end if rng.random() < 0.8 else len(footer)
            mutated[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.1:
            del mutated[rng.randrange(len(mutated)) :]
        try:
            parsed = Footer.parse(bytes(mutated))
        except ProtocolError:
            outcomes["refused"] += 1
            continue
        outcomes["equal"] += 1
        written = parsed.with_elements(parsed.elements)
        again = Footer.parse(written)
        assert again.with_elements(again.elements) == written
        assert again.root == parsed.root
        correct_schema(parsed)
        with contextlib.suppress(ProtocolError):
            find_malformed_statistics(parsed.data, parsed.root)
    return outcomes


def edit_sizes(column: int, number: int, value: Value) -> bytes:
    """Return the footer with another field in the SizeStatistics of a column."""
    metadata = CompactReader(FOOTER).read_struct()
    chunk = metadata[4].content.items[0][1].content.items[column]
    chunk[3].content[16].content[number] = value
    return encode_struct(metadata)


@pytest.mark.parametrize(
    ("number", "value", "problem"),
    [
        (2, [1, 2, 3], "'s.x.list.element' have a histogram of 3 levels; the column has 2"),
        (3, [1], "'s.x.list.element' have a histogram of 1 levels; the column has 5"),
        (1, 7, "'s.x.list.element' count the bytes of byte arrays; its values have a fixed size"),
    ],
)
def test_size_statistics_that_do_not_fit_a_column_are_refused(
    number: int, value: Any, problem: str
) -> None:
    kind = Type.LIST if isinstance(value, list) else Type.I64
    content = ThriftList(Type.I64, value) if isinstance(value, list) else value
    data = edit_sizes(1, number, Value(kind, content))
    with pytest.raises(InvalidDataError) as caught:
        find_malformed_statistics(data, Footer.parse(data).root)
    assert problem in caught.value.message


def test_integers_of_another_size_are_refused() -> None:
    def narrow(element: Any) -> Any:
        return element | {REPETITION: Value(Type.I16, element[REPETITION].content)}

    with pytest.raises(InvalidDataError, match="its field 3 has the wrong type"):
        Footer.parse(footer_of(edit_schema(FILE, {"a": narrow})))


def test_mutated_footers_give_an_error_or_a_schema():
    outcomes = check_mutated_footers(15, 20_000)
    assert min(outcomes.values()) > 4000


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_million_mutated_footers_give_an_error_or_a_schema():
    for seed in range(50):
        check_mutated_footers(seed, 20_000)


def test_a_file_keeps_its_data_with_another_footer():
    assert with_footer(FILE, FOOTER) == FILE
