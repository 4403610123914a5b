"""Arrays of Arrow's C data interface in the memory of a device, and copies of them on the host.

The interface has no sizes of buffers. They follow from the type, the length, and the last offset,
which is copied to the host.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UsageError
from .array_layout import ArrayLayout, find_offset_width
from .c_structures import ArrowArray, find_buffer, find_child
from .device import Device

BufferCopy = Callable[[pa.Buffer], pa.Buffer]
"""Returns a copy of a buffer of a device in host memory."""
_EMPTY = pa.py_buffer(b"")


def read_array(
    array: ArrowArray, kind: Any, device: Device, owner: object, column: str
) -> ArrayLayout:
    """Return the layout of an exported array.

    Parameters
    ----------
    array : ArrowArray
        The array.
    kind : pyarrow.DataType
        Its type.
    device : Device
        The device that its buffers are on.
    owner : object
        What keeps the memory alive.
    column : str
        The name of its column, for errors.

    Raises
    ------
    UsageError
        If arrays of the type cannot be served from a device, or have an offset within a byte.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return replace(read_array(array, kind.storage_type, device, owner, column), type=kind)
    if not _is_supported(kind):
        raise UsageError(
            f"the column {column!r} of the type {kind} cannot be served from a device; convert "
            "it, or copy it to the host"
        )
    begin, end = array.offset, array.offset + array.length
    bitmap_bytes = -(-end // 8)

    def buffer(index: int, nbytes: int) -> pa.Buffer | None:
        address = find_buffer(array, index)
        if not address:
            return None
        return pa.foreign_buffer(address, nbytes, owner) if nbytes else _EMPTY

    def child(index: int, child_kind: Any) -> ArrayLayout:
        return read_array(find_child(array, index), child_kind, device, owner, column)

    children: tuple[ArrayLayout, ...] = ()
    dictionary = None
    types = pa.types
    if types.is_null(kind):
        return ArrayLayout(kind, array.length, array.length, (None,))
    own: list[pa.Buffer | None] = [buffer(0, bitmap_bytes)]
    if types.is_dictionary(kind):
        own.append(buffer(1, end * kind.index_type.bit_width // 8))
        values = ArrowArray.from_address(array.dictionary)
        dictionary = read_array(values, kind.value_type, device, owner, column)
    elif (width := find_offset_width(kind)) is not None:
        own.append(buffer(1, (end + 1) * width))
        if kind.num_fields:
            children = (child(0, kind.field(0).type),)
        else:
            last = _read_offset(device, own[1], end, width)
            own.append(buffer(2, last) or _EMPTY)
    elif types.is_struct(kind):
        children = tuple(child(index, kind.field(index).type) for index in range(kind.num_fields))
    elif types.is_fixed_size_list(kind):
        children = (child(0, kind.value_type),)
    else:
        own.append(buffer(1, -(-end * kind.bit_width // 8)) or _EMPTY)
    layout = ArrayLayout(kind, end, array.null_count, tuple(own), children, dictionary)
    if begin:
        if begin % 8:
            raise UsageError(
                f"the column {column!r} begins {begin} rows into its buffers; copy it first, or "
                "cut it at a multiple of 8 rows"
            )
        layout = layout.slice(begin, array.length)
    return layout


def with_null_count(layout: ArrayLayout, device: Device) -> ArrayLayout:
    """Return an array with all null counts, which may need copies of validities on the host."""
    validity, count = layout.buffers[0], layout.null_count
    if count < 0:
        count = 0
        if validity is not None and validity.size:
            host = copy_buffer(device, validity)
            flags: Any = pa.Array.from_buffers(pa.bool_(), layout.length, [None, host])
            count = layout.length - flags.true_count
    return replace(
        layout,
        null_count=count,
        children=tuple(with_null_count(child, device) for child in layout.children),
        dictionary=layout.dictionary and with_null_count(layout.dictionary, device),
    )


def copy_buffer(device: Device, source: pa.Buffer) -> pa.Buffer:
    """Return a copy of a buffer in pageable host memory."""
    target = pa.allocate_buffer(source.size)
    device.copy_out(target.address, source.address, source.size)
    return target


def fetch_array(
    layout: ArrayLayout, copy: BufferCopy, dictionaries: dict[int, ArrayLayout]
) -> pa.Array[Any]:
    """Return a copy of an array in host memory: of no more than its rows refer to.

    Parameters
    ----------
    layout : ArrayLayout
        An array as `read_array` returns it, or a slice of it.
    copy : callable
        Copies a buffer.
    dictionaries : dict
        Copies of dictionaries, to be used again for other slices.
    """
    return _fetch(layout, copy, dictionaries).to_array()


def _fetch(
    layout: ArrayLayout, copy: BufferCopy, dictionaries: dict[int, ArrayLayout]
) -> ArrayLayout:
    own = [each and (copy(each) if each.size else each) for each in layout.buffers[:2]]
    children = layout.children
    width = find_offset_width(layout.storage_type)
    if width is None or layout.dictionary is not None:
        children = tuple(_fetch(child, copy, dictionaries) for child in children)
        values = layout.dictionary
        if values is not None:
            if id(values) not in dictionaries:
                dictionaries[id(values)] = _fetch(values, copy, dictionaries)
            values = dictionaries[id(values)]
        return replace(layout, buffers=tuple(own), children=children, dictionary=values)
    kind = pa.int32() if width == 4 else pa.int64()
    offsets: Any = pa.Array.from_buffers(kind, layout.length + 1, [None, own[1]])
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if children:
        first &= ~7  # the validity of the values begins at a byte
        children = (_fetch(children[0].slice(first, last - first), copy, dictionaries),)
    else:
        data = layout.buffers[2]
        own.append(copy(data.slice(first, last - first)) if data and last > first else _EMPTY)
    if first:
        own[1] = pc.subtract(offsets, pa.scalar(first, kind)).buffers()[1]
    return replace(layout, buffers=tuple(own), children=children)


def _is_supported(kind: Any) -> bool:
    types = pa.types
    is_view = (
        kind.has_variadic_buffers or types.is_list_view(kind) or types.is_large_list_view(kind)
    )
    return not (is_view or types.is_union(kind) or types.is_run_end_encoded(kind))


def _read_offset(device: Device, offsets: pa.Buffer | None, index: int, width: int) -> int:
    if offsets is None or offsets.size < (index + 1) * width:
        return 0
    host = copy_buffer(device, offsets.slice(index * width, width))
    value: int = struct.unpack("<i" if width == 4 else "<q", host)[0]
    if value < 0:
        raise UsageError(f"an array on a device has the offset {value}")
    return value
