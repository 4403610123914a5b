"""The smallest and largest values of columns, as manifests carry them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .manifest import EXACT, MOST_TEXT, ColumnRange, RangeValue


class RangeTracker:
    """Finds the ranges of columns over the batches of a shard, fed one by one.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches. Columns whose name occurs twice are left out.

    Examples
    --------
    >>> tracker = RangeTracker(pa.schema([("delay", pa.int64())]))
    >>> tracker.add(pa.record_batch({"delay": [60, None, 75]}))
    >>> tracker.ranges()
    {'delay': ColumnRange(minimum=60, maximum=75, nulls=1)}
    """

    def __init__(self, schema: pa.Schema) -> None:
        names = schema.names
        self._places = [place for place, name in enumerate(names) if names.count(name) == 1]
        self._schema = schema
        self._nulls = dict.fromkeys(self._places, 0)
        self._seen: dict[int, list[pa.Scalar[Any]]] = {
            place: [] for place in self._places if is_ordered(schema.field(place).type)
        }

    def add(self, batch: pa.RecordBatch) -> None:
        """Take another batch into account."""
        for place in self._places:
            column: Any = batch.column(place)
            if isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
                column = column.dictionary_decode()
            self._nulls[place] += column.null_count
            known = self._seen.get(place)
            if known is None or column.null_count == len(column):
                continue
            found = _extremes(column)
            if found is None:
                del self._seen[place]
            else:
                self._seen[place] = _min_max(pa.array([*known, *found], found[0].type))

    def ranges(self) -> dict[str, ColumnRange]:
        """Return what is known of each column, by its name."""
        found: dict[str, ColumnRange] = {}
        for place in self._places:
            bounds: tuple[RangeValue, RangeValue] = (None, None)
            seen = self._seen.get(place)
            if seen:
                bounds = (range_value(seen[0]), range_value(seen[1]))
            found[self._schema.field(place).name] = ColumnRange(*bounds, self._nulls[place])
        return found


def column_ranges(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> dict[str, ColumnRange]:
    """Return the ranges of the columns of some batches; see `RangeTracker`."""
    tracker = RangeTracker(schema)
    for batch in batches:
        tracker.add(batch)
    return tracker.ranges()


def is_ordered(data_type: pa.DataType) -> bool:
    """Tell whether columns of a type, or of dictionaries of it, have ranges in manifests."""
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.value_type
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


def range_value(value: pa.Scalar[Any]) -> RangeValue:
    """Return a value as a manifest carries it; None if it cannot.

    Timestamps are written in UTC, without saying so.
    """
    data_type = value.type
    if pa.types.is_integer(data_type):
        whole: int = value.as_py()
        return whole if abs(whole) < EXACT else str(whole)
    if pa.types.is_floating(data_type):
        number: float = value.as_py()
        return number if math.isfinite(number) else None
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        text: str = value.as_py()
        return text if len(text) <= MOST_TEXT else None
    try:
        plain: Any = value.cast(_plain(data_type))
        text = plain.cast(pa.string()).as_py()
        again: Any = pa.scalar(text).cast(plain.type)
    except pa.ArrowException:
        return None
    return text if again.equals(plain) and len(text) <= MOST_TEXT else None


def range_scalar(value: RangeValue, data_type: pa.DataType) -> pa.Scalar[Any] | None:
    """Return what a manifest says of a column of a type; None if that is no value of it.

    Parameters
    ----------
    value : int, float, str or None
        As `range_value` writes it.
    data_type : pyarrow.DataType
        The column's.
    """
    if isinstance(data_type, pa.DictionaryType):
        data_type = data_type.value_type
    if value is None or not is_ordered(data_type):
        return None
    try:
        if pa.types.is_integer(data_type):
            return None if isinstance(value, float) else pa.scalar(int(value), data_type)
        if pa.types.is_floating(data_type):
            return None if isinstance(value, str) else pa.scalar(float(value), data_type)
        if not isinstance(value, str):
            return None
        plain: Any = pa.scalar(value).cast(_plain(data_type))
        return plain.cast(data_type)
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Return the type as which a value is written: a time zone says nothing about the value."""
    return pa.timestamp(data_type.unit) if isinstance(data_type, pa.TimestampType) else data_type


def _extremes(column: Any) -> list[pa.Scalar[Any]] | None:
    """Return the smallest and the largest value; None if there are values without an order."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary.take(pc.drop_null(pc.unique(column.indices)))
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    return _min_max(column)


def _min_max(values: Any) -> list[pa.Scalar[Any]]:
    found: Any = pc.min_max(values)
    return [found["min"], found["max"]]
