"""The metadata of batches that a server sends unchanged.

A file may contain millions of small messages with one layout. In all of them the row count has the
same offset, which `RowCountReader` exploits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from flatbuffers.number_types import SOffsetTFlags, VOffsetTFlags

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .framing import parse_prefix
from .message import HeaderType, read_message_info

CODECS = {fbs.CompressionType.LZ4_FRAME: "lz4", fbs.CompressionType.ZSTD: "zstd"}
"""The names of the compressions by their numbers."""
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # Arrow 0.17 declared compression with it
_MARKER = 0xFFFFFFFF

# The slots of fields in the vtables of Message and RecordBatch.
_BODY_LENGTH, _LENGTH = 10, 4
_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError)


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


def read_header(metadata: bytes | memoryview) -> BatchHeader:
    """Read the metadata of a message.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message, without continuation marker and length. It may be malformed.

    Raises
    ------
    ProtocolError
        If it is not the FlatBuffer of an Arrow IPC message.
    InvalidDataError
        If the batch is malformed or declares an unknown codec.
    """
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
            codec = _read_codec(message, batch)
            return header._replace(rows=rows, codec=codec, field_offsets=field_offsets)
        dictionary = fbs.DictionaryBatch()
        dictionary.Init(table.Bytes, table.Pos)
        data = dictionary.Data()
        if data is None:
            raise InvalidDataError("a dictionary batch has no data")
        return header._replace(
            codec=_read_codec(message, data),
            dictionary_id=int(dictionary.Id()),
            is_delta=bool(dictionary.IsDelta()),
        )
    except _PARSE_ERRORS:
        raise InvalidDataError("the metadata is not an Arrow IPC batch") from None


def _read_codec(message: Any, batch: Any) -> str | None:
    compression = batch.Compression()
    if compression is not None:
        codec = compression.Codec()
        if codec not in CODECS:
            raise InvalidDataError(f"a message is compressed with the unknown codec {codec}")
        return CODECS[codec]
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    found = (pair.Value().decode().lower() for pair in pairs if pair.Key() == _OLD_COMPRESSION)
    return next(found, None)


def _find_field_offsets(message: Any, batch: Any) -> FieldOffsets | None:
    outer, inner = message._tab, batch._tab
    body_length, rows = outer.Offset(_BODY_LENGTH), inner.Offset(_LENGTH)
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

    Parameters
    ----------
    layout : tuple, optional
        The `layout` of another reader, which has read a message that is probably alike.
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

        Parameters
        ----------
        data : bytes
            A buffer that contains the message.
        at : int
            The offset of its prefix in the buffer.
        metadata_length : int
            The size of its prefix and its metadata in bytes.
        body_length : int
            The expected size of its body in bytes.

        Raises
        ------
        ProtocolError
            If the message is malformed.
        InvalidDataError
            If the batch is malformed or has a body of another size.
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
        header = read_header(data[at + prefix.nbytes : at + metadata_length])
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
    """Fail, as if the message had another layout: none is known yet."""
    raise struct.error
