"""From record batches to the messages of an Arrow IPC stream, without copying a buffer.

Arrow's own writer lays the messages out, so that dictionaries, deltas, slices and compression
come out right. It hands each piece to a sink: what it makes itself as ``bytes``, the buffers of
the arrays as ``pyarrow.Buffer`` at their original addresses. Here the pieces are put together
to messages again, by the sizes that the messages declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import InvalidDataError, UsageError
from .message import HeaderType, message_facts, parse_prefix
from .truncation import has_unions, truncated

CODECS = ("lz4", "zstd")
"""The compressions that Arrow IPC knows."""

_PREFIX_BYTES = 8


class EncodedMessage(NamedTuple):
    """A message of a stream; its fields are those of the protocol's source messages."""

    metadata: bytes
    """The FlatBuffer of the message, padded, without continuation marker and length."""
    body: list[Any] | None
    """The parts of the packed body, in order; None for a message that has no body.

    A part is a ``pyarrow.Buffer`` or ``bytes``. The buffer of an array lies where it lay, and
    the part keeps it alive."""
    body_length: int
    """The size of the body in bytes: the sum over its parts."""
    rows: int
    """How many rows the message carries; 0 for all but record batches."""


class MessageEncoder:
    """Turns the record batches of one stream into messages.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of all batches.
    compression : str, optional
        ``lz4``, ``zstd``, or None for bodies that are not compressed.

    Raises
    ------
    UsageError
        If `compression` is something else.
    InvalidDataError
        If Arrow cannot write the schema.

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
        if compression is not None and compression not in CODECS:
            raise UsageError(f"compression {compression!r}: known are {', '.join(CODECS)}")
        options = pa.ipc.IpcWriteOptions(
            compression=compression,
            allow_64bit=True,
            emit_dictionary_deltas=True,
            unify_dictionaries=False,
        )
        # The writer holds the schema back until the first batch. Closing one shows it.
        first = _Sink()
        try:
            pa.ipc.new_stream(first.file(), schema).close()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidDataError(f"the schema cannot be encoded: {error}") from None
        self.schema_message: EncodedMessage = first.take(0)[0]
        """The message that begins the stream."""
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink.file(), schema, options=options)
        self._schema_due = True
        self._has_unions = has_unions(schema)

    def encode(
        self, batch: pa.RecordBatch, custom_metadata: Mapping[Any, Any] | None = None
    ) -> list[EncodedMessage]:
        """Return the messages for one more batch: new dictionaries, then the batch itself.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Its schema is the encoder's. The messages share its buffers; of a sliced array only
            the slice is in them, except where `truncation` says otherwise.
        custom_metadata : mapping, optional
            Goes into the batch's message.

        Raises
        ------
        InvalidDataError
            If the batch has another schema, or Arrow cannot write it. The encoder is then of no
            more use.
        """
        try:
            if self._has_unions:
                batch = truncated(batch)
            if custom_metadata:
                self._writer.write_batch(batch, custom_metadata=custom_metadata)
            else:
                self._writer.write_batch(batch)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise InvalidDataError(f"a record batch cannot be encoded: {error}") from None
        messages = self._sink.take(batch.num_rows)
        if self._schema_due:
            self._schema_due = False
            del messages[0]
        return messages

    def close(self) -> None:
        """Let go of the writer. Messages that were returned stay valid."""
        self._writer.close()


class _Sink:
    """The file that Arrow's writer writes to: a list of pieces."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self.write = self._pieces.append

    def file(self) -> pa.PythonFile:
        """Return the sink as pyarrow wants it."""
        sink: Any = self
        return pa.PythonFile(sink, mode="w")

    def flush(self) -> None:
        """Do nothing: there is nothing below."""

    def close(self) -> None:
        """Do nothing: the pieces stay."""

    def take(self, rows: int) -> list[EncodedMessage]:
        """Return, and forget, the messages that the pieces make up.

        Parameters
        ----------
        rows : int
            How many rows a record batch among them has.

        Raises
        ------
        InvalidDataError
            If the pieces do not make up messages.
        """
        pieces = _Pieces(self._pieces)
        messages: list[EncodedMessage] = []
        while not pieces.ended:
            prefix = parse_prefix(b"".join(pieces.take(_PREFIX_BYTES)))
            if prefix.metadata_length == 0:
                continue  # the end of the stream
            metadata = b"".join(pieces.take(prefix.metadata_length))
            header_type, body_length = message_facts(metadata)
            if header_type.has_body:
                count = rows if header_type is HeaderType.RECORD_BATCH else 0
                body = pieces.take(body_length)
                messages.append(EncodedMessage(metadata, body, body_length, count))
            else:
                messages.append(EncodedMessage(metadata, None, 0, 0))
        self._pieces.clear()
        return messages


class _Pieces:
    """Pieces of a stream, to be taken in stretches of a known size.

    A message begins and ends where the sizes say, however the writer cuts its pieces.
    """

    __slots__ = ("_at", "_pieces")

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._at = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._pieces)

    def take(self, count: int) -> list[Any]:
        """Return the next `count` bytes, as pieces; the memory is shared.

        Raises
        ------
        InvalidDataError
            If there are fewer.
        """
        pieces, at = self._pieces, self._at
        taken: list[Any] = []
        while count:
            if at == len(pieces):
                raise InvalidDataError("Arrow's writer stopped within a message")
            piece = pieces[at]
            size = len(piece)
            if size > count:
                taken.append(_cut(piece, 0, count))
                pieces[at] = _cut(piece, count, size)
                break
            taken.append(piece)
            at += 1
            count -= size
        self._at = at
        return taken


def _cut(piece: Any, begin: int, end: int) -> Any:
    """Return a stretch of a piece; the memory is shared."""
    return piece.slice(begin, end - begin) if isinstance(piece, pa.Buffer) else piece[begin:end]
