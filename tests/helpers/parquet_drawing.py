"""Drawn columns of every logical type, one file each, to compare readers of Parquet."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from datetime import date
from typing import Any
from uuid import UUID

import pyarrow as pa

from .parquet_files import Edit, edit_schema, write_parquet
from .parquet_types import list_columns
from .wkb import write_wkb

_ROWS = 40
_DAY_UNITS = {"MILLIS": 86_400 * 10**3, "MICROS": 86_400 * 10**6, "NANOS": 86_400 * 10**9}
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DIGITS = {"DECIMAL(9,": 9, "DECIMAL(38": 38, "DECIMAL(60": 60, "DECIMAL(90": 90}


def list_files(seed: int = 15) -> dict[str, bytes]:
    """Return a file for each row of the table in docs/guide/parquet.md, with a column c."""
    columns = draw_columns(seed)
    return {name: write_columns({"c": column}) for name, column in columns.items()}


def draw_columns(seed: int = 15) -> dict[str, tuple[Any, Edit]]:
    """Return values, as they are stored, and the annotation of each type."""
    rng = random.Random(seed)
    drawn: dict[str, tuple[Any, Edit]] = {}
    for name, (array, edit) in list_columns().items():
        values = [
            None if name == "UNKNOWN" or rng.random() < 0.2 else _draw(rng, name, array.type)
            for _ in range(_ROWS)
        ]
        drawn[name] = pa.array(values, array.type), edit
    return drawn


def write_columns(columns: Mapping[str, tuple[Any, Edit]]) -> bytes:
    """Return a file of some columns."""
    table = pa.table({name: array for name, (array, _) in columns.items()})
    file = write_parquet(table, write_statistics=False, use_dictionary=False)
    return edit_schema(file, {name: edit for name, (_, edit) in columns.items()})


def _draw(rng: random.Random, name: str, data_type: Any) -> Any:
    """Return a value of a column as it is stored."""
    kind = name.partition("(")[0]
    unit = name.partition("(")[2].partition(",")[0]
    if kind in ("TIME", "TIMESTAMP"):
        days = rng.randrange(-50_000, 50_000) if kind == "TIMESTAMP" else 0
        return days * _DAY_UNITS[unit] + rng.randrange(_DAY_UNITS[unit])
    if kind == "DECIMAL":
        return _draw_decimal(rng, name, data_type)
    if kind == "DATE":
        return date.fromordinal(rng.randrange(600_000, 900_000))
    if kind == "INT96":
        microseconds, day = rng.randrange(86_400 * 10**6), rng.randrange(2_000_000, 3_000_000)
        return struct.pack("<qi", microseconds * 1000, day)
    if kind == "INTERVAL":
        return struct.pack("<3I", *(rng.randrange(1 << 16) for _ in range(3)))
    if kind in ("GEOMETRY", "GEOGRAPHY"):
        return write_wkb(1, (rng.uniform(-180, 180), rng.uniform(-90, 90)))
    if kind == "JSON":
        return f'{{"a":{rng.randrange(100)}}}'
    if pa.types.is_floating(data_type):
        return rng.choice((0.0, 1.5, -2.25, 1024.0, float("inf")))
    if pa.types.is_boolean(data_type):
        return rng.random() < 0.5
    if pa.types.is_integer(data_type):
        bits = data_type.bit_width
        signed = pa.types.is_signed_integer(data_type)
        return rng.getrandbits(bits) - (1 << (bits - 1) if signed else 0)
    if pa.types.is_string(data_type) or kind == "ENUM":
        text = rng.choice(("", "é", "a word", "x" * 50))
        return text if pa.types.is_string(data_type) else text.encode()
    if kind == "BSON":
        return b"\x05\0\0\0\0"
    if isinstance(data_type, pa.BaseExtensionType):
        data_type = data_type.storage_type
    is_fixed = pa.types.is_fixed_size_binary(data_type)
    return rng.randbytes(data_type.byte_width if is_fixed else rng.randrange(9))


def _draw_decimal(rng: random.Random, name: str, data_type: Any) -> Any:
    """Return an unscaled value: an integer, bytes of fixed length, or the fewest bytes."""
    digits = next((count for prefix, count in _DIGITS.items() if name.startswith(prefix)), 18)
    value = rng.randrange(-(10 ** rng.randint(1, digits)) + 1, 10 ** rng.randint(1, digits))
    if pa.types.is_integer(data_type):
        return value
    if pa.types.is_fixed_size_binary(data_type):
        return value.to_bytes(data_type.byte_width, signed=True)
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, signed=True)


def plain_values(array: Any) -> list[Any]:
    """Return values that do not depend on the types of a reader, but on what they mean."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.cast(array.type.storage_type)
    data_type: Any = array.type
    unit = getattr(data_type, "unit", None)
    if unit is not None:
        number: Any = pa.int32() if data_type.bit_width == 32 else pa.int64()
        factor = _NANOSECONDS[unit]
        return [None if n is None else n * factor for n in array.cast(number).to_pylist()]
    return [value.bytes if isinstance(value, UUID) else value for value in array.to_pylist()]
