"""Projection: sending some columns of a file's messages without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import InvalidDataError, ProtocolError
from ....formats.arrow.data_types import has_dictionaries
from ....formats.arrow.encoder import MessageEncoder
from ....formats.arrow.message import HeaderType, parse_prefix, read_batch_header, read_endianness
from ....formats.arrow.projection import ProjectedMessage, Projector
from ....formats.arrow.schema_rewriter import adopt_schema
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from ..dataset import GROUP_BYTES
from ..selection import Selection
from .message_index import MessageIndex

_REGION_BYTES = 128 << 10
"""The size in bytes from which a buffer is sent as a region of the file. A smaller body is read as
a whole, with all its columns."""
_READ_BYTES = 256 << 10


class ProjectedMessages:
    """The messages of a file with some of their columns; see `plan`."""

    def __init__(self, index: MessageIndex, selection: Selection) -> None:
        self._index = index
        self._projector = Projector(index.schema, selection.columns or ())
        encoder = MessageEncoder(selection.schema)
        encoded = encoder.schema_message.metadata
        encoder.close()
        schema = adopt_schema(index.schema_metadata, encoded, selection.columns)
        self.schema_message = SourceMessage(schema, None)
        """The schema message, which begins the stream."""

    @classmethod
    def plan(
        cls, index: MessageIndex, selection: Selection, file: SourceFile
    ) -> ProjectedMessages | None:
        """Return the messages with the selected columns.

        Return None if they must be re-encoded: a column has a dictionary, whose batches are shared
        with other columns; the file is big-endian; or its first record batch has a layout that the
        projector does not know. Raises `DatasetError` if the file cannot be read.
        """
        columns = selection.columns or ()
        if any(has_dictionaries(index.schema.field(column).type) for column in columns):
            return None
        try:
            if read_endianness(index.schema_metadata) != "little":
                return None
            projected = cls(index, selection)
            projected._try_first_batch(file)
        except ProtocolError:
            return None
        return projected

    def groups(self, file: SourceFile) -> Iterator[list[SourceMessage]]:
        """Yield the messages after the schema in groups. The first is alone: a reader waits for it.

        Raises `DatasetError` if the file cannot be read, has changed since it was opened, or does
        not match the index.
        """
        group: list[SourceMessage] = []
        nbytes = metadata_bytes = most = 0
        for block in self._index.blocks.iter_tuples(0, len(self._index.blocks)):
            metadata_bytes += block[1]
            message = self._project(file, *block)
            if message is None:
                continue
            is_full = nbytes + message.body_length > most or metadata_bytes > _READ_BYTES
            if group and is_full:
                file.check()
                yield group
                group, nbytes, metadata_bytes, most = [], 0, 0, GROUP_BYTES
            group.append(message)
            nbytes += message.body_length
        file.check()
        if group:
            yield group

    def _try_first_batch(self, file: SourceFile) -> None:
        """Project the first record batch; raise `ProtocolError` if that fails."""
        for offset, metadata, _ in self._index.blocks.iter_tuples(0, len(self._index.blocks)):
            header = _strip_prefix(file.read(offset, metadata))
            if read_batch_header(header).header_type is HeaderType.RECORD_BATCH:
                self._projector.project(header)
                return

    def _project(
        self, file: SourceFile, offset: int, metadata: int, body: int
    ) -> SourceMessage | None:
        """Return the message at `offset` with the selected columns; None if it is no record batch.

        `metadata` and `body` are lengths in bytes.
        """
        is_small = body < _REGION_BYTES
        data = memoryview(file.read(offset, metadata + body if is_small else metadata))
        try:
            header_bytes = _strip_prefix(data[:metadata])
            header = read_batch_header(header_bytes)
            if header.body_length != body:
                raise InvalidDataError(
                    f"the message's body has {header.body_length} bytes; expected {body}"
                )
            if header.header_type is not HeaderType.RECORD_BATCH:
                return None
            projected = self._projector.project(header_bytes)
        except ProtocolError as error:
            raise file.corruption_error(offset, error.message) from None
        parts = _body_parts(
            file, offset + metadata, projected, data[metadata:] if is_small else None
        )
        return SourceMessage(projected.metadata, parts, projected.body_length, projected.rows)


def _strip_prefix(data: bytes | memoryview) -> memoryview:
    """Return the FlatBuffer of an encapsulated message."""
    return memoryview(data)[parse_prefix(bytes(data[:8])).nbytes :]


def _body_parts(
    file: SourceFile, body_offset: int, projected: ProjectedMessage, body: memoryview | None
) -> list[Any]:
    """Return the parts of a projected body, whose original is at `body_offset` in the file."""
    parts: list[Any] = []
    for offset, nbytes, padding in projected.body:
        if body is not None:
            parts.append(body[offset : offset + nbytes])
        elif nbytes >= _REGION_BYTES:
            parts.append(file.part(body_offset + offset, nbytes))
        else:
            parts.append(file.read(body_offset + offset, nbytes))
        if padding:
            parts.append(bytes(padding))
    return parts
