"""Files like those of apache/parquet-testing, which no library writes: valid, or to be refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from splitarrow.formats.parquet.logical_types import Converted, Kind, LogicalType
from splitarrow.formats.parquet.schema import CONVERTED, LOGICAL, TYPE, Physical
from splitarrow.formats.parquet.thrift import (
    CompactReader,
    Struct,
    ThriftList,
    Type,
    Value,
    encode_struct,
)

from .parquet_files import edit_schema, field, footer_of, with_footer
from .parquet_pages import (
    LZ4,
    RLE_DICTIONARY,
    SNAPPY,
    ZSTD,
    Chunk,
    data_page,
    data_page_2,
    dictionary_page,
    group,
    indices,
    leaf,
    levels,
    write_pages,
)

Pair = tuple[bytes, dict[str, Any]]
"""A file, and the values of its columns."""
INT32, BYTES, FIXED = Physical.INT32, Physical.BYTE_ARRAY, Physical.FIXED_LEN_BYTE_ARRAY
STRING, LIST, MAP = LogicalType(Kind.STRING), LogicalType(Kind.LIST), LogicalType(Kind.MAP)
_GZIP = 2
_EPOCH_DAY = 2_440_588


def ints(*values: int) -> bytes:
    """Return values of an INT32 column."""
    return struct.pack(f"<{len(values)}i", *values)


def texts(*values: str) -> bytes:
    """Return values of a BYTE_ARRAY column."""
    return b"".join(struct.pack("<I", len(each)) + each.encode() for each in values)


def _nested(repetition: Sequence[int], definition: Sequence[int], values: bytes) -> Any:
    return data_page(len(repetition), levels(repetition) + levels(definition) + values)


def _one(physical: Physical, *pages: Any, count: int, codec: int = 0, **element: Any) -> bytes:
    """Return a file of one column named a."""
    schema = [leaf("a", physical, **element)]
    return write_pages(schema, [Chunk("a", physical, pages, count, codec)], count)


def _lists(repetition: Sequence[int], definition: Sequence[int], count: int, rows: int) -> bytes:
    """Return a file with a list of integers."""
    schema = [group("l", 1, 0, LIST), group("list", 1, 2), leaf("element", INT32)]
    page = data_page(count, levels(repetition) + levels(definition) + ints(*range(count)))
    return write_pages(schema, [Chunk("l.list.element", INT32, [page], count)], rows)


def _beside(schema: list[Struct], chunks: list[Chunk]) -> bytes:
    """Return a file of two rows with a plain column b beside others."""
    return write_pages(
        [*schema, leaf("b", INT32)],
        [*chunks, Chunk("b", INT32, [data_page(2, ints(1, 2))], 2)],
        2,
    )


def _impala() -> Pair:
    time = struct.pack("<qi", 60 * 10**9, _EPOCH_DAY)
    columns: dict[str, tuple[Physical, bytes, list[Any]]] = {
        "id": (INT32, ints(4, 5), [4, 5]),
        "bool_col": (Physical.BOOLEAN, b"\1", [True, False]),
        "string_col": (BYTES, texts("0", "1"), [b"0", b"1"]),
        "timestamp_col": (Physical.INT96, time * 2, [datetime(1970, 1, 1, 0, 1)] * 2),
    }
    file = write_pages(
        [leaf(name, physical, 1) for name, (physical, _, _) in columns.items()],
        [
            Chunk(name, physical, [data_page(2, levels([1, 1]) + body)], 2)
            for name, (physical, body, _) in columns.items()
        ],
        2,
    )
    return file, {name: values for name, (_, _, values) in columns.items()}


def _maps_of_presto() -> Pair:
    schema = [
        {n: v for n, v in group("my_map", 1, 1, MAP).items() if n != LOGICAL},
        group("key_value", 2, 2) | {CONVERTED: Value(Type.I32, int(Converted.MAP_KEY_VALUE))},
        leaf("key", BYTES, 1, STRING),
        leaf("value", BYTES, 1, STRING),
    ]
    chunks = [
        Chunk(f"my_map.key_value.{name}", BYTES, [_nested([0, 1], [3, 3], texts(*values))], 2)
        for name, values in {"key": ("name", "parent"), "value": ("report", "another")}.items()
    ]
    return write_pages(schema, chunks, 1), {"my_map": [[("name", "report"), ("parent", "another")]]}


def _maps_without_values() -> Pair:
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    page = _nested([0, 1, 1] * 3, [1] * 9, ints(*range(1, 10)))
    schema = [group("m", 1, 0, MAP), group("key_value", 1, 2), leaf("key", INT32)]
    schema += [group("l", 1, 0, LIST), group("list", 1, 2), leaf("element", INT32)]
    paths = ["m.key_value.key", "l.list.element"]
    return write_pages(schema, [Chunk(p, INT32, [page], 9) for p in paths], 3), {
        "m": rows,
        "l": rows,
    }


def _repeated_fields() -> Pair:
    numbers = _nested([0, 1, 1, 0, 0], [1, 1, 1, 0, 1], ints(0, 1, 2, 4))
    words = _nested([0, 1, 1, 0, 0], [1, 1, 1, 0, 1], texts("a", "b", "c", "d"))
    schema = [leaf("i", INT32, 2), leaf("s", BYTES, 2, STRING), group("g", 2)]
    schema += [leaf("i", INT32, 2), leaf("s", BYTES, 2, LogicalType(Kind.ENUM))]
    chunks = [Chunk("i", INT32, [numbers], 5), Chunk("s", BYTES, [words], 5)]
    chunks += [Chunk("g.i", INT32, [numbers], 5), Chunk("g.s", BYTES, [words], 5)]
    i, s = [[0, 1, 2], [], [4]], [["a", "b", "c"], [], ["d"]]
    nested = [{"i": n, "s": w} for n, w in zip(i, s, strict=True)]
    return write_pages(schema, chunks, 3), {"i": i, "s": s, "g": nested}


def _repeated_groups() -> Pair:
    schema = [group("phones", 1, 1), group("phone", 2, 2), leaf("number", INT32)]
    schema.append(leaf("kind", BYTES, 1, STRING))
    chunks = [
        Chunk("phones.phone.number", INT32, [_nested([0, 0, 0, 1], [0, 1, 2, 2], ints(5, 6))], 4),
        Chunk("phones.phone.kind", BYTES, [_nested([0, 0, 0, 1], [0, 1, 2, 3], texts("home"))], 4),
    ]
    phones = [{"number": 5, "kind": None}, {"number": 6, "kind": "home"}]
    return write_pages(schema, chunks, 3), {
        "phones": [None, {"phone": []}, {"phone": phones}],
    }


def _lists_of_lists() -> Pair:
    schema = [group("a", 1, 1, LIST), group("array", 1, 2, LIST), leaf("array", INT32, 2)]
    page = _nested([0, 2, 1, 2], [3, 3, 3, 3], ints(1, 2, 3, 4))
    return write_pages(schema, [Chunk("a.array.array", INT32, [page], 4)], 1), {
        "a": [[[1, 2], [3, 4]]]
    }


def _compressed() -> dict[str, Pair]:
    numbers = list(range(1000))
    raw = ints(*numbers)
    block = pa.compress(raw, codec="lz4_raw", asbytes=True)
    halves = [pa.compress(each, codec="lz4_raw", asbytes=True) for each in (raw[:2000], raw[2000:])]
    bodies = {
        "hadoop_lz4": (LZ4, struct.pack(">II", len(raw), len(block)) + block),
        "hadoop_lz4_larger": (
            LZ4,
            b"".join(
                struct.pack(">II", size, len(half)) + half
                for size, half in zip((2000, 2000), halves, strict=True)
            ),
        ),
        "non_hadoop_lz4": (LZ4, block),
        "concatenated_gzip_members": (_GZIP, gzip.compress(raw[:99]) + gzip.compress(raw[99:])),
    }
    return {
        name: (
            _one(INT32, data_page(1000, body, size=len(raw)), count=1000, codec=codec),
            {"a": numbers},
        )
        for name, (codec, body) in bodies.items()
    }


def _long_timestamps(unit: str, factor: int) -> Pair:
    seconds = [0, 1, -1, 9_223_372_036, 253_402_300_799, -62_135_596_800]
    values = [(each * factor).to_bytes(12, "little", signed=True) for each in seconds]
    logical = LogicalType(Kind.TIMESTAMP, utc=True, unit=unit)
    page = data_page(6, b"".join(values))
    file = _one(FIXED, page, count=6, logical=logical, length=12)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = [epoch + timedelta(seconds=each) for each in seconds]
    return file, {"a": values if unit == "NANOS" else times}


def make_valid_files() -> dict[str, Pair]:
    """Return valid files."""
    dictionary = [dictionary_page(2, ints(5, 6), crc=0)]
    dictionary.append(data_page(4, indices([0, 1, 1, 0], 1), RLE_DICTIONARY, crc=0))
    chunk = Chunk("a", INT32, [data_page(2, ints(5, 6))], 2, extra={11: Value(Type.I64, 0)})
    nothing = pa.compress(b"", codec="zstd", asbytes=True)
    definition = levels([0], prefixed=False)
    many = 33_000  # more than 16 bits hold
    files: dict[str, Pair] = {
        "alltypes": _impala(),
        "incorrect_map_schema": _maps_of_presto(),
        "map_no_value": _maps_without_values(),
        "repeated_primitive_no_list": _repeated_fields(),
        "repeated_no_annotation": _repeated_groups(),
        "old_list_structure": _lists_of_lists(),
        "checksums": (
            _one(INT32, data_page(1, ints(1), crc=0), data_page(1, ints(2), crc=0), count=2),
            {"a": [1, 2]},
        ),
        "dict_checksums": (_one(INT32, *dictionary, count=4), {"a": [5, 6, 6, 5]}),
        "dict_page_offset_zero": (write_pages([leaf("a", INT32)], [chunk], 2), {"a": [5, 6]}),
        "dict_of_width_zero": (
            _one(
                INT32,
                dictionary_page(1, ints(5)),
                data_page(4, indices([0] * 4, 0), RLE_DICTIONARY),
                count=4,
            ),
            {"a": [5] * 4},
        ),
        "overflow_i16_page_cnt": (
            _one(INT32, *[data_page(1, ints(7))] * many, count=many),
            {"a": [7] * many},
        ),
        "datapage_v2_empty": (
            _one(
                Physical.FLOAT,
                data_page_2(1, 1, (b"", definition, b""), is_compressed=True),
                count=1,
                codec=SNAPPY,
                repetition=1,
            ),
            {"a": [None]},
        ),
        "page_v2_empty_compressed": (
            _one(
                INT32,
                data_page_2(1, 1, (b"", definition, nothing), is_compressed=True, size=2),
                count=1,
                codec=ZSTD,
                repetition=1,
            ),
            {"a": [None]},
        ),
        **_compressed(),
    }
    for unit, factor in {"MILLIS": 10**3, "MICROS": 10**6, "NANOS": 10**9}.items():
        files[f"flba12_timestamp_{unit}"] = _long_timestamps(unit, factor)
    return files


_MISPLACED: list[tuple[LogicalType, Physical, int]] = [
    (STRING, INT32, 0),
    (LogicalType(Kind.ENUM), FIXED, 4),
    (LogicalType(Kind.DECIMAL, precision=10, scale=2), INT32, 0),
    (LogicalType(Kind.DECIMAL, precision=5, scale=7), INT32, 0),
    (LogicalType(Kind.DATE), FIXED, 4),
    (LogicalType(Kind.TIME, unit="MICROS"), INT32, 0),
    (LogicalType(Kind.TIMESTAMP, unit="MICROS"), INT32, 0),
    (LogicalType(Kind.INTERVAL), FIXED, 11),
    (LogicalType(Kind.INTERVAL), BYTES, 0),
    (LogicalType(Kind.INT, bits=64), INT32, 0),
    (LogicalType(Kind.INT, bits=24), INT32, 0),
    (LogicalType(Kind.JSON), INT32, 0),
    (LogicalType(Kind.BSON), FIXED, 4),
    (LogicalType(Kind.UUID), FIXED, 15),
    (LogicalType(Kind.UUID), BYTES, 0),
    (LogicalType(Kind.FLOAT16), FIXED, 4),
    (LogicalType(Kind.UNKNOWN), INT32, 0),
    (LogicalType(Kind.GEOMETRY), INT32, 0),
    (LogicalType(Kind.GEOGRAPHY), FIXED, 4),
    (LIST, INT32, 0),
    (MAP, INT32, 0),
    (LogicalType(Kind.VARIANT), INT32, 0),
]
_MISPLACED_ON_GROUPS = [
    STRING,
    LogicalType(Kind.INTERVAL),
    LogicalType(Kind.UUID),
    LogicalType(Kind.GEOMETRY),
    LIST,
    MAP,
]


def make_misplaced() -> dict[str, tuple[bytes, list[Any], str]]:
    """Return files whose column a has an annotation that it must not have: values and mark."""
    files: dict[str, tuple[bytes, list[Any], str]] = {}
    for logical, physical, length in _MISPLACED:
        body, values = {
            INT32: (ints(7, 8), [7, 8]),
            BYTES: (texts("x", "y"), [b"x", b"y"]),
            FIXED: (bytes(2 * length), [bytes(length)] * 2),
        }[physical]
        element = leaf("a", physical, 0, logical if logical.bits != 24 else None, length)
        if logical.bits == 24:
            parameters = {1: Value(Type.I8, 24), 2: Value(Type.TRUE, True)}
            element[LOGICAL] = Value(Type.STRUCT, {10: Value(Type.STRUCT, parameters)})
        chunk = Chunk("a", physical, [data_page(2, body)], 2)
        files[f"{logical} on {physical.name}({length})"] = (
            _beside([element], [chunk]),
            values,
            str(logical),
        )
    for logical in _MISPLACED_ON_GROUPS:
        schema = [group("a", 2, 0, logical), leaf("x", INT32), leaf("y", INT32)]
        chunks = [Chunk(f"a.{name}", INT32, [data_page(2, ints(7, 8))], 2) for name in "xy"]
        rows = [{"x": 7, "y": 7}, {"x": 8, "y": 8}]
        files[f"{logical} on a group"] = (_beside(schema, chunks), rows, str(logical))
    return files


def make_invalid_files() -> dict[str, tuple[bytes, str]]:
    """Return files to be refused, with a part of the error."""
    plain = _one(INT32, data_page(2, ints(5, 6)), count=2)
    fixed = {"length": 4}
    statistics = Value(Type.STRUCT, {2: Value(Type.BINARY, b"\1"), 1: Value(Type.BINARY, b"")})
    short = Chunk("a", INT32, [data_page(2, ints(5, 6))], 2, extra={12: statistics})
    two = [leaf("a", INT32), leaf("b", INT32)]
    longer = Chunk("a", INT32, [data_page(3, ints(5, 6, 7))], 3)
    shorter = Chunk("b", INT32, [data_page(2, ints(5, 6))], 2)
    return {
        "PARQUET-1481": (edit_schema(plain, {"a": field(TYPE, Type.I32, -7)}), "type is -7"),
        "ARROW-RS-GH-6229-DICTHEADER": (
            _one(
                BYTES,
                dictionary_page(-1000, texts("a")),
                data_page(4, indices([0] * 4, 1), RLE_DICTIONARY),
                count=4,
            ),
            "negative number of values",
        ),
        "ARROW-RS-GH-6229-LEVELS": (_lists([0, 1, 1], [1] * 10, 10, 3), "levels do not match"),
        "ARROW-RS-GH-11261-FLBA-DICT": (
            _one(
                FIXED,
                dictionary_page(2, texts("abcd", "efgh")),
                data_page(4, indices([0, 1, 1, 0], 1), RLE_DICTIONARY),
                count=4,
                **fixed,
            ),
            "has 16 bytes, but 2 values of 4 bytes",
        ),
        "ARROW-GH-41321": (
            _one(INT32, data_page(9, levels([1] * 3) + ints(*range(9))), count=9, repetition=1),
            "levels do not match",
        ),
        "ARROW-GH-41317": (write_pages(two, [longer, shorter], 3), "has 2 values in row group 0"),
        "ARROW-GH-45185": (_lists([1, 0, 1, 0], [1] * 4, 4, 2), "must be 0 but got 1"),
        "ARROW-GH-47662": (
            _one(FIXED, data_page(4, b"abcdefgh"), count=4, **fixed),
            "end of stream",
        ),
        "rows missing": (_lists([0, 0, 0], [1] * 3, 3, 5), "2 rows less"),
        "an index beyond the dictionary": (
            _one(
                INT32,
                dictionary_page(2, ints(5, 6)),
                data_page(2, indices([0, 3], 2), RLE_DICTIONARY),
                count=2,
            ),
            "end of stream",
        ),
        "an unknown encoding": (_one(INT32, data_page(2, ints(5, 6), 99), count=2), "encoding"),
        "an unknown codec": (_one(INT32, data_page(2, ints(5, 6)), count=2, codec=99), "codec"),
        "corrupt-checksum": (
            _one(INT32, data_page(2, ints(5, 6), crc=1), count=2),
            "CRC checksum",
        ),
        "dict-corrupt-checksum": (
            _one(
                INT32,
                dictionary_page(2, ints(5, 6), crc=1),
                data_page(2, indices([0, 1], 1), RLE_DICTIONARY, crc=0),
                count=2,
            ),
            "CRC checksum",
        ),
        "statistics of the wrong size": (
            write_pages([leaf("a", INT32)], [short], 2),
            "end of stream",
        ),
        "encrypt_columns_and_footer": (
            b"PARE" + plain[4:-4] + b"PARE",
            "an encrypted Parquet file",
        ),
        "encrypt_columns_plaintext_footer": (_encrypt(in_footer=True), "has encrypted columns"),
        "encrypted column": (_encrypt(in_footer=False), "has encrypted columns"),
    }


def _encrypt(*, in_footer: bool) -> bytes:
    """Return a file of which the footer states, or a column alone, that it is encrypted."""
    path = ThriftList(Type.BINARY, [b"a"])
    key = Value(Type.STRUCT, {2: Value(Type.STRUCT, {1: Value(Type.LIST, path)})})
    page = [data_page(2, ints(5, 6))]
    chunk = Chunk("a", INT32, page, 2, chunk_fields={} if in_footer else {8: key})
    file = write_pages([leaf("a", INT32)], [chunk], 2)
    footer = CompactReader(footer_of(file)).read_struct()
    algorithm = Value(Type.STRUCT, {1: Value(Type.STRUCT, {})})
    return with_footer(file, encode_struct(footer | ({8: algorithm} if in_footer else {})))
