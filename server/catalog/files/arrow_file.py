"""Arrow IPC files, also known as Feather V2 ("IPC File Format")."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.bounds import survey_footer, survey_schema
from ....formats.arrow.file import (
    HEAD_BYTES,
    MAGIC,
    TAIL_BYTES,
    Blocks,
    Footer,
    find_footer,
    read_footer,
)
from ....formats.arrow.footer_metadata import make_schema_message
from ....formats.arrow.framing import parse_prefix
from ....formats.arrow.headers import read_header
from ....formats.arrow.message import HeaderType, read_endianness
from ....formats.arrow.schema import read_schema
from ....formats.arrow.schema_difference import are_schemas_equal
from ....transport.memory.files import SourceFile
from ...logs import get_logger
from ..messages.message_index import MessageIndex
from ..messages.plan import choose_included_fields
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors, open_handle
from .file_dataset import FileContents, FileDataset
from .found_fields import read_fields
from .message_checks import FileMessageChecker

_FILE_TYPE = "an Arrow IPC file"
_MAX_FOOTER_BYTES = 1 << 20
"""The largest size of a footer, and of its custom metadata, in a schema message that readers get.

They limit schema messages."""
_PAIR_BYTES = 128
"""An upper bound for what a key and its value take besides their bytes."""


class ArrowFileDataset(FileDataset):
    """A dataset in an Arrow IPC file."""

    _kind = "arrow file"
    reads_fields = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file. Its footer is the index."""
        with map_read_errors(file.path, _FILE_TYPE):
            if file.size < len(MAGIC) or file.read(0, len(MAGIC)) != MAGIC:
                raise InvalidDataError(f"it does not begin with {MAGIC!r}")
            tail = file.read(max(0, file.size - TAIL_BYTES), min(file.size, TAIL_BYTES))
            span = find_footer(tail, file.size)
            # pyarrow verifies the footer first. The rest relies on a valid FlatBuffer.
            with closing(open_handle(file)) as handle:
                reader: Any = pa.ipc.open_file(handle)
                schema, footer_metadata = reader.schema, reader.metadata
            footer_bytes = file.read(span.offset, span.length)
            footer = read_footer(footer_bytes, span.offset)
            codec = _check_dictionaries(file, footer.dictionaries)
            blocks = footer.dictionaries + footer.record_batches
            if len(footer.record_batches):
                codec = read_header(_read_metadata(file, footer.record_batches, 0)).codec
            first = min((block.offset for block in blocks), default=span.offset)
            metadata = _read_schema_metadata(file, first)
            if metadata is not None and not _matches_footer(metadata, schema, footer, footer_bytes):
                metadata = None
            if metadata is None and len(footer_bytes) <= _MAX_FOOTER_BYTES:
                metadata = make_schema_message(footer_bytes)  # the footer is authoritative
        index = None
        if metadata is not None:
            index = MessageIndex(schema, metadata, blocks, codec, len(footer.dictionaries))
        footer_metadata = _limit_size(footer_metadata, file)
        return FileContents(
            file.version, schema, file.size, index=index, footer_metadata=footer_metadata
        )

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        if contents.fields:
            yield from read_fields(partial(self.read_batches, file), contents, selection)
            return
        included = choose_included_fields(selection, contents.schema)
        with map_read_errors(file.path, _FILE_TYPE), closing(open_handle(file)) as handle:
            options = pa.ipc.IpcReadOptions(included_fields=included)
            reader = pa.ipc.open_file(handle, options=options)
            count = reader.num_record_batches
            numbers = range(count)[selection.first_batch : selection.end_batch]
            index = contents.index
            checker = None if index is None else FileMessageChecker(file, index)
            leading = 0 if index is None else len(index.blocks) - count
            if checker is not None and numbers:
                for number in range(leading):  # pyarrow decodes all dictionaries first
                    checker.check(number)
            for number in numbers:
                if checker is not None:
                    checker.check(leading + number)
                batch, custom_metadata = reader.get_batch_with_custom_metadata(number)
                file.check()
                yield selection.reorder(batch), custom_metadata


def _limit_size(
    metadata: Mapping[bytes, bytes] | None, file: SourceFile
) -> Mapping[bytes, bytes] | None:
    """Return the custom metadata of a footer, or None if it is empty or too large to send."""
    if not metadata:
        return None
    nbytes = sum(_PAIR_BYTES + len(key) + len(value) for key, value in metadata.items())
    if nbytes <= _MAX_FOOTER_BYTES:
        return metadata
    get_logger("files").warning(
        "the custom metadata of the footer is too large for readers",
        path=str(file.path),
        bytes=nbytes,
        limit=_MAX_FOOTER_BYTES,
    )
    return None


def _read_metadata(file: SourceFile, blocks: Blocks, number: int) -> bytes:
    """Return the FlatBuffer of a message."""
    offset, length, _ = blocks[number]
    data = file.read(offset, length)
    return data[parse_prefix(data[:8]).nbytes :]


def _check_dictionaries(file: SourceFile, blocks: Blocks) -> str | None:
    """Check the dictionary batches, and return their compression.

    The file format allows delta dictionaries but no replacement of a dictionary.
    """
    seen: set[int | None] = set()
    codec = None
    for number in range(len(blocks)):
        header = read_header(_read_metadata(file, blocks, number))
        if header.header_type is not HeaderType.DICTIONARY_BATCH:
            raise InvalidDataError(
                f"the footer lists a {header.header_type.name} message as dictionary batch {number}"
            )
        if header.dictionary_id in seen and not header.is_delta:
            raise InvalidDataError(
                f"dictionary batch {number} replaces the dictionary {header.dictionary_id}, "
                "which is allowed in streams only"
            )
        seen.add(header.dictionary_id)
        codec = header.codec
    return codec


def _read_schema_metadata(file: SourceFile, end: int) -> bytes | None:
    """Return the FlatBuffer of the schema message at the beginning of the file.

    Parameters
    ----------
    file : SourceFile
        The file.
    end : int
        The offset of the first message after the schema, in bytes.

    Returns
    -------
    bytes or None
        None if there is no such message, which the file format does not need.
    """
    if end < HEAD_BYTES + 8:
        return None
    try:
        prefix = parse_prefix(file.read(HEAD_BYTES, 8))
        begin = HEAD_BYTES + prefix.nbytes
        if not 0 < prefix.metadata_length <= end - begin:
            return None
        return file.read(begin, prefix.metadata_length)
    except ProtocolError:
        return None


def _matches_footer(
    metadata: bytes, schema: pa.Schema, footer: Footer, footer_bytes: bytes
) -> bool:
    """Return whether a schema message and the footer describe the data in the same way.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the schema message.
    schema : pyarrow.Schema
        The schema in the footer. pyarrow's schemas have neither a byte order nor the IDs of
        dictionaries.
    footer : Footer
        The footer.
    footer_bytes : bytes
        The FlatBuffer of the footer.
    """
    try:
        return (
            are_schemas_equal(schema, read_schema(metadata))
            and (read_endianness(metadata) == "big") == footer.is_big_endian
            and survey_schema(metadata).dictionary_ids == survey_footer(footer_bytes).dictionary_ids
        )
    except ProtocolError:
        return False
