"""Record batches made to have exactly the types that Spark expects, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from ..errors import InvalidDataError

_compute: Any = pc  # the stubs lack some functions
CASTING_ERRORS = (pa.ArrowException, ValueError, TypeError, NotImplementedError, OverflowError)
"""What pyarrow raises for values and types that do not fit each other."""


class Caster:
    """Casts record batches to a schema. No value changes: what does not fit raises.

    Parameters
    ----------
    source : pyarrow.Schema
        What the batches have.
    target : pyarrow.Schema
        What they are to have: columns of the same names, in any order; others are left out.

    Raises
    ------
    InvalidDataError
        If a column is missing, or is there twice.

    Examples
    --------
    >>> small = pa.record_batch({"n": pa.array([200], pa.uint8())})
    >>> Caster(small.schema, pa.schema({"n": pa.int16()})).cast(small).schema.field("n").type
    DataType(int16)
    """

    def __init__(self, source: pa.Schema, target: pa.Schema) -> None:
        self._target = target
        self._places: list[int] = []
        for name in target.names:
            places = source.get_all_field_indices(name)
            if len(places) != 1:
                what = "missing" if not places else "there more than once"
                raise InvalidDataError(f"column {name!r} is {what}")
            self._places.append(places[0])
        pairs = zip(self._places, target, strict=True)
        self._same = [source.field(place).type.equals(field.type) for place, field in pairs]

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the target's schema; columns that fit share their memory.

        Raises
        ------
        InvalidDataError
            If a value does not fit; its column is named.
        """
        columns: list[Any] = []
        for place, same, field in zip(self._places, self._same, self._target, strict=True):
            column = batch.column(place)
            columns.append(column if same else _named(column, field))
        if not columns:
            rows: Any = pa.array([{}] * batch.num_rows, pa.struct([]))
            return pa.RecordBatch.from_struct_array(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def _named(column: Any, field: Any) -> Any:
    try:
        return cast_array(column, field.type)
    except CASTING_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise InvalidDataError(
            f"column {field.name!r}: {column.type} does not become {field.type} exactly: {reason}"
        ) from None


def cast_array(array: Any, target: Any) -> Any:
    """Return an array with another type and the same values; raise what pyarrow raises."""
    found = array.type
    if found.equals(target):
        return array
    if isinstance(found, pa.BaseExtensionType):
        return cast_array(_storage(array), target)
    if at.is_dictionary(found):
        return cast_array(array.dictionary_decode(), target)
    if at.is_run_end_encoded(found):
        return cast_array(_compute.run_end_decode(array), target)
    nested = _NESTED.get(target.id)
    return array.cast(target) if nested is None else nested(array, target)


def _storage(array: Any) -> Any:
    if array.type.extension_name == "arrow.bool8":
        return pc.not_equal(array.storage, pa.scalar(0, pa.int8()))
    return array.storage


def _list(array: Any, target: Any) -> Any:
    if at.is_list(array.type):
        return _rebuilt(array, target, cast_array(array.values, target.value_type))
    if not hasattr(array, "flatten"):
        return array.cast(target)
    # Arrow's own cast gives wrong offsets for list views.
    lengths = _compute.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    ends: Any = pc.cumulative_sum(lengths)
    offsets: Any = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    values = cast_array(array.flatten(), target.value_type)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=target, mask=mask)


def _map(array: Any, target: Any) -> Any:
    if not at.is_map(array.type):
        return array.cast(target)
    entries = pa.StructArray.from_arrays(
        [cast_array(array.keys, target.key_type), cast_array(array.items, target.item_type)],
        fields=[target.key_field, target.item_field],
    )
    return _rebuilt(array, target, entries)


def _rebuilt(array: Any, target: Any, children: Any) -> Any:
    return pa.Array.from_buffers(
        target,
        len(array),
        array.buffers()[:2],
        array.null_count,
        array.offset,
        children=[children],
    )


def _struct(array: Any, target: Any) -> Any:
    if not at.is_struct(array.type):
        return array.cast(target)
    fields = [target.field(index) for index in range(target.num_fields)]
    if not fields:
        return array.cast(target)
    children = [cast_array(array.field(field.name), field.type) for field in fields]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


_NESTED: dict[int, Callable[[Any, Any], Any]] = {
    pa.list_(pa.null()).id: _list,
    pa.map_(pa.string(), pa.null()).id: _map,
    pa.struct([]).id: _struct,
}
