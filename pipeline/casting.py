"""Exact casts of record batches to the types that Spark expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from ..errors import InvalidDataError

_compute: Any = pc  # the stubs lack some functions
CASTING_ERRORS = (pa.ArrowException, ValueError, TypeError, NotImplementedError, OverflowError)
"""The exceptions of pyarrow for a cast that is impossible or would change a value."""


class Caster:
    """Casts record batches to the columns of another schema, by name, without changing a value.

    Raises `InvalidDataError` if the batches do not have exactly one column of each name.

    Examples
    --------
    >>> batch = pa.record_batch({"n": pa.array([200], pa.uint8())})
    >>> Caster(batch.schema, pa.schema({"n": pa.int16()})).cast(batch).schema.field("n").type
    DataType(int16)
    """

    def __init__(self, source: pa.Schema, target: pa.Schema) -> None:
        self._target = target
        self._columns: list[tuple[int, bool, Any]] = []
        for field in target:
            indices = source.get_all_field_indices(field.name)
            if len(indices) != 1:
                problem = "is duplicate" if indices else "is missing"
                raise InvalidDataError(f"column {field.name!r} {problem}")
            is_same_type = source.field(indices[0]).type.equals(field.type)
            self._columns.append((indices[0], is_same_type, field))

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the target schema. Columns that need no cast share their memory.

        Raises `InvalidDataError` if a value does not fit the type of its column.
        """
        columns: list[Any] = []
        for index, is_same_type, field in self._columns:
            column = batch.column(index)
            columns.append(column if is_same_type else _cast_column(column, field))
        if not columns:
            rows: Any = pa.array([{}] * batch.num_rows, pa.struct([]))
            return pa.RecordBatch.from_struct_array(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def _cast_column(column: Any, field: Any) -> Any:
    try:
        return cast_array(column, field.type)
    except CASTING_ERRORS as error:
        cause = str(error).partition("\n")[0]
        raise InvalidDataError(
            f"column {field.name!r}: cannot cast {column.type} to {field.type} exactly: {cause}"
        ) from None


def cast_array(array: Any, target: Any) -> Any:
    """Return an array of another type with the same values.

    Raises one of `CASTING_ERRORS` if the types are incompatible or a value does not fit.
    """
    source = array.type
    if source.equals(target):
        return array
    if isinstance(source, pa.BaseExtensionType):
        return cast_array(_extension_storage(array), target)
    if at.is_dictionary(source):
        return _cast_dictionary(array, target)
    if at.is_run_end_encoded(source):
        return cast_array(_compute.run_end_decode(array), target)
    if at.is_binary(target) and _is_geospatial(source):
        return _take_wkb(array)
    cast_nested = _NESTED_CASTS.get(target.id)
    return array.cast(target) if cast_nested is None else cast_nested(array, target)


def _cast_dictionary(array: Any, target: Any) -> Any:
    try:
        return cast_array(array.dictionary_decode(), target)
    except pa.ArrowNotImplementedError:  # pyarrow cannot decode dictionaries of views
        return cast_array(array.dictionary, target).take(array.indices)


def _is_geospatial(source: Any) -> bool:
    """Return whether a type is the struct in which Spark exports geometries."""
    return at.is_struct(source) and [field.name for field in source] == ["srid", "wkb"]


def _take_wkb(array: Any) -> Any:
    wkb = array.field("wkb")
    return pc.if_else(array.is_valid(), wkb, pa.scalar(None, wkb.type)) if array.null_count else wkb


def _extension_storage(array: Any) -> Any:
    if array.type.extension_name == "arrow.bool8":
        return pc.not_equal(array.storage, pa.scalar(0, pa.int8()))
    return array.storage


def _cast_list(array: Any, target: Any) -> Any:
    if at.is_list(array.type):
        return _with_child(array, target, cast_array(array.values, target.value_type))
    if not hasattr(array, "flatten"):
        return array.cast(target)
    # Arrow's own cast computes wrong offsets for list views.
    lengths = _compute.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends: Any = pc.cumulative_sum(lengths)
    offsets: Any = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    values = cast_array(array.flatten(), target.value_type)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=mask)


def _cast_map(array: Any, target: Any) -> Any:
    if not at.is_map(array.type):
        return array.cast(target)
    entries = pa.StructArray.from_arrays(
        [cast_array(array.keys, target.key_type), cast_array(array.items, target.item_type)],
        fields=[target.key_field, target.item_field],
    )
    return _with_child(array, target, entries)


def _with_child(array: Any, target: Any, child: Any) -> Any:
    """Return a list or map array with the validity and offsets of another, and new values."""
    return pa.Array.from_buffers(
        target,
        len(array),
        array.buffers()[:2],
        array.null_count,
        array.offset,
        children=[child],
    )


def _cast_struct(array: Any, target: Any) -> Any:
    if not at.is_struct(array.type):
        return array.cast(target)
    fields = [target.field(index) for index in range(target.num_fields)]
    if not fields:
        return array.cast(target)
    children = [cast_array(array.field(field.name), field.type) for field in fields]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


_NESTED_CASTS: dict[int, Callable[[Any, Any], Any]] = {
    pa.list_(pa.null()).id: _cast_list,
    pa.map_(pa.string(), pa.null()).id: _cast_map,
    pa.struct([]).id: _cast_struct,
}
