"""Some columns of messages that lie in a file: only their buffers are sent, and none is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import DatasetError, InvalidDataError, ProtocolError
from ...formats.arrow.encoder import MessageEncoder
from ...formats.arrow.headers import read_header
from ...formats.arrow.message import HeaderType, parse_prefix, schema_endianness
from ...formats.arrow.projection import Projected, Projector, has_dictionaries
from ...protocol.splitter import SourceMessage
from ...transport.regions import FileRegion, RegionFile
from .base import GROUP_BYTES
from .selection import Selection
from .stored import REGION_BYTES, StoredMessages

_READ_BYTES = 256 << 10


class ProjectedMessages:
    """The messages of a file with some of their columns.

    Parameters
    ----------
    stored : StoredMessages
        The messages.
    selection : Selection
        Which columns; `fits` must have said that it can be done.
    """

    def __init__(self, stored: StoredMessages, selection: Selection) -> None:
        self._stored = stored
        self._projector = Projector(stored.schema, selection.columns or ())
        encoder = MessageEncoder(selection.schema)
        self._schema_message = SourceMessage(*encoder.schema_message)
        encoder.close()

    @classmethod
    def of(
        cls, stored: StoredMessages, selection: Selection, file: RegionFile
    ) -> ProjectedMessages | None:
        """Return the messages with the columns selected; None if they must be encoded anew.

        Raises
        ------
        DatasetError
            If the file cannot be read.
        """
        columns = selection.columns or ()
        if any(has_dictionaries(stored.schema.field(column).type) for column in columns):
            return None
        try:
            if schema_endianness(stored.schema_metadata) != "little":
                return None
            found = cls(stored, selection)
            for offset, metadata, _ in stored.blocks.tuples(0, len(stored.blocks)):
                head = _head(file.read(offset, metadata))
                if read_header(head).header_type is HeaderType.RECORD_BATCH:
                    found._projector.project(head)
                    break
        except ProtocolError:
            return None
        return found

    def schema_message(self) -> SourceMessage:
        """Return the message that begins the stream."""
        return self._schema_message

    def groups(self, file: RegionFile) -> Iterator[list[SourceMessage]]:
        """Yield the messages after the schema, in groups; `file` stays the caller's.

        Raises
        ------
        DatasetError
            If the file cannot be read, has changed since it was opened, or holds something
            else than the index says.
        """
        group: list[SourceMessage] = []
        total = read = 0
        for block in self._stored.blocks.tuples(0, len(self._stored.blocks)):
            read += block[1]
            message = self._message(file, *block)
            if message is None:
                continue
            if group and (total + message.body_length > GROUP_BYTES or read > _READ_BYTES):
                file.check()
                yield group
                group, total, read = [], 0, 0
            group.append(message)
            total += message.body_length
        file.check()
        if group:
            yield group

    def _message(
        self, file: RegionFile, offset: int, metadata: int, body: int
    ) -> SourceMessage | None:
        whole = body < REGION_BYTES
        data = memoryview(file.read(offset, metadata + body if whole else metadata))
        try:
            head = _head(data[:metadata])
            header = read_header(head)
            if header.body_length != body:
                raise InvalidDataError(
                    f"a message's body has {header.body_length} bytes, not {body} as expected"
                )
            if header.header_type is not HeaderType.RECORD_BATCH:
                return None
            found = self._projector.project(head)
        except ProtocolError as error:
            raise DatasetError(
                f"{file.path} is corrupt at byte {offset}: {error.message}"
            ) from None
        parts = _parts(file, offset + metadata, found, data[metadata:] if whole else None)
        return SourceMessage(found.metadata, parts, found.body_length, found.rows)


def _head(data: bytes | memoryview) -> memoryview:
    """Return the FlatBuffer of a message that begins with its prefix."""
    return memoryview(data)[parse_prefix(bytes(data[:8])).nbytes :]


def _parts(file: RegionFile, begin: int, found: Projected, body: memoryview | None) -> list[Any]:
    parts: list[Any] = []
    for offset, nbytes, padding in found.body:
        if body is not None:
            parts.append(body[offset : offset + nbytes])
        elif nbytes >= REGION_BYTES:
            parts.append(FileRegion(file, begin + offset, nbytes))
        else:
            parts.append(file.read(begin + offset, nbytes))
        if padding:
            parts.append(bytes(padding))
    return parts
