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

_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_PARSE_ERRORS = (struct.error, IndexError, OverflowError)

# The slots of fields in the vtables of Message.fbs.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 6, 8, 10
_MESSAGE_CUSTOM_METADATA = 12
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 4, 8, 10
_SCHEMA_ENDIANNESS = 4
_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 4, 6, 8


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


def _read_root(data: bytes | memoryview) -> int:
    return _U32.unpack_from(data, 0)[0]


def _find_field(data: bytes | memoryview, table: int, slot: int) -> int:
    """Return the position of a field of a table, 0 if the field is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise IndexError
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset = _U16.unpack_from(data, vtable + slot)[0]
    return table + offset if offset else 0


def _follow(data: bytes | memoryview, position: int) -> int:
    return position + _U32.unpack_from(data, position)[0]


def _read_header_type(data: bytes | memoryview, message: int) -> int:
    position = _find_field(data, message, _MESSAGE_HEADER_TYPE)
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
        table = _read_root(metadata)
        header_type = _read_header_type(metadata, table)
        position = _find_field(metadata, table, _MESSAGE_BODY_LENGTH)
        body_length = _I64.unpack_from(metadata, position)[0] if position else 0
        if header_type == 0 or not _find_field(metadata, table, _MESSAGE_HEADER):
            raise IndexError
    except _PARSE_ERRORS:
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
    return MessageSummary(
        header_type.name, header_type is HeaderType.SCHEMA, header_type.has_body, body_length
    )


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
    header_type = read_message_info(metadata).header_type
    try:
        table = _follow(metadata, _find_field(metadata, _read_root(metadata), _MESSAGE_HEADER))
        dictionary_id, is_delta = None, False
        if header_type is HeaderType.DICTIONARY_BATCH:
            position = _find_field(metadata, table, _DICTIONARY_ID)
            dictionary_id = _I64.unpack_from(metadata, position)[0] if position else 0
            position = _find_field(metadata, table, _DICTIONARY_IS_DELTA)
            is_delta = bool(metadata[position]) if position else False
            position = _find_field(metadata, table, _DICTIONARY_DATA)
            if not position:
                raise IndexError
            table = _follow(metadata, position)
        elif header_type is not HeaderType.RECORD_BATCH:
            raise ProtocolError(
                f"received a {header_type.name} message; expected a RECORD_BATCH or "
                "DICTIONARY_BATCH"
            )
        position = _find_field(metadata, table, _BATCH_LENGTH)
        rows = _I64.unpack_from(metadata, position)[0] if position else 0
        compressed = _find_field(metadata, table, _BATCH_COMPRESSION) != 0
        buffers: list[BufferSpan] = []
        position = _find_field(metadata, table, _BATCH_BUFFERS)
        if position:
            vector = _follow(metadata, position)
            count = _U32.unpack_from(metadata, vector)[0]
            if count > max_buffers:
                raise ProtocolError(
                    f"the message declares {count} buffers; the limit is {max_buffers}"
                )
            end = vector + 4 + 16 * count
            if end > len(metadata):
                raise IndexError
            buffers = [
                BufferSpan(offset, length)
                for offset, length in struct.iter_unpack("<qq", metadata[vector + 4 : end])
            ]
    except _PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC batch") from None
    return BatchLayout(rows, buffers, compressed, dictionary_id, is_delta)


def read_endianness(metadata: bytes | memoryview) -> str:
    """Return the byte order that a schema message declares: ``little`` or ``big``.

    Raises
    ------
    ProtocolError
        If the message is malformed or declares an unknown byte order.
    """
    try:
        table = _follow(metadata, _find_field(metadata, _read_root(metadata), _MESSAGE_HEADER))
        position = _find_field(metadata, table, _SCHEMA_ENDIANNESS)
        endianness = _I16.unpack_from(metadata, position)[0] if position else 0
        if endianness not in (0, 1):
            raise IndexError
        return "big" if endianness else "little"
    except _PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC schema") from None


class BatchFlags(NamedTuple):
    """The properties of a message that determine its checks before decoding."""

    header_type: int
    """The type of the message: a value of `HeaderType`, or an unknown number."""
    compressed: bool
    """Whether a record batch or dictionary batch declares a compressed body."""
    custom_metadata: bool
    """Whether the message has custom metadata."""


def read_batch_flags(metadata: bytes | memoryview) -> BatchFlags:
    """Read the properties of a message that determine its checks before decoding.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    """
    try:
        root = _read_root(metadata)
        header_type = _read_header_type(metadata, root)
        compressed = False
        if header_type in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
            compressed = _find_field(metadata, find_batch_table(metadata), _BATCH_COMPRESSION) != 0
        custom_metadata = _find_field(metadata, root, _MESSAGE_CUSTOM_METADATA) != 0
    except _PARSE_ERRORS:
        raise ProtocolError("the metadata is not an Arrow IPC batch") from None
    return BatchFlags(header_type, compressed, custom_metadata)


def find_batch_table(metadata: bytes | memoryview) -> int:
    """Return the position of the table ``RecordBatch`` of a record batch or dictionary batch.

    Raises
    ------
    IndexError, struct.error
        If the message is malformed or not a batch.
    """
    root = _read_root(metadata)
    header_type = _read_header_type(metadata, root)
    position = _find_field(metadata, root, _MESSAGE_HEADER)
    if position and header_type == HeaderType.RECORD_BATCH:
        return _follow(metadata, position)
    if position and header_type == HeaderType.DICTIONARY_BATCH:
        position = _find_field(metadata, _follow(metadata, position), _DICTIONARY_DATA)
        if position:
            return _follow(metadata, position)
    raise IndexError


def find_buffers(metadata: bytes | memoryview) -> int:
    """Return the position of the spans of the buffers in the metadata of a batch.

    Raises
    ------
    ProtocolError
        If the message is malformed or lists no buffers.
    """
    try:
        position = _find_field(metadata, find_batch_table(metadata), _BATCH_BUFFERS)
        if position:
            return _follow(metadata, position) + 4
    except _PARSE_ERRORS:
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
        position = _find_field(metadata, _read_root(metadata), _MESSAGE_BODY_LENGTH)
        if position:
            return position
    except _PARSE_ERRORS:
        pass
    raise ProtocolError("the metadata of the message has no body length")


def measure_decompressed(layout: BatchLayout, body: memoryview) -> int:
    """Return the size that a compressed body declares for its decompressed buffers, in bytes.

    Parameters
    ----------
    layout : BatchLayout
        The layout of the message.
    body : memoryview
        The packed body, as bytes.

    Raises
    ------
    ProtocolError
        If a buffer is outside the body or declares a negative size.
    """
    total = 0
    for index, (offset, length) in enumerate(layout.buffers):
        if offset < 0 or length < 0 or offset + length > body.nbytes:
            raise ProtocolError(
                f"buffer {index} (offset {offset}, length {length}) is outside "
                f"the body of {body.nbytes} bytes"
            )
        if length == 0:
            continue
        if length < 8:
            raise ProtocolError(
                f"compressed buffer {index} has {length} bytes; expected at least 8"
            )
        size = _I64.unpack_from(body, offset)[0]
        if size < -1:
            raise ProtocolError(f"compressed buffer {index} declares {size} bytes")
        total += length - 8 if size == -1 else size
    return total


def measure_decoded(layout: BatchLayout, body: memoryview, *, compressed: bool) -> int:
    """Return the size of the buffers of a batch after decoding, in bytes.

    Overlapping buffers count separately, because decoding copies each of them.

    Parameters
    ----------
    layout : BatchLayout
        The layout of the message.
    body : memoryview
        The packed body, as bytes.
    compressed : bool
        Whether the buffers are compressed.

    Raises
    ------
    ProtocolError
        If a compressed buffer is outside the body or declares a negative size.
    """
    if compressed:
        return measure_decompressed(layout, body)
    return sum(max(0, length) for _, length in layout.buffers)


def read_custom_metadata(metadata: bytes | memoryview) -> dict[bytes, bytes]:
    """Return the custom metadata of a message, which `bounds.survey_custom_metadata` has accepted.

    Of several values of a key, the last one counts, as in pyarrow.
    """
    message = fbs.Message.GetRootAs(metadata, 0)
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    return {pair.Key() or b"": pair.Value() or b"" for pair in pairs if pair is not None}
