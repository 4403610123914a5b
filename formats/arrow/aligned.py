"""Arrow IPC files whose buffers all begin at multiples of 64 bytes ("IPC File Format").

Arrow's writer aligns buffers to 8 bytes. Readers that map a file, and code that uses vector
registers, need 64. This module takes Arrow's messages and writes their bodies and the footer with
the wider alignment. It performs no I/O: the caller writes the pieces that it returns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .body_layout import plan_packed_body
from .encoded_message import EncodedMessage
from .encoder import MessageEncoder
from .file import BLOCK, HEAD_BYTES, MAGIC, Blocks
from .framing import CONTINUATION, END_OF_STREAM
from .message import BufferSpan, HeaderType, read_batch_layout, read_message_info
from .writing.schemas import build_footer

ALIGNMENT = 64
"""The alignment of each buffer in the file, in bytes."""

_PREFIX = struct.Struct("<4sI")
_SIZE = struct.Struct("<i")
_HEAD = MAGIC.ljust(HEAD_BYTES, b"\0")
_ZEROS = bytes(ALIGNMENT)


class AlignedFileWriter:
    """Encodes an Arrow IPC file, batch by batch.

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
    >>> file = AlignedFileWriter(batch.schema)
    >>> pieces = [*file.begin(), *file.add(batch), *file.end()]
    >>> pa.ipc.open_file(b"".join(pieces)).read_all().to_pydict()
    {'delay': [60, 75]}
    """

    def __init__(self, schema: pa.Schema, compression: str | None = None) -> None:
        self._encoder = MessageEncoder(schema, compression)
        self._dictionaries: list[bytes] = []
        self._batches: list[bytes] = []
        self._dictionary_ids: set[int | None] = set()
        self.position = 0
        """The size of the pieces returned so far, in bytes."""

    def begin(self) -> list[Any]:
        """Return the first pieces of the file: its head and the schema."""
        pieces: list[Any] = [_HEAD]
        self.position = len(_HEAD)
        self._add_metadata(self._encoder.schema_message.metadata, pieces)
        return pieces

    def add(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the pieces of the next batch: ``bytes`` and the buffers of its arrays.

        Raises
        ------
        InvalidDataError
            If the batch has another schema, or replaces a dictionary, which the file format does
            not allow. The file is unusable afterwards.
        """
        pieces: list[Any] = []
        for message in self._encoder.encode(batch):
            self._add_message(message, pieces)
        return pieces

    def end(self) -> list[Any]:
        """Return the last pieces of the file: the end of the stream and the footer."""
        self._encoder.close()
        metadata = self._encoder.schema_message.metadata
        dictionaries, batches = (
            Blocks(b"".join(blocks)) for blocks in (self._dictionaries, self._batches)
        )
        footer = build_footer(metadata, dictionaries, batches, ())
        tail = b"".join((END_OF_STREAM, footer, _SIZE.pack(len(footer)), MAGIC))
        self.position += len(tail)
        return [tail]

    def _add_message(self, message: EncodedMessage, pieces: list[Any]) -> None:
        layout = read_batch_layout(message.metadata)
        blocks = self._batches
        if read_message_info(message.metadata).header_type is HeaderType.DICTIONARY_BATCH:
            blocks = self._dictionaries
            if layout.dictionary_id in self._dictionary_ids and not layout.is_delta:
                raise InvalidDataError(
                    "a batch replaces a dictionary; an Arrow IPC file has one dictionary per column"
                )
            self._dictionary_ids.add(layout.dictionary_id)
        aligned, spans = plan_packed_body(message.metadata, layout.buffers)
        begin = self.position
        self._add_metadata(aligned.metadata, pieces)
        blocks.append(BLOCK.pack(begin, self.position - begin, aligned.nbytes))
        end = 0
        buffers = _slice_body(message.body or [], layout.buffers)
        for (offset, length), buffer in zip(spans, buffers, strict=True):
            if length:
                pieces += (_ZEROS[: offset - end], *buffer)
                end = offset + length
        pieces.append(_ZEROS[: aligned.nbytes - end])
        self.position += aligned.nbytes

    def _add_metadata(self, metadata: bytes, pieces: list[Any]) -> None:
        end = self.position + _PREFIX.size + len(metadata)
        gap = -end % ALIGNMENT
        pieces += (_PREFIX.pack(CONTINUATION, len(metadata) + gap), metadata, _ZEROS[:gap])
        self.position = end + gap


def _slice_body(body: Sequence[Any], spans: Sequence[BufferSpan]) -> Iterator[list[memoryview]]:
    """Yield each buffer of a packed body, as pieces that share its memory."""
    pieces = iter(body)
    piece, begin, end = memoryview(b""), 0, 0  # the current piece and its range in the body
    for offset, length in spans:
        slices: list[memoryview] = []
        position, stop = offset, offset + length
        while position < stop:
            if position >= end:
                piece = memoryview(next(pieces)).cast("B")
                begin, end = end, end + piece.nbytes
                continue
            slice_end = min(stop, end)
            slices.append(piece[position - begin : slice_end - begin])
            position = slice_end
        yield slices
