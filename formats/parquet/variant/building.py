"""Encoding of many Variant values together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .buffers import Bytes, Index, accumulate, binary_parts, expand, make_binary
from .types import (
    ARRAY,
    MAX_SHORT_STRING,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    Kind,
    Primitive,
    header_byte,
)

_EMPTY = pa.scalar(b"", pa.large_binary())
NULL = pa.scalar(b"\0", pa.large_binary())
"""The Variant null."""


def build_arrays(counts: Index, elements: Any) -> Any:
    """Return encoded arrays.

    Parameters
    ----------
    counts : ndarray of int64, shape (n,)
        The number of elements of each array.
    elements : pyarrow.LargeBinaryArray
        The encoded elements of all arrays, one after another.

    Returns
    -------
    pyarrow.LargeBinaryArray, shape (n,)
        The arrays.
    """
    return _build(counts, elements, None)


def build_objects(counts: Index, ids: Index, fields: Any) -> Any:
    """Return encoded objects, whose fields must be in the order of their names.

    Parameters
    ----------
    counts, fields
        As for `build_arrays`.
    ids : ndarray of int64
        The field ids of all fields.
    """
    return _build(counts, fields, ids)


def _build(counts: Index, entries: Any, ids: Index | None) -> Any:
    data, offsets = binary_parts(entries)
    bounds = accumulate(counts)
    group, position = expand(counts + 1)
    at = bounds[group] + position
    relative = offsets[at] - offsets[bounds[group]]
    body = offsets[bounds]
    offset_width = _width(body[1:] - body[:-1])
    is_large = counts > 255
    count_width = np.where(is_large, 4, 1)
    id_width = np.zeros(len(counts), np.int64)
    header = header_byte(ARRAY, 0) + ((offset_width - 1 | is_large << 2) << 2)
    if ids is not None:
        largest = np.zeros(len(counts), np.int64)
        filled = counts > 0
        if filled.any():
            largest[filled] = np.maximum.reduceat(ids, bounds[:-1][filled])
        id_width = _width(largest)
        flags = (offset_width - 1) | (id_width - 1) << 2 | is_large << 4
        header = header_byte(OBJECT, 0) + (flags << 2)
    ids_at = 1 + count_width
    offsets_at = ids_at + counts * id_width
    starts = accumulate(offsets_at + (counts + 1) * offset_width)
    heads = np.zeros(int(starts[-1]), np.uint8)
    start = starts[:-1]
    heads[start] = header
    _write_uints(heads, start + 1, counts, count_width)
    if ids is not None:
        owner, place = expand(counts)
        width = id_width[owner]
        _write_uints(heads, (start + ids_at)[owner] + place * width, ids, width)
    width = offset_width[group]
    _write_uints(heads, (start + offsets_at)[group] + position * width, relative, width)
    bodies = make_binary(data, body)
    return pc.binary_join_element_wise(make_binary(heads, starts), bodies, _EMPTY)


def _width(largest: Index) -> Index:
    """Return the bytes that some unsigned integers need."""
    return (
        1
        + (largest > 0xFF).astype(np.int64)
        + (largest > 0xFFFF).astype(np.int64)
        + (largest > 0xFFFFFF).astype(np.int64)
    )


def _write_uints(target: Bytes, at: Index, numbers: Index, width: Index) -> None:
    """Write unsigned little-endian integers of 1 to 4 bytes."""
    for byte in range(int(width.max()) if len(width) else 0):
        wide = width > byte
        target[at[wide] + byte] = (numbers[wide] >> 8 * byte) & 0xFF


def build_strings(texts: Any, kind: Kind = Kind.STRING) -> Any:
    """Return encoded strings or binary values; nulls stay null.

    Parameters
    ----------
    texts : pyarrow.Array
        Binary values or strings of any kind.
    kind : {Kind.STRING, Kind.BINARY}, optional
        What to encode them as.
    """
    content = texts.cast(pa.large_binary())
    _, offsets = binary_parts(content)
    size = offsets[1:] - offsets[:-1]
    heads = np.empty((len(size), 5), np.uint8)
    heads[:, 0] = header_byte(PRIMITIVE, kind)
    heads[:, 1:] = size.astype("<u4").view(np.uint8).reshape(-1, 4)
    is_long = np.ones(len(size), np.bool_)
    if kind == Kind.STRING:
        is_long = size > MAX_SHORT_STRING
        heads[~is_long, 0] = header_byte(SHORT_STRING, 0) + (size[~is_long] << 2)
    used = np.repeat(is_long[:, None], 5, axis=1)
    used[:, 0] = True
    joined = make_binary(heads[used], accumulate(np.where(is_long, 5, 1)))
    return pc.binary_join_element_wise(joined, content, _EMPTY)


def build_fixed(kind: Kind | Primitive, data: Any, array: Any) -> Any:
    """Return encoded values of a type whose values all have the same size.

    Parameters
    ----------
    kind : Kind
        The type.
    data : ndarray of shape (n,) or (n, width)
        The little-endian values, or their bytes.
    array : pyarrow.Array
        The array whose nulls the result has.
    """
    raw = np.ascontiguousarray(data)
    count = len(raw)
    raw = raw.view(np.uint8).reshape(count, raw.nbytes // max(count, 1))
    rows = np.empty((count, 1 + raw.shape[1]), np.uint8)
    rows[:, 0] = header_byte(PRIMITIVE, kind)
    rows[:, 1:] = raw
    encoded = make_binary(rows.ravel(), np.arange(count + 1) * rows.shape[1])
    return mask_nulls(encoded, array)


def mask_nulls(encoded: Any, array: Any) -> Any:
    """Return an array with nulls where another array has nulls."""
    if not array.null_count:
        return encoded
    return pc.if_else(array.is_valid(), encoded, pa.scalar(None, encoded.type))
