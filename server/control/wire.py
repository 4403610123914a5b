"""FlightData by hand: the bulk messages, read and assembled without an object for them.

A protobuf message is a row of fields, each a number, a type of encoding and a value. The body of
a record batch is one field: here it is copied once when it is sent, into the message that gRPC
takes, and never when it is received.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import ExhaustedError, InvalidRequestError
from ...protocol.splitter import SourceMessage
from ...transport.regions import FileRegion

LARGEST_MESSAGE = (1 << 31) - 1
"""What gRPC and protobuf carry in one message, in bytes."""

_DESCRIPTOR, _HEADER, _APP_METADATA, _BODY = 1, 2, 3, 1000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Return an unsigned integer as protobuf writes it: seven bits a byte, the lowest first.

    Examples
    --------
    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_HEADER_TAG = varint(_HEADER << 3 | _BYTES)
_BODY_TAG = varint(_BODY << 3 | _BYTES)


def flight_data(message: SourceMessage) -> bytes:
    """Return the FlightData for a message of a dataset.

    Raises
    ------
    ExhaustedError
        If it is larger than gRPC carries.
    DatasetError
        If a region of a file cannot be read.
    """
    metadata, body, body_length, _ = message
    parts: list[Any] = [_HEADER_TAG, varint(len(metadata)), metadata]
    if body is not None:
        if body_length + len(metadata) + 64 > LARGEST_MESSAGE:
            raise ExhaustedError(
                f"a record batch of {body_length} bytes is too large for DoGet; "
                "ask for smaller ones with batch_rows"
            )
        parts += (_BODY_TAG, varint(body_length))
        for part in body:
            if isinstance(part, FileRegion):
                parts.append(part.file.read(part.offset, part.nbytes))
            else:
                parts.append(part)
    return b"".join(parts)


class FlightData(NamedTuple):
    """A message of an upload. The views share the memory of what was received."""

    descriptor: memoryview | None
    """The serialized FlightDescriptor; the first message has one."""
    header: memoryview
    """The FlatBuffer of an Arrow IPC message; empty if there is none."""
    app_metadata: memoryview | None
    """What the application says."""
    body: memoryview
    """The packed body."""


def parse_flight_data(data: bytes) -> FlightData:
    """Read a FlightData.

    Raises
    ------
    InvalidRequestError
        If it is malformed.
    """
    empty = memoryview(b"")
    descriptor: memoryview | None = None
    app_metadata: memoryview | None = None
    header = body = empty
    for number, value in fields(data):
        if isinstance(value, int):
            continue
        if number == _DESCRIPTOR:
            descriptor = value
        elif number == _HEADER:
            header = value
        elif number == _APP_METADATA:
            app_metadata = value
        elif number == _BODY:
            body = value
    return FlightData(descriptor, header, app_metadata, body)


def fields(data: bytes) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a protobuf message: numbers, and integers or views of bytes.

    Raises
    ------
    InvalidRequestError
        If it is malformed.

    Examples
    --------
    >>> [(number, bytes(value)) for number, value in fields(bytes([10, 2, 104, 105]))]
    [(1, b'hi')]
    """
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, encoding = key >> 3, key & 7
        if encoding == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if encoding == _BYTES:
            length, position = _read_varint(data, position)
        elif encoding in (_FIXED64, _FIXED32):
            length = 8 if encoding == _FIXED64 else 4
        else:
            raise InvalidRequestError("the message is no protobuf message")
        if number == 0 or length > end - position:
            raise InvalidRequestError("the message is no protobuf message, or cut short")
        yield number, view[position : position + length]
        position += length


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(position + 10, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise InvalidRequestError("the message is no protobuf message, or cut short")
