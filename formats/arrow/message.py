"""The metadata fields that a receiver needs before it decodes an Arrow IPC message.

The metadata of a message is a FlatBuffer. The full readers are in ``fbs``. This module reads the
few fields that are needed for every message of a stream. It checks the bounds of every access,
because the bytes may be malformed.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ...errors import ProtocolError
from ...fbs import arrow_generated as fbs
from ..summary import MessageSummary
from .flatbuffer import PARSE_ERRORS, find_field, follow, read_root, read_slots

_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

# The slots of fields in the vtables of Message.fbs.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH, _MESSAGE_PAIRS = 6, 8, 10, 12
_BATCH_BUFFERS = 8
_SCHEMA_ENDIANNESS = 4
_DICTIONARY_DATA = 6
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class HeaderType(IntEnum):
    """The type of an Arrow IPC message (union MessageHeader)."""

    NONE = 0
    SCHEMA = 1
    DICTIONARY_BATCH = 2
    RECORD_BATCH = 3
    TENSOR = 4
    SPARSE_TENSOR = 5

    @property
    def has_body(self) -> bool:
        """Whether such a message has a body. The body may have 0 bytes."""
        return self >= HeaderType.DICTIONARY_BATCH


class MessageInfo(NamedTuple):
    """The type and the body length of a message."""

    header_type: HeaderType
    """The type of the message."""
    body_length: int
    """The declared size of the packed body in bytes."""


class BufferSpan(NamedTuple):
    """The span of a buffer in the body of a message."""

    offset: int
    """The offset of the buffer in the body, in bytes."""
    length: int
    """The size of the buffer in bytes."""


class BatchLayout(NamedTuple):
    """The layout of the body of a record batch or dictionary batch."""

    rows: int
    """The number of rows or dictionary values."""
    buffers: list[BufferSpan]
    """The spans of the buffers in the order of the metadata."""
    compressed: bool
    """Whether the buffers are compressed."""
    dictionary_id: int | None
    """The ID of the dictionary; None for a record batch."""
    is_delta: bool
    """Whether the dictionary batch extends the dictionary instead of replacing it."""


class BatchTable(NamedTuple):
    """The numbers in the metadata of a record batch or dictionary batch."""

    header_type: int
    """The type of the message."""
    version: int
    """The number of the metadata version: 3 is V4, 4 is V5."""
    body_length: int
    """The declared size of the packed body in bytes."""
    has_custom_metadata: bool
    """Whether the message has custom metadata."""
    rows: int
    """The number of rows or dictionary values."""
    nodes: tuple[int, ...]
    """The length and the null count of each field node, one after another."""
    buffers: tuple[int, ...]
    """The offset and the length of each buffer, one after another, in bytes."""
    variadic_counts: tuple[int, ...]
    """The number of data buffers of each array of views."""
    codec: int | None
    """The codec of the compressed buffers; None if they are not compressed."""
    dictionary_id: int | None
    """The ID of the dictionary; None for a record batch."""
    is_delta: bool
    """Whether the dictionary batch extends the dictionary instead of replacing it."""


def _read_header_type(data: bytes | memoryview, message: int) -> int:
    position = find_field(data, message, _MESSAGE_HEADER_TYPE)
    return data[position] if position else 0


def read_message_info(metadata: bytes | memoryview) -> MessageInfo:
    """Read the type of a message and the size of its body.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of an Arrow IPC ``Message``, without continuation marker and length.

    Raises
    ------
    ProtocolError
        If the bytes are not the FlatBuffer of an Arrow IPC message.
    """
    try:
        table = read_root(metadata)
        header_type = _read_header_type(metadata, table)
        position = find_field(metadata, table, _MESSAGE_BODY_LENGTH)
        body_length = _I64.unpack_from(metadata, position)[0] if position else 0
        if header_type == 0 or not find_field(metadata, table, _MESSAGE_HEADER):
            raise IndexError
    except PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC message") from None
    if header_type > HeaderType.SPARSE_TENSOR:
        raise ProtocolError(f"unknown Arrow IPC message type {header_type}")
    if body_length < 0:
        raise ProtocolError(f"the metadata declares a body of {body_length} bytes")
    return MessageInfo(HeaderType(header_type), body_length)


def summarize_message(metadata: bytes | memoryview) -> MessageSummary:
    """Return the properties of an Arrow IPC message that the protocol needs.

    Raises
    ------
    ProtocolError
        If the metadata is not the FlatBuffer of an Arrow IPC message.
    """
    header_type, body_length = read_message_info(metadata)
    is_array = header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR)
    is_schema = header_type is HeaderType.SCHEMA
    return MessageSummary(header_type.name, is_schema, header_type.has_body, body_length, is_array)


def read_batch_layout(metadata: bytes | memoryview, *, max_buffers: int = 1 << 20) -> BatchLayout:
    """Read the layout of the body of a record batch or dictionary batch.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    max_buffers : int
        The largest number of buffers to accept.

    Raises
    ------
    ProtocolError
        If the message is not a batch, is malformed, or has more than `max_buffers` buffers.
    """
    table = read_batch_table(metadata, max_buffers=max_buffers)
    numbers = iter(table.buffers)
    buffers = [BufferSpan(offset, length) for offset, length in zip(numbers, numbers, strict=True)]
    return BatchLayout(
        table.rows, buffers, table.codec is not None, table.dictionary_id, table.is_delta
    )


def read_batch_table(metadata: bytes | memoryview, *, max_buffers: int = 1 << 20) -> BatchTable:
    """Read the numbers in the metadata of a record batch or dictionary batch.

    Parameters and errors are those of `read_batch_layout`.
    """
    try:
        slots = read_slots(metadata, read_root(metadata))
        version, kind, header, length, custom_metadata = slots[:5]
        header_type = metadata[kind] if kind else 0
        if not header:
            raise IndexError
        slots = read_slots(metadata, follow(metadata, header))
        dictionary_id, is_delta = None, False
        if header_type == _DICTIONARY_BATCH:
            at, data, delta = slots[:3]
            dictionary_id = _I64.unpack_from(metadata, at)[0] if at else 0
            is_delta = bool(metadata[delta]) if delta else False
            if not data:
                raise IndexError
            slots = read_slots(metadata, follow(metadata, data))
        elif header_type != _RECORD_BATCH:
            name = read_message_info(metadata).header_type.name
            raise ProtocolError(
                f"received a {name} message; expected a RECORD_BATCH or DICTIONARY_BATCH"
            )
        rows, nodes, buffers, compression, variadic = slots[:5]
        body_length = _I64.unpack_from(metadata, length)[0] if length else 0
        if body_length < 0:
            raise ProtocolError(f"the metadata declares a body of {body_length} bytes")
        return BatchTable(
            header_type,
            _I16.unpack_from(metadata, version)[0] if version else 0,
            body_length,
            custom_metadata != 0,
            _I64.unpack_from(metadata, rows)[0] if rows else 0,
            _read_longs(metadata, nodes, 2, max_buffers, "field nodes") if nodes else (),
            _read_longs(metadata, buffers, 2, max_buffers, "buffers") if buffers else (),
            _read_longs(metadata, variadic, 1, max_buffers, "arrays of views") if variadic else (),
            _read_codec(metadata, compression) if compression else None,
            dictionary_id,
            is_delta,
        )
    except PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC batch") from None


def _read_longs(
    data: bytes | memoryview, position: int, width: int, limit: int, name: str
) -> tuple[int, ...]:
    """Return the numbers of a vector whose elements have `width` i64."""
    vector = follow(data, position)
    count = _U32.unpack_from(data, vector)[0]
    if count > limit:
        raise ProtocolError(f"the message declares {count} {name}; the limit is {limit}")
    return struct.unpack_from(f"<{width * count}q", data, vector + 4)


def _read_codec(data: bytes | memoryview, position: int) -> int:
    codec, method = read_slots(data, follow(data, position))[:2]
    if method and data[method]:
        raise ProtocolError(f"the message has the unknown method of compression {data[method]}")
    return data[codec] if codec else 0


def read_endianness(metadata: bytes | memoryview) -> str:
    """Return the byte order that a schema message declares: ``little`` or ``big``.

    Raises
    ------
    ProtocolError
        If the message is malformed or declares an unknown byte order.
    """
    try:
        table = follow(metadata, find_field(metadata, read_root(metadata), _MESSAGE_HEADER))
        position = find_field(metadata, table, _SCHEMA_ENDIANNESS)
        endianness = _I16.unpack_from(metadata, position)[0] if position else 0
        if endianness not in (0, 1):
            raise IndexError
        return "big" if endianness else "little"
    except PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC schema") from None


def find_batch_table(metadata: bytes | memoryview) -> int:
    """Return the position of the table ``RecordBatch`` of a record batch or dictionary batch.

    Raises
    ------
    IndexError, struct.error
        If the message is malformed or not a batch.
    """
    root = read_root(metadata)
    header_type = _read_header_type(metadata, root)
    position = find_field(metadata, root, _MESSAGE_HEADER)
    if position and header_type == HeaderType.RECORD_BATCH:
        return follow(metadata, position)
    if position and header_type == HeaderType.DICTIONARY_BATCH:
        position = find_field(metadata, follow(metadata, position), _DICTIONARY_DATA)
        if position:
            return follow(metadata, position)
    raise IndexError


def find_buffers(metadata: bytes | memoryview) -> int:
    """Return the position of the spans of the buffers in the metadata of a batch.

    Raises
    ------
    ProtocolError
        If the message is malformed or lists no buffers.
    """
    try:
        position = find_field(metadata, find_batch_table(metadata), _BATCH_BUFFERS)
        if position:
            return follow(metadata, position) + 4
    except PARSE_ERRORS:
        pass
    raise ProtocolError("the metadata is not an Arrow IPC batch with buffers")


def find_body_length(metadata: bytes | memoryview) -> int:
    """Return the position of the body length in the metadata of a message.

    Raises
    ------
    ProtocolError
        If the metadata is malformed or omits the body length.
    """
    try:
        position = find_field(metadata, read_root(metadata), _MESSAGE_BODY_LENGTH)
        if position:
            return position
    except PARSE_ERRORS:
        pass
    raise ProtocolError("the metadata of the message has no body length")


def read_custom_metadata(metadata: bytes | memoryview) -> dict[bytes, bytes]:
    """Return the custom metadata of a message, which `bounds.survey_custom_metadata` has accepted.

    Of several values of a key, the last one counts, as in pyarrow.
    """
    if not find_field(metadata, read_root(metadata), _MESSAGE_PAIRS):
        return {}
    message = fbs.Message.GetRootAs(metadata, 0)
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    return {pair.Key() or b"": pair.Value() or b"" for pair in pairs if pair is not None}
