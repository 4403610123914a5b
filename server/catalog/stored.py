"""Messages that lie in a file, and sending them as they lie: nothing is decoded.

Small messages are read many at a time, and leave as slices of what was read. The bodies of
large ones leave as regions of the file: the kernel moves them from its cache to the socket.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from ...errors import DatasetError, ProtocolError
from ...formats.arrow.file import BLOCK, Blocks
from ...formats.arrow.headers import HeaderProbe
from ...formats.arrow.message import HeaderType, message_facts, parse_prefix
from ...protocol.splitter import SourceMessage
from ...transport.regions import FileRegion, RegionFile
from .base import GROUP_BYTES

REGION_BYTES = 128 << 10
"""From this size on a body is sent as a region of its file."""
READ_AHEAD = 16 << 20
"""How far ahead of a reader the kernel is asked to read, in bytes."""
_ADVICE = 1 << 20
_MOST_GAP = 4 << 10
_MARKER_BYTE = 0xFF
_REGIONS_GROUP = 64


class Extent(NamedTuple):
    """How much the messages of a file hold."""

    rows: int
    """The rows of all record batches."""
    largest: int
    """The rows of the largest record batch."""


class Position(NamedTuple):
    """Where a row is."""

    batch: int
    """How many record batches lie in front of the one that it is in."""
    row: int
    """How many rows of that one lie in front of it."""


class StoredMessages:
    """Where the messages of a stream lie in a file: an index, and what reads by it.

    Parameters
    ----------
    schema : pyarrow.Schema
        The decoded schema.
    schema_metadata : bytes
        The FlatBuffer of the schema message.
    blocks : Blocks
        The messages after the schema, in the order in which they are sent.
    codec : str or None
        How the bodies are compressed: ``lz4``, ``zstd``, or None.
    """

    __slots__ = ("_counts", "_cuts", "blocks", "codec", "schema", "schema_metadata")

    def __init__(
        self, schema: pa.Schema, schema_metadata: bytes, blocks: Blocks, codec: str | None
    ) -> None:
        self.schema = schema
        self.schema_metadata = schema_metadata
        self.blocks = blocks
        self.codec = codec
        self._cuts = _cuts(blocks)
        self._counts: array[int] | None = None

    def schema_message(self) -> SourceMessage:
        """Return the message that begins the stream."""
        return SourceMessage(self.schema_metadata, None)

    def begins_like(self, other: StoredMessages | None) -> bool:
        """Tell whether another file's messages may follow these under one schema message."""
        return other is not None and self.schema_metadata == other.schema_metadata

    def without_blocks(self) -> StoredMessages:
        """Return what does not grow with the file: schema and codec."""
        return StoredMessages(self.schema, self.schema_metadata, Blocks(), self.codec)

    def groups(self, file: RegionFile) -> Iterator[list[SourceMessage]]:
        """Yield the messages after the schema, in groups; `file` stays the caller's.

        Raises
        ------
        DatasetError
            If the file cannot be read, has changed since it was opened, or holds something
            else than the index says.
        """
        probe = HeaderProbe()
        ahead = _ReadAhead(file)
        begin, blocks = 0, self.blocks
        for end in self._cuts:
            offset, _, body = blocks[begin]
            ahead.advance(offset)
            file.check()
            if body < REGION_BYTES:
                yield self._small(file, begin, end, probe)
            else:
                yield self._large(file, begin, end, probe)
            begin = end
        file.check()

    def regions(self, file: RegionFile) -> Iterator[list[SourceMessage]]:
        """Yield the same messages, each body as one region of the file, whatever its size.

        Raises
        ------
        DatasetError
            As `groups` does.
        """
        probe = HeaderProbe()
        for begin in range(0, len(self.blocks), _REGIONS_GROUP):
            file.check()
            yield self._large(file, begin, min(begin + _REGIONS_GROUP, len(self.blocks)), probe)
        file.check()

    def _small(
        self, file: RegionFile, begin: int, end: int, probe: HeaderProbe
    ) -> list[SourceMessage]:
        blocks = self.blocks
        base = blocks[begin].offset
        last = blocks[end - 1]
        data = file.read(base, sum(last) - base)
        view = memoryview(data)
        rows_of = probe.rows
        messages: list[SourceMessage] = []
        offset = base
        try:
            for offset, metadata, body in blocks.tuples(begin, end):
                at = offset - base
                rows = rows_of(data, at, metadata, body)
                metadata += at
                at += 8 if data[at] == _MARKER_BYTE else 4
                messages.append(
                    SourceMessage(
                        view[at:metadata], (view[metadata : metadata + body],), body, rows
                    )
                )
        except ProtocolError as error:
            raise _corrupt(file, offset, error) from None
        return messages

    def _large(
        self, file: RegionFile, begin: int, end: int, probe: HeaderProbe
    ) -> list[SourceMessage]:
        messages: list[SourceMessage] = []
        for offset, metadata, body in self.blocks.tuples(begin, end):
            data = file.read(offset, metadata)
            try:
                rows = probe.rows(data, 0, metadata, body)
            except ProtocolError as error:
                raise _corrupt(file, offset, error) from None
            region = FileRegion(file, offset + metadata, body)
            head = memoryview(data)[8 if data[0] == _MARKER_BYTE else 4 :]
            messages.append(SourceMessage(head, (region,), body, rows))
        return messages

    def extent(self, file: RegionFile) -> Extent:
        """Return how much the messages hold. The first call reads the metadata of all.

        Raises
        ------
        DatasetError
            If the file cannot be read, or holds something else than the index says.
        """
        counts = self._row_counts(file)
        return Extent(sum(max(rows, 0) for rows in counts), max((0, *counts)))

    def locate(self, file: RegionFile, row: int) -> Position:
        """Return in which record batch a row is. The first call reads the metadata of all.

        Raises
        ------
        DatasetError
            If the file cannot be read, or holds something else than the index says.
        """
        batch = 0
        for rows in self._row_counts(file):
            if rows < 0:
                continue
            if row < rows or not row:
                break
            row -= rows
            batch += 1
        else:
            row = 0
        return Position(batch, row)

    def after(self, file: RegionFile, batch: int) -> StoredMessages:
        """Return the messages without the first `batch` record batches; dictionaries stay."""
        packed = bytearray()
        blocks = self.blocks.tuples(0, len(self.blocks))
        counts = array("q")
        for block, rows in zip(blocks, self._row_counts(file), strict=True):
            if rows >= 0 and batch:
                batch -= 1
            else:
                packed += BLOCK.pack(*block)
                counts.append(rows)
        rest = StoredMessages(self.schema, self.schema_metadata, Blocks(bytes(packed)), self.codec)
        rest._counts = counts
        return rest

    def _row_counts(self, file: RegionFile) -> array[int]:
        """Return the rows of each message; -1 for those that are no record batches."""
        if self._counts is None:
            probe = HeaderProbe()
            counts = array("q")
            offset = 0
            try:
                for offset, metadata, body in self.blocks.tuples(0, len(self.blocks)):
                    data = file.read(offset, metadata)
                    rows = probe.rows(data, 0, metadata, body)
                    if not rows:
                        head = message_facts(memoryview(data)[parse_prefix(data[:8]).nbytes :])
                        rows = 0 if head.header_type is HeaderType.RECORD_BATCH else -1
                    counts.append(rows)
            except ProtocolError as error:
                raise _corrupt(file, offset, error) from None
            self._counts = counts
        return self._counts


class _ReadAhead:
    """Asks the kernel for what a reader will come to, step by step.

    The kernel caps how much one call asks for; and for what it already has, looking at one byte
    costs less than asking for all.
    """

    def __init__(self, file: RegionFile) -> None:
        self._file = file
        self._advised = 0
        self._byte = [bytearray(1)]

    def advance(self, position: int) -> None:
        """Note that the reader is at `position`."""
        file, advised = self._file, self._advised
        if not advised - READ_AHEAD - _ADVICE <= position <= advised:
            advised = position
        end = min(position + READ_AHEAD, file.size)
        while advised < end:
            if not self._is_cached(min(advised + _ADVICE, file.size) - 1):
                file.will_need(advised, _ADVICE)
            advised += _ADVICE
        self._advised = advised

    def _is_cached(self, position: int) -> bool:
        try:
            return os.preadv(self._file.fileno(), self._byte, position, os.RWF_NOWAIT) == 1
        except OSError:
            return False  # it is not, or the file system cannot tell


def _corrupt(file: RegionFile, offset: int, error: ProtocolError) -> DatasetError:
    return file.corrupt(offset, error.message)


def _cuts(blocks: Blocks) -> array[int]:
    """Return where groups end: indices into `blocks`.

    A group has at most GROUP_BYTES, unless it is one message, and lies in one stretch of the
    file; small and large bodies do not share one.
    """
    cuts = array("Q")
    base = end = -1
    region = False
    for index, (offset, metadata, body) in enumerate(blocks.tuples(0, len(blocks))):
        behind = offset + metadata + body
        if index and (
            behind - base > GROUP_BYTES
            or (body >= REGION_BYTES) != region
            or not 0 <= offset - end <= _MOST_GAP
        ):
            cuts.append(index)
            base = offset
        elif not index:
            base = offset
        end = behind
        region = body >= REGION_BYTES
    if len(blocks):
        cuts.append(len(blocks))
    return cuts
