"""Encoding of record batches as messages of an Arrow IPC stream, without copying their buffers.

Arrow's writer handles dictionaries, deltas, slices and compression. It writes to a file object: its
own data as ``bytes`` and the buffers of arrays as ``pyarrow.Buffer`` at their original addresses.
This module collects these pieces and divides them into messages by the sizes that the messages
declare.

Arrow's writer compresses every buffer, even one that becomes larger. A reader need not decompress a
buffer that is stored unchanged, after the length -1 ("BodyCompression").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import InvalidDataError, UsageError
from .data_types import has_unions
from .message import (
    CODECS,
    HeaderType,
    find_buffers,
    parse_prefix,
    read_batch_layout,
    read_message_info,
)
from .truncation import truncate


class EncodedMessage(NamedTuple):
    """A message of a stream."""

    metadata: bytes
    """The padded FlatBuffer of the message, without continuation marker and length."""
    body: list[Any] | None
    """The parts of the packed body, in order. None if the message has no body.

    A part is a ``pyarrow.Buffer`` or ``bytes``. The buffer of an array is not copied, and the part
    keeps it alive.
    """
    body_length: int
    """The size of all parts in bytes."""
    rows: int
    """The number of rows of a record batch; 0 for other messages."""


_LENGTH = struct.Struct("<q")
_NOT_COMPRESSED = _LENGTH.pack(-1)
_SPAN_BYTES = 16


def store_incompressible(
    metadata: bytes, parts: Sequence[Any], codec: Any
) -> tuple[bytes, list[Any]]:
    """Return a message whose buffers are compressed only if that makes them smaller.

    Each buffer is one of the parts of the body.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    numbers = dict(zip(accumulate(sizes, initial=0), range(len(parts)), strict=False))
    changed: dict[int, Any] = {}
    patched = bytearray(metadata)
    for index, (offset, length) in enumerate(read_batch_layout(metadata).buffers):
        number = numbers.get(offset)
        if number is None or sizes[number] != length or length < _LENGTH.size:
            continue
        part = memoryview(parts[number])
        (size,) = _LENGTH.unpack_from(part)
        if 0 < size <= length - _LENGTH.size:
            stored = codec.decompress(part[_LENGTH.size :], size, asbytes=True)
            padding = bytes(length - _LENGTH.size - size)
            changed[number] = _NOT_COMPRESSED + stored + padding
            place = find_buffers(metadata) + index * _SPAN_BYTES + _LENGTH.size
            _LENGTH.pack_into(patched, place, _LENGTH.size + size)
    if not changed:
        return metadata, list(parts)
    return bytes(patched), [changed.get(number, part) for number, part in enumerate(parts)]


_PREFIX_BYTES = 8


class MessageEncoder:
    """Encodes the record batches of one stream. It is unusable after an error.

    Examples
    --------
    >>> batch = pa.record_batch({"delay": [60, 75]})
    >>> encoder = MessageEncoder(batch.schema)
    >>> encoder.schema_message.body is None
    True
    >>> [(message.rows, message.body_length) for message in encoder.encode(batch)]
    [(2, 16)]
    >>> encoder.close()
    """

    def __init__(self, schema: pa.Schema, compression: str | None = None) -> None:
        if compression is not None and compression not in CODECS.values():
            raise UsageError(
                f"unknown compression {compression!r}; known are {', '.join(CODECS.values())}"
            )
        options = pa.ipc.IpcWriteOptions(
            compression=cast(Any, compression),
            allow_64bit=True,
            emit_dictionary_deltas=True,
            unify_dictionaries=False,
        )
        # A writer withholds the schema until its first batch or its end.
        schema_sink = _Sink()
        try:
            pa.ipc.new_stream(schema_sink.make_file(), schema).close()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidDataError(f"cannot encode the schema: {error}") from None
        self.schema_message: EncodedMessage = schema_sink.take(0)[0]
        """The first message of the stream."""
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink.make_file(), schema, options=options)
        self._schema_due = True
        self._codec: Any = None if compression is None else pa.Codec(cast(Any, compression))
        self._has_unions = has_unions(schema)

    def encode(
        self, batch: pa.RecordBatch, custom_metadata: Mapping[Any, Any] | None = None
    ) -> list[EncodedMessage]:
        """Return the messages of the next batch: new dictionaries, then the batch itself.

        The messages share the buffers of the batch. They contain only the slice of a sliced array,
        with the exceptions that `truncation` describes.
        """
        try:
            if self._has_unions:
                batch = truncate(batch)
            if custom_metadata:
                self._writer.write_batch(batch, custom_metadata=custom_metadata)
            else:
                self._writer.write_batch(batch)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise InvalidDataError(f"cannot encode a record batch: {error}") from None
        messages = self._sink.take(batch.num_rows)
        if self._schema_due:
            self._schema_due = False
            del messages[0]
        if self._codec is not None:
            return [self._shrink(message) for message in messages]
        return messages

    def _shrink(self, message: EncodedMessage) -> EncodedMessage:
        """Return a compressed message, in which buffers that do not shrink stay uncompressed."""
        metadata, body, length, rows = message
        if not length:
            return message
        return EncodedMessage(
            *store_incompressible(metadata, body or (), self._codec), length, rows
        )

    def close(self) -> None:
        """Close the writer. Returned messages stay valid."""
        self._writer.close()


class _Sink:
    """The file that Arrow's writer writes to: a list of pieces."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self.write = self._pieces.append

    def make_file(self) -> pa.PythonFile:
        """Return a file object that writes to the sink."""
        sink: Any = self
        return pa.PythonFile(sink, mode="w")

    def flush(self) -> None:
        """Do nothing: the sink has no buffer."""

    def close(self) -> None:
        """Do nothing: `take` still returns the messages."""

    def take(self, rows: int) -> list[EncodedMessage]:
        """Remove and return the written messages."""
        pieces = Pieces(self._pieces)
        messages: list[EncodedMessage] = []
        while not pieces.is_empty:
            prefix = parse_prefix(b"".join(pieces.take(_PREFIX_BYTES)))
            if prefix.metadata_length == 0:
                continue  # the end of the stream
            metadata = b"".join(pieces.take(prefix.metadata_length))
            header_type, body_length = read_message_info(metadata)
            if header_type.has_body:
                count = rows if header_type is HeaderType.RECORD_BATCH else 0
                body = pieces.take(body_length)
                messages.append(EncodedMessage(metadata, body, body_length, count))
            else:
                messages.append(EncodedMessage(metadata, None, 0, 0))
        self._pieces.clear()
        return messages


class Pieces:
    """Pieces of memory that `take` divides at any byte."""

    __slots__ = ("_at", "_pieces")

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._at = 0

    @property
    def is_empty(self) -> bool:
        """Whether all bytes were taken."""
        return self._at == len(self._pieces)

    def take(self, count: int) -> list[Any]:
        """Return the next `count` bytes, as pieces that share their memory."""
        pieces, at = self._pieces, self._at
        taken: list[Any] = []
        while count:
            if at == len(pieces):
                raise InvalidDataError("pyarrow wrote an incomplete message")
            piece = pieces[at]
            size = len(piece)
            if size > count:
                taken.append(_slice(piece, 0, count))
                pieces[at] = _slice(piece, count, size)
                break
            taken.append(piece)
            at += 1
            count -= size
        self._at = at
        return taken


def _slice(piece: Any, begin: int, end: int) -> Any:
    """Return a slice of a piece, which shares its memory."""
    return piece.slice(begin, end - begin) if isinstance(piece, pa.Buffer) else piece[begin:end]
