"""Drawn tables of every type, the files that hold them, and the values of their columns."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import vortex
import vortex.io

from splitarrow.publication.version_store import VersionStore

compute: Any = pc  # the stubs lack some of its functions

ROW = "row"
"""The column that identifies a row."""
SECOND = 10**9
DAY = 86_400 * SECOND
UNITS = {"s": SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
"""The units of times, in nanoseconds."""
EPOCH = date(1970, 1, 1).toordinal()
FAR = ((date.min.toordinal() - EPOCH) * DAY, (date.max.toordinal() - EPOCH) * DAY)
"""The first and the last day that Python has, in nanoseconds since 1970."""
NEAR = ((date(1700, 1, 1).toordinal() - EPOCH) * DAY, (date(2250, 1, 1).toordinal() - EPOCH) * DAY)
"""A range of time that every unit can represent."""
MARCH = (date(2026, 3, 1).toordinal() - EPOCH) * DAY
TEXTS = (
    *("", "a", "A", "ab", "aab", "b", "a%b", "a_b", "é", "É", "日本", "😀", "a\nb", "a'b", 'a"b'),
    *("a\\b", " a", "a long text of more than twelve bytes", "5", "z"),
)
BYTES = (b"", b"\0", b"a", b"ab", b"ab\0", b"\xff", b"\x7f\x80", b"more than twelve bytes")
_STRUCT = pa.struct(
    [
        pa.field("x", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("inner", pa.struct([pa.field("y", pa.string()), pa.field("z", pa.date32())])),
    ]
)
_STRINGS = (pa.string(), pa.large_string(), pa.string_view())
_RUNS = pa.run_end_encoded(pa.int32(), pa.int64())
_TEXT_RUNS = pa.run_end_encoded(pa.int32(), pa.string())

TYPES: dict[str, Any] = {
    "b": pa.bool_(),
    "b2": pa.bool_(),
    "i8": pa.int8(),
    "i16": pa.int16(),
    "order": pa.int32(),
    "I64": pa.int64(),
    "j64": pa.int64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "f16": pa.float16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "g64": pa.float64(),
    "d32": pa.decimal32(5, 2),
    "d64": pa.decimal64(15, 3),
    "d128": pa.decimal128(9, 2),
    "wide": pa.decimal128(38, 10),
    "whole": pa.decimal128(20, 0),
    "d256": pa.decimal256(60, 5),
    "tens": pa.decimal128(5, -2),
    "day": pa.date32(),
    "day64": pa.date64(),
    "s": pa.timestamp("s"),
    "ms": pa.timestamp("ms"),
    "us": pa.timestamp("us"),
    "ns": pa.timestamp("ns"),
    "us zoned": pa.timestamp("us", "Europe/Zurich"),
    "ns utc": pa.timestamp("ns", "UTC"),
    "far": pa.timestamp("us"),
    "t32s": pa.time32("s"),
    "t32ms": pa.time32("ms"),
    "t64us": pa.time64("us"),
    "t64ns": pa.time64("ns"),
    "dur_s": pa.duration("s"),
    "dur_us": pa.duration("us"),
    "dur_ns": pa.duration("ns"),
    "two words": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "word": pa.dictionary(pa.int8(), pa.string()),
    "category": pa.dictionary(pa.uint32(), pa.string_view()),
    "bin": pa.binary(),
    "lbin": pa.large_binary(),
    "bview": pa.binary_view(),
    "fixed": pa.binary(4),
    "id": pa.uuid(),
    "nul": pa.null(),
    "code": pa.dictionary(pa.int16(), pa.int64()),
    "dday": pa.dictionary(pa.int32(), pa.date32()),
    "runs": _RUNS,
    "text_runs": _TEXT_RUNS,
    "st": _STRUCT,
    "l": pa.list_(pa.int32()),
    "ll": pa.large_list(pa.int32()),
    "lv": pa.list_view(pa.int32()),
    "fl": pa.list_(pa.int32(), 2),
    "m": pa.map_(pa.string(), pa.int32()),
    "iv": pa.month_day_nano_interval(),
    "union": pa.sparse_union([pa.field("n", pa.int64()), pa.field("t", pa.string())]),
}
"""The types of a drawn table, by column."""


def family_of(data_type: Any) -> str:
    """Return the kind of values that a type has: int, decimal, float, text and so on."""
    types = pa.types
    if isinstance(data_type, (pa.DictionaryType, pa.RunEndEncodedType)):
        return family_of(data_type.value_type)
    if isinstance(data_type, pa.UuidType):
        return "uuid"
    tests: list[tuple[str, Callable[[Any], bool]]] = [
        ("null", types.is_null),
        ("bool", types.is_boolean),
        ("int", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("date", types.is_date),
        ("timestamp", types.is_timestamp),
        ("time", types.is_time),
        ("duration", types.is_duration),
        ("text", lambda each: each in _STRINGS),
        ("binary", types.is_binary),
        ("binary", types.is_large_binary),
        ("binary", types.is_binary_view),
        ("binary", types.is_fixed_size_binary),
    ]
    return next((name for name, test in tests if test(data_type)), "nested")


def draw_table(seed: int) -> pa.Table:
    """Return a table of up to 60 rows, whose column `ROW` identifies them."""
    rng = random.Random(f"table {seed}")
    few = rng.choice((0, 1, 2, 5))
    rows = rng.choice((few, rng.randint(3, 60), rng.randint(10, 60), rng.randint(20, 60)))
    ids = rng.sample(range(1000), rows)
    columns: dict[str, Any] = {ROW: pa.array(ids, pa.int64())}
    for name, data_type in TYPES.items():
        columns[name] = _draw_column(rng, name, data_type, rows)
    return pa.table(columns)


def _draw_column(rng: random.Random, name: str, data_type: Any, rows: int) -> Any:
    if isinstance(data_type, pa.DictionaryType):
        plain = _draw_column(rng, name, data_type.value_type, rows)
        words = plain.unique().drop_null()
        places = [
            None if value is None else words.to_pylist().index(value) for value in plain.to_pylist()
        ]
        return pa.DictionaryArray.from_arrays(pa.array(places, data_type.index_type), words)
    if isinstance(data_type, pa.RunEndEncodedType):
        return compute.run_end_encode(_draw_column(rng, name, data_type.value_type, rows))
    if isinstance(data_type, pa.UnionType):
        children = [_draw_column(rng, name, field.type, rows) for field in data_type]
        kinds = pa.array([rng.randrange(2) for _ in range(rows)], pa.int8())
        return pa.UnionArray.from_sparse(kinds, children, [field.name for field in data_type])
    pool = _pool(rng, name, data_type)
    values = [rng.choice(pool) for _ in range(rows)]
    if family_of(data_type) != "nested" and rng.random() < 0.5:
        values.sort()  # so that statistics rule out some rows
    missing = rng.choice((0.0, 0.2, 0.2, 0.5, 1.0 if rng.random() < 0.2 else 0.1))
    return make_array([None if rng.random() < missing else each for each in values], data_type)


def make_array(values: Sequence[Any], data_type: Any) -> Any:
    """Return an array of values as `Column` has them."""
    family = family_of(data_type)
    if family in ("date", "timestamp", "time", "duration"):
        unit = _unit(data_type)
        number: Any = pa.int32() if data_type.bit_width == 32 else pa.int64()
        counts = [None if value is None else value // unit for value in values]
        return pa.array(counts, number).cast(data_type)
    if family == "null":
        return pa.nulls(len(values))
    return pa.array(values, data_type)


def _unit(data_type: Any) -> int:
    """Return the unit of a temporal type, in nanoseconds."""
    if pa.types.is_date32(data_type):
        return DAY
    return UNITS["ms" if pa.types.is_date64(data_type) else data_type.unit]


def _pool(rng: random.Random, name: str, data_type: Any) -> list[Any]:
    """Return a few values of a type."""
    pool = _all_values(rng, name, data_type)
    return rng.choices(pool, k=rng.randint(2, 7))


def _all_values(rng: random.Random, name: str, data_type: Any) -> list[Any]:
    match family_of(data_type):
        case "bool":
            return [False, True]
        case "int":
            bits, signed = data_type.bit_width, pa.types.is_signed_integer(data_type)
            least = -(1 << (bits - 1)) if signed else 0
            most = least + (1 << bits) - 1
            small = [0, 1, 2, 5, 100, *([-1, -5] if signed else [])]
            return [*small, *small, least, most, least + 1, most - 1, rng.randint(least, most)]
        case "decimal":
            most = 10**data_type.precision - 1
            scale = data_type.scale
            one = 10 ** max(scale, 0)
            whole = [0, one, -one, 5 * one, 5 * one - 1, 5 * one + 1, 100, -150, most, -most]
            whole.append(rng.randint(-most, most))
            return [_decimal(each, scale) for each in whole if abs(each) <= most]
        case "float":
            special = [0.0, -0.0, math.nan, math.inf, -math.inf]
            extremes = {16: (65504.0, 6e-8), 32: (3.4028234663852886e38, 1e-45)}
            largest, least = extremes.get(data_type.bit_width, (1.7976931348623157e308, 5e-324))
            plain = [0.1, 1.0, 1.5, 2.0, 5.0, -1.0, 100.0, 0.3, rng.uniform(-10, 10)]
            return [*special, *plain, *plain, largest, -largest, least]
        case "date":
            days = [0, -1, rng.randint(-90_000, 90_000), FAR[0] // DAY, FAR[1] // DAY]
            return [MARCH, MARCH, MARCH + DAY, MARCH - DAY, *(each * DAY for each in days)]
        case "timestamp":
            unit = _unit(data_type)
            first, last = FAR if name == "far" else NEAR
            near = [MARCH, MARCH + unit, MARCH - unit, MARCH + 5 * 3600 * SECOND]
            rest = [0, -unit, rng.randint(first, last), first, last]
            return [*near, *near, *(each // unit * unit for each in rest)]
        case "time":
            unit = _unit(data_type)
            return [0, unit, DAY - unit, 3600 * SECOND, rng.randrange(DAY) // unit * unit]
        case "duration":
            unit = _unit(data_type)
            whole = [0, DAY, -DAY, 3600 * SECOND, unit, -unit, DAY + unit]
            return [*whole, rng.randint(-(10**17), 10**17) // unit * unit]
        case "text":
            return list(TEXTS)
        case "binary":
            width = getattr(data_type, "byte_width", None) if name == "fixed" else None
            return [(each + b"\0\0\0\0")[:width] for each in BYTES] if width else list(BYTES)
        case "uuid":
            numbers = (0, 1, 2**127, 2**128 - 1, rng.getrandbits(128))
            return [uuid.UUID(int=number).bytes for number in numbers]
        case "null":
            return [0]
        case _:
            return _nested_values(rng, data_type)


def _nested_values(rng: random.Random, data_type: Any) -> list[Any]:
    if isinstance(data_type, pa.StructType):
        inner = [None, {"y": None, "z": None}]
        inner += [{"y": text, "z": date(2026, 3, 1)} for text in ("a", "b", "")]
        numbers = (None, 0, 1, 2, -5)
        return [
            {"x": rng.choice(numbers), "f": rng.choice((None, 0.1, math.nan)), "inner": each}
            for each in inner
        ]
    if data_type == pa.month_day_nano_interval():
        return [(0, 0, 0), (1, 2, 3), (0, -1, 5)]
    if pa.types.is_map(data_type):
        return [[], [("k", 1)], [("k", None), ("a", 2)]]
    return [[1, 2], [None, 5]] if data_type == TYPES["fl"] else [[], [1], [None, 2]]


def _decimal(unscaled: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


# --- sources -----------------------------------------------------------------------------------


def _write_parquet(table: pa.Table, path: Path, rng: random.Random) -> None:
    options: dict[str, Any] = {"use_dictionary": rng.random() < 0.5}
    options["write_page_index"] = rng.random() < 0.5
    pq.write_table(table, path, row_group_size=rng.randint(1, 12), **options)


def _write_published(table: pa.Table, path: Path, rng: random.Random) -> None:
    store = VersionStore(path)
    shards = [
        store.write_shard("job", f"{number}.arrow", table.schema, [_to_batch(part)])
        for number, part in enumerate(_split(table, rng))
    ]
    store.commit("job", table.schema, shards, append=False)


def _write_delta(table: pa.Table, path: Path, rng: random.Random) -> None:
    from deltalake import write_deltalake

    for part in _split(table, rng, 20):
        copy = pa.BufferOutputStream()  # deltalake crashes with slices of some types
        with pa.ipc.new_stream(copy, part.schema) as writer:
            writer.write_batch(_to_batch(part))
        with pa.ipc.open_stream(copy.getvalue()) as reader:
            write_deltalake(str(path), reader.read_all(), mode="append")


def _write_arrow(table: pa.Table, path: Path, rng: random.Random) -> None:
    with pa.ipc.new_file(str(path), table.schema) as writer:
        for part in _split(table, rng):
            writer.write_batch(_to_batch(part))


def _write_csv(table: pa.Table, path: Path, rng: random.Random) -> None:
    pyarrow.csv.write_csv(table, path)


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows as one record batch."""
    columns: list[Any] = [
        each.chunk(0) if each.num_chunks else pa.nulls(0, each.type) for each in table.columns
    ]
    return pa.record_batch(columns, schema=table.schema)


def _split(table: pa.Table, rng: random.Random, least: int = 5) -> list[pa.Table]:
    """Return the table in parts of some rows; an empty table is one part."""
    rows = rng.randint(least, least + 15)
    return [table.slice(begin, rows) for begin in range(0, max(1, len(table)), rows)]


_UNSIGNED = ("u8", "u16", "u32", "u64")
_SMALL_DECIMALS = ("d32", "d64", "d256", "tens")
_TIMES = ("t32s", "t32ms", "t64us", "t64ns")
_DURATIONS = ("dur_s", "dur_us", "dur_ns")
_ARROW_ONLY = ("tens", "category", "runs", "text_runs", "iv", "union")

SOURCES: dict[str, tuple[Any, str, frozenset[str]]] = {
    "arrow": (_write_arrow, "x.arrow", frozenset()),
    "parquet": (_write_parquet, "x.parquet", frozenset(_ARROW_ONLY)),
    "vortex": (
        lambda table, path, rng: vortex.io.write(vortex.array(table), str(path)),
        "x.vortex",
        frozenset((*_ARROW_ONLY, *_DURATIONS, "fixed")),
    ),
    "orc": (
        lambda table, path, rng: pyarrow.orc.write_table(table, str(path)),
        "x.orc",
        frozenset(
            (
                *(*_ARROW_ONLY, *_UNSIGNED, *_SMALL_DECIMALS, *_TIMES, *_DURATIONS, "f16", "view"),
                *("word", "code", "dday", "bview", "id", "nul", "far", "day64", "ll", "lv", "fl"),
            )
        ),
    ),
    "csv": (
        _write_csv,
        "x.csv",
        frozenset(
            (
                *(*_ARROW_ONLY, *_DURATIONS, "f16", "d256", "word", "code", "dday", "bin", "lbin"),
                *("bview", "fixed", "id", "nul", "st", "l", "ll", "lv", "fl", "m", "view", "far"),
                *("d32", "d64"),
            )
        ),
    ),
    "published": (_write_published, "published", frozenset()),
    "delta": (
        _write_delta,
        "delta",
        frozenset(
            (
                *(*_ARROW_ONLY, *_UNSIGNED, *_SMALL_DECIMALS, *_TIMES, *_DURATIONS, "f16", "id"),
                *("nul", "ns", "ns utc", "lv"),
            )
        ),
    ),
}
"""For each source: what writes it, its name, and the columns that it cannot hold."""


def write_source(source: str, table: pa.Table, folder: Path, seed: int) -> Path:
    """Write the columns of a table that a source can hold, and return its path."""
    write, name, lacks = SOURCES[source]
    path = folder / name
    kept = [each for each in table.column_names if each not in lacks]
    write(table.select(kept), path, random.Random(f"{source} {seed}"))
    return path


# --- values ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column, or a field of structs, with its values."""

    path: tuple[str, ...]
    """The name of the column, and the names of the fields in it."""
    type: Any
    """Its type, without dictionaries and runs."""
    family: str
    """The kind of its values; see `family_of`."""
    array: Any
    """The values as an array of `type`; as booleans if the kind is nested."""
    values: list[Any]
    """The values in Python. Points in time, in UTC, and durations are integers of nanoseconds;
    UUIDs are bytes. A nested value is True."""


def list_columns(table: pa.Table) -> Mapping[tuple[str, ...], Column]:
    """Return the columns of a table, with the fields of structs, by path."""
    columns: dict[tuple[str, ...], Column] = {}
    for name in table.column_names:
        chunks = [_decode(chunk) for chunk in table[name].chunks]
        data_type = _decoded_type(table.schema.field(name).type)
        _add_column(columns, (name,), data_type, chunks)
    return columns


def _add_column(
    columns: dict[tuple[str, ...], Column], path: tuple[str, ...], data_type: Any, chunks: Any
) -> None:
    family = family_of(data_type)
    if isinstance(data_type, pa.StructType):
        for index in range(data_type.num_fields):
            field = data_type.field(index)
            parts = [_decode(pc.struct_field(chunk, [index])) for chunk in chunks]
            _add_column(columns, (*path, field.name), _decoded_type(field.type), parts)
    if family == "nested":
        chunks = [pc.if_else(pc.is_null(chunk), None, True) for chunk in chunks]
        data_type = pa.bool_()
    array = pa.concat_arrays(chunks) if chunks else pa.nulls(0, data_type)
    columns[path] = Column(path, data_type, family, array, _python_values(array, family))


def _decoded_type(data_type: Any) -> Any:
    encoded = isinstance(data_type, (pa.DictionaryType, pa.RunEndEncodedType))
    return data_type.value_type if encoded else data_type


def _decode(chunk: Any) -> Any:
    if isinstance(chunk.type, pa.DictionaryType):
        words = chunk.dictionary.to_pylist()  # Arrow takes no string views
        places = chunk.indices.to_pylist()
        values = [None if place is None else words[place] for place in places]
        return pa.array(values, chunk.type.value_type)
    return compute.run_end_decode(chunk) if isinstance(chunk.type, pa.RunEndEncodedType) else chunk


def _python_values(array: Any, family: str) -> list[Any]:
    if family in ("date", "timestamp", "time", "duration"):
        unit = _unit(array.type)
        number: Any = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return [None if each is None else each * unit for each in array.cast(number).to_pylist()]
    if family == "uuid":
        return array.storage.to_pylist()
    values = array.to_pylist()
    return (
        [None if each is None else float(each) for each in values] if family == "float" else values
    )


@cache
def to_datetime(nanoseconds: int) -> datetime:
    """Return a point in time without a time zone; what is below microseconds is cut off."""
    seconds, rest = divmod(nanoseconds, SECOND)
    stamp = np.datetime64(seconds, "s").astype(datetime)
    return stamp.replace(microsecond=rest // 1000)
