"""The fields of a protobuf message whose bytes may be malformed."""

from __future__ import annotations

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64


def read_fields(data: bytes) -> dict[int, list[int | bytes]]:
    r"""Return the values of each field, in order: numbers, or bytes of strings and messages.

    Raises
    ------
    ValueError
        If the bytes are not a protobuf message.

    Examples
    --------
    >>> read_fields(b"\x08\x96\x01\x12\x02hi")
    {1: [150], 2: [b'hi']}
    """
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, position = _read_varint(data, position)
        elif kind in (_FIXED_64, _FIXED_32):
            end = position + (8 if kind == _FIXED_64 else 4)
            value = int.from_bytes(_slice(data, position, end), "little")
            position = end
        elif kind == _BYTES:
            length, position = _read_varint(data, position)
            value = _slice(data, position, position + length)
            position += length
        else:
            raise ValueError(f"a field has the unknown type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _slice(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise ValueError("a field ends behind the message")
    return data[begin:end]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable size, and the position behind it."""
    value = shift = 0
    while position < len(data) and shift < _MAX_VARINT_BITS:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("a number does not end")
