"""Spark types in the metadata of Arrow columns, for those that Arrow lacks.

Arrow has no strings with collations, no times of six digits and no intervals of hours alone. The
metadata of such a column has the type of Spark, in the JSON form of Spark, under `TYPE_KEY`. It may
come from anyone, so a reader uses it only if the Arrow type could have been written for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as st

from .spark_versions import GeographyType, GeometryType, TimeType

TYPE_KEY: Final = b"splitarrow:spark_type"
"""The key in the metadata of a column for the type that it has in Spark."""
_MAX_BYTES = 1 << 20
_COLLATION = re.compile(r"[A-Za-z]{2,16}[0-9]?(_[A-Za-z]{2,8}){0,6}")


def mark_type(field: pa.Field[Any], data_type: st.DataType, read: st.DataType) -> pa.Field[Any]:
    """Return a column with its Spark type in its metadata, unless readers find the same type."""
    if data_type == read:
        return field
    metadata: Any = field.metadata or {}
    return field.with_metadata({**metadata, TYPE_KEY: data_type.json().encode()})


def restore_type(field: pa.Field[Any], read: st.DataType) -> st.DataType:
    """Return the type in the metadata of a column; `read` if it has none that fits.

    `read` is the type that the Arrow type has in Spark.
    """
    text = (field.metadata or {}).get(TYPE_KEY)
    stored = None if text is None else _parse(text)
    return nullable_type(stored) if stored is not None and _fits(stored, read) else read


def nullable_type(data_type: st.DataType) -> st.DataType:
    """Return a Spark type in which every nested field is nullable."""
    match data_type:
        case st.UserDefinedType():
            return nullable_type(data_type.sqlType())
        case st.StructType():
            return st.StructType(
                [st.StructField(field.name, nullable_type(field.dataType)) for field in data_type]
            )
        case st.ArrayType():
            return st.ArrayType(nullable_type(data_type.elementType))
        case st.MapType():
            return st.MapType(nullable_type(data_type.keyType), nullable_type(data_type.valueType))
        case _:
            return data_type


def _parse(text: bytes) -> st.DataType | None:
    if len(text) > _MAX_BYTES:
        return None
    try:
        node = json.loads(text)
        if not _is_plain(node):
            return None
        column = {"name": "c", "type": node, "nullable": True, "metadata": {}}
        return st.StructType.fromJson({"type": "struct", "fields": [column]})[0].dataType
    except Exception:  # PySpark checks little of what it parses
        return None


def _is_plain(node: Any) -> bool:
    """Return whether a type has no user-defined types: to parse one would import its class."""
    match node:
        case {"type": "array", "elementType": element}:
            return _is_plain(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return _is_plain(key) and _is_plain(value)
        case {"type": "struct", "fields": [*fields]}:
            return all(_is_plain(field["type"]) for field in fields)
        case _:
            return isinstance(node, str)


def _fits(stored: st.DataType, read: st.DataType) -> bool:
    """Return whether values of a type are stored as those of another type."""
    match stored, read:
        case st.StructType(), st.StructType():
            return stored.names == read.names and all(
                _fits(one.dataType, other.dataType) for one, other in zip(stored, read, strict=True)
            )
        case st.ArrayType(), st.ArrayType():
            return _fits(stored.elementType, read.elementType)
        case st.MapType(), st.MapType():
            return _fits(stored.keyType, read.keyType) and _fits(stored.valueType, read.valueType)
        case _:
            return stored == read or any(
                isinstance(stored, one) and isinstance(read, other) and check(stored)
                for one, other, check in _FITTING
            )


def _has_known_collation(data_type: Any) -> bool:
    return _COLLATION.fullmatch(data_type.collation) is not None


_FITTING: tuple[tuple[Any, Any, Callable[[Any], bool]], ...] = (
    (st.StringType, st.StringType, _has_known_collation),
    (st.YearMonthIntervalType, st.IntegerType, lambda _: True),
    (st.DayTimeIntervalType, st.DayTimeIntervalType, lambda _: True),
    (TimeType, TimeType, lambda each: 0 <= each.precision <= 9),
    (GeometryType, st.BinaryType, lambda each: each.srid >= 0),
    (GeographyType, st.BinaryType, lambda each: each.srid >= 0),
)
"""A type, the one that its values are stored as, and a condition on the first."""
