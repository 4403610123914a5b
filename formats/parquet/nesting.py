"""Conversions of arrays inside of lists, maps and structs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from .conversions import rebuild_list, validity_buffer
from .corrections import ReadOptions

Convert = Callable[[Any, ReadOptions], Any]
"""Converts an array."""


def convert_list(new_type: Any, convert: Convert, array: Any, options: ReadOptions) -> Any:
    """Return a list array whose elements are converted."""
    if isinstance(new_type, pa.FixedSizeListType):
        size: int = new_type.list_size
        values = convert(array.values.slice(array.offset * size, len(array) * size), options)
        buffers = [validity_buffer(array)]
        return pa.Array.from_buffers(
            new_type, len(array), buffers, array.null_count, children=[values]
        )
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    values = convert(array.values.slice(start, end - start), options)
    return rebuild_list(array, offsets - start, values, new_type)


def convert_map(
    new_type: Any, key: Convert | None, item: Convert | None, array: Any, options: ReadOptions
) -> Any:
    """Return a map array whose keys and values are converted."""
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    keys = array.keys.slice(start, end - start)
    items = array.items.slice(start, end - start)
    keys = keys if key is None else key(keys, options)
    items = items if item is None else item(items, options)
    entries = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return rebuild_list(array, offsets - start, entries, new_type)


def convert_struct(
    new_type: Any, converts: list[Convert | None], array: Any, options: ReadOptions
) -> Any:
    """Return a struct array whose fields are converted. None leaves a field unchanged."""
    children = [
        array.field(index) if convert is None else convert(array.field(index), options)
        for index, convert in enumerate(converts)
    ]
    buffers = [validity_buffer(array)]
    return pa.Array.from_buffers(new_type, len(array), buffers, array.null_count, children=children)
