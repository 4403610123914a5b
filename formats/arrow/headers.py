"""What a server has to know of a message that it sends as it lies.

Files may hold millions of small messages that all have the same layout: where the row count
stands in one, it stands in the next. `HeaderProbe` makes use of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from flatbuffers.number_types import SOffsetTFlags, VOffsetTFlags

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .message import HeaderType, message_facts, parse_prefix

_CODECS = {fbs.CompressionType.LZ4_FRAME: "lz4", fbs.CompressionType.ZSTD: "zstd"}
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # how Arrow 0.17 declared it
_MARKER = 0xFFFFFFFF

# The places of fields in the vtables of Message and RecordBatch.
_HEADER, _BODY_LENGTH, _LENGTH = 8, 10, 4
_GARBAGE = (struct.error, IndexError, OverflowError, TypeError, ValueError)


class Places(NamedTuple):
    """Where values stand in the metadata of a record batch, in bytes from its start.

    Everything that tells that they stand there comes before the rows.
    """

    body_length: int
    """The size of the body (i64)."""
    rows: int
    """The number of rows (i64)."""


class Header(NamedTuple):
    """What the metadata of a record batch or dictionary batch says."""

    header_type: HeaderType
    """What the message is."""
    body_length: int
    """The size of its body in bytes."""
    rows: int
    """The number of rows; 0 for all but record batches."""
    codec: str | None
    """How the body is compressed: ``lz4``, ``zstd``, or None."""
    dictionary_id: int | None
    """The id of the dictionary; None for all but dictionary batches."""
    is_delta: bool
    """Whether a dictionary batch extends the dictionary instead of replacing it."""
    places: Places | None
    """Where a record batch says this; None if it leaves a value out, or is laid out oddly."""


def read_header(metadata: bytes | memoryview) -> Header:
    """Read the metadata of a message.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message, without continuation marker and length. Nothing needs to
        have verified it.

    Raises
    ------
    ProtocolError
        If it is not the FlatBuffer of an Arrow IPC message.
    InvalidDataError
        If it is malformed, or declares a codec that is not known.
    """
    header_type, body_length = message_facts(metadata)
    nothing = Header(header_type, body_length, 0, None, None, False, None)
    if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
        return nothing
    try:
        message = fbs.Message.GetRootAs(metadata, 0)
        table: Any = message.Header()
        if header_type is HeaderType.RECORD_BATCH:
            batch = fbs.RecordBatch()
            batch.Init(table.Bytes, table.Pos)
            rows = int(batch.Length())
            if rows < 0:
                raise InvalidDataError(f"a record batch declares {rows} rows")
            places = _places(message, batch)
            return nothing._replace(rows=rows, codec=_codec(message, batch), places=places)
        dictionary = fbs.DictionaryBatch()
        dictionary.Init(table.Bytes, table.Pos)
        data = dictionary.Data()
        if data is None:
            raise InvalidDataError("a dictionary batch has no data")
        return nothing._replace(
            codec=_codec(message, data),
            dictionary_id=int(dictionary.Id()),
            is_delta=bool(dictionary.IsDelta()),
        )
    except _GARBAGE:
        raise InvalidDataError("the metadata is not an Arrow IPC batch") from None


def _codec(message: Any, batch: Any) -> str | None:
    compression = batch.Compression()
    if compression is not None:
        codec = compression.Codec()
        if codec not in _CODECS:
            raise InvalidDataError(f"a message is compressed with the unknown codec {codec}")
        return _CODECS[codec]
    for index in range(message.CustomMetadataLength()):
        pair = message.CustomMetadata(index)
        if pair.Key() == _OLD_COMPRESSION:
            return pair.Value().decode().lower()
    return None


def _places(message: Any, batch: Any) -> Places | None:
    outer, inner = message._tab, batch._tab
    body_length, rows = outer.Offset(_BODY_LENGTH), inner.Offset(_LENGTH)
    if not body_length or not rows:
        return None
    found = Places(outer.Pos + body_length, inner.Pos + rows)
    ends = [
        found.body_length + 8,
        inner.Pos + 4,
        outer.Pos + 4,
        outer.Pos + outer.Offset(_HEADER) + 4,
    ]
    for table in (outer, inner):
        vtable = table.Pos - table.Get(SOffsetTFlags, table.Pos)
        ends.append(vtable + table.Get(VOffsetTFlags, vtable))
        if vtable < 0:
            return None
    return found if max(ends) <= found.rows else None


class HeaderProbe:
    """Reads the rows of messages that lie in a buffer; faster where layouts repeat.

    A FlatBuffer begins with what tells where its values stand. If that is, byte for byte, as in
    the message before, the values stand where they stood; otherwise the message is read properly.
    """

    __slots__ = ("_head", "_middle", "_unpack")

    def __init__(self) -> None:
        self._unpack: Callable[[bytes, int], tuple[Any, ...]] = _unpack_nothing
        self._head = self._middle = b""

    def rows(self, data: bytes, at: int, metadata_length: int, body_length: int) -> int:
        """Return how many rows a message has; 0 if it is no record batch.

        Parameters
        ----------
        data : bytes
            Holds the message.
        at : int
            Where its prefix begins.
        metadata_length : int
            The size of its prefix and its metadata in bytes.
        body_length : int
            How long its body is expected to be, in bytes.

        Raises
        ------
        ProtocolError
            If the message is malformed, or has a body of another length.
        """
        try:
            marker, head, length, middle, rows = self._unpack(data, at)
        except struct.error:
            return self._read(data, at, metadata_length, body_length)
        if (
            marker == _MARKER
            and length == body_length
            and head == self._head
            and middle == self._middle
            and rows >= 0
        ):
            return rows
        return self._read(data, at, metadata_length, body_length)

    def _read(self, data: bytes, at: int, metadata_length: int, body_length: int) -> int:
        prefix = parse_prefix(data[at : at + 8])
        header = read_header(data[at + prefix.nbytes : at + metadata_length])
        if header.body_length != body_length:
            raise InvalidDataError(
                f"a message's body has {header.body_length} bytes, not {body_length} as expected"
            )
        if header.places is not None and prefix.nbytes == 8:
            length, rows = header.places
            layout = struct.Struct(f"<I4x{length}sq{rows - length - 8}sq")
            self._unpack = layout.unpack_from
            _, self._head, _, self._middle, _ = layout.unpack_from(data, at)
        return header.rows


def _unpack_nothing(data: bytes, at: int) -> tuple[Any, ...]:
    return (0, b"", 0, b"", 0)
