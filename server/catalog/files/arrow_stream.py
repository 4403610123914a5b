"""Files with an Arrow IPC stream: current and pre-0.15 framing ("IPC Streaming Format")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from ....formats.arrow.file import BLOCK, Blocks
from ....formats.arrow.headers import read_header
from ....formats.arrow.message import HeaderType
from ....formats.arrow.message_reader import MessageReader, check_trailing_bytes
from ....formats.arrow.schema import read_schema
from ....transport.memory.files import SourceFile
from ..messages.message_index import MessageIndex
from ..messages.plan import choose_included_fields
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors, open_handle
from .file_dataset import FileContents, FileDataset
from .message_checks import FileMessageChecker

_FILE_TYPE = "an Arrow IPC stream"


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
        included = choose_included_fields(selection, contents.schema)
        with map_read_errors(file.path, _FILE_TYPE), closing(open_handle(file)) as handle:
            options = pa.ipc.IpcReadOptions(included_fields=included)
            with pa.ipc.open_stream(handle, options=options) as reader:
                batches = _read_checked(reader, file, contents.index)
                for batch, custom_metadata in islice(
                    batches, selection.first_batch, selection.end_batch
                ):
                    file.check()
                    yield selection.reorder(batch), custom_metadata


def _read_checked(reader: Any, file: SourceFile, index: MessageIndex | None) -> Iterator[Any]:
    """Yield the record batches of a stream, each after a check of its messages."""
    if index is None:
        yield from reader.iter_batches_with_custom_metadata()
        return
    checker = FileMessageChecker(file, index)
    for number in range(len(index.blocks)):
        if checker.check(number):
            yield reader.read_next_batch_with_custom_metadata()


class _StreamScanner:
    """Builds the index of a stream."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._reader = MessageReader(file.read, file.size)
        self.has_dictionaries = False
        """Whether `read_blocks` found dictionary batches."""

    def read_schema_metadata(self) -> bytes:
        """Return the FlatBuffer of the first message, which must be the schema."""
        message = self._reader.next_message()
        if message is None:
            raise InvalidDataError("the stream has no schema")
        if message.header_type is not HeaderType.SCHEMA:
            raise InvalidDataError(
                f"the stream begins with a {message.header_type.name} message; expected a schema"
            )
        return message.metadata

    def read_blocks(self) -> tuple[Blocks, str | None]:
        """Return the blocks of the messages after the schema, and the compression of the bodies."""
        packed = bytearray()
        codec, is_codec_known = None, False
        while (message := self._reader.next_message()) is not None:
            header_type = message.header_type
            if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
                raise InvalidDataError(
                    f"the message at byte {message.offset} is a {header_type.name} message; "
                    "expected a record batch or a dictionary batch"
                )
            self.has_dictionaries |= header_type is HeaderType.DICTIONARY_BATCH
            if not is_codec_known:
                codec = read_header(message.metadata).codec
                is_codec_known = header_type is HeaderType.RECORD_BATCH
            packed += BLOCK.pack(message.offset, message.metadata_length, message.body_length)
        check_trailing_bytes(self._file.read, self._reader.offset, self._file.size)
        return Blocks(bytes(packed)), codec
