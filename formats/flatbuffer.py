"""Access to the fields of a FlatBuffer whose bytes may be malformed.

Every function raises `struct.error` or `IndexError` instead of reading outside the bytes;
`PARSE_ERRORS` lists what a caller catches.
"""

from __future__ import annotations

import struct

PARSE_ERRORS = (struct.error, IndexError, OverflowError)
"""What the functions here, and reads at the positions that they return, raise."""

_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_NO_SLOTS = (0,) * 6
_VTABLES = [struct.Struct(f"<{count}H") for count in range(len(_NO_SLOTS) + 1)]

Bytes = bytes | memoryview
"""The bytes of a FlatBuffer."""


def read_root(data: Bytes) -> int:
    """Return the position of the root table."""
    return _U32.unpack_from(data, 0)[0]


def find_field(data: Bytes, table: int, slot: int) -> int:
    """Return the position of a field of a table, 0 if the field is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise IndexError
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset = _U16.unpack_from(data, vtable + slot)[0]
    return table + offset if offset else 0


def read_slots(data: Bytes, table: int) -> tuple[int, ...]:
    """Return the positions of the first 6 fields of a table, 0 for an absent field."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise IndexError
    count = _U16.unpack_from(data, vtable)[0] // 2 - 2
    if count <= 0:
        return _NO_SLOTS
    if count > len(_NO_SLOTS):
        count = len(_NO_SLOTS)
    found = [
        table + offset if offset else 0 for offset in _VTABLES[count].unpack_from(data, vtable + 4)
    ]
    return (*found, *_NO_SLOTS[count:])


def follow(data: Bytes, position: int) -> int:
    """Return the position that the reference at `position` points to."""
    return position + _U32.unpack_from(data, position)[0]


def find_table(data: Bytes, table: int, slot: int) -> int:
    """Return the position of the table that a field refers to, 0 if the field is absent."""
    position = find_field(data, table, slot)
    return follow(data, position) if position else 0


def find_vector(data: Bytes, table: int, slot: int, item_bytes: int) -> tuple[int, int]:
    """Return the position of the first item of a vector, and the number of items.

    All items are inside the FlatBuffer. The position is 0 if the field is absent.
    """
    start = find_table(data, table, slot)
    if not start:
        return 0, 0
    count = _U32.unpack_from(data, start)[0]
    if start + 4 + count * item_bytes > len(data):
        raise IndexError
    return start + 4, count


def read_int16(data: Bytes, table: int, slot: int) -> int:
    """Return a field of 16 bits, 0 if it is absent."""
    position = find_field(data, table, slot)
    return _I16.unpack_from(data, position)[0] if position else 0


def read_int32(data: Bytes, table: int, slot: int) -> int:
    """Return a field of 32 bits, 0 if it is absent."""
    position = find_field(data, table, slot)
    return _I32.unpack_from(data, position)[0] if position else 0


def read_int64(data: Bytes, table: int, slot: int) -> int:
    """Return a field of 64 bits, 0 if it is absent."""
    position = find_field(data, table, slot)
    return _I64.unpack_from(data, position)[0] if position else 0


def read_byte(data: Bytes, table: int, slot: int) -> int:
    """Return a field of 8 bits, 0 if it is absent."""
    position = find_field(data, table, slot)
    return data[position] if position else 0


def read_string(data: Bytes, table: int, slot: int) -> bytes | None:
    """Return a text as bytes; None if it is absent."""
    start, count = find_vector(data, table, slot, 1)
    return bytes(data[start : start + count]) if start else None
