"""The stream format and the file format, as bytes in order ("IPC Streaming Format", "File Format").

An assembler is given the messages of a stream and returns the bytes to write before each body. It
never sees a body, so a caller may send a body of any size from where it is.
"""

from __future__ import annotations

import struct

from ....errors import InvalidDataError
from ..file import BLOCK, MAGIC, Blocks
from ..footer_metadata import Pairs
from ..framing import END_OF_STREAM, align, encapsulate
from ..headers import read_header
from ..message import HeaderType
from .schemas import build_footer

_I32 = struct.Struct("<i")
_LEGACY_END = bytes(4)


def encapsulate_legacy(metadata: bytes | memoryview) -> bytes:
    """Return the length and the padded metadata of a message, as before Arrow 0.15.

    Together they are a multiple of 8 bytes, so that the body is aligned in a file.
    """
    size = align(4 + len(metadata)) - 4
    return b"".join((_I32.pack(size), metadata, bytes(size - len(metadata))))


class StreamAssembler:
    """Assembles a stream.

    Parameters
    ----------
    legacy : bool
        Whether to use the framing before Arrow 0.15.
    """

    def __init__(self, *, legacy: bool = False) -> None:
        self._encapsulate = encapsulate_legacy if legacy else encapsulate
        self._end = _LEGACY_END if legacy else END_OF_STREAM

    def begin(self, schema_metadata: bytes) -> bytes:
        """Return the bytes that begin the stream: the schema message."""
        return self._encapsulate(schema_metadata)

    def add(self, metadata: bytes | memoryview, body_length: int) -> bytes:
        """Return the bytes before the body of the next message.

        Parameters
        ----------
        metadata : bytes-like
            The FlatBuffer of the message.
        body_length : int
            The size of its body in bytes, a multiple of 8.
        """
        del body_length
        return self._encapsulate(metadata)

    def end(self) -> bytes:
        """Return the bytes after the last body."""
        return self._end


class ReplacedDictionaryError(InvalidDataError):
    """A dictionary is replaced, which the file format does not allow."""


class FileAssembler(StreamAssembler):
    """Assembles a file.

    Parameters
    ----------
    legacy : bool
        Whether to use the framing before Arrow 0.15.
    footer_metadata : sequence of pairs
        The custom metadata of the footer.
    """

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
        head = MAGIC + bytes(2) + super().begin(schema_metadata)
        self._position = len(head)
        return head

    def add(self, metadata: bytes | memoryview, body_length: int) -> bytes:
        """Return the bytes before the body of the next message; see `StreamAssembler.add`.

        Raises
        ------
        ReplacedDictionaryError
            If the message replaces a dictionary.
        """
        header = read_header(metadata)
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
