"""Passthrough: sending the messages of a file unchanged.

Small messages are read many at a time, and sent as slices of one read. Bodies of at least
REGION_BYTES are sent as regions of the file: the kernel moves them from its page cache to the
socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ....errors import ProtocolError
from ....formats.arrow.headers import RowCountReader
from ....protocol.splitter import PackedRun, SourceMessage, SourceRun
from ....transport.memory.files import FileSpan, SourceFile
from .message_index import REGION_BYTES, MessageIndex
from .readahead import Readahead
from .runs import RegionRun, split_runs

_CONTINUATION_BYTE = 0xFF
_REGION_GROUP_MESSAGES = 64
_MAX_COMPARED_BYTES = 16 << 10
"""The largest body that is read only to compare the metadata around it, in bytes."""


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

    def groups(self, file: SourceFile) -> Iterator[Sequence[SourceMessage]]:
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
        row_reader = RowCountReader(self.index.row_layout)
        groups = (self._region_groups if self.regions else self._mixed_groups)(file, row_reader)
        for group in groups:
            if self.index.row_layout is None and row_reader.has_layout:
                self.index.row_layout = row_reader.layout
            yield group
        file.check()

    def _mixed_groups(
        self, file: SourceFile, row_reader: RowCountReader
    ) -> Iterator[Sequence[SourceMessage]]:
        readahead = Readahead(file)
        begin, blocks = 0, self.index.blocks
        for end in self.index.group_ends:
            offset, _, body = blocks[begin]
            if begin or body >= REGION_BYTES:  # The reader waits for the first, small messages.
                readahead.advance(offset)
            if body < REGION_BYTES:
                yield from self._read_together(file, begin, end, row_reader)
            else:
                yield self._read_regions(file, begin, end, row_reader)
            begin = end

    def _region_groups(
        self, file: SourceFile, row_reader: RowCountReader
    ) -> Iterator[Sequence[SourceMessage]]:
        begin, blocks = 0, self.index.blocks
        for end in self.index.group_ends:
            if blocks[begin].body_length <= _MAX_COMPARED_BYTES:
                yield from self._read_together(file, begin, end, row_reader)
                begin = end
            while begin < end:
                stop = min(begin + _REGION_GROUP_MESSAGES, end)
                yield self._read_regions(file, begin, stop, row_reader)
                begin = stop

    def _read_together(
        self, file: SourceFile, begin: int, end: int, row_reader: RowCountReader
    ) -> Iterator[Sequence[SourceMessage]]:
        """Yield messages `begin` to `end` from one read, as runs and groups of other messages."""
        blocks = self.index.blocks
        base = blocks[begin].offset
        last = blocks[end - 1]
        data = file.read(base, sum(last) - base)
        file.check()
        for first, stop, run in split_runs(blocks, begin, end, data):
            if run is not None:
                yield self._make_run(file, first, run, row_reader)
            elif self.regions:
                yield self._read_regions(file, first, stop, row_reader)
            else:
                yield self._slice(file, first, stop, data, base, row_reader)

    def _slice(
        self,
        file: SourceFile,
        begin: int,
        end: int,
        data: bytes,
        base: int,
        row_reader: RowCountReader,
    ) -> list[SourceMessage]:
        """Return messages `begin` to `end` as slices of `data`, which begins at byte `base`."""
        view = memoryview(data)
        read_rows = row_reader.read
        messages: list[SourceMessage] = []
        offset = base
        try:
            for offset, metadata, body in self.index.blocks.iter_tuples(begin, end):
                at = offset - base
                rows = read_rows(data, at, metadata, body)
                metadata += at
                at += _prefix_bytes(data[at])
                messages.append(
                    SourceMessage(
                        view[at:metadata], (view[metadata : metadata + body],), body, rows
                    )
                )
        except ProtocolError as error:
            raise file.corruption_error(offset, error.message) from None
        return messages

    def _make_run(
        self,
        file: SourceFile,
        number: int,
        messages: NDArray[np.uint8],
        row_reader: RowCountReader,
    ) -> SourceRun:
        """Return the run that begins with message `number`; `messages` has all their bytes."""
        offset, metadata, body = self.index.blocks[number]
        head = messages[0, :metadata].tobytes()
        try:
            rows = row_reader.read(head, 0, metadata, body)
        except ProtocolError as error:
            raise file.corruption_error(offset, error.message) from None
        header = head[_prefix_bytes(head[0]) :]
        if not self.regions:
            return PackedRun(header, rows, messages[:, metadata:])
        count, period = messages.shape
        offsets = range(offset + metadata, offset + metadata + count * period, period)
        return RegionRun(header, rows, file, offsets, body)

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
            header = memoryview(data)[_prefix_bytes(data[0]) :]
            messages.append(SourceMessage(header, (region,), body, rows))
        file.check()
        return messages


def _prefix_bytes(first: int) -> int:
    """Return the size of the prefix of a message that begins with the byte `first`."""
    return 8 if first == _CONTINUATION_BYTE else 4
