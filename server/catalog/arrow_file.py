"""Arrow IPC files, also known as Feather V2 ("IPC File Format")."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError
from ...formats.arrow.file import HEAD_BYTES, MAGIC, TAIL_BYTES, Blocks, find_footer, read_footer
from ...formats.arrow.headers import read_header
from ...formats.arrow.message import HeaderType, parse_prefix
from ...formats.arrow.schema import read_schema
from ...transport.regions import RegionFile
from .encoded import Batches
from .files import Contents, FileDataset, arrow_handle, included_fields, reading
from .selection import Selection, same_schema
from .stored import StoredMessages

_WHAT = "an Arrow IPC file"


class ArrowFileDataset(FileDataset):
    """A dataset in an Arrow IPC file; its messages are sent as they lie where they may be."""

    _kind = "arrow file"

    def look_into(self, file: RegionFile) -> Contents:
        """Return the index of the file."""
        with reading(file.path, _WHAT):
            if file.size < len(MAGIC) or file.read(0, len(MAGIC)) != MAGIC:
                raise InvalidDataError(f"it does not begin with {MAGIC!r}")
            tail = file.read(max(0, file.size - TAIL_BYTES), min(file.size, TAIL_BYTES))
            span = find_footer(tail, file.size)
            # Arrow's verifier sees the footer before anything here makes use of it.
            with closing(arrow_handle(file)) as handle:
                schema = pa.ipc.open_file(handle).schema
            footer = read_footer(file.read(span.offset, span.length), span.offset)
            codec = _check_dictionaries(file, footer.dictionaries)
            blocks = footer.dictionaries + footer.record_batches
            if len(footer.record_batches):
                codec = read_header(_metadata(file, footer.record_batches, 0)).codec
            first = min((block.offset for block in blocks), default=span.offset)
            metadata = _schema_metadata(file, schema, first)
        stored = None
        if metadata is not None:
            stored = StoredMessages(schema, metadata, blocks, codec)
        return Contents(file.version, schema, file.size, stored=stored)

    def batches(self, file: RegionFile, contents: Contents, selection: Selection) -> Batches:
        """Yield the record batches."""
        included = included_fields(selection, contents)
        with reading(file.path, _WHAT), closing(arrow_handle(file)) as handle:
            options = pa.ipc.IpcReadOptions(included_fields=included)
            reader = pa.ipc.open_file(handle, options=options)
            for index in range(selection.first, reader.num_record_batches):
                batch, custom_metadata = reader.get_batch_with_custom_metadata(index)
                file.check()
                yield selection.arrange(batch), custom_metadata


def _metadata(file: RegionFile, blocks: Blocks, index: int) -> bytes:
    offset, length, _ = blocks[index]
    data = file.read(offset, length)
    return data[parse_prefix(data[:8]).nbytes :]


def _check_dictionaries(file: RegionFile, blocks: Blocks) -> str | None:
    """Check that no dictionary is replaced, which files cannot say; return their codec."""
    known: set[int | None] = set()
    codec = None
    for index in range(len(blocks)):
        header = read_header(_metadata(file, blocks, index))
        if header.header_type is not HeaderType.DICTIONARY_BATCH:
            raise InvalidDataError(f"what its footer calls dictionary batch {index} is none")
        if header.dictionary_id in known and not header.is_delta:
            raise InvalidDataError(
                f"dictionary batch {index} replaces the dictionary {header.dictionary_id}, "
                "which only a stream can do"
            )
        known.add(header.dictionary_id)
        codec = header.codec
    return codec


def _schema_metadata(file: RegionFile, schema: pa.Schema, end: int) -> bytes | None:
    """Return the schema message with which the file begins, if it says what the footer says.

    The footer is what counts. Without such a message the file is still good, but a stream has
    to be encoded anew.
    """
    if end < HEAD_BYTES + 8:
        return None
    try:
        prefix = parse_prefix(file.read(HEAD_BYTES, 8))
        begin = HEAD_BYTES + prefix.nbytes
        if not 0 < prefix.metadata_length <= end - begin:
            return None
        metadata = file.read(begin, prefix.metadata_length)
        return metadata if same_schema(schema, read_schema(metadata)) else None
    except ProtocolError:
        return None
