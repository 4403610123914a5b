"""Nested arrays with other children, which keep their shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .data_types import list_fields


class _Compute:
    """``pyarrow.compute``, imported when it is used: that takes long, and few streams need it."""

    def __getattr__(self, name: str) -> Any:
        from pyarrow import compute

        return getattr(compute, name)


pc: Any = _Compute()


def build_array(data_type: Any, length: int, buffers: list[Any], children: Any = None) -> Any:
    """Return an array of buffers and children, whose nulls are counted."""
    return pa.Array.from_buffers(data_type, length, buffers, children=children)


def copy_validity(array: Any) -> pa.Buffer | None:
    """Return the validity bitmap of an array from its first value on; None without nulls."""
    return array.is_valid().buffers()[1] if array.null_count else None


def map_children(array: Any, data_type: Any, call: Any, template: Any = None) -> Any:
    """Return an array of another type with the same shape, and converted children.

    `call` takes a child, its new type, and the same child of the template. Unions and run-end
    encoded arrays have no template.
    """
    types = pa.types
    if types.is_struct(data_type):
        children = [
            call(array.field(at), field.type, None if template is None else template.field(at))
            for at, field in enumerate(list_fields(data_type))
        ]
        return build_array(data_type, len(array), [copy_validity(array)], children)
    if types.is_map(data_type):
        return _map_entries(array, data_type, call, template)
    if types.is_union(data_type):
        return _map_union(array, data_type, call)
    if types.is_run_end_encoded(data_type):
        values = call(array.values, data_type.value_type, None)
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, values, data_type)
        return runs.slice(array.offset, len(array))
    inner_type = data_type.value_type
    inner = None if template is None else template.values
    if types.is_fixed_size_list(data_type):
        size = data_type.list_size
        values = _cut(array.values, array.offset * size, len(array) * size)
        return build_array(
            data_type, len(array), [copy_validity(array)], [call(values, inner_type, inner)]
        )
    if types.is_list_view(data_type) or types.is_large_list_view(data_type):
        buffers = [copy_validity(array), slice_values(array.offsets), slice_values(array.sizes)]
        return build_array(data_type, len(array), buffers, [call(array.values, inner_type, inner)])
    offsets, values = _slice_items(array, array.values)
    buffers = [copy_validity(array), slice_values(offsets)]
    return build_array(data_type, len(array), buffers, [call(values, inner_type, inner)])


def _map_entries(array: Any, data_type: Any, call: Any, template: Any) -> Any:
    offsets, keys = _slice_items(array, array.keys)
    _, items = _slice_items(array, array.items)
    if keys.null_count:
        raise InvalidDataError("a map has a key that is null")
    inner = (None, None) if template is None else (template.keys, template.items)
    children = [
        call(keys, data_type.key_type, inner[0]),
        call(items, data_type.item_type, inner[1]),
    ]
    pairs = pa.struct([data_type.key_field, data_type.item_field])
    entries = build_array(pairs, len(keys), [None], children)
    return build_array(
        data_type, len(array), [copy_validity(array), slice_values(offsets)], [entries]
    )


def _map_union(array: Any, data_type: Any, call: Any) -> Any:
    # The array's own properties for its codes and offsets ignore slicing.
    buffers = [None, slice_values(read_integers(array, 1, pa.int8()))]
    if data_type.mode == "dense":
        buffers.append(slice_values(read_integers(array, 2, pa.int32())))
    children = [
        call(array.field(at), field.type, None) for at, field in enumerate(list_fields(data_type))
    ]
    return build_array(data_type, len(array), buffers, children)


def _slice_items(array: Any, values: Any) -> tuple[Any, Any]:
    """Return the offsets of a list, counted from the first of its values, and its values."""
    offsets = array.offsets if len(array) else pa.array([0], array.offsets.type)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, offsets[0]), _cut(values, first, last - first)


def _cut(values: Any, first: int, count: int) -> Any:
    # vortex-data panics on an empty slice that does not begin at 0.
    return values.slice(first if count else 0, count)


def slice_values(array: Any) -> Any:
    """Return the values of a fixed-width array, limited to its slice."""
    data = array.buffers()[1]
    if data is None or not len(array):
        return pa.py_buffer(b"")
    width = array.type.bit_width // 8
    return data.slice(array.offset * width, len(array) * width)


def read_integers(array: Any, buffer: int, data_type: pa.DataType) -> Any:
    """Return a buffer of an array as an array of integers with the same slice."""
    if not len(array):
        return pa.array([], data_type)
    buffers = [None, array.buffers()[buffer]]
    return pa.Array.from_buffers(data_type, len(array), buffers, offset=array.offset)
