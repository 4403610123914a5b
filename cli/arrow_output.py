"""Write Arrow IPC messages to a file or to standard output, without decoding them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..formats.arrow.conversion import MessageConverter
from ..formats.arrow.file_writer import FileAssembler, StreamAssembler
from ..formats.arrow.message import HeaderType, read_batch_header, read_message_info
from ..transport.memory.files import FileSpan
from .local_input import InputMessage
from .terminal import name_standard_output

_CHUNK_BYTES = 4 << 20
_ALIGNMENT = 8
_BUFFER_BYTES = 1 << 20
_TRUNCATED_MESSAGE = b"\xff\xff\xff\xff\x08\0\0\0"
"""The prefix of an IPC message whose 8 bytes of metadata are missing."""


class ArrowOutput:
    """Writes the messages of one stream to a file, which it closes."""

    def __init__(
        self,
        file: BinaryIO,
        assembler: StreamAssembler,
        converter: MessageConverter,
        source_schema: bytes,
    ) -> None:
        self.source_schema = source_schema
        """The FlatBuffer of the schema message that all messages belong to."""
        self._file = file
        self._assembler = assembler
        self._converter = converter
        self._digests: dict[int | None, bytes] = {}
        file.write(assembler.begin(converter.schema_metadata))

    def write(self, message: InputMessage) -> None:
        """Write a message. A dictionary that equals the current one of its ID is left out.

        Raises `ReplacedDictionaryError` if the message replaces a dictionary in a file.
        """
        metadata, parts, length = message
        is_dictionary = read_message_info(metadata).header_type is HeaderType.DICTIONARY_BATCH
        rewrites = self._converter.changes_bodies or length % _ALIGNMENT
        if rewrites or is_dictionary:
            body = _join(parts)
            if is_dictionary and self._is_repeated(metadata, body):
                return
            if rewrites:
                metadata, parts, length = self._converter.convert(metadata, body)
        self._file.write(self._assembler.add(metadata, length))
        for part in parts:
            _write_part(self._file, part)

    def _is_repeated(self, metadata: bytes | memoryview, body: memoryview) -> bool:
        """Return whether a dictionary has the same metadata and values as before."""
        header = read_batch_header(metadata)
        if header.is_delta:
            self._digests.pop(header.dictionary_id, None)
            return False
        digest = hashlib.blake2b(bytes(metadata) + hashlib.blake2b(body).digest()).digest()
        if self._digests.get(header.dictionary_id) == digest:
            return True
        self._digests[header.dictionary_id] = digest
        return False

    def close(self) -> None:
        """Write the end and close the file."""
        self._file.write(self._assembler.end())
        self._file.close()

    def abort(self) -> None:
        """Close the incomplete file. Raises nothing."""
        with suppress(OSError):
            self._file.close()


class StandardArrowOutput(ArrowOutput):
    """Writes a stream to standard output; see `ArrowOutput`. Nothing else may write there."""

    def __init__(
        self, assembler: StreamAssembler, converter: MessageConverter, source_schema: bytes
    ) -> None:
        output = open(1, "wb", buffering=_BUFFER_BYTES, closefd=False)  # noqa: SIM115
        super().__init__(output, assembler, converter, source_schema)

    def write(self, message: InputMessage) -> None:
        """Write a message; see `ArrowOutput.write`."""
        with name_standard_output():
            super().write(message)

    def close(self) -> None:
        """Write the end of the stream."""
        with name_standard_output():
            super().close()

    def abort(self) -> None:
        """Cut the stream inside a message, so that its reader reports an error.

        Readers accept a stream that stops between two messages as complete.
        """
        try:
            self._file.write(_TRUNCATED_MESSAGE)
            self._file.flush()
        except OSError:
            with open(os.devnull, "wb") as null:  # closing the output flushes its buffer
                os.dup2(null.fileno(), 1)
        super().abort()


def open_arrow_file(path: Path) -> BinaryIO:
    """Open a file for writing. An existing file is overwritten."""
    return open(path, "wb", buffering=_BUFFER_BYTES)


def make_assembler(
    suffix: str, *, legacy: bool, footer: Mapping[bytes, bytes] | None = None
) -> StreamAssembler:
    """Return the assembler of the format that a suffix selects."""
    if suffix == ".arrows":
        return StreamAssembler(legacy=legacy)
    return FileAssembler(legacy=legacy, footer_metadata=[*(footer or {}).items()])


def _join(parts: Sequence[Any]) -> memoryview:
    """Return the bytes of a body in one piece."""
    if len(parts) == 1 and not isinstance(parts[0], FileSpan):
        return memoryview(parts[0]).cast("B")
    joined = bytearray()
    for part in parts:
        joined += _read_span(part) if isinstance(part, FileSpan) else memoryview(part).cast("B")
    return memoryview(joined)


def _read_span(span: FileSpan) -> bytearray:
    data = bytearray(span.nbytes)
    span.read_into(memoryview(data))
    return data


def _write_part(file: BinaryIO, part: Any) -> None:
    """Write a part of a body; a span of a file a few MiB at a time."""
    if not isinstance(part, FileSpan):
        file.write(part)
        return
    for begin in range(0, part.nbytes, _CHUNK_BYTES):
        nbytes = min(_CHUNK_BYTES, part.nbytes - begin)
        file.write(_read_span(FileSpan(part.file, part.offset + begin, nbytes)))
