"""Many byte strings in one buffer, read and copied together, and reports of invalid rows.

`RowChecks` reports the first invalid row, or all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....errors import InvalidDataError

Bytes = NDArray[np.uint8]
Index = NDArray[np.int64]
"""Positions, lengths or counts. int64 is what NumPy indexes with."""
Mask = NDArray[np.bool_]


def to_arrow(array: Any, mask: Any = None) -> Any:
    """Return an array of NumPy as an Arrow array, with nulls where the mask is true."""
    return pa.array(array, mask=mask)


def to_buffer(array: Any) -> Any:
    """Return the memory of an array of NumPy, copied if it is not contiguous."""
    contiguous: Any = np.ascontiguousarray(array)
    return pa.py_buffer(contiguous)


_PADDING = 16
"""Zero bytes after the data, so that reading the widest integer at its last byte stays inside."""


class ByteBuffer:
    """A copy of bytes from which integers are read at many positions at once.

    Attributes
    ----------
    bytes : ndarray of uint8, shape (n + 16,)
        The bytes, and zeros after them.
    arrow : pyarrow.Buffer
        The same memory.
    """

    __slots__ = ("_u32", "_u64", "arrow", "bytes")

    def __init__(self, data: Bytes) -> None:
        padded = np.empty(len(data) + _PADDING, np.uint8)
        padded[: len(data)] = data
        padded[len(data) :] = 0
        self.bytes = padded
        self.arrow = to_buffer(padded)
        self._u32 = np.ndarray((len(padded) - 3,), "<u4", padded, strides=(1,))
        self._u64 = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))

    def read_u8(self, at: Index) -> Bytes:
        """Return the bytes at some positions."""
        return self.bytes.take(at)

    def read_u32(self, at: Index) -> NDArray[np.uint32]:
        """Return the little-endian integers of 4 bytes at some positions."""
        return self._u32[at]

    def read_u64(self, at: Index) -> NDArray[np.uint64]:
        """Return the little-endian integers of 8 bytes at some positions."""
        return self._u64[at]

    def read_uint(self, at: Index, width: Index) -> Index:
        """Return unsigned little-endian integers of 1 to 4 bytes."""
        if not len(at):
            return np.empty(0, np.int64)
        widest = int(width.max())
        if widest == 1:
            return self.read_u8(at).astype(np.int64)
        values = self.read_u32(at).astype(np.int64)
        values &= (np.int64(1) << (8 * width)) - 1
        return values

    def slice(self, start: Index, size: Index) -> Any:
        """Return byte strings of this buffer as a `pyarrow.LargeBinaryArray`, which copies them.

        They must lie inside of the buffer and may be in any order, but must not overlap.
        """
        count = len(start)
        order = None
        if count > 1 and not bool((start[1:] >= start[:-1] + size[:-1]).all()):
            order = np.lexsort((size, start))
            start, size = start[order], size[order]
        ends = np.empty(2 * count + 1, np.int64)
        ends[0] = 0
        ends[0 : 2 * count : 2] = start
        ends[1 : 2 * count : 2] = start + size
        ends[2 * count] = ends[2 * count - 1] if count else 0
        between = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), 2 * count, [None, to_buffer(ends), self.arrow]
        )
        selected = np.arange(0, 2 * count, 2)
        if order is not None:
            taken = np.empty(count, np.int64)
            taken[order] = selected
            selected = taken
        return between.take(to_arrow(selected))


def expand(counts: Index) -> tuple[Index, Index]:
    """Return the group, and the position in its group, of every member of some groups."""
    group = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return group, np.arange(len(group)) - first[group]


def accumulate(sizes: Index) -> Index:
    """Return the offsets of byte strings of some sizes: one more than there are sizes."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def binary_parts(array: Any) -> tuple[Bytes, Index]:
    """Return the data of a binary or string array of any kind, and its offsets into them.

    Nulls may have any size.
    """
    narrow = pa.types.is_binary(array.type) or pa.types.is_string(array.type)
    if not (narrow or pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)):
        return binary_parts(array.cast(pa.large_binary()))
    if not len(array):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32 if narrow else np.int64)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data, offsets


def make_binary(data: Bytes, offsets: Index, data_type: Any = None) -> Any:
    """Return a `pyarrow.LargeBinaryArray`, or one of another large type, over data and offsets."""
    return pa.Array.from_buffers(
        data_type or pa.large_binary(),
        len(offsets) - 1,
        [None, to_buffer(offsets), to_buffer(data)],
    )


def valid_mask(array: Any) -> Mask:
    """Return which values of an array are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    mask: Mask = np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
    return mask


def is_list(data_type: Any) -> bool:
    """Return whether a type is one of lists, as arrays are shredded and cast to."""
    return pa.types.is_list(data_type) or pa.types.is_large_list(data_type)


def place(array: Any, at: Index, rows: int) -> Any:
    """Return an array of `rows` values: those of an array at some positions, and null elsewhere."""
    if len(at) == rows and bool((at[1:] > at[:-1]).all()):
        return array
    index = np.full(rows, -1, np.int64)
    index[at] = np.arange(len(at))
    return array.take(to_arrow(index, mask=index < 0))


def null_array(length: int, data_type: Any) -> Any:
    """Return an array of nulls, also of types in which `pyarrow.nulls` refuses extension types."""
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, null_array(length, data_type.storage_type))
    missing = to_arrow(np.ones(length, np.bool_)) if length else None
    if is_list(data_type):
        make: Any = pa.ListArray if pa.types.is_list(data_type) else pa.LargeListArray
        width: Any = np.int32 if pa.types.is_list(data_type) else np.int64
        offsets = to_arrow(np.zeros(length + 1, width))
        items = null_array(0, data_type.value_type)
        return make.from_arrays(offsets, items, type=data_type, mask=missing)
    if pa.types.is_struct(data_type) and data_type.num_fields:
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        children = [null_array(length, field.type) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)
    return pa.nulls(length, data_type)


MAX_DEPTH = 200
"""The largest number of nested objects and arrays."""


class RowChecks:
    """Raises an error for the first invalid row, or collects them all.

    Attributes
    ----------
    invalid : ndarray of bool, shape (rows,)
        Whether a row is invalid.
    """

    __slots__ = ("_collect", "_first_row", "invalid")

    def __init__(self, rows: int, *, first_row: int = 0, collect: bool = False) -> None:
        self.invalid: Mask = np.zeros(rows, np.bool_)
        self._first_row = first_row
        self._collect = collect

    def require(self, valid: Mask, rows: Index, problem: str) -> bool:
        """Return whether all values are valid; the caller must not use the others.

        Raises `InvalidDataError` if a value is not, unless invalid rows are collected.
        """
        if bool(valid.all()):
            return True
        bad = rows[~valid]
        if not self._collect:
            row = int(bad.min()) + self._first_row
            raise InvalidDataError(f"the Variant in row {row} is invalid: {problem}")
        self.invalid[bad] = True
        return False
