"""Access to the fields of a FlatBuffer whose bytes may be malformed, and writing of vectors.

No function reads outside the bytes: it raises one of `PARSE_ERRORS` instead.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

PARSE_ERRORS = (struct.error, IndexError, OverflowError)
"""The errors of these functions, and of reads at the positions that they return."""
READER_ERRORS = (*PARSE_ERRORS, KeyError, TypeError, ValueError, AttributeError)
"""The errors of the generated readers in ``fbs`` for malformed bytes."""

_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_NO_SLOTS = (0,) * 7
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
    """Return the positions of the first 7 fields of a table, 0 for an absent field."""
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


def cast_table(table: Any, reader: Any) -> Any:
    """Return the table of a union as the generated reader of its type."""
    found = reader()
    found.Init(table.Bytes, table.Pos)
    return found


def embed(builder: Any, data: Bytes, alignment: int = 8) -> int:
    """Write a FlatBuffer into another one, and return its padded size in bytes.

    A builder writes from the end and counts positions from there: a table at byte `p` of `data` is
    at ``size - p``.
    """
    size = len(data) + -len(data) % alignment
    builder.Prep(alignment, size)
    builder.head -= size
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return size


def write_references(builder: Any, positions: Sequence[int]) -> int:
    """Write a vector of references to tables or strings, and return its position."""
    builder.StartVector(4, len(positions), 4)
    for position in reversed(positions):
        builder.PrependUOffsetTRelative(position)
    return builder.EndVector()


def write_longs(builder: Any, numbers: Sequence[int], width: int = 1) -> int:
    """Write a vector of i64, or of structs of `width` i64, and return its position."""
    builder.StartVector(8 * width, len(numbers) // width, 8)
    for number in reversed(numbers):
        builder.PrependInt64(number)
    return builder.EndVector()
