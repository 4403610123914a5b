"""The row groups of a Parquet file that a filter may select, by their statistics.

Statistics are used if they bound the values that readers get. They leave out NaN, and those of a
shredded field of a Variant say nothing of values that have another type.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from ....filters.literals import find_unit, kind_of
from ....filters.ranges import UNKNOWN, Range
from ....filters.tree import DAY, NANOSECONDS, make_decimal
from ....formats.nested_fields import NestedField, StructField
from ....formats.parquet.columns import Columns
from ....formats.parquet.geo.boxes import Box
from ....formats.parquet.geo.crs import is_geospatial
from ..selection import Selection

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def select_row_groups(
    parquet: Any,
    columns: Columns,
    selection: Selection,
    schema: pa.Schema,
    fields: Mapping[str, NestedField],
) -> list[int]:
    """Return the row groups to read.

    `schema` has the columns of the file and then `fields`, whose paths are those in the file.
    """
    groups = selection.batches.select(range(parquet.num_row_groups))
    if selection.filter is None:
        return list(groups)
    leaves = _find_leaves(parquet.schema, columns, schema, fields)

    def find_ranges(group: int) -> Callable[[int], Range]:
        row_group = parquet.metadata.row_group(group)

        def find_range(index: int) -> Range:
            if index not in leaves:
                return UNKNOWN
            leaf, hidden = leaves[index]
            if hidden is not None and not _is_always_null(row_group.column(hidden)):
                return UNKNOWN
            field = schema.field(index)
            if is_geospatial(field):
                return _read_box(row_group.column(leaf))
            found = read_range(row_group.column(leaf), parquet.schema.column(leaf), field.type)
            is_variant = index >= len(columns.schema) and hidden is not None
            return replace(found, nulls=True, values=True) if is_variant else found

        return find_range

    return selection.filter.prune(groups, find_ranges)


def _find_leaves(
    stored: Any, columns: Columns, schema: pa.Schema, fields: Mapping[str, NestedField]
) -> dict[int, tuple[int, int | None]]:
    """Return the chunks with the statistics of columns and fields, by their indices in a schema.

    The second index of a field of a Variant is that of the chunk with values of other types.
    """
    paths: dict[str, list[int]] = {}
    for leaf in range(len(stored)):
        paths.setdefault(stored.column(leaf).path, []).append(leaf)
    leaves: dict[int, tuple[int, int | None]] = {}
    for index, field in enumerate(schema):
        hidden = None
        if index < len(columns.schema):
            if index in columns.without_order and not is_geospatial(field):
                continue
            found = [columns.leaves[index]]
        elif isinstance(nested := fields[field.name], StructField):
            if columns.schema.get_field_index(nested.column) in columns.without_order:
                continue
            found = paths.get(nested.path, [])
        else:
            found = paths.get(f"{nested.path}.typed_value", [])
            values = paths.get(f"{nested.path}.value", [])
            hidden = values[0] if values else None
            if len(values) > 1 or not nested.path:
                continue
        if len(found) == 1 and found[0] not in columns.malformed_statistics:
            leaves[index] = (found[0], hidden)
    return leaves


def read_range(chunk: Any, column: Any, data_type: Any) -> Range:
    """Return the range of the values in a column chunk, in the type that readers get.

    `chunk` is a ``pyarrow.parquet.ColumnChunkMetaData``, and `column` its
    ``pyarrow.parquet.ColumnSchema``.
    """
    kind = kind_of(data_type)
    if kind in ("nested", "interval", "null") or column.max_repetition_level:
        return UNKNOWN
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN
    nulls = values = True
    if statistics.has_null_count:
        nulls = statistics.null_count > 0
        values = statistics.null_count < chunk.num_values
    low = high = None
    if statistics.has_min_max:
        low = _read_bound(statistics.min_raw, column, data_type, kind, is_minimum=True)
        high = _read_bound(statistics.max_raw, column, data_type, kind, is_minimum=False)
    return Range(low, high, nulls=nulls, values=values, nan=kind == "float")


def _read_box(chunk: Any) -> Range:
    """Return the bounding box of the values in a column chunk."""
    found = chunk.geo_statistics
    if found is None or None in (found.xmin, found.ymin, found.xmax, found.ymax):
        return UNKNOWN
    return Range(box=Box(found.xmin, found.ymin, found.xmax, found.ymax))


def _read_bound(raw: Any, column: Any, data_type: Any, kind: str, *, is_minimum: bool) -> Any:
    """Return a minimum or maximum as `Range` has it; None if it is unknown."""
    data_type = _plain(data_type)
    match kind, raw:
        case "boolean", bool():
            return raw
        case "integer", int():
            is_unsigned = at.is_unsigned_integer(data_type)
            width = 32 if column.physical_type == "INT32" else 64
            return raw + (1 << width) if is_unsigned and raw < 0 else raw
        case "float", float():
            return None if raw != raw else raw
        case "float", bytes() if len(raw) == 2:
            (value,) = struct.unpack("<e", raw)
            return None if value != value else value
        case "decimal", int() | bytes():
            number = raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
            return make_decimal(number, column.scale)
        case "text", bytes():
            return _decode_text(raw)
        case "binary" | "UUID", bytes():
            return raw
        case "date" | "timestamp" | "time" | "duration", int():
            unit = find_unit(data_type)
            nanoseconds = raw * (DAY if kind == "date" else _find_stored_unit(column, data_type))
            return nanoseconds // unit if is_minimum else -(-nanoseconds // unit)
        case _:
            return None


def _decode_text(raw: bytes) -> str | None:
    """Return a text; None if a writer has cut it inside of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _plain(data_type: Any) -> Any:
    while isinstance(data_type, (pa.DictionaryType, pa.RunEndEncodedType)):
        data_type = data_type.value_type
    return data_type


def _find_stored_unit(column: Any, data_type: Any) -> int:
    """Return the nanoseconds of a unit in a file. Durations have no logical type."""
    name: str = json.loads(column.logical_type.to_json()).get("timeUnit", "")
    return NANOSECONDS[_UNITS[name]] if name in _UNITS else find_unit(data_type)


def _is_always_null(chunk: Any) -> bool:
    """Return whether all encoded values are missing, or are the Variant null."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return False
    if statistics.null_count == chunk.num_values:
        return True
    return bool(statistics.has_min_max and statistics.min == statistics.max == b"\0")
