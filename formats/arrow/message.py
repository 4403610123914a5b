"""Arrow IPC messages: their encapsulation, and the metadata that is read before decoding.

The metadata of a message is a FlatBuffer ("Encapsulated message format"). The full readers are in
``fbs``. This module reads the few fields that are needed for every message of a stream. It checks
the bounds of every access, because the bytes may be malformed.

A file may contain millions of small messages with one layout. In all of them the row count has the
same offset, which `RowCountReader` exploits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from flatbuffers.number_types import SOffsetTFlags, VOffsetTFlags

from ...errors import InvalidDataError, ProtocolError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import PARSE_ERRORS, READER_ERRORS, find_field, follow, read_root, read_slots
from ..summary import MessageSummary

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + bytes(4)

PREFIX = struct.Struct("<4sI")
"""The continuation marker and the length of the padded metadata."""
_I16 = struct.Struct("<h")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

# The slots of fields in the vtables of Message.fbs.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH, _MESSAGE_PAIRS = 6, 8, 10, 12
_BATCH_LENGTH, _BATCH_BUFFERS = 4, 8
_SCHEMA_ENDIANNESS = 4
_DICTIONARY_DATA = 6
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def align(length: int) -> int:
    """Return `length` rounded up to a multiple of 8 bytes, the alignment of Arrow IPC."""
    return (length + 7) & ~7


def encapsulate(metadata: bytes | memoryview) -> bytes:
    """Return the continuation marker, the length and the padded metadata of a message."""
    size = align(len(metadata))
    return b"".join((PREFIX.pack(CONTINUATION, size), metadata, bytes(size - len(metadata))))


class Prefix(NamedTuple):
    """The first bytes of an encapsulated message."""

    nbytes: int
    """The size of the prefix: 8 bytes, or 4 bytes in the format before Arrow 0.15."""
    metadata_length: int
    """The size of the padded metadata in bytes. 0 marks the end of the stream."""


def parse_prefix(data: bytes | memoryview) -> Prefix:
    """Parse the prefix of an encapsulated message."""
    if len(data) >= 8 and bytes(data[:4]) == CONTINUATION:
        prefix = Prefix(8, _I32.unpack_from(data, 4)[0])
    elif len(data) >= 4 and bytes(data[:4]) != CONTINUATION:
        prefix = Prefix(4, _I32.unpack_from(data, 0)[0])
    else:
        raise ProtocolError(f"the prefix of an Arrow IPC message has only {len(data)} bytes")
    if prefix.metadata_length < 0:
        raise ProtocolError(
            f"an Arrow IPC message declares {prefix.metadata_length} bytes of metadata"
        )
    return prefix


MAX_PADDING = 64
"""The largest number of zeros that may follow the end marker of a stream."""


def check_padding(rest: bytes | bytearray, end: int, nbytes: int | None = None) -> None:
    """Refuse data after the end marker of a stream, which would otherwise be lost silently.

    `rest` begins at byte `end`, after the marker, and has one byte more than `MAX_PADDING` if as
    many follow. `nbytes` is the number of all bytes that follow; None if it is unknown.
    """
    if len(rest) > MAX_PADDING or any(rest):
        count = "" if nbytes is None else f"{nbytes} "
        raise InvalidDataError(
            f"the stream ends at byte {end}, but {count}bytes follow its end marker"
        )


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
    """Read the type of a message and the size of its body."""
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
    """Return the properties of an Arrow IPC message that the protocol needs."""
    header_type, body_length = read_message_info(metadata)
    is_array = header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR)
    is_schema = header_type is HeaderType.SCHEMA
    return MessageSummary(header_type.name, is_schema, header_type.has_body, body_length, is_array)


def read_batch_layout(metadata: bytes | memoryview, *, max_buffers: int = 1 << 20) -> BatchLayout:
    """Read the layout of the body of a record batch or dictionary batch."""
    table = read_batch_table(metadata, max_buffers=max_buffers)
    numbers = iter(table.buffers)
    buffers = [BufferSpan(offset, length) for offset, length in zip(numbers, numbers, strict=True)]
    return BatchLayout(
        table.rows, buffers, table.codec is not None, table.dictionary_id, table.is_delta
    )


def read_batch_table(metadata: bytes | memoryview, *, max_buffers: int = 1 << 20) -> BatchTable:
    """Read the numbers in the metadata of a record batch or dictionary batch."""
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
    """Return the byte order that a schema message declares: ``little`` or ``big``."""
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
    """Return the position of the table ``RecordBatch`` of a batch; raises `PARSE_ERRORS`."""
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
    """Return the position of the spans of the buffers in the metadata of a batch."""
    try:
        position = find_field(metadata, find_batch_table(metadata), _BATCH_BUFFERS)
        if position:
            return follow(metadata, position) + 4
    except PARSE_ERRORS:
        pass
    raise ProtocolError("the metadata is not an Arrow IPC batch with buffers")


def find_body_length(metadata: bytes | memoryview) -> int:
    """Return the position of the body length in the metadata of a message."""
    try:
        position = find_field(metadata, read_root(metadata), _MESSAGE_BODY_LENGTH)
        if position:
            return position
    except PARSE_ERRORS:
        pass
    raise ProtocolError("the metadata of the message has no body length")


def read_custom_metadata(metadata: bytes | memoryview) -> dict[bytes, bytes]:
    """Return the custom metadata of a message, which `survey_custom_metadata` has accepted.

    Of several values of a key, the last one counts, as in pyarrow.
    """
    if not find_field(metadata, read_root(metadata), _MESSAGE_PAIRS):
        return {}
    message = fbs.Message.GetRootAs(metadata, 0)
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    return {pair.Key() or b"": pair.Value() or b"" for pair in pairs if pair is not None}


CODECS = {fbs.CompressionType.LZ4_FRAME: "lz4", fbs.CompressionType.ZSTD: "zstd"}
"""The names of the compressions by their numbers."""
OLD_COMPRESSION_KEY = b"ARROW:experimental_compression"
"""The key of the custom metadata with which Arrow 0.17 declared compression."""
_MARKER = 0xFFFFFFFF


class FieldOffsets(NamedTuple):
    """The offsets of values in the metadata of a record batch, in bytes.

    All tables that determine these offsets precede the row count.
    """

    body_length: int
    """The offset of the size of the body (i64)."""
    rows: int
    """The offset of the number of rows (i64)."""


class BatchHeader(NamedTuple):
    """The properties of a record batch or dictionary batch, read from its metadata."""

    header_type: HeaderType
    """The type of the message."""
    body_length: int
    """The size of its body in bytes."""
    rows: int
    """The number of rows of a record batch; 0 for other messages."""
    codec: str | None
    """The compression of the body, ``lz4`` or ``zstd``. None if the body is not compressed."""
    dictionary_id: int | None
    """The ID of the dictionary of a dictionary batch; None for other messages."""
    is_delta: bool
    """Whether a dictionary batch extends the dictionary instead of replacing it."""
    field_offsets: FieldOffsets | None
    """The offsets of these values in a record batch.

    None if it omits a value or has an unusual layout.
    """


def read_batch_header(metadata: bytes | memoryview) -> BatchHeader:
    """Read the metadata of a message; raises `InvalidDataError` for a malformed batch."""
    header_type, body_length = read_message_info(metadata)
    header = BatchHeader(header_type, body_length, 0, None, None, False, None)
    if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
        return header
    try:
        message = fbs.Message.GetRootAs(metadata, 0)
        table: Any = message.Header()
        if header_type is HeaderType.RECORD_BATCH:
            batch = fbs.RecordBatch()
            batch.Init(table.Bytes, table.Pos)
            rows = int(batch.Length())
            if rows < 0:
                raise InvalidDataError(f"a record batch declares {rows} rows")
            field_offsets = _find_field_offsets(message, batch)
            codec = _name_codec(message, batch)
            return header._replace(rows=rows, codec=codec, field_offsets=field_offsets)
        dictionary = fbs.DictionaryBatch()
        dictionary.Init(table.Bytes, table.Pos)
        data = dictionary.Data()
        if data is None:
            raise InvalidDataError("a dictionary batch has no data")
        return header._replace(
            codec=_name_codec(message, data),
            dictionary_id=int(dictionary.Id()),
            is_delta=bool(dictionary.IsDelta()),
        )
    except READER_ERRORS:
        raise InvalidDataError("the metadata is not an Arrow IPC batch") from None


def _name_codec(message: Any, batch: Any) -> str | None:
    compression = batch.Compression()
    if compression is not None:
        codec = compression.Codec()
        if codec not in CODECS:
            raise InvalidDataError(f"a message is compressed with the unknown codec {codec}")
        return CODECS[codec]
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    found = (pair.Value().decode().lower() for pair in pairs if pair.Key() == OLD_COMPRESSION_KEY)
    return next(found, None)


def _find_field_offsets(message: Any, batch: Any) -> FieldOffsets | None:
    outer, inner = message._tab, batch._tab
    body_length, rows = outer.Offset(_MESSAGE_BODY_LENGTH), inner.Offset(_BATCH_LENGTH)
    if not body_length or not rows:
        return None
    found = FieldOffsets(outer.Pos + body_length, inner.Pos + rows)
    # The reference from the outer table to the inner one points forward, so it precedes that too.
    ends = [found.body_length + 8, inner.Pos + 4]
    for table in (outer, inner):
        vtable = table.Pos - table.Get(SOffsetTFlags, table.Pos)
        ends.append(vtable + table.Get(VOffsetTFlags, vtable))
    return found if max(ends) <= found.rows else None


RowCountLayout = tuple[Callable[[bytes, int], tuple[Any, ...]], bytes, bytes]
"""The layout that a `RowCountReader` knows."""


class RowCountReader:
    """Reads the row counts of messages, quickly while their layout repeats.

    The first part of a FlatBuffer determines the offsets of its values. If it equals that of the
    previous message byte for byte, the offsets are the same. Otherwise the message is parsed.
    """

    __slots__ = ("_head", "_middle", "_unpack")

    def __init__(self, layout: RowCountLayout | None = None) -> None:
        self._unpack, self._head, self._middle = layout or (_unpack_nothing, b"", b"")

    @property
    def has_layout(self) -> bool:
        """Whether the reader knows a layout."""
        return self._unpack is not _unpack_nothing

    @property
    def layout(self) -> RowCountLayout:
        """The layout of the messages that are read without parsing them."""
        return self._unpack, self._head, self._middle

    def read(self, data: bytes, at: int, metadata_length: int, body_length: int) -> int:
        """Return the number of rows of a message, 0 if it is not a record batch.

        `metadata_length` is the size of its prefix and its metadata in bytes, and `body_length` the
        expected size of its body.
        """
        try:
            marker, head, length, middle, rows = self._unpack(data, at)
        except struct.error:
            return self._parse(data, at, metadata_length, body_length)
        if (
            marker == _MARKER
            and length == body_length
            and head == self._head
            and middle == self._middle
            and rows >= 0
        ):
            return rows
        return self._parse(data, at, metadata_length, body_length)

    def _parse(self, data: bytes, at: int, metadata_length: int, body_length: int) -> int:
        prefix = parse_prefix(memoryview(data)[at:])
        header = read_batch_header(data[at + prefix.nbytes : at + metadata_length])
        if header.body_length != body_length:
            raise InvalidDataError(
                f"the message declares a body of {header.body_length} bytes; expected {body_length}"
            )
        if header.field_offsets is not None and prefix.nbytes == 8:
            length, rows = header.field_offsets
            layout = struct.Struct(f"<I4x{length}sq{rows - length - 8}sq")
            self._unpack = layout.unpack_from
            _, self._head, _, self._middle, _ = layout.unpack_from(data, at)
        return header.rows


def _unpack_nothing(data: bytes, at: int) -> tuple[Any, ...]:
    """Fail as for a message of another layout."""
    raise struct.error
