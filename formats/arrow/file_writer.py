"""Writing Arrow IPC files and streams, as bytes in order ("IPC File Format", "Streaming Format").

An assembler takes the messages of a stream and returns the bytes to write before each body. It
never sees a body, so a caller may send a body of any size from where it is.

Arrow's writer aligns buffers to 8 bytes. Readers that map a file, and code that uses vector
registers, need 64. `AlignedFileWriter` takes Arrow's messages and writes their bodies and the
footer with the wider alignment.

The module performs no I/O: the caller writes the pieces that it gets.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .body_layout import plan_packed_body
from .custom_metadata import Pairs
from .encoder import EncodedMessage, MessageEncoder, Pieces
from .file import BLOCK, HEAD_BYTES, MAGIC, Blocks
from .message import (
    CONTINUATION,
    END_OF_STREAM,
    PREFIX,
    HeaderType,
    align,
    encapsulate,
    read_batch_header,
    read_batch_layout,
    read_message_info,
)
from .schema_rewriter import build_footer

_I32 = struct.Struct("<i")
_LEGACY_END = bytes(4)


def encapsulate_legacy(metadata: bytes | memoryview) -> bytes:
    """Return the length and the padded metadata of a message, as before Arrow 0.15.

    Together they are a multiple of 8 bytes, so that the body is aligned in a file.
    """
    size = align(4 + len(metadata)) - 4
    return b"".join((_I32.pack(size), metadata, bytes(size - len(metadata))))


class StreamAssembler:
    """Assembles a stream, current or as before Arrow 0.15."""

    def __init__(self, *, legacy: bool = False) -> None:
        self._encapsulate = encapsulate_legacy if legacy else encapsulate
        self._end = _LEGACY_END if legacy else END_OF_STREAM

    def begin(self, schema_metadata: bytes) -> bytes:
        """Return the bytes that begin the stream: the schema message."""
        return self._encapsulate(schema_metadata)

    def add(self, metadata: bytes | memoryview, body_length: int) -> bytes:
        """Return the bytes before the body of the next message, which is a multiple of 8 bytes."""
        del body_length
        return self._encapsulate(metadata)

    def end(self) -> bytes:
        """Return the bytes after the last body."""
        return self._end


class ReplacedDictionaryError(InvalidDataError):
    """A dictionary is replaced, which the file format does not allow."""


class FileAssembler(StreamAssembler):
    """Assembles a file."""

    def __init__(self, *, legacy: bool = False, footer_metadata: Pairs = ()) -> None:
        super().__init__(legacy=legacy)
        self._footer_metadata = footer_metadata
        self._schema_metadata = b""
        self._dictionaries, self._batches = bytearray(), bytearray()
        self._seen: set[int | None] = set()
        self._position = 0

    def begin(self, schema_metadata: bytes) -> bytes:
        """Return the bytes that begin the file: the magic and the schema message."""
        self._schema_metadata = schema_metadata
        head = _HEAD + super().begin(schema_metadata)
        self._position = len(head)
        return head

    def add(self, metadata: bytes | memoryview, body_length: int) -> bytes:
        """Return the bytes before the body of the next message; see `StreamAssembler.add`."""
        header = read_batch_header(metadata)
        head = super().add(metadata, body_length)
        blocks = self._batches
        if header.header_type is HeaderType.DICTIONARY_BATCH:
            if header.dictionary_id in self._seen and not header.is_delta:
                raise ReplacedDictionaryError(
                    f"the dictionary {header.dictionary_id} is replaced, which is allowed in "
                    "streams only"
                )
            self._seen.add(header.dictionary_id)
            blocks = self._dictionaries
        blocks += BLOCK.pack(self._position, len(head), body_length)
        self._position += len(head) + body_length
        return head

    def end(self) -> bytes:
        """Return the bytes after the last body: the end of the stream and the footer."""
        footer = build_footer(
            self._schema_metadata,
            Blocks(bytes(self._dictionaries)),
            Blocks(bytes(self._batches)),
            self._footer_metadata,
        )
        return b"".join((super().end(), footer, _I32.pack(len(footer)), MAGIC))


ALIGNMENT = 64
"""The alignment of each buffer in the file, in bytes."""

_HEAD = MAGIC.ljust(HEAD_BYTES, b"\0")
_ZEROS = bytes(ALIGNMENT)


class AlignedFileWriter:
    """Encodes an Arrow IPC file, batch by batch. It is unusable after an error.

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
        """Return the pieces of the next batch: ``bytes`` and the buffers of its arrays."""
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
        tail = b"".join((END_OF_STREAM, footer, _I32.pack(len(footer)), MAGIC))
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
        body, position, end = Pieces(message.body or []), 0, 0
        for (offset, length), (source, _) in zip(spans, layout.buffers, strict=True):
            if length:
                body.take(source - position)
                pieces += (_ZEROS[: offset - end], *body.take(length))
                position, end = source + length, offset + length
        pieces.append(_ZEROS[: aligned.nbytes - end])
        self.position += aligned.nbytes

    def _add_metadata(self, metadata: bytes, pieces: list[Any]) -> None:
        end = self.position + PREFIX.size + len(metadata)
        gap = -end % ALIGNMENT
        pieces += (PREFIX.pack(CONTINUATION, len(metadata) + gap), metadata, _ZEROS[:gap])
        self.position = end + gap
