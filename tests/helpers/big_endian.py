"""Arrow IPC streams with big-endian data, which pyarrow reads but does not write."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from splitarrow.formats.arrow.message import (
    HeaderType,
    encapsulate,
    read_batch_layout,
    read_message_info,
)
from splitarrow.formats.arrow.schema import read_dictionary_types, read_schema

_MONTHS, _DAY_TIME, _MONTH_DAY_NANO = 21, 22, 37
"""Numbers of interval types in pyarrow."""
_ENDIANNESS_SLOTS = 4


def to_big_endian(stream: bytes) -> bytes:
    """Return an uncompressed little-endian stream with the byte order reversed."""
    reader = pa.BufferReader(stream)
    schema = pa.schema([])
    dictionaries: dict[int, pa.DataType] = {}
    result = bytearray()
    while True:
        try:
            message = pa.ipc.read_message(reader)
        except EOFError:
            return bytes(result)
        metadata = message.metadata.to_pybytes()
        header_type = read_message_info(metadata).header_type
        if header_type is HeaderType.SCHEMA:
            schema = read_schema(metadata)
            dictionaries = read_dictionary_types(metadata, schema)
            result += encapsulate(_declare_big_endian(metadata))
            continue
        layout = read_batch_layout(metadata)
        assert not layout.compressed
        types = [field.type for field in schema]
        if layout.dictionary_id is not None:
            types = [dictionaries[layout.dictionary_id]]
        widths = [width for data_type in types for width in _widths(data_type)]
        assert message.body is not None
        body = bytearray(message.body.to_pybytes())
        for (offset, length), units in zip(layout.buffers, widths, strict=True):
            body[offset : offset + length] = _swap(body[offset : offset + length], units)
        result += encapsulate(metadata) + body


def _declare_big_endian(metadata: bytes) -> bytes:
    """Return a schema message with another byte order: its table gets a new vtable behind all."""
    data = bytearray(metadata)
    (root,) = struct.unpack_from("<I", data, 0)
    header = _field(data, root, 2)
    table = header + struct.unpack_from("<I", data, header)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size, table_size = struct.unpack_from("<HH", data, vtable)
    slots = list(struct.unpack_from(f"<{(size - 4) // 2}H", data, vtable + 4))
    slots += [0] * (_ENDIANNESS_SLOTS - len(slots))
    endianness = len(data)
    data += struct.pack("<hxx", 1)
    slots[0] = endianness - table
    new_vtable = len(data)
    data += struct.pack(f"<{2 + len(slots)}H", 4 + 2 * len(slots), table_size, *slots)
    struct.pack_into("<i", data, table, table - new_vtable)
    return bytes(data) + bytes(-len(data) % 8)


def _field(data: bytearray, table: int, slot: int) -> int:
    vtable = table - struct.unpack_from("<i", data, table)[0]
    return table + struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]


def _swap(data: bytearray, units: tuple[int, ...]) -> bytes:
    """Reverse the bytes of each unit; the units repeat."""
    swapped = bytearray()
    while len(swapped) < len(data):
        for unit in units:
            swapped += data[len(swapped) : len(swapped) + unit][::-1]
    return bytes(swapped)


def _widths(data_type: pa.DataType) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of the units of each buffer of a type."""
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _widths(data_type.storage_type)
        return
    if isinstance(data_type, pa.DictionaryType):
        yield from _widths(data_type.index_type)
        return
    types = pa.types
    if types.is_null(data_type):
        return
    if types.is_union(data_type):
        yield (1,)
        if data_type.mode == "dense":  # pyright: ignore[reportAttributeAccessIssue]
            yield (4,)
    else:
        yield (1,)
        if types.is_string(data_type) or types.is_binary(data_type):
            yield from ((4,), (1,))
        elif types.is_large_string(data_type) or types.is_large_binary(data_type):
            yield from ((8,), (1,))
        elif types.is_list(data_type) or types.is_map(data_type):
            yield (4,)
        elif types.is_large_list(data_type):
            yield (8,)
        elif types.is_boolean(data_type) or types.is_fixed_size_binary(data_type):
            yield (1,)
        elif data_type.id in (_MONTHS, _DAY_TIME):
            yield (4,)
        elif data_type.id == _MONTH_DAY_NANO:
            yield (4, 4, 8)
        elif not types.is_nested(data_type):
            yield (data_type.bit_width // 8,)
    if types.is_nested(data_type):
        for index in range(data_type.num_fields):
            yield from _widths(data_type.field(index).type)
