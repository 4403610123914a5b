"""Arrow IPC messages: framing in bytes, and what a receiver must know before it decodes one.

A message's metadata is a FlatBuffer. The full readers are in ``fbs``; this module reads the
few fields that are needed for every message of a stream, with every access bounds-checked,
because it sees bytes that nothing has verified yet.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ...errors import ProtocolError

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + bytes(4)

_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_PREFIX = struct.Struct("<4sI")
_MISALIGNED = (struct.error, IndexError, OverflowError)

# The places of fields in the FlatBuffers vtables of Message.fbs.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 6, 8, 10
_MESSAGE_CUSTOM_METADATA = 12
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 4, 6, 8, 10
_SCHEMA_ENDIANNESS = 4
_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 4, 6, 8


class HeaderType(IntEnum):
    """What an Arrow IPC message is (union MessageHeader)."""

    NONE = 0
    SCHEMA = 1
    DICTIONARY_BATCH = 2
    RECORD_BATCH = 3
    TENSOR = 4
    SPARSE_TENSOR = 5

    @property
    def has_body(self) -> bool:
        """Whether such a message has a body, be it of 0 bytes."""
        return self >= HeaderType.DICTIONARY_BATCH


class MessageFacts(NamedTuple):
    """What the protocol needs to know of a message's metadata."""

    header_type: HeaderType
    """What the message is."""
    body_length: int
    """The declared size of the packed body in bytes."""


class BufferSpan(NamedTuple):
    """A place in the body of a message."""

    offset: int
    """Where the buffer begins, in bytes from the start of the body."""
    length: int
    """How long it is, in bytes."""


class BatchFacts(NamedTuple):
    """The layout of the body of a record batch or dictionary batch."""

    rows: int
    """The number of rows (or of dictionary values)."""
    buffers: list[BufferSpan]
    """The buffers in the order of the metadata."""
    compressed: bool
    """Whether the buffers are compressed."""
    dictionary_id: int | None
    """The id of the dictionary; None for a record batch."""
    is_delta: bool
    """Whether the dictionary batch extends the dictionary instead of replacing it."""


def _root(data: bytes | memoryview) -> int:
    return _U32.unpack_from(data, 0)[0]


def _field(data: bytes | memoryview, table: int, slot: int) -> int:
    """Return the position of a field of a table; 0 if the field is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise IndexError
    if slot >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset = _U16.unpack_from(data, vtable + slot)[0]
    return table + offset if offset else 0


def _indirect(data: bytes | memoryview, position: int) -> int:
    return position + _U32.unpack_from(data, position)[0]


def message_facts(metadata: bytes | memoryview) -> MessageFacts:
    """Read what kind of message `metadata` describes, and how long its body is.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of an Arrow IPC ``Message``, without continuation marker and length.

    Raises
    ------
    ProtocolError
        If the bytes are not such a FlatBuffer.
    """
    try:
        table = _root(metadata)
        position = _field(metadata, table, _MESSAGE_HEADER_TYPE)
        header_type = metadata[position] if position else 0
        position = _field(metadata, table, _MESSAGE_BODY_LENGTH)
        body_length = _I64.unpack_from(metadata, position)[0] if position else 0
        if header_type == 0 or not _field(metadata, table, _MESSAGE_HEADER):
            raise IndexError
    except _MISALIGNED:
        raise ProtocolError("the metadata is not an Arrow IPC message") from None
    if header_type > HeaderType.SPARSE_TENSOR:
        raise ProtocolError(f"unknown Arrow IPC message type {header_type}")
    if body_length < 0:
        raise ProtocolError(f"the metadata declares a body of {body_length} bytes")
    return MessageFacts(HeaderType(header_type), body_length)


def batch_facts(metadata: bytes | memoryview, *, max_buffers: int = 1 << 20) -> BatchFacts:
    """Read where the buffers of a record batch or dictionary batch lie.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    max_buffers : int
        The largest number of buffers that is accepted.

    Raises
    ------
    ProtocolError
        If the message is no batch, is malformed, or has more than `max_buffers` buffers.
    """
    facts = message_facts(metadata)
    try:
        table = _indirect(metadata, _field(metadata, _root(metadata), _MESSAGE_HEADER))
        dictionary_id, is_delta = None, False
        if facts.header_type is HeaderType.DICTIONARY_BATCH:
            position = _field(metadata, table, _DICTIONARY_ID)
            dictionary_id = _I64.unpack_from(metadata, position)[0] if position else 0
            position = _field(metadata, table, _DICTIONARY_IS_DELTA)
            is_delta = bool(metadata[position]) if position else False
            position = _field(metadata, table, _DICTIONARY_DATA)
            if not position:
                raise IndexError
            table = _indirect(metadata, position)
        elif facts.header_type is not HeaderType.RECORD_BATCH:
            raise ProtocolError(f"a {facts.header_type.name} message has no buffers")
        position = _field(metadata, table, _BATCH_LENGTH)
        rows = _I64.unpack_from(metadata, position)[0] if position else 0
        compressed = _field(metadata, table, _BATCH_COMPRESSION) != 0
        buffers: list[BufferSpan] = []
        position = _field(metadata, table, _BATCH_BUFFERS)
        if position:
            vector = _indirect(metadata, position)
            count = _U32.unpack_from(metadata, vector)[0]
            if count > max_buffers:
                raise ProtocolError(f"the message declares {count} buffers")
            end = vector + 4 + 16 * count
            if end > len(metadata):
                raise IndexError
            buffers = [
                BufferSpan(offset, length)
                for offset, length in struct.iter_unpack("<qq", metadata[vector + 4 : end])
            ]
    except _MISALIGNED:
        raise ProtocolError("the metadata is not an Arrow IPC batch") from None
    return BatchFacts(rows, buffers, compressed, dictionary_id, is_delta)


def schema_endianness(metadata: bytes | memoryview) -> str:
    """Return the byte order that a schema message declares: ``little`` or ``big``.

    Raises
    ------
    ProtocolError
        If the message is malformed or declares neither.
    """
    try:
        table = _indirect(metadata, _field(metadata, _root(metadata), _MESSAGE_HEADER))
        position = _field(metadata, table, _SCHEMA_ENDIANNESS)
        endianness = _I16.unpack_from(metadata, position)[0] if position else 0
        if endianness not in (0, 1):
            raise IndexError
        return "big" if endianness else "little"
    except _MISALIGNED:
        raise ProtocolError("the metadata is not an Arrow IPC schema") from None


class BatchTraits(NamedTuple):
    """What decides how a message of a batch has to be checked before it is decoded."""

    header_type: int
    """What the message is: a value of `HeaderType`, or unknown."""
    compressed: bool
    """Whether a record batch or dictionary batch declares a compressed body."""
    custom_metadata: bool
    """Whether it carries custom metadata."""


def batch_traits(metadata: bytes | memoryview) -> BatchTraits:
    """Read the few traits of a record batch or dictionary batch that its checks depend on.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    """
    try:
        root = _root(metadata)
        position = _field(metadata, root, _MESSAGE_HEADER_TYPE)
        header_type = metadata[position] if position else 0
        compressed = False
        if header_type in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
            compressed = _field(metadata, batch_table(metadata), _BATCH_COMPRESSION) != 0
        custom_metadata = _field(metadata, root, _MESSAGE_CUSTOM_METADATA) != 0
    except _MISALIGNED:
        raise ProtocolError("the metadata is not an Arrow IPC batch") from None
    return BatchTraits(header_type, compressed, custom_metadata)


def batch_table(metadata: bytes | memoryview) -> int:
    """Return the position of the table RecordBatch of a record batch or dictionary batch.

    Raises
    ------
    IndexError, struct.error
        If the message is malformed.
    """
    root = _root(metadata)
    position = _field(metadata, root, _MESSAGE_HEADER_TYPE)
    header_type = metadata[position] if position else 0
    position = _field(metadata, root, _MESSAGE_HEADER)
    if position and header_type == HeaderType.RECORD_BATCH:
        return _indirect(metadata, position)
    if position and header_type == HeaderType.DICTIONARY_BATCH:
        position = _field(metadata, _indirect(metadata, position), _DICTIONARY_DATA)
        if position:
            return _indirect(metadata, position)
    raise IndexError


def buffers_position(metadata: bytes | memoryview) -> int:
    """Return where the (offset, length) pairs of the buffers of a batch begin in its metadata.

    Raises
    ------
    ProtocolError
        If the message is malformed or lists no buffers.
    """
    try:
        position = _field(metadata, batch_table(metadata), _BATCH_BUFFERS)
        if position:
            return _indirect(metadata, position) + 4
    except _MISALIGNED:
        pass
    raise ProtocolError("the metadata is not an Arrow IPC batch with buffers")


def body_length_position(metadata: bytes | memoryview) -> int:
    """Return where the length of the body stands in a message's metadata.

    Raises
    ------
    ProtocolError
        If it does not stand there.
    """
    try:
        position = _field(metadata, _root(metadata), _MESSAGE_BODY_LENGTH)
        if position:
            return position
    except _MISALIGNED:
        pass
    raise ProtocolError("the metadata does not tell the length of its body")


def decoded_bytes(facts: BatchFacts, body: memoryview) -> int:
    """Return how large a compressed body says that it is after decompression.

    Parameters
    ----------
    facts : BatchFacts
        The layout of the message.
    body : memoryview
        The packed body, as bytes.

    Returns
    -------
    int
        Bytes; the sum over all buffers.

    Raises
    ------
    ProtocolError
        If a buffer lies outside the body or declares a negative size.
    """
    total = 0
    for index, (offset, length) in enumerate(facts.buffers):
        if offset < 0 or length < 0 or offset + length > body.nbytes:
            raise ProtocolError(
                f"buffer {index} (offset {offset}, length {length}) lies outside "
                f"the body of {body.nbytes} bytes"
            )
        if length == 0:
            continue
        if length < 8:
            raise ProtocolError(f"compressed buffer {index} has only {length} bytes")
        size = _I64.unpack_from(body, offset)[0]
        if size < -1:
            raise ProtocolError(f"compressed buffer {index} declares {size} bytes")
        total += length - 8 if size == -1 else size
    return total


def padded(length: int) -> int:
    """Return `length` rounded up to the 8 bytes that Arrow IPC aligns to."""
    return (length + 7) & ~7


def encapsulate(metadata: bytes | memoryview) -> bytes:
    """Return the continuation marker, the length and the padded metadata of a message.

    "Encapsulated message format" of the Arrow specification; the body may follow directly.
    """
    size = padded(len(metadata))
    return b"".join((_PREFIX.pack(CONTINUATION, size), metadata, bytes(size - len(metadata))))


class Prefix(NamedTuple):
    """What the first bytes of an encapsulated message say."""

    nbytes: int
    """How long the prefix is: 8 bytes, or 4 in the framing before Arrow 0.15."""
    metadata_length: int
    """How long the metadata is with its padding; 0 marks the end of the stream."""


def parse_prefix(data: bytes | memoryview) -> Prefix:
    """Read the first 8 bytes (4 are enough for the old framing) of an encapsulated message.

    Raises
    ------
    ProtocolError
        If they are too few or declare a negative length.
    """
    if len(data) >= 8 and bytes(data[:4]) == CONTINUATION:
        prefix = Prefix(8, _I32.unpack_from(data, 4)[0])
    elif len(data) >= 4 and bytes(data[:4]) != CONTINUATION:
        prefix = Prefix(4, _I32.unpack_from(data, 0)[0])
    else:
        raise ProtocolError("the prefix of an Arrow IPC message is cut short")
    if prefix.metadata_length < 0:
        raise ProtocolError(f"an Arrow IPC message declares {prefix.metadata_length} bytes")
    return prefix
