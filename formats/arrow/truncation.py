"""Truncation of sliced arrays that Arrow's writer would write in full.

For most sliced arrays, the writer writes only the slice. For string and binary views it writes all
data buffers, and for list views and dense unions it writes child values that the slice does not
refer to. Every slice would then be as large as the whole array, and would disclose values that the
receiver did not request.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .data_types import is_text, list_child_types
from .nested_arrays import map_children, pc, read_integers, slice_values
from .supported_types import hide_intervals, set_types

_VIEWS: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


def needs_truncation(schema: pa.Schema) -> bool:
    """Return whether slices of batches need `truncate` before they are encoded."""
    return any(_is_leaky(field.type) for field in schema)


def has_offsets(data_type: pa.DataType) -> bool:
    """Return whether truncation of this type uses offsets from the data."""
    if isinstance(data_type, pa.DictionaryType):
        return False
    if (
        isinstance(data_type, pa.BaseExtensionType)
        or pa.types.is_struct(data_type)
        or pa.types.is_fixed_size_list(data_type)
    ):
        return any(map(has_offsets, list_child_types(data_type)))
    return bool(list_child_types(data_type)) or is_text(data_type)


def truncate(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return an equal batch that contains only its own values.

    Columns whose slices the writer handles are returned unchanged. Values of other columns are
    copied if values must be removed. A list view and each child of a dense union keep the range
    from the first to the last referenced value.

    Examples
    --------
    >>> views = pa.array([f"text number {number}" for number in range(1000)], pa.string_view())
    >>> batch = pa.record_batch({"text": views}).slice(10, 2)
    >>> batch.nbytes > 10000, truncate(batch).nbytes < 100, truncate(batch) == batch
    (True, True, True)
    """
    hidden = hide_intervals(batch)
    truncated = hidden
    for index, field in enumerate(hidden.schema):
        if _is_leaky(field.type):
            column = _truncate_array(hidden.column(index))
            truncated = truncated.set_column(index, field, column)
    return truncated if hidden is batch else set_types(truncated, batch.schema)


def _is_leaky(data_type: Any) -> bool:
    if data_type in _VIEWS or _is_list_view(data_type) or pa.types.is_union(data_type):
        return True
    return not isinstance(data_type, pa.DictionaryType) and any(
        map(_is_leaky, list_child_types(data_type))
    )


def _is_list_view(data_type: Any) -> bool:
    return pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type)


def _truncate_array(array: Any) -> Any:
    data_type = array.type
    if not _is_leaky(data_type):
        return array
    if data_type in _VIEWS:
        return _truncate_view(array)
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, _truncate_array(array.storage))
    if pa.types.is_union(data_type) and data_type.mode == "dense":
        return _truncate_dense_union(array)
    if pa.types.is_run_end_encoded(data_type):
        return _truncate_runs(array)
    if _is_list_view(data_type):
        return _truncate_list_view(array)
    return map_children(array, data_type, lambda child, *_: _truncate_array(child))


def _truncate_view(array: Any) -> Any:
    """Copy the values of a view array if its data buffers contain other bytes too."""
    buffers = array.buffers()
    nbytes = sum(buffer.size for buffer in buffers[2:])
    if not nbytes:
        return array
    # A view is 16 bytes, of which the first 4 are the length of the value.
    count = array.offset + len(array)
    words = pa.Array.from_buffers(pa.int32(), 4 * count, [None, buffers[1]])
    views = pa.FixedSizeListArray.from_arrays(words, 4).slice(array.offset)
    lengths: Any = pc.list_element(views, 0)
    if array.null_count:
        lengths = lengths.filter(array.is_valid())
    if nbytes <= (pc.sum(lengths).as_py() or 0):
        return array
    return _clear_nulls(array).cast(_VIEWS[array.type]).cast(array.type)


def _clear_nulls(array: Any) -> Any:
    """Return a view array with zeros in place of nulls, because a cast follows their offsets."""
    if not array.null_count:
        return array
    validity, views, *data = array.buffers()
    blank = pa.scalar(bytes(16), pa.binary(16))
    words = pa.Array.from_buffers(
        blank.type, len(array), [validity, views], array.null_count, array.offset
    )
    filled: Any = pc.fill_null(words, blank)
    return _rebuild(array, [slice_values(filled), *data], None)


def _truncate_list_view(array: Any) -> Any:
    offsets, sizes = array.offsets, array.sizes
    zero = pa.scalar(0, sizes.type)
    sizes = pc.if_else(array.is_valid(), sizes, zero)
    used = pc.greater(sizes, zero)
    kept = _find_range(offsets.filter(used), pc.add(offsets, sizes).filter(used))
    offsets = pc.if_else(used, pc.subtract(offsets, pa.scalar(kept.start, sizes.type)), zero)
    values = _truncate_array(array.values.slice(kept.start, len(kept)))
    return _rebuild(array, [slice_values(offsets), slice_values(sizes)], [values])


def _truncate_dense_union(array: Any) -> Any:
    data_type = array.type
    codes = read_integers(array, 1, pa.int8())
    offsets = new_offsets = read_integers(array, 2, pa.int32())
    children: list[Any] = []
    for index, code in enumerate(data_type.type_codes):
        is_child = pc.equal(codes, pa.scalar(code, pa.int8()))
        child_offsets = offsets.filter(is_child)
        kept = _find_range(child_offsets, pc.add(child_offsets, pa.scalar(1, pa.int32())))
        shifted = pc.subtract(offsets, pa.scalar(kept.start, pa.int32()))
        new_offsets = pc.if_else(is_child, shifted, new_offsets)
        children.append(_truncate_array(array.field(index).slice(kept.start, len(kept))))
    return _rebuild(array, [slice_values(codes), slice_values(new_offsets)], children)


def _truncate_runs(array: Any) -> Any:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.slice(first, count)
    ends = pc.subtract(ends, pa.scalar(array.offset, ends.type))
    ends = pc.min_element_wise(ends, pa.scalar(len(array), ends.type))
    values = _truncate_array(array.values.slice(first, count))
    return pa.RunEndEncodedArray.from_arrays(ends, values, array.type)


def _find_range(begins: Any, ends: Any) -> range:
    """Return the range from the least of `begins` to the greatest of `ends`."""
    return range(pc.min(begins).as_py(), pc.max(ends).as_py()) if len(begins) else range(0)


def _rebuild(array: Any, buffers: list[pa.Buffer], children: list[Any] | None) -> Any:
    """Return an array with the type and the nulls of `array`, but other buffers and children."""
    validity = None
    if array.null_count and not pa.types.is_union(array.type):
        validity = array.is_valid().buffers()[1]
    return pa.Array.from_buffers(
        array.type, len(array), [validity, *buffers], array.null_count, children=children
    )
