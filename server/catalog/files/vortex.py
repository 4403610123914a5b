"""Vortex files, and files with a stream of Vortex IPC messages.

The library scans a file for the columns and rows that a request needs. The messages of a stream
are sent as they are stored, or decoded.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.encoder import MessageEncoder
from ....formats.vortex.decoder import ArrayDecoder, call_library, convert_to_arrow, import_library
from ....formats.vortex.file import read_file_footer
from ....formats.vortex.message import FramedHeader, HeaderReader, Message, MessageKind, mark_schema
from ....formats.vortex.storage import find_plain_type, restore_rows
from ....protocol.messages import MetadataType
from ....protocol.request import Request
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from ..batch_ranges import BatchRanges
from ..dataset import (
    GeneratorSource,
    MessageGroups,
    check_batches,
    check_version,
    hash_version,
    select_shards,
)
from ..messages.reencoding import Batches
from ..selection import Selection
from .file_dataset import FileContents, FileDataset
from .origins import map_read_errors

_VORTEX_FILE = "a Vortex file"
_VORTEX_STREAM = "a Vortex stream"
_GROUP_MESSAGES = 64


class VortexPlan(NamedTuple):
    """What the footer of a Vortex file describes."""

    footer: Any
    """The footer, which another open of the same file need not read again."""
    splits: tuple[tuple[int, int], ...]
    """The first row of each stored chunk, and the one after its last."""


class VortexFileDataset(FileDataset):
    """A dataset in a Vortex file. Each chunk of its layout is a stored record batch."""

    _kind = "vortex file"
    states_batch_rows = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its footer."""
        with map_read_errors(file.path, _VORTEX_FILE):
            read_file_footer(file.read, file.size)
            opened = _open(file)
            splits = tuple(call_library(opened.splits, "read"))
            rows = len(opened)
            schema = read_plain_schema(opened.dtype)
            _check_splits(splits, rows)
            plan = VortexPlan(opened.footer, splits)
            return FileContents(file.version, schema, file.size, rows=rows, plan=plan)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each chunk."""
        return [end - begin for begin, end in contents.plan.splits]

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        splits = selection.batches.select(contents.plan.splits)
        names = [field.name for field in contents.schema]
        by_name = selection.columns is not None and len(set(names)) == len(names)
        chosen = [names[column] for column in selection.columns or ()] if by_name else None
        schema = selection.schema if by_name else contents.schema
        data_type: Any = pa.struct(list(schema))
        left = selection.limit
        with map_read_errors(file.path, _VORTEX_FILE):
            opened = _open(file, contents.plan.footer)
            scan = call_library(lambda: opened.to_repeated_scan(chosen), "read")
            for begin, end in splits:
                if left is not None:
                    end = min(end, begin + left)
                    left -= end - begin
                array = _read_rows(scan, begin, end, data_type)
                file.check()
                batch = restore_rows(array, schema)
                yield batch if by_name else selection.select_columns(batch), None
                if left == 0:
                    return


def _read_rows(scan: Any, begin: int, end: int, data_type: Any) -> Any:
    """Return some rows of a file as one struct array."""

    def read() -> Any:
        return scan.execute(row_range=(begin, end)).read_all()

    return convert_to_arrow(call_library(read, "read"), end - begin, data_type)


def read_plain_schema(dtype: Any) -> pa.Schema:
    """Return the Arrow schema for a dtype of vortex-data, with plain texts instead of views.

    Raises `InvalidDataError` if the dtype is not that of rows, or has no form in Arrow.
    """
    data_type: Any = call_library(dtype.to_arrow_type, "read")
    if not pa.types.is_struct(data_type):
        raise InvalidDataError(f"its values have the type {dtype}; expected a struct with columns")
    fields = [data_type.field(index) for index in range(data_type.num_fields)]
    return pa.schema([field.with_type(find_plain_type(field.type)) for field in fields])


def _check_splits(splits: tuple[tuple[int, int], ...], rows: int) -> None:
    """Check that the chunks are adjacent, and have all rows."""
    ends = [0, *(end for _, end in splits)]
    if any(begin != end for (begin, _), end in zip(splits, ends, strict=False)) or ends[-1] != rows:
        raise InvalidDataError(f"its chunks do not have its {rows} rows")


def _open(file: SourceFile, footer: Any = None) -> Any:
    vortex = import_library()
    return call_library(lambda: vortex.open_readable(_FileReader(file), footer=footer), "read")


class _FileReader:
    """An open file as the library reads it, from any thread."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.size

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes of the file."""
        return self._file.read(offset, min(length, max(self._file.size - offset, 0)))


class VortexMessages(NamedTuple):
    """The messages of a stream."""

    dtype: FramedHeader
    """The first message."""
    arrays: tuple[FramedHeader, ...]
    """The other messages: one array for each stored record batch."""


class VortexStreamDataset(FileDataset):
    """A dataset in a file of Vortex IPC messages."""

    _kind = "vortex stream"
    states_batch_rows = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its headers and its first array."""
        with map_read_errors(file.path, _VORTEX_STREAM):
            plan = _read_headers(file)
            if not plan.arrays:
                raise InvalidDataError("it has no arrays, and so no schema in Arrow")
            decoder = ArrayDecoder(_read_message(file, plan.dtype))
            array = decoder.decode(_read_message(file, plan.arrays[0]))
            schema = read_plain_schema(array.dtype)
            rows = sum(place.header.row_count for place in plan.arrays)
            return FileContents(file.version, schema, file.size, rows=rows, plan=plan)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each array."""
        return [place.header.row_count for place in contents.plan.arrays]

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        data_type: Any = pa.struct(list(contents.schema))
        plan: VortexMessages = contents.plan
        with map_read_errors(file.path, _VORTEX_STREAM):
            decoder = ArrayDecoder(_read_message(file, plan.dtype))
            for place in selection.batches.select(plan.arrays):
                array = decoder.decode_arrow(_read_message(file, place), data_type)
                file.check()
                yield selection.select_columns(restore_rows(array, contents.schema)), None

    def open_arrays(self, request: Request, *, regions: bool) -> GeneratorSource | None:
        """Open the messages as they are stored; None if the request selects parts of arrays.

        The compression of the request does not apply to arrays.
        """
        changes = (request.columns, request.filter, request.limit, request.offset, request.rows)
        if any(change is not None for change in (*changes, request.batch_rows)):
            return None
        if self.origin.is_remote:
            return None
        file = self.open_file()
        try:
            check_version(request, hash_version(file.version))
            select_shards(request, (self,))
            contents = self.load_contents(file)
            check_batches(request, len(contents.plan.arrays))
            places = (contents.plan.dtype, *BatchRanges.of(request).select(contents.plan.arrays))
        except BaseException:
            file.close()
            raise
        region_files = (Path(self.path),) if regions and not file.writers else ()
        groups = _send(file, contents.schema, places)
        source = GeneratorSource(groups, blocking=bool(file.writers), region_files=region_files)
        source.call_on_close(file.close)
        return source


def _send(file: SourceFile, schema: pa.Schema, places: tuple[FramedHeader, ...]) -> MessageGroups:
    with closing(MessageEncoder(schema)) as encoder:
        metadata = bytes(encoder.schema_message.metadata)
    yield [SourceMessage(mark_schema(metadata, has_storage=False), None)]
    count = 1 if file.writers else _GROUP_MESSAGES  # the bodies of a watched file are read
    for begin in range(0, len(places), count):
        yield [_make_message(file, place) for place in places[begin : begin + count]]
    file.check()


def _make_message(file: SourceFile, place: FramedHeader) -> SourceMessage:
    header = place.header
    body = file.part(place.body_offset, header.body_size)
    return SourceMessage(
        place.metadata, (body,), header.body_size, header.row_count, MetadataType.VORTEX
    )


def is_vortex_stream(file: SourceFile) -> bool:
    """Return whether a file begins with the dtype message of a Vortex stream."""
    try:
        return HeaderReader(file.read, file.size).next_header() is not None
    except ProtocolError:
        return False


def _read_headers(file: SourceFile) -> VortexMessages:
    places = list(iter(HeaderReader(file.read, file.size).next_header, None))
    for place in places[1:]:
        if place.header.kind is not MessageKind.ARRAY:
            raise InvalidDataError(
                f"the message at byte {place.offset} is of the type {place.header.kind.name}, "
                "which is not part of any array"
            )
    return VortexMessages(places[0], tuple(places[1:]))


def _read_message(file: SourceFile, place: FramedHeader) -> Message:
    body = file.read(place.body_offset, place.header.body_size)
    return Message(place.metadata, place.header, (body,))
