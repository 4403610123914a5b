"""Replacements for the types that pyarrow cannot convert, compute with, or show.

======================================== ==========================================================
type                                     replacement
======================================== ==========================================================
interval of months                       interval of months, days and nanoseconds: the same values
interval of days and milliseconds        the same
views in a dictionary, or in runs        ``large_string`` and ``large_binary``
======================================== ==========================================================

pyarrow has no class for arrays of the two intervals, so that even a column of them cannot be taken
out of a record batch. `hide_intervals` returns the same memory as integers, with which everything
works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from .data_types import list_child_types, list_fields, replace_fields
from .nested_arrays import build_array, copy_validity, map_children, slice_values

_VIEWS: dict[Any, pa.DataType] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}
_MONTHS, _DAYS_AND_MILLISECONDS = 21, 22
"""The values of ``pyarrow.DataType.id``."""
_INTERVALS: dict[int, pa.DataType] = {_MONTHS: pa.int32(), _DAYS_AND_MILLISECONDS: pa.int64()}
"""Integers of the width of each interval."""


def is_short_interval(data_type: Any) -> bool:
    """Return whether a type is an interval of months, or of days and milliseconds."""
    return data_type.id in _INTERVALS


def hide_intervals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with the same memory, and integers in place of the two intervals.

    An interval of days and milliseconds becomes an int64 with the milliseconds in its upper half.
    """
    schema = batch.schema
    hidden = hide_schema_intervals(schema)
    return batch if hidden is schema else set_types(batch, hidden)


def hide_schema_intervals(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `hide_intervals`; the same object if it has no interval."""
    if not any(_contains(field.type, is_short_interval) for field in schema):
        return schema
    return _replace_types(schema, lambda each, _: _INTERVALS.get(each.id, each))


def set_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the same memory and other types, whose arrays must have the same layout.

    This is the inverse of `hide_intervals`.
    """
    return pa.record_batch(_TypedBatch(batch, schema))


def make_empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows. pyarrow itself cannot make one of all types."""
    hidden = hide_schema_intervals(schema)
    columns: list[Any] = [pa.nulls(0, field.type) for field in hidden]
    batch = pa.RecordBatch.from_arrays(columns, schema=hidden)
    return batch if hidden is schema else set_types(batch, schema)


class _TypedBatch:
    """The memory of a batch under another schema, for the Arrow C data interface."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


class SupportedTypes:
    """Replaces the types of one schema by those that pyarrow supports."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = _replace_types(schema, _find_supported)
        """The schema with the replacements; the same object if there are none."""
        self._is_needed = self.schema is not schema

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the schema."""
        if not self._is_needed:
            return batch
        batch = hide_intervals(batch)
        for index, field in enumerate(self.schema):
            if not batch.schema.field(index).type.equals(field.type):
                column = _convert(batch.column(index), field.type, None)
                batch = batch.set_column(index, field, column)
        return batch


def convert_to_supported(table: pa.Table) -> pa.Table:
    """Return a table with the types that pyarrow supports."""
    schema = table.schema
    types = SupportedTypes(schema)
    if types.schema is schema:
        return table
    return pa.Table.from_batches(map(types.convert, table.to_batches()), types.schema)


def _find_supported(data_type: Any, is_encoded: bool) -> Any:
    if is_short_interval(data_type):
        return pa.month_day_nano_interval()
    return _VIEWS.get(data_type, data_type) if is_encoded else data_type


def _contains(data_type: Any, test: Callable[[Any], bool]) -> bool:
    return test(data_type) or any(_contains(each, test) for each in list_child_types(data_type))


def _replace_types(schema: Any, replace: Callable[[Any, bool], Any]) -> pa.Schema:
    """Return a schema with other types; the same object if they are equal.

    `replace` takes a type without children, and whether it is in a dictionary or in runs.
    """
    types = [_replace(field.type, replace, is_encoded=False) for field in schema]
    if types == schema.types:
        return schema
    fields = [field.with_type(data_type) for field, data_type in zip(schema, types, strict=True)]
    return pa.schema(fields, metadata=schema.metadata)


def _replace(data_type: Any, replace: Callable[[Any, bool], Any], *, is_encoded: bool) -> Any:
    children = list_child_types(data_type)
    if not children:
        return replace(data_type, is_encoded)
    is_dictionary = isinstance(data_type, pa.DictionaryType)
    is_encoded = is_encoded or is_dictionary or pa.types.is_run_end_encoded(data_type)
    replaced = [_replace(child, replace, is_encoded=is_encoded) for child in children]
    if all(one.equals(other) for one, other in zip(children, replaced, strict=True)):
        return data_type
    if isinstance(data_type, pa.BaseExtensionType):
        return replaced[0]
    if is_dictionary:
        return pa.dictionary(data_type.index_type, replaced[0], data_type.ordered)
    fields = zip(list_fields(data_type), replaced, strict=True)
    return replace_fields(data_type, [field.with_type(child) for field, child in fields])


def _convert(array: Any, data_type: Any, _template: Any) -> Any:
    """Return an array with another type, which replaces its own."""
    if array.type.equals(data_type):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _convert(array.storage, data_type, None)
    if isinstance(data_type, pa.DictionaryType):
        values = _convert(array.dictionary, data_type.value_type, None)
        return pa.DictionaryArray.from_arrays(
            array.indices, values, ordered=data_type.ordered, safe=False
        )
    if data_type == pa.month_day_nano_interval():
        return _convert_interval(array)
    if pa.types.is_nested(data_type):
        return map_children(array, data_type, _convert)
    return array.cast(data_type)


def _convert_interval(array: Any) -> Any:
    """Return hidden intervals as those of months, days and nanoseconds."""
    import numpy as np

    values: Any = np.zeros(len(array), "<i4, <i4, <i8")
    numbers = np.frombuffer(slice_values(array), "<i4")
    if array.type == pa.int32():
        values["f0"] = numbers
    else:
        values["f1"] = numbers[::2]
        values["f2"] = numbers[1::2].astype(np.int64) * 1_000_000
    buffers = [copy_validity(array), pa.py_buffer(values.tobytes())]
    return build_array(pa.month_day_nano_interval(), len(array), buffers)
