"""Streams of Vortex IPC messages in files: sent as they are stored, or decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.encoder import MessageEncoder
from ....formats.vortex.decoding import ArrayDecoder
from ....formats.vortex.message import Message, MessageKind
from ....formats.vortex.reader import FramedHeader, HeaderReader
from ....formats.vortex.schema_message import mark_schema
from ....formats.vortex.storage import restore_rows
from ....protocol.messages import MetadataType
from ....protocol.request import Request
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import FileSpan, SourceFile
from ..messages.generator_source import GeneratorSource, MessageGroups
from ..messages.reencoding import Batches
from ..query.request_checks import check_batches, check_version, hash_version, select_shards
from ..query.selection import Selection
from .file_access import map_read_errors
from .file_dataset import FileContents, FileDataset
from .vortex_file import read_plain_schema

_FILE_TYPE = "a Vortex stream"
_GROUP_MESSAGES = 64


class VortexMessages(NamedTuple):
    """The messages of a stream."""

    dtype: FramedHeader
    """The first message."""
    arrays: tuple[FramedHeader, ...]
    """The other messages: one array for each stored record batch."""


class VortexStreamDataset(FileDataset):
    """A dataset in a file of Vortex IPC messages."""

    _kind = "vortex stream"

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its headers and its first array."""
        with map_read_errors(file.path, _FILE_TYPE):
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
        with map_read_errors(file.path, _FILE_TYPE):
            decoder = ArrayDecoder(_read_message(file, plan.dtype))
            for place in plan.arrays[selection.first_batch : selection.end_batch]:
                array = decoder.decode_arrow(_read_message(file, place), data_type)
                file.check()
                batch = restore_rows(array, contents.schema)
                if selection.columns is not None:
                    batch = batch.select(list(selection.columns))
                yield batch, None

    def open_arrays(self, request: Request, *, regions: bool) -> GeneratorSource | None:
        """Open the messages as they are stored.

        Parameters
        ----------
        request : Request
            The request. Its compression does not apply to arrays.
        regions : bool
            See `Encoding.regions`.

        Returns
        -------
        GeneratorSource or None
            None if the request selects anything but whole arrays.
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
            first, end = request.batches or (0, None)
            check_batches(request, len(contents.plan.arrays))
            places = (contents.plan.dtype, *contents.plan.arrays[first:end])
        except BaseException:
            file.close()
            raise
        region_files = (Path(self.path),) if regions else ()
        groups = _send(file, contents.schema, places)
        source = GeneratorSource(groups, blocking=False, region_files=region_files)
        source.call_on_close(file.close)
        return source


def _send(file: SourceFile, schema: pa.Schema, places: tuple[FramedHeader, ...]) -> MessageGroups:
    with closing(MessageEncoder(schema)) as encoder:
        metadata = bytes(encoder.schema_message.metadata)
    yield [SourceMessage(mark_schema(metadata, has_storage=False), None)]
    for begin in range(0, len(places), _GROUP_MESSAGES):
        yield [_make_message(file, place) for place in places[begin : begin + _GROUP_MESSAGES]]
    file.check()


def _make_message(file: SourceFile, place: FramedHeader) -> SourceMessage:
    header = place.header
    body = FileSpan(file, place.body_offset, header.body_size)
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
    places = list(_iterate(HeaderReader(file.read, file.size)))
    for place in places[1:]:
        if place.header.kind is not MessageKind.ARRAY:
            raise InvalidDataError(
                f"the message at byte {place.offset} is of the type {place.header.kind.name}, "
                "which is not part of any array"
            )
    return VortexMessages(places[0], tuple(places[1:]))


def _iterate(reader: HeaderReader) -> Iterator[FramedHeader]:
    while (place := reader.next_header()) is not None:
        yield place


def _read_message(file: SourceFile, place: FramedHeader) -> Message:
    body = file.read(place.body_offset, place.header.body_size)
    return Message(place.metadata, place.header, (body,))
