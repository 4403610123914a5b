"""Passthrough: sending the messages of a file unchanged.

Small messages are read many at a time, and sent as slices of one read. Bodies of at least
REGION_BYTES are sent as regions of the file: the kernel moves them from its page cache to the
socket.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import ProtocolError
from ....formats.arrow.headers import RowCountReader
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import FileSpan, SourceFile
from .message_index import REGION_BYTES, MessageIndex
from .readahead import Readahead

_CONTINUATION_BYTE = 0xFF
_REGION_GROUP_MESSAGES = 64


class PassthroughMessages:
    """The messages of a file, unchanged.

    Parameters
    ----------
    index : MessageIndex
        The messages.
    regions : bool
        Whether to send every body as one region of the file, even if it is small.
    """

    def __init__(self, index: MessageIndex, *, regions: bool) -> None:
        self.index = index
        """The messages."""
        self.regions = regions
        """Whether every body is one region of the file."""

    def schema_message(self) -> SourceMessage:
        """Return the schema message, which begins the stream."""
        return self.index.schema_message()

    def groups(self, file: SourceFile) -> Iterator[list[SourceMessage]]:
        """Yield the messages after the schema in groups.

        Parameters
        ----------
        file : SourceFile
            The file. The caller closes it.

        Raises
        ------
        DatasetError
            If the file cannot be read, has changed since it was opened, or does not match the
            index.
        """
        yield from self._region_groups(file) if self.regions else self._mixed_groups(file)
        file.check()

    def _mixed_groups(self, file: SourceFile) -> Iterator[list[SourceMessage]]:
        row_reader = RowCountReader()
        readahead = Readahead(file)
        begin, blocks = 0, self.index.blocks
        for end in self.index.group_ends:
            offset, _, body = blocks[begin]
            readahead.advance(offset)
            read = self._read_together if body < REGION_BYTES else self._read_regions
            group = read(file, begin, end, row_reader)
            file.check()
            yield group
            begin = end

    def _region_groups(self, file: SourceFile) -> Iterator[list[SourceMessage]]:
        row_reader = RowCountReader()
        count = len(self.index.blocks)
        for begin in range(0, count, _REGION_GROUP_MESSAGES):
            end = min(begin + _REGION_GROUP_MESSAGES, count)
            group = self._read_regions(file, begin, end, row_reader)
            file.check()
            yield group

    def _read_together(
        self, file: SourceFile, begin: int, end: int, row_reader: RowCountReader
    ) -> list[SourceMessage]:
        """Return messages `begin` to `end` as slices of one read."""
        blocks = self.index.blocks
        base = blocks[begin].offset
        last = blocks[end - 1]
        data = file.read(base, sum(last) - base)
        view = memoryview(data)
        read_rows = row_reader.read
        messages: list[SourceMessage] = []
        offset = base
        try:
            for offset, metadata, body in blocks.iter_tuples(begin, end):
                at = offset - base
                rows = read_rows(data, at, metadata, body)
                metadata += at
                at += 8 if data[at] == _CONTINUATION_BYTE else 4
                messages.append(
                    SourceMessage(
                        view[at:metadata], (view[metadata : metadata + body],), body, rows
                    )
                )
        except ProtocolError as error:
            raise file.corruption_error(offset, error.message) from None
        return messages

    def _read_regions(
        self, file: SourceFile, begin: int, end: int, row_reader: RowCountReader
    ) -> list[SourceMessage]:
        """Return messages `begin` to `end`, with the bodies as regions of the file."""
        messages: list[SourceMessage] = []
        for offset, metadata, body in self.index.blocks.iter_tuples(begin, end):
            data = file.read(offset, metadata)
            try:
                rows = row_reader.read(data, 0, metadata, body)
            except ProtocolError as error:
                raise file.corruption_error(offset, error.message) from None
            region = FileSpan(file, offset + metadata, body)
            header = memoryview(data)[8 if data[0] == _CONTINUATION_BYTE else 4 :]
            messages.append(SourceMessage(header, (region,), body, rows))
        return messages
