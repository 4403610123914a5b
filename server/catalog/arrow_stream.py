"""Arrow IPC streams in files: current and pre-0.15 framing ("IPC Streaming Format")."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError
from ...formats.arrow.file import BLOCK, Blocks
from ...formats.arrow.headers import read_header
from ...formats.arrow.message import HeaderType, MessageFacts, message_facts, parse_prefix
from ...formats.arrow.schema import read_schema
from ...transport.regions import RegionFile
from .encoded import Batches
from .files import Contents, FileDataset, arrow_handle, included_fields, reading
from .selection import Selection
from .stored import StoredMessages

_WHAT = "an Arrow IPC stream"
_WINDOW, _SMALL_WINDOW = 64 << 10, 4 << 10
_MOST_PADDING = 64


class ArrowStreamDataset(FileDataset):
    """A dataset in a file that holds an Arrow IPC stream; its messages are sent as they lie."""

    _kind = "arrow stream"

    def look_into(self, file: RegionFile) -> Contents:
        """Return the index of the stream, made by walking from message to message."""
        with reading(file.path, _WHAT):
            walk = _Walk(file)
            metadata = walk.schema()
            schema = read_schema(metadata)
            blocks, codec = walk.messages()
        stored = StoredMessages(schema, metadata, blocks, codec)
        return Contents(file.version, schema, file.size, stored=stored)

    def batches(self, file: RegionFile, contents: Contents, selection: Selection) -> Batches:
        """Yield the record batches."""
        included = included_fields(selection, contents)
        with reading(file.path, _WHAT), closing(arrow_handle(file)) as handle:
            options = pa.ipc.IpcReadOptions(included_fields=included)
            with pa.ipc.open_stream(handle, options=options) as reader:
                found = reader.iter_batches_with_custom_metadata()
                for batch, custom_metadata in islice(found, selection.first, None):
                    file.check()
                    yield selection.arrange(batch), custom_metadata


class _Walk:
    """Goes from message to message through a stream, and reads the prefixes and metadata."""

    def __init__(self, file: RegionFile) -> None:
        self._file = file
        self._offset = 0
        self._window = b""
        self._window_offset = 0
        self._stride = 0

    def schema(self) -> bytes:
        """Return the metadata of the schema, with which the stream has to begin."""
        found = self._next()
        if found is None:
            raise InvalidDataError("the stream has no schema")
        length, metadata = found
        header_type = self._facts(metadata).header_type
        if header_type is not HeaderType.SCHEMA:
            raise InvalidDataError(f"the stream begins with a {header_type.name} message")
        self._offset += length
        return metadata

    def messages(self) -> tuple[Blocks, str | None]:
        """Return where the messages behind the schema lie, and how their bodies are compressed."""
        packed = bytearray()
        codec, codec_known = None, False
        while (found := self._next()) is not None:
            length, metadata = found
            header_type, body = self._facts(metadata)
            if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
                raise InvalidDataError(
                    f"at byte {self._offset} is a {header_type.name} message, which cannot be "
                    "served as a part of a table"
                )
            if not codec_known:
                codec = read_header(metadata).codec
                codec_known = header_type is HeaderType.RECORD_BATCH
            packed += BLOCK.pack(self._offset, length, body)
            end = self._offset + length + body
            if end > self._file.size:
                raise self._cut_short(f"its body ends at byte {end}")
            self._stride = end - self._offset
            self._offset = end
        return Blocks(bytes(packed)), codec

    def _facts(self, metadata: bytes) -> MessageFacts:
        try:
            return message_facts(metadata)
        except ProtocolError as error:
            raise InvalidDataError(f"at byte {self._offset}: {error.message}") from None

    def _next(self) -> tuple[int, bytes] | None:
        """Return the next message's length without its body, and its metadata; None at the end."""
        offset, size = self._offset, self._file.size
        if offset == size:
            return None  # the end marker is optional
        if size - offset < 4:
            raise self._cut_short("its prefix is 8 bytes long")
        prefix_bytes = self._read(offset, min(8, size - offset))
        if prefix_bytes.startswith(b"\xff\xff\xff\xff") and len(prefix_bytes) < 8:
            raise self._cut_short("its prefix is 8 bytes long")
        prefix = parse_prefix(prefix_bytes)
        begin = offset + prefix.nbytes
        if prefix.metadata_length == 0:
            self._check_rest(begin)
            return None
        if begin + prefix.metadata_length > size:
            raise self._cut_short(f"its metadata ends at byte {begin + prefix.metadata_length}")
        metadata = self._read(begin, prefix.metadata_length)
        return prefix.nbytes + prefix.metadata_length, metadata

    def _check_rest(self, end: int) -> None:
        """Refuse more data behind the end marker: it would be left out without a word."""
        rest = self._file.size - end
        if rest > _MOST_PADDING or any(self._file.read(end, rest)):
            raise InvalidDataError(
                f"the stream ends at byte {end}, but the file has {rest} bytes more"
            )

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file; neighbouring messages are read together."""
        begin = offset - self._window_offset
        if begin < 0 or begin + nbytes > len(self._window):
            window = _WINDOW if self._stride < _WINDOW // 2 else _SMALL_WINDOW
            count = min(max(nbytes, window), self._file.size - offset)
            self._window = self._file.read(offset, count)
            self._window_offset, begin = offset, 0
        return self._window[begin : begin + nbytes]

    def _cut_short(self, what: str) -> InvalidDataError:
        return InvalidDataError(
            f"the stream is cut short: at byte {self._offset} begins a message, {what}, "
            f"and the file has {self._file.size} bytes"
        )
