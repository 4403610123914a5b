"""FlightData by hand: messages of a stream, without an object for each and with one copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ProtocolError

_HEADER, _APP_METADATA, _BODY = 2, 3, 1000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def assemble(
    header: Any = None, body: Any = None, *, app_metadata: bytes = b"", descriptor: bytes = b""
) -> bytes:
    """Return a FlightData, serialized.

    Parameters
    ----------
    header : bytes-like, optional
        The FlatBuffer of an Arrow IPC message.
    body : bytes-like, optional
        Its body.
    app_metadata, descriptor : bytes
        The further fields; left out where empty.

    Examples
    --------
    >>> assemble(app_metadata=b"hi").hex()
    '1a026869'
    """
    parts: list[Any] = []
    for number, value in ((1, descriptor), (_HEADER, header), (_APP_METADATA, app_metadata)):
        if value:
            parts += (_varint(number << 3 | _BYTES), _varint(len(value)), value)
    if body is not None:
        parts += (_varint(_BODY << 3 | _BYTES), _varint(len(body)), body)
    return b"".join(parts)


def parse(data: bytes) -> tuple[memoryview, memoryview]:
    """Return header and body of a FlightData; either may be empty.

    Raises
    ------
    ProtocolError
        If it is malformed.
    """
    header = body = memoryview(b"")
    for number, value in _fields(data):
        if number == _HEADER:
            header = value
        elif number == _BODY:
            body = value
    return header, body


def _fields(data: bytes) -> Iterator[tuple[int, memoryview]]:
    view, position, end = memoryview(data), 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            _, position = _read_varint(data, position)
            continue
        if kind == _BYTES:
            length, position = _read_varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError("the server sent what is no FlightData")
        if length > end - position:
            raise ProtocolError("the server sent a FlightData that is cut short")
        if kind == _BYTES:
            yield key >> 3, view[position : position + length]
        position += length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(position + 10, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise ProtocolError("the server sent what is no FlightData")
