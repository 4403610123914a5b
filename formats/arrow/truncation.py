"""Slices of arrays that Arrow's writer does not cut to size, and cutting them.

Of most sliced arrays the writer sends the slice alone. Of string and binary views it sends all
the data buffers, of list views and dense unions values of the children that the slice does not
refer to. Sent like that, each of many slices of an array would carry the whole, and values
would leave that the receiver was not meant to have.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_VIEWS: dict[pa.DataType, pa.DataType] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}


def has_unions(schema: pa.Schema) -> bool:
    """Tell whether a column, or something nested in one, is a union.

    Of an empty union Arrow's reader leaves out buffers without which its writer crashes when it
    compresses. What is `truncated` has them.
    """
    return any(_contains_union(field.type) for field in schema)


def needs_truncation(schema: pa.Schema) -> bool:
    """Tell whether slices of such batches have to be `truncated` before they are encoded."""
    return any(_is_leaky(field.type) for field in schema)


def has_offsets(data_type: pa.DataType) -> bool:
    """Tell whether cutting an array of this type follows offsets that lie in the data."""
    if isinstance(data_type, pa.DictionaryType):
        return False
    if (
        isinstance(data_type, pa.BaseExtensionType)
        or pa.types.is_struct(data_type)
        or pa.types.is_fixed_size_list(data_type)
    ):
        return any(map(has_offsets, _parts(data_type)))
    return bool(_parts(data_type)) or _is_text(data_type)


def truncated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return an equal batch that refers to no values but its own.

    Columns that the writer cuts to size are returned as they are; of the others, values are
    copied if some have to be left out. Of a list view, and of each child of a dense union, the
    stretch from the first to the last value that is referred to is kept.

    Examples
    --------
    >>> views = pa.array([f"text number {number}" for number in range(1000)], pa.string_view())
    >>> batch = pa.record_batch({"text": views}).slice(10, 2)
    >>> batch.nbytes > 10000, truncated(batch).nbytes < 100, truncated(batch) == batch
    (True, True, True)
    """
    for index, field in enumerate(batch.schema):
        if _is_leaky(field.type):
            batch = batch.set_column(index, field, _truncated(batch.column(index)))
    return batch


def _is_leaky(data_type: Any) -> bool:
    if data_type in _VIEWS or _is_list_view(data_type) or pa.types.is_union(data_type):
        return True
    return not isinstance(data_type, pa.DictionaryType) and any(map(_is_leaky, _parts(data_type)))


def _contains_union(data_type: Any) -> bool:
    return pa.types.is_union(data_type) or any(map(_contains_union, _parts(data_type)))


def _parts(data_type: Any) -> list[pa.DataType]:
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if isinstance(data_type, pa.DictionaryType):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def _is_text(data_type: Any) -> bool:
    types = pa.types
    return (
        data_type in _VIEWS
        or types.is_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_string(data_type)
        or types.is_large_binary(data_type)
    )


def _is_list_view(data_type: Any) -> bool:
    return pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type)


def _truncated(array: Any) -> Any:
    data_type = array.type
    if not _is_leaky(data_type):
        return array
    if data_type in _VIEWS:
        return _truncated_view(array)
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, _truncated(array.storage))
    if pa.types.is_struct(data_type):
        return _rebuilt(array, [], [_truncated(child) for child in _fields(array)])
    if pa.types.is_fixed_size_list(data_type):
        size = data_type.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return _rebuilt(array, [], [_truncated(values)])
    if pa.types.is_union(data_type):
        return _truncated_union(array)
    if pa.types.is_run_end_encoded(data_type):
        return _truncated_runs(array)
    if _is_list_view(data_type):
        return _truncated_list_view(array)
    return _truncated_list(array)


def _truncated_view(array: Any) -> Any:
    """Copy the values of a view array, if its data buffers hold more than these."""
    buffers = array.buffers()
    held = sum(buffer.size for buffer in buffers[2:])
    if not held:
        return array
    # A view is 16 bytes, of which the first 4 are the length of the value.
    count = array.offset + len(array)
    words = pa.Array.from_buffers(pa.int32(), 4 * count, [None, buffers[1]])
    views = pa.FixedSizeListArray.from_arrays(words, 4).slice(array.offset)
    lengths: Any = pc.list_element(views, 0)
    if array.null_count:
        lengths = lengths.filter(array.is_valid())
    if held <= (pc.sum(lengths).as_py() or 0):
        return array
    return _without_hidden(array).cast(_VIEWS[array.type]).cast(array.type)


def _without_hidden(array: Any) -> Any:
    """Return a view array whose nulls hide nothing: a cast would follow what is there."""
    if not array.null_count:
        return array
    validity, views, *data = array.buffers()
    blank = pa.scalar(bytes(16), pa.binary(16))
    words = pa.Array.from_buffers(
        blank.type, len(array), [validity, views], array.null_count, array.offset
    )
    filled: Any = pc.fill_null(words, blank)
    return _rebuilt(array, [_data(filled), *data], None)


def _truncated_list(array: Any) -> Any:
    """Cut the values of a list, large list or map."""
    offsets = array.offsets if len(array) else pa.array([0], array.offsets.type)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if pa.types.is_map(array.type):
        entries = [
            _truncated(child.slice(first, last - first)) for child in (array.keys, array.items)
        ]
        pairs = pa.struct([array.type.key_field, array.type.item_field])
        values = pa.Array.from_buffers(pairs, last - first, [None], children=entries)
    else:
        values = _truncated(array.values.slice(first, last - first))
    return _rebuilt(array, [_data(pc.subtract(offsets, offsets[0]))], [values])


def _truncated_list_view(array: Any) -> Any:
    offsets, sizes = array.offsets, array.sizes
    zero = pa.scalar(0, sizes.type)
    sizes = pc.if_else(array.is_valid(), sizes, zero)
    used = pc.greater(sizes, zero)
    span = _span(offsets.filter(used), pc.add(offsets, sizes).filter(used))
    offsets = pc.if_else(used, pc.subtract(offsets, pa.scalar(span.start, sizes.type)), zero)
    values = _truncated(array.values.slice(span.start, len(span)))
    return _rebuilt(array, [_data(offsets), _data(sizes)], [values])


def _truncated_union(array: Any) -> Any:
    data_type = array.type
    # The properties of the array that would give these do not heed slicing.
    codes = _integers(array, 1, pa.int8())
    if data_type.mode == "sparse":
        return _rebuilt(array, [_data(codes)], [_truncated(child) for child in _fields(array)])
    offsets = places = _integers(array, 2, pa.int32())
    children: list[Any] = []
    for index, code in enumerate(data_type.type_codes):
        chosen = pc.equal(codes, pa.scalar(code, pa.int8()))
        own = places.filter(chosen)
        span = _span(own, pc.add(own, pa.scalar(1, pa.int32())))
        moved = pc.subtract(places, pa.scalar(span.start, pa.int32()))
        offsets = pc.if_else(chosen, moved, offsets)
        children.append(_truncated(array.field(index).slice(span.start, len(span))))
    return _rebuilt(array, [_data(codes), _data(offsets)], children)


def _truncated_runs(array: Any) -> Any:
    first, count = array.find_physical_offset(), array.find_physical_length()
    ends = array.run_ends.slice(first, count)
    ends = pc.subtract(ends, pa.scalar(array.offset, ends.type))
    ends = pc.min_element_wise(ends, pa.scalar(len(array), ends.type))
    values = _truncated(array.values.slice(first, count))
    return pa.RunEndEncodedArray.from_arrays(ends, values, array.type)


def _span(begins: Any, ends: Any) -> range:
    """Return the stretch from the first of `begins` to the last of `ends`."""
    return range(pc.min(begins).as_py(), pc.max(ends).as_py()) if len(begins) else range(0)


def _fields(array: Any) -> list[Any]:
    return [array.field(index) for index in range(array.type.num_fields)]


def _integers(array: Any, buffer: int, data_type: pa.DataType) -> Any:
    """Return a buffer of an array as an array of integers, one for each value."""
    if not len(array):
        return pa.array([], data_type)
    buffers = [None, array.buffers()[buffer]]
    return pa.Array.from_buffers(data_type, len(array), buffers, offset=array.offset)


def _data(array: Any) -> pa.Buffer:
    """Return the values of an array of a fixed width, without what lies before and behind."""
    if not len(array):
        return pa.py_buffer(b"")
    width = array.type.bit_width // 8
    return array.buffers()[1].slice(array.offset * width, len(array) * width)


def _rebuilt(array: Any, buffers: list[pa.Buffer], children: list[Any] | None) -> Any:
    """Return an array like `array`, with its nulls, of other buffers and children."""
    validity = None
    if array.null_count and not pa.types.is_union(array.type):
        validity = array.is_valid().buffers()[1]
    return pa.Array.from_buffers(
        array.type, len(array), [validity, *buffers], array.null_count, children=children
    )
