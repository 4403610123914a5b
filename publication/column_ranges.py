"""The ranges of columns, as manifests carry them.

A range is the exact minimum and maximum of a column, or unknown, so a reader may skip a shard whose
range excludes its filter. Ranges are known for integers, floats, text, dates, timestamps and
decimals, and for dictionaries of these. A column with a NaN has an unknown range, because NaN has
no order. A geospatial column has a bounding box instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..filters.ranges import UNKNOWN, Range, to_bound
from ..formats.arrow.supported_types import SupportedTypes
from ..formats.parquet.geo.boxes import Box, BoxTracker
from ..formats.parquet.geo.conditions import find_edges
from ..formats.parquet.geo.crs import is_geospatial
from ..formats.parquet.variant.arrow_fields import list_described_fields
from ..formats.parquet.variant_columns import find_field
from .manifest import (
    MAX_BOUND_CHARACTERS,
    MAX_EXACT_INTEGER,
    ColumnRange,
    RangeValue,
)


class RangeTracker:
    """Computes the ranges of the columns of a shard, one batch at a time.

    Columns whose name is not unique get no range. The typed fields of Variants that the schema
    describes get ranges, too.

    Examples
    --------
    >>> tracker = RangeTracker(pa.schema([("delay", pa.int64())]))
    >>> tracker.add(pa.record_batch({"delay": [60, None, 75]}))
    >>> tracker.ranges()
    {'delay': ColumnRange(minimum=60, maximum=75, nulls=1, box=None)}
    """

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        self._schema = schema
        self._types = SupportedTypes(schema)
        self._columns = [index for index, name in enumerate(names) if names.count(name) == 1]
        self._nulls = dict.fromkeys(self._columns, 0)
        # Minimum and maximum so far, empty before the first value. A column whose range is
        # unknown has no entry.
        self._bounds: dict[int, list[pa.Scalar[Any]]] = {
            index: [] for index in self._columns if has_range(schema.field(index).type)
        }
        self._fields = [
            each
            for each in list_described_fields(schema).values()
            if each.data_type is not None and has_range(each.data_type)
        ]
        self._field_ranges: RangeTracker | None = None
        if self._fields:
            self._field_ranges = RangeTracker(pa.schema([each.field for each in self._fields]))
        self._boxes = {
            index: BoxTracker(find_edges(schema.field(index)))
            for index in self._columns
            if is_geospatial(schema.field(index))
        }

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the values of a batch to the ranges.

        Raises `InvalidDataError` if a value of a geospatial column is not valid WKB, or a Variant
        is invalid.
        """
        batch = self._types.convert(batch)
        if self._field_ranges is not None:
            arrays = [find_field(batch.column(each.column), each) for each in self._fields]
            self._field_ranges.add(pa.record_batch(arrays, [each.name for each in self._fields]))
        for index in self._columns:
            column: Any = batch.column(index)
            if isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
                column = column.dictionary_decode()
            self._nulls[index] += column.null_count
            if index in self._boxes:
                self._boxes[index].add(
                    column.storage if isinstance(column, pa.ExtensionArray) else column
                )
            bounds = self._bounds.get(index)
            if bounds is None or column.null_count == len(column):
                continue
            found = _find_bounds(column)
            if found is None:
                del self._bounds[index]
            else:
                self._bounds[index] = _compute_bounds(pa.array([*bounds, *found], found[0].type))

    def ranges(self) -> dict[str, ColumnRange]:
        """Return the range of each column, and of each typed field of a Variant, by its name."""
        own = {self._schema.field(index).name: self._make_range(index) for index in self._columns}
        return own if self._field_ranges is None else own | self._field_ranges.ranges()

    def _make_range(self, index: int) -> ColumnRange:
        bounds = self._bounds.get(index)
        if not bounds:
            return ColumnRange(None, None, self._nulls[index], self._find_box(index))
        minimum, maximum = map(encode_bound, bounds)
        return ColumnRange(minimum, maximum, self._nulls[index])

    def _find_box(self, index: int) -> tuple[float, float, float, float] | None:
        tracker = self._boxes.get(index)
        box = None if tracker is None else tracker.box
        if box is None or not box.is_valid(geographic=False):
            return None
        return box.xmin, box.ymin, box.xmax, box.ymax


def has_range(data_type: pa.DataType) -> bool:
    """Return whether manifests carry ranges of columns of this type."""
    data_type = _get_value_type(data_type)
    return (
        pa.types.is_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_decimal128(data_type)
        or pa.types.is_decimal256(data_type)
    )


def encode_bound(value: pa.Scalar[Any]) -> RangeValue:
    """Return a minimum or maximum as a manifest carries it; None if it cannot.

    Timestamps are written in UTC, without a time zone.
    """
    data_type = value.type
    if pa.types.is_integer(data_type):
        integer: int = value.as_py()
        return integer if abs(integer) <= MAX_EXACT_INTEGER else str(integer)
    if pa.types.is_floating(data_type):
        number: float = value.as_py()
        return number if math.isfinite(number) else None
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        text: str = value.as_py()
        return text if len(text) <= MAX_BOUND_CHARACTERS else None
    try:
        plain: Any = value.cast(_drop_time_zone(data_type))
        text = plain.cast(pa.string()).as_py()
        parsed: Any = pa.scalar(text).cast(plain.type)
    except pa.ArrowException:
        return None
    return text if parsed.equals(plain) and len(text) <= MAX_BOUND_CHARACTERS else None


def decode_bound(value: RangeValue, data_type: pa.DataType) -> pa.Scalar[Any] | None:
    """Return a minimum or maximum from a manifest as a scalar of the column's type.

    Return None if the value is unknown or is not a value of this type.
    """
    data_type = _get_value_type(data_type)
    if value is None or not has_range(data_type):
        return None
    try:
        if pa.types.is_integer(data_type):
            return None if isinstance(value, float) else pa.scalar(int(value), data_type)
        if pa.types.is_floating(data_type):
            return None if isinstance(value, str) else pa.scalar(float(value), data_type)
        if not isinstance(value, str):
            return None
        plain: Any = pa.scalar(value).cast(_drop_time_zone(data_type))
        return plain.cast(data_type)
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _get_value_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if isinstance(data_type, pa.DictionaryType) else data_type


def _drop_time_zone(data_type: pa.DataType) -> pa.DataType:
    # A time zone changes how a timestamp is displayed, but not its value.
    return pa.timestamp(data_type.unit) if isinstance(data_type, pa.TimestampType) else data_type


def _find_bounds(column: Any) -> list[pa.Scalar[Any]] | None:
    """Return the minimum and maximum of a column; None if a value has no order."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary.take(pc.drop_null(pc.unique(column.indices)))
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    return _compute_bounds(column)


def _compute_bounds(values: Any) -> list[pa.Scalar[Any]]:
    bounds: Any = pc.min_max(values)
    return [bounds["min"], bounds["max"]]


def find_range(columns: Mapping[str, ColumnRange], field: pa.Field[Any]) -> Range:
    """Return what the ranges of a shard state of a column, or of a field of a Variant."""
    column = columns.get(field.name)
    if column is None:
        return UNKNOWN
    if column.box is not None:
        return Range(box=Box(*column.box))
    minimum, maximum = (decode_bound(each, field.type) for each in (column.minimum, column.maximum))
    if minimum is None or maximum is None:
        return UNKNOWN
    # A column with a NaN has no range. One with a range has a value.
    bounds = to_bound(minimum), to_bound(maximum)
    return Range(*bounds, nulls=column.nulls > 0, nan=False)
