"""Encoding of record batches as messages of an Arrow IPC stream, without a copy of their buffers.

Arrow's writer handles dictionaries, deltas, slices and compression. It writes to a file object: its
own data as ``bytes`` and the buffers of arrays as ``pyarrow.Buffer`` at their original addresses.
This module collects these pieces and divides them into messages by the sizes that the messages
declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from ...errors import InvalidDataError, UsageError
from .encoded_message import EncodedMessage
from .framing import parse_prefix
from .headers import CODECS
from .incompressible import store_incompressible
from .message import HeaderType, read_message_info
from .truncation import has_unions, truncate

_PREFIX_BYTES = 8


class MessageEncoder:
    """Encodes the record batches of one stream.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of all batches.
    compression : str, optional
        ``lz4`` or ``zstd``. `None` does not compress.

    Raises
    ------
    UsageError
        If `compression` is unknown.
    InvalidDataError
        If Arrow cannot encode the schema.

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

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            A batch with the encoder's schema. The messages share its buffers. They contain only
            the slice of a sliced array, with the exceptions that `truncation` describes.
        custom_metadata : mapping, optional
            The custom metadata of the record batch message.

        Raises
        ------
        InvalidDataError
            If the batch has another schema, or Arrow cannot encode it. The encoder is unusable
            afterwards.
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
        """Return a compressed message, with the buffers that do not shrink as they are."""
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
        """Remove and return the written messages.

        Parameters
        ----------
        rows : int
            The number of rows of the record batch among them.

        Raises
        ------
        InvalidDataError
            If the last message is incomplete.
        """
        pieces = _Pieces(self._pieces)
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


class _Pieces:
    """The pieces that a writer wrote, which `take` divides again at any byte."""

    __slots__ = ("_at", "_pieces")

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._at = 0

    @property
    def is_empty(self) -> bool:
        """Whether all bytes were taken."""
        return self._at == len(self._pieces)

    def take(self, count: int) -> list[Any]:
        """Return the next `count` bytes, as pieces that share their memory.

        Raises
        ------
        InvalidDataError
            If fewer bytes are left.
        """
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
