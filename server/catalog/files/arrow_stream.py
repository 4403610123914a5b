"""Files with an Arrow IPC stream: current and pre-0.15 framing ("IPC Streaming Format")."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import pyarrow as pa

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.file import BLOCK, Blocks
from ....formats.arrow.framing import CONTINUATION, parse_prefix
from ....formats.arrow.headers import read_header
from ....formats.arrow.message import HeaderType, MessageInfo, read_message_info
from ....formats.arrow.schema import read_schema
from ....transport.memory.files import SourceFile
from ..messages.message_index import MessageIndex
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors, open_handle
from .file_dataset import FileContents, FileDataset, choose_included_fields

_FILE_TYPE = "an Arrow IPC stream"
_WINDOW, _SMALL_WINDOW = 64 << 10, 4 << 10
_MAX_PADDING = 64


class ArrowStreamDataset(FileDataset):
    """A dataset in a file with an Arrow IPC stream."""

    _kind = "arrow stream"

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file. The index is built by reading all metadata."""
        with map_read_errors(file.path, _FILE_TYPE):
            scanner = _StreamScanner(file)
            metadata = scanner.read_schema_metadata()
            schema = read_schema(metadata)
            blocks, codec = scanner.read_blocks()
        dictionaries = None if scanner.has_dictionaries else 0
        index = MessageIndex(schema, metadata, blocks, codec, dictionaries)
        return FileContents(file.version, schema, file.size, index=index)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        included = choose_included_fields(selection, contents)
        with map_read_errors(file.path, _FILE_TYPE), closing(open_handle(file)) as handle:
            options = pa.ipc.IpcReadOptions(included_fields=included)
            with pa.ipc.open_stream(handle, options=options) as reader:
                batches = reader.iter_batches_with_custom_metadata()
                for batch, custom_metadata in islice(
                    batches, selection.first_batch, selection.end_batch
                ):
                    file.check()
                    yield selection.reorder(batch), custom_metadata


class _StreamScanner:
    """Reads the metadata of the messages of a stream in order, and skips their bodies."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._offset = 0
        self._window = b""
        self._window_offset = 0
        self._last_message_bytes = 0
        self.has_dictionaries = False
        """Whether `read_blocks` found dictionary batches."""

    def read_schema_metadata(self) -> bytes:
        """Return the FlatBuffer of the first message, which must be the schema."""
        message = self._read_message()
        if message is None:
            raise InvalidDataError("the stream has no schema")
        length, metadata = message
        header_type = self._read_facts(metadata).header_type
        if header_type is not HeaderType.SCHEMA:
            raise InvalidDataError(
                f"the stream begins with a {header_type.name} message; expected a schema"
            )
        self._offset += length
        return metadata

    def read_blocks(self) -> tuple[Blocks, str | None]:
        """Return the blocks of the messages after the schema, and the compression of the bodies."""
        packed = bytearray()
        codec, is_codec_known = None, False
        while (message := self._read_message()) is not None:
            length, metadata = message
            header_type, body = self._read_facts(metadata)
            if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
                raise InvalidDataError(
                    f"the message at byte {self._offset} is a {header_type.name} message; "
                    "expected a record batch or a dictionary batch"
                )
            self.has_dictionaries |= header_type is HeaderType.DICTIONARY_BATCH
            if not is_codec_known:
                codec = read_header(metadata).codec
                is_codec_known = header_type is HeaderType.RECORD_BATCH
            packed += BLOCK.pack(self._offset, length, body)
            end = self._offset + length + body
            if end > self._file.size:
                raise self._truncation_error(f"its body ends at byte {end}")
            self._last_message_bytes = end - self._offset
            self._offset = end
        return Blocks(bytes(packed)), codec

    def _read_facts(self, metadata: bytes) -> MessageInfo:
        try:
            return read_message_info(metadata)
        except ProtocolError as error:
            raise InvalidDataError(
                f"the message at byte {self._offset} is malformed: {error.message}"
            ) from None

    def _read_message(self) -> tuple[int, bytes] | None:
        """Return the length of the next message's prefix and metadata, and the metadata.

        Returns None at the end of the stream. An end marker is optional.
        """
        offset, size = self._offset, self._file.size
        if offset == size:
            return None
        if size - offset < 4:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix_bytes = self._read(offset, min(8, size - offset))
        if prefix_bytes.startswith(CONTINUATION) and len(prefix_bytes) < 8:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix = parse_prefix(prefix_bytes)
        begin = offset + prefix.nbytes
        if prefix.metadata_length == 0:
            self._check_trailing_bytes(begin)
            return None
        if begin + prefix.metadata_length > size:
            raise self._truncation_error(
                f"its metadata ends at byte {begin + prefix.metadata_length}"
            )
        metadata = self._read(begin, prefix.metadata_length)
        return prefix.nbytes + prefix.metadata_length, metadata

    def _check_trailing_bytes(self, end: int) -> None:
        """Refuse data after the end marker, which would otherwise be lost silently."""
        rest = self._file.size - end
        if rest > _MAX_PADDING or any(self._file.read(end, rest)):
            raise InvalidDataError(
                f"the stream ends at byte {end}, but {rest} bytes follow its end marker"
            )

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file. One read serves several small messages."""
        begin = offset - self._window_offset
        if begin < 0 or begin + nbytes > len(self._window):
            has_small_messages = self._last_message_bytes < _WINDOW // 2
            window = _WINDOW if has_small_messages else _SMALL_WINDOW
            count = min(max(nbytes, window), self._file.size - offset)
            self._window = self._file.read(offset, count)
            self._window_offset, begin = offset, 0
        return self._window[begin : begin + nbytes]

    def _truncation_error(self, reason: str) -> InvalidDataError:
        return InvalidDataError(
            f"the stream is truncated: a message begins at byte {self._offset} and {reason}, "
            f"but the file has {self._file.size} bytes"
        )
