"""Arrow IPC files, files with an Arrow IPC stream, and Feather files.

Feather V2 is the Arrow IPC file format ("IPC File Format"). Streams have the current framing or
that of the versions before 0.15 ("IPC Streaming Format"). Messages are checked before pyarrow
decodes them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.checker import MessageChecker, plan_batch
from ....formats.arrow.custom_metadata import make_schema_message
from ....formats.arrow.data_types import has_unions, is_text, replace_fields
from ....formats.arrow.file import (
    BLOCK,
    HEAD_BYTES,
    MAGIC,
    TAIL_BYTES,
    Blocks,
    MessageReader,
    blank_blocks,
    check_trailing_bytes,
    find_footer,
    read_footer,
    wrap_footer,
)
from ....formats.arrow.file_scan import check_all_listed
from ....formats.arrow.lengths import has_lengths
from ....formats.arrow.message import (
    CODECS,
    HeaderType,
    parse_prefix,
    read_batch_header,
    read_batch_table,
    read_endianness,
)
from ....formats.arrow.metadata_limits import survey_footer, survey_schema
from ....formats.arrow.schema import (
    are_schemas_equal,
    is_self_contained,
    read_dictionary_types,
    read_schema,
)
from ....protocol.limits import DEFAULT_LIMITS
from ....transport.memory.files import SourceFile
from ...logs import get_logger
from ..messages.message_index import MessageIndex
from ..messages.reencoding import Batches
from ..selection import Selection
from .file_dataset import FileContents, FileDataset
from .origins import map_read_errors, open_with_arrow

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper  # pyright: ignore[reportPrivateUsage]

_T = TypeVar("_T")
_IPC_FILE = "an Arrow IPC file"
_IPC_STREAM = "an Arrow IPC stream"
_FEATHER_FILE = "a Feather file of version 1"
_I64 = struct.Struct("<q")
_MAX_FOOTER_BYTES = 1 << 20
"""The largest size of a footer, and of its custom metadata, in a schema message that readers get.

They limit schema messages."""
_MAX_CACHED_BYTES = 256 << 10
"""The largest size of a footer that is kept, because other files may have the same schema."""
_PAIR_BYTES = 128
"""An upper bound for what a key and its value take besides their bytes."""


class FileMessageChecker:
    """Checks the messages of a file whose bodies the server decodes.

    It reads their metadata, and of compressed bodies 8 bytes for each buffer.
    """

    def __init__(self, file: SourceFile, index: MessageIndex) -> None:
        self._file = file
        self._blocks = index.blocks
        self._checker = MessageChecker(
            index.schema,
            read_dictionary_types(index.schema_metadata, index.schema),
            max_buffers=DEFAULT_LIMITS.buffers,
            max_metadata_bytes=DEFAULT_LIMITS.metadata_bytes,
            max_decoded_bytes=DEFAULT_LIMITS.body_bytes,
        )

    def check(self, number: int) -> bool:
        """Check a message, and return whether it is a record batch.

        Raises `DatasetError` if the message does not fit the schema, its body or the limits. The
        error gives its offset, its field and its buffer.
        """
        offset, metadata_length, body_length = self._blocks[number]
        data, body = self._file.read(offset, metadata_length), offset + metadata_length
        try:
            checked = self._checker.check_parts(
                data[parse_prefix(data[:8]).nbytes :],
                body_length,
                lambda at: _I64.unpack(self._file.read(body + at, 8))[0],
            )
        except ProtocolError as error:
            raise self._file.corruption_error(offset, error.message) from None
        return checked.dictionary_id is None


class ArrowFileDataset(FileDataset):
    """A dataset in an Arrow IPC file."""

    _kind = "arrow file"

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file. Its footer is the index."""
        with map_read_errors(file.path, _IPC_FILE):
            if file.size < len(MAGIC) or file.read(0, len(MAGIC)) != MAGIC:
                raise InvalidDataError(f"it does not begin with {MAGIC!r}")
            tail = file.read(max(0, file.size - TAIL_BYTES), min(file.size, TAIL_BYTES))
            span = find_footer(tail, file.size)
            footer_bytes = file.read(span.offset, span.length)
            blank = blank_blocks(footer_bytes)
            # pyarrow verifies the footer first. The rest relies on a valid FlatBuffer.
            schema, footer_metadata = _call(_read_footer_schema, blank)
            footer = read_footer(footer_bytes, span.offset)
            check_all_listed(file.read, footer, span.offset)
            codec = _check_dictionaries(file, footer.dictionaries)
            blocks = footer.dictionaries + footer.record_batches
            rows = 0
            if len(footer.record_batches):
                codec, rows = _read_first_batch(file, footer.record_batches)
            first = min((block.offset for block in blocks), default=span.offset)
            metadata = _read_schema_metadata(file, first)
            if metadata is not None and not _call(_matches_footer, metadata, blank):
                metadata = None
            if metadata is None and len(blank) <= _MAX_FOOTER_BYTES:
                metadata = make_schema_message(blank)  # the footer is authoritative
        index = None
        if metadata is not None:
            index = MessageIndex(schema, metadata, blocks, codec, len(footer.dictionaries))
        footer_metadata = _limit_size(footer_metadata, file)
        return FileContents(
            file.version, schema, file.size, rows, index=index, footer_metadata=footer_metadata
        )

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        with open_with_arrow(file, _IPC_FILE) as handle:
            options = _choose_options(selection, contents.schema)
            reader = pa.ipc.open_file(handle, options=options)
            count = reader.num_record_batches
            numbers = selection.batches.select(range(count))
            index = contents.index
            checker = None if index is None else FileMessageChecker(file, index)
            leading = 0 if index is None else len(index.blocks) - count
            if checker is not None and numbers:
                for number in range(leading):  # pyarrow decodes all dictionaries first
                    checker.check(number)
            for number in numbers:
                if checker is not None:
                    checker.check(leading + number)
                if index is not None and selection.only_lengths and selection.columns:
                    lists = _read_lists(file, index, leading + number, selection.columns[0])
                    if lists is not None:
                        file.check()
                        yield lists, None
                        continue
                batch, custom_metadata = reader.get_batch_with_custom_metadata(number)
                file.check()
                yield selection.reorder(batch), custom_metadata


def _read_lists(
    file: SourceFile, index: MessageIndex, number: int, column: int
) -> pa.RecordBatch | None:
    """Read the lists in a column of a checked message, with nulls in place of their values.

    It reads the validity and the offsets. Return None if the column has other types, or the message
    is compressed or in the other byte order.
    """
    field = index.schema.field(column)
    if not has_lengths(field.type) or read_endianness(index.schema_metadata) == "big":
        return None
    offset, metadata_length, _ = index.blocks[number]
    data = file.read(offset, metadata_length)
    table = read_batch_table(data[parse_prefix(data[:8]).nbytes :])
    if table.codec is not None or table.has_custom_metadata:
        return None  # Arrow 0.17 declared the codec in the custom metadata
    before = plan_batch(list(index.schema)[:column], is_v5=table.version >= 4)
    first = 2 * (before.buffers + sum(table.variadic_counts[: before.views]))
    count = 1 + sum(part.name != "data" for part in plan_batch([field]).arrays[0].buffers)
    spans = table.buffers[first : first + 2 * count + 2]
    body = offset + metadata_length
    validity, *offsets = (
        pa.py_buffer(file.read(body + spans[part], spans[part + 1]) if spans[part + 1] else b"")
        for part in range(0, 2 * count, 2)
    )
    rows, nulls, *values = table.nodes[2 * len(before.arrays) :][:3]
    if is_text(field.type):
        is_large = field.type in (pa.large_string(), pa.large_binary())
        data_type = (pa.large_list if is_large else pa.list_)(pa.null())
        values = [spans[-1]]
    else:
        data_type = replace_fields(field.type, [pa.field("item", pa.null())])
    lists = pa.Array.from_buffers(
        data_type,
        rows,
        [validity if validity.size else None, *offsets],
        nulls,
        children=[pa.nulls(values[0])],
    )
    return pa.RecordBatch.from_arrays([lists], [field.name])


def _choose_options(selection: Selection, schema: pa.Schema) -> Any:
    """Return the options with which pyarrow reads the columns of a selection."""
    # pyarrow miscounts the buffers of unions that it skips. An empty list means all columns.
    columns = None if has_unions(schema) else selection.sorted_columns
    return pa.ipc.IpcReadOptions(included_fields=columns or [])


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
        header = read_batch_header(_read_metadata(file, blocks, number))
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

    `end` is the offset of the next message. None if there is no schema message, which the file
    format does not need.
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


def _call(function: _lru_cache_wrapper[_T], *arguments: bytes) -> _T:
    """Call a function of metadata, and keep the result for other files if that is possible."""
    if all(is_self_contained(each, _MAX_CACHED_BYTES) for each in arguments):
        return function(*arguments)
    return function.__wrapped__(*arguments)


@lru_cache(maxsize=8)
def _read_footer_schema(blank: bytes) -> tuple[pa.Schema, Mapping[bytes, bytes] | None]:
    """Return the schema and the custom metadata of a footer without its blocks."""
    reader: Any = pa.ipc.open_file(pa.BufferReader(wrap_footer(blank)))
    return reader.schema, reader.metadata


@lru_cache(maxsize=8)
def _matches_footer(metadata: bytes, blank: bytes) -> bool:
    """Return whether a schema message and a footer describe the data in the same way."""
    try:
        return (
            are_schemas_equal(_call(_read_footer_schema, blank)[0], read_schema(metadata))
            and read_endianness(metadata) == read_endianness(make_schema_message(blank))
            and survey_schema(metadata).dictionary_ids == survey_footer(blank).dictionary_ids
        )
    except ProtocolError:
        return False


def _read_first_batch(file: SourceFile, blocks: Blocks) -> tuple[str | None, int | None]:
    """Return the compression of the first record batch, and the rows of all; None if it has more.

    Raises `ProtocolError` if its metadata is malformed.
    """
    metadata = _read_metadata(file, blocks, 0)
    is_only = len(blocks) == 1
    with suppress(ProtocolError):  # another type of message
        table = read_batch_table(metadata)
        is_plain = table.dictionary_id is None and not table.has_custom_metadata
        if is_plain and table.rows >= 0 and (table.codec is None or table.codec in CODECS):
            is_only = is_only and table.body_length == blocks[0].body_length
            codec = None if table.codec is None else CODECS[table.codec]
            return codec, table.rows if is_only else None
    return read_batch_header(metadata).codec, None


class ArrowStreamDataset(FileDataset):
    """A dataset in a file with an Arrow IPC stream."""

    _kind = "arrow stream"

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file. The index is built by reading all metadata."""
        with map_read_errors(file.path, _IPC_STREAM):
            reader = MessageReader(file.read, file.size)
            message = reader.next_message()
            if message is None:
                raise InvalidDataError("the stream has no schema")
            if message.header_type is not HeaderType.SCHEMA:
                raise InvalidDataError(
                    f"the stream begins with a {message.header_type.name} message; expected a "
                    "schema"
                )
            schema = read_schema(message.metadata)
            blocks, codec, has_dictionaries = _read_blocks(reader)
            check_trailing_bytes(file.read, reader.offset, file.size)
        dictionaries = None if has_dictionaries else 0
        index = MessageIndex(schema, message.metadata, blocks, codec, dictionaries)
        return FileContents(file.version, schema, file.size, index=index)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        with open_with_arrow(file, _IPC_STREAM) as handle:
            options = _choose_options(selection, contents.schema)
            with pa.ipc.open_stream(handle, options=options) as reader:
                index = contents.index
                assert index is not None
                checker = FileMessageChecker(file, index)
                batches = (
                    reader.read_next_batch_with_custom_metadata()
                    for number in range(len(index.blocks))
                    if checker.check(number)
                )
                for batch, custom_metadata in selection.batches.iterate(batches):
                    file.check()
                    yield selection.reorder(batch), custom_metadata


def _read_blocks(reader: MessageReader) -> tuple[Blocks, str | None, bool]:
    """Return the blocks of the other messages, their compression, and whether any is a dictionary.

    The compression is that of the first record batch.
    """
    packed = bytearray()
    codec, is_codec_known, has_dictionaries = None, False, False
    while (message := reader.next_message()) is not None:
        header_type = message.header_type
        if header_type not in (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH):
            raise InvalidDataError(
                f"the message at byte {message.offset} is a {header_type.name} message; "
                "expected a record batch or a dictionary batch"
            )
        has_dictionaries |= header_type is HeaderType.DICTIONARY_BATCH
        if not is_codec_known:
            codec = read_batch_header(message.metadata).codec
            is_codec_known = header_type is HeaderType.RECORD_BATCH
        packed += BLOCK.pack(message.offset, message.metadata_length, message.body_length)
    return Blocks(bytes(packed)), codec, has_dictionaries


class FeatherDataset(FileDataset):
    """A dataset in a Feather file of version 1. Each reader has the whole file in memory."""

    _kind = "feather v1 file"

    def inspect(self, file: SourceFile) -> FileContents:
        """Read the whole file, and return its contents."""
        table = _read_table(file)
        return FileContents(file.version, table.schema, file.size, rows=table.num_rows)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        table = _read_table(file)
        file.check()
        for batch in selection.batches.select(table.to_batches()):
            yield selection.select_columns(batch), None


def _read_table(file: SourceFile) -> pa.Table:
    from pyarrow import feather  # takes a twentieth of a second

    with open_with_arrow(file, _FEATHER_FILE) as handle:
        return feather.read_table(handle, memory_map=False)
