"""FlightData and other protobuf messages, parsed and packed without a protobuf object.

A protobuf message is a sequence of fields. Each field has a number, a wire type and a value. The
body of a record batch is one field. Packing copies the body once, into the message for gRPC.
Parsing returns a view of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..errors import ProtocolError

_DESCRIPTOR, _HEADER, _APP_METADATA, _BODY = 1, 2, 3, 1000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

KEEP_ALIVE_HEADER = "splitarrow-keep-alive"
"""The header of DoGet that requests keep-alives. Its value is the interval in milliseconds."""
KEEP_ALIVE_METADATA = b"splitarrow:keep-alive"
"""The application metadata of a keep-alive, which is a message without header and body. Other
clients take such a message for the end of the stream, so only the header requests it."""
PLAN_HEADER = "splitarrow-plan"
"""The header of DoGet that requests a plan: the ticket is then the command of a descriptor. Its
value is ``flight`` to read over DoGet, and ``auto`` for the data only if it is small.

The application metadata of the first message is a FlightInfo, after a byte that is 1 if the data
follows. A server that knows the header has it in the trailing metadata."""

ISSUER_REQUEST = b"splitarrow:issuer"
"""The payload of a handshake that asks for the issuer of tokens. The payload of the response is a
JSON object; see `describe_issuer`."""


class FlightData(NamedTuple):
    """One message of a Flight stream. The views share the memory of the received message."""

    descriptor: memoryview | None
    """The serialized FlightDescriptor, which only the first message of an upload has."""
    header: memoryview
    """The FlatBuffer of an Arrow IPC message, or empty."""
    app_metadata: memoryview | None
    """Metadata of the application, or None."""
    body: memoryview
    """The packed body, or empty."""


def pack_flight_data(
    header: Any = b"",
    body: Iterable[Any] | None = None,
    body_length: int = 0,
    *,
    app_metadata: bytes = b"",
    descriptor: bytes = b"",
) -> bytes:
    """Return a serialized FlightData message. Empty fields, and a body of None, are omitted.

    `body_length` is the size of all parts of the body in bytes.

    Examples
    --------
    >>> pack_flight_data(app_metadata=b"hi").hex()
    '1a026869'
    """
    parts: list[Any] = []
    fields = ((_DESCRIPTOR, descriptor), (_HEADER, header), (_APP_METADATA, app_metadata))
    for number, value in fields:
        if len(value):
            parts += (encode_varint(number << 3 | _BYTES), encode_varint(len(value)), value)
    if body is not None:
        parts += (encode_varint(_BODY << 3 | _BYTES), encode_varint(body_length), *body)
    return b"".join(parts)


def parse_flight_data(data: bytes | memoryview) -> FlightData:
    """Parse a serialized FlightData message; raises `ProtocolError` if it is malformed."""
    empty = memoryview(b"")
    descriptor: memoryview | None = None
    app_metadata: memoryview | None = None
    header = body = empty
    for number, value in iter_protobuf_fields(data):
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


def iter_protobuf_fields(
    data: bytes | memoryview,
) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a protobuf message.

    A varint is an integer; any other value is a view of its bytes. Raises `ProtocolError` if the
    message is malformed.

    Examples
    --------
    >>> [(number, bytes(value)) for number, value in iter_protobuf_fields(bytes([10, 2, 104, 105]))]
    [(1, b'hi')]
    """
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _read_varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ProtocolError(f"malformed protobuf message: unknown wire type {wire_type}")
        if number == 0 or length > end - position:
            raise ProtocolError("malformed protobuf message: a field is truncated")
        yield number, view[position : position + length]
        position += length


def encode_varint(value: int) -> bytes:
    """Return an unsigned integer as a protobuf varint: 7 bits per byte, the lowest first.

    Examples
    --------
    >>> encode_varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(position, min(position + _LONGEST_VARINT, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise ProtocolError("malformed protobuf message: a number is truncated or too long")
