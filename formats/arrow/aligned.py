"""Arrow IPC files whose buffers all begin at multiples of 64 bytes ("IPC File Format").

Arrow's own writer aligns to 8 bytes. Readers that map a file, and code that works with vector
registers, want 64: here the messages that Arrow makes are laid out anew, and the footer with
them. Nothing is written; the pieces are handed out in their order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .encoder import EncodedMessage, MessageEncoder
from .file import BLOCK, HEAD_BYTES, MAGIC
from .message import CONTINUATION, END_OF_STREAM, BufferSpan, HeaderType, batch_facts, message_facts
from .placement import repacked

ALIGNMENT = 64
"""What the place of each buffer in the file is a multiple of, in bytes."""

_PREFIX = struct.Struct("<4sI")
_SIZE = struct.Struct("<i")
_HEAD = MAGIC.ljust(HEAD_BYTES, b"\0")
_ZEROS = bytes(ALIGNMENT)
_FOOTER = struct.Struct("<I4x6H4xih2xIII")
"""The start of a footer: where its table is, its vtable, and the table; 44 bytes."""
_COUNT = struct.Struct("<I")
_V5 = 4


class AlignedFile:
    """The pieces of an Arrow IPC file, batch by batch.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of all batches.
    compression : str, optional
        ``lz4``, ``zstd``, or None.

    Raises
    ------
    UsageError
        If `compression` is something else.
    InvalidDataError
        If Arrow cannot write the schema.

    Examples
    --------
    >>> batch = pa.record_batch({"delay": [60, 75]})
    >>> file = AlignedFile(batch.schema)
    >>> pieces = [*file.begin(), *file.add(batch), *file.end()]
    >>> pa.ipc.open_file(b"".join(pieces)).read_all().to_pydict()
    {'delay': [60, 75]}
    """

    def __init__(self, schema: pa.Schema, compression: str | None = None) -> None:
        self._encoder = MessageEncoder(schema, compression)
        self._dictionaries: list[bytes] = []
        self._batches: list[bytes] = []
        self._known: set[int | None] = set()
        self.position = 0
        """How long the file is so far, in bytes."""

    def begin(self) -> list[Any]:
        """Return the pieces that the file begins with."""
        pieces: list[Any] = [_HEAD]
        self.position = len(_HEAD)
        self._add_metadata(self._encoder.schema_message.metadata, pieces)
        return pieces

    def add(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the pieces for one more batch: ``bytes``, and the buffers of its arrays.

        Raises
        ------
        InvalidDataError
            If the batch has another schema, or a dictionary that replaces an earlier one, which
            files cannot have. The file is then of no more use.
        """
        pieces: list[Any] = []
        for message in self._encoder.encode(batch):
            self._add_message(message, pieces)
        return pieces

    def end(self) -> list[Any]:
        """Return the pieces that the file ends with."""
        self._encoder.close()
        metadata = self._encoder.schema_message.metadata
        footer = _footer(metadata, self._dictionaries, self._batches)
        tail = b"".join((END_OF_STREAM, footer, _SIZE.pack(len(footer)), MAGIC))
        self.position += len(tail)
        return [tail]

    def _add_message(self, message: EncodedMessage, pieces: list[Any]) -> None:
        facts = batch_facts(message.metadata)
        blocks = self._batches
        if message_facts(message.metadata).header_type is HeaderType.DICTIONARY_BATCH:
            blocks = self._dictionaries
            if facts.dictionary_id in self._known and not facts.is_delta:
                raise InvalidDataError("a dictionary is replaced, which no Arrow file can have")
            self._known.add(facts.dictionary_id)
        placed, places = repacked(message.metadata, facts.buffers)
        begin = self.position
        self._add_metadata(placed.metadata, pieces)
        blocks.append(BLOCK.pack(begin, self.position - begin, placed.nbytes))
        at = 0
        for (offset, length), stretch in zip(
            places, _stretches(message.body or [], facts.buffers), strict=True
        ):
            if length:
                pieces += (_ZEROS[: offset - at], *stretch)
                at = offset + length
        pieces.append(_ZEROS[: placed.nbytes - at])
        self.position += placed.nbytes

    def _add_metadata(self, metadata: bytes, pieces: list[Any]) -> None:
        end = self.position + _PREFIX.size + len(metadata)
        gap = -end % ALIGNMENT
        pieces += (_PREFIX.pack(CONTINUATION, len(metadata) + gap), metadata, _ZEROS[:gap])
        self.position = end + gap


def _stretches(body: Sequence[Any], spans: Sequence[BufferSpan]) -> Iterator[list[memoryview]]:
    """Yield the bytes of each buffer of a packed body, in pieces; the memory is shared."""
    pieces = iter(body)
    piece, begin, end = memoryview(b""), 0, 0  # where the piece lies in the body
    for offset, length in spans:
        taken: list[memoryview] = []
        at, stop = offset, offset + length
        while at < stop:
            if at >= end:
                piece = memoryview(next(pieces)).cast("B")
                begin, end = end, end + piece.nbytes
                continue
            upto = min(stop, end)
            taken.append(piece[at - begin : upto - begin])
            at = upto
        yield taken


def _footer(schema: bytes, dictionaries: Sequence[bytes], batches: Sequence[bytes]) -> bytes:
    """Return the footer of a file, a FlatBuffer.

    It takes in the message of the schema as it is and points at the table Schema in that.
    """
    vectors = bytearray(_FOOTER.size)
    places: list[int] = []
    for blocks in (dictionaries, batches):  # a count is 4 bytes before a multiple of 8
        vectors += bytes((4 - len(vectors)) % 8)
        places.append(len(vectors))
        vectors += _COUNT.pack(len(blocks)) + b"".join(blocks)
    vectors += bytes(-len(vectors) % 8)
    header: Any = fbs.Message.GetRootAs(schema, 0).Header()
    places.insert(0, len(vectors) + header.Pos)
    table, vtable = 24, 8
    # In the vtable: its size, that of the table, and where in the table the fields are. In the
    # table: the way back to the vtable, the version, and how far each of the others is ahead.
    ahead = [place - (table + 8 + 4 * index) for index, place in enumerate(places)]
    _FOOTER.pack_into(vectors, 0, table, 12, 20, 4, 8, 12, 16, table - vtable, _V5, *ahead)
    return bytes(vectors) + schema
