"""Passthrough: sending the messages of a file unchanged.

Small messages are read many at a time, and sent as slices of one read. Bodies of at least
REGION_BYTES are sent as regions of the file: the kernel moves them from its page cache to the
socket, and reads the file ahead of the stream. Consecutive messages with equal metadata and
bodies of equal size are sent as one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ....errors import ProtocolError
from ....formats.arrow.file import Blocks
from ....formats.arrow.message import RowCountReader
from ....protocol.splitter import PackedRun, SourceMessage, SourceRun
from ....transport.memory.files import FileSpan, SourceFile
from ..dataset import GROUP_BYTES
from .message_index import REGION_BYTES, MessageIndex

MAX_BODY_BYTES = REGION_BYTES - 1
"""The largest body of a run, in bytes. Larger bodies are sent as regions of the file."""
READAHEAD_BYTES = 16 << 20
"""The distance that the kernel reads ahead of the stream, in bytes."""
_STEP = 1 << 20
_CONTINUATION_BYTE = 0xFF
_REGION_GROUP_MESSAGES = 64
_MAX_COMPARED_BYTES = 16 << 10
"""The largest body that is read only to compare the metadata around it, in bytes."""
_MIN_MESSAGES = 8
_MIN_BYTES = 64 << 10
"""The smallest run in messages or in bytes, whichever it reaches first. It has two messages at
least."""
_FEW_MESSAGES = 32
"""The number of messages up to which one loop over all of them is faster than NumPy."""


class RegionRun(SourceRun):
    """A run whose bodies have the same positive size, and equal distances in a file, in bytes."""

    __slots__ = ("body_bytes", "file", "offsets")

    def __init__(
        self, metadata: bytes, rows: int, file: SourceFile, offsets: range, body_bytes: int
    ) -> None:
        super().__init__(metadata, rows)
        self.file = file
        self.offsets = offsets
        self.body_bytes = body_bytes

    def __len__(self) -> int:
        return len(self.offsets)

    def message(self, index: int) -> SourceMessage:
        """Return one of the messages."""
        body = FileSpan(self.file, self.offsets[index], self.body_bytes)
        return SourceMessage(self.metadata, (body,), self.body_bytes, self.rows)


_BLOCK = np.dtype(
    {
        "names": ["offset", "metadata", "body"],
        "formats": ["<i8", "<i4", "<i8"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)


def split_runs(
    blocks: Blocks, begin: int, end: int, data: bytes
) -> Iterator[tuple[int, int, NDArray[np.uint8] | None]]:
    """Split consecutive messages into runs and other messages.

    `data` is the part of the file from message `begin` to the end of message `end` - 1. Yield the
    first message and the one after the last of each run or other part, in order; for a run, with
    the bytes of its messages, of the shape (messages, bytes).
    """
    if end - begin < _MIN_MESSAGES and len(data) <= _MIN_BYTES // 2:
        yield begin, end, None  # Equal ones among them reach neither minimum.
        return
    if end - begin <= _FEW_MESSAGES:
        messages = _find_single_run(blocks, begin, end, data)
        if messages is not None:
            yield begin, end, messages
            return
    fields = np.frombuffer(blocks.packed, _BLOCK)[begin:end]
    offset, metadata, body = fields["offset"], fields["metadata"], fields["body"]
    size = metadata + body
    repeats = (
        (metadata[1:] == metadata[:-1])
        & (body[1:] == body[:-1])
        & (offset[1:] - offset[:-1] == size[:-1])
        & (body[1:] > 0)
        & (body[1:] <= MAX_BODY_BYTES)
    )
    first = 0
    for start, stop in _find_true(repeats, 2):
        at, period = int(offset[start] - offset[0]), int(size[start])
        least = _count_least(period)
        if stop - start < least:
            continue
        messages = np.frombuffer(data, np.uint8, (stop - start) * period, at)
        messages = messages.reshape(stop - start, period)
        heads = messages[:, : metadata[start]]
        equal = (heads[1:] == heads[:-1]).all(axis=1)
        for low, high in _find_true(equal, least):
            if first < start + low:
                yield begin + first, begin + start + low, None
            first = start + high
            yield begin + start + low, begin + first, messages[low:high]
    if begin + first < end:
        yield begin + first, end, None


def _find_single_run(blocks: Blocks, begin: int, end: int, data: bytes) -> NDArray[np.uint8] | None:
    """Return the bytes of all messages as `split_runs` does, or None if they are not one run."""
    offset, metadata, body = blocks[begin]
    count, period = end - begin, metadata + body
    if not 0 < body <= MAX_BODY_BYTES or count < _count_least(period):
        return None
    head = data[:metadata]
    at = 0
    for block in blocks.iter_tuples(begin, end):
        if block != (offset + at, metadata, body) or data[at : at + metadata] != head:
            return None
        at += period
    return np.frombuffer(data, np.uint8, at).reshape(count, period)


def _count_least(period: int) -> int:
    """Return the least number of messages of a run; `period` is their size in bytes."""
    return min(_MIN_MESSAGES, max(2, _MIN_BYTES // period))


def _find_true(links: NDArray[np.bool_], least: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of each chain of at least `least` linked elements.

    Element i of `links` states whether the elements i and i + 1 belong together.
    """
    if links.all():
        if len(links) + 1 >= least:
            yield 0, len(links) + 1
        return
    breaks = np.flatnonzero(~links) + 1
    starts = np.concatenate(([0], breaks))
    stops = np.concatenate((breaks, [len(links) + 1]))
    for index in np.flatnonzero(stops - starts >= least):
        yield int(starts[index]), int(stops[index])


class Readahead:
    """Keeps the kernel's readahead in front of a stream that reads a file in order.

    The kernel caps how much one call requests, so the requests are small steps. A step that is in
    the page cache already costs one read of one byte, which is less than a request.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._requested = 0
        self._byte = [bytearray(1)]

    def advance(self, position: int) -> None:
        """Request the bytes after `position`, which the stream reads next."""
        file, requested = self._file, self._requested
        if not requested - READAHEAD_BYTES - _STEP <= position <= requested:
            requested = position  # the stream jumped
        end = min(position + READAHEAD_BYTES, file.size)
        while requested < end:
            if not self._is_cached(min(requested + _STEP, file.size) - 1):
                file.prefetch(requested, _STEP)
            requested += _STEP
        self._requested = requested

    def _is_cached(self, position: int) -> bool:
        try:
            return os.preadv(self._file.fileno(), self._byte, position, os.RWF_NOWAIT) == 1
        except OSError:
            return False  # not cached, or the file system cannot say


class PassthroughMessages:
    """The messages of a file, unchanged."""

    def __init__(
        self,
        index: MessageIndex,
        *,
        regions: bool,
        find_group_bytes: Callable[[], int] = lambda: GROUP_BYTES,
    ) -> None:
        self.index = index
        """The messages."""
        self.regions = regions
        """Whether every body is one region of the file."""
        self._find_group_bytes = find_group_bytes
        self.schema_message = index.schema_message()
        """The schema message, which begins the stream."""

    def groups(self, file: SourceFile) -> Iterator[Sequence[SourceMessage]]:
        """Yield the messages after the schema in groups.

        Raises `DatasetError` if the file cannot be read, has changed since it was opened, or does
        not match the index.
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
            is_small = not begin and body < REGION_BYTES  # The reader waits for these messages.
            if not is_small and not self.index.is_sparse:
                readahead.advance(offset)
            if body < REGION_BYTES:
                for first, stop in self._split_group(begin, end):
                    yield from self._read_together(file, first, stop, row_reader)
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

    def _split_group(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a group that are to be read at a time."""
        group_bytes = self._find_group_bytes()
        if group_bytes >= GROUP_BYTES:
            yield begin, end
            return
        first, base = begin, self.index.blocks[begin].offset
        for number in range(begin + 1, end):
            block = self.index.blocks[number]
            if sum(block) - base > group_bytes:
                yield first, number
                first, base = number, block.offset
        yield first, end

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
            region = file.part(offset + metadata, body)
            header = memoryview(data)[_prefix_bytes(data[0]) :]
            messages.append(SourceMessage(header, (region,), body, rows))
        file.check()
        return messages


def _prefix_bytes(first: int) -> int:
    """Return the size of the prefix of a message that begins with the byte `first`."""
    return 8 if first == _CONTINUATION_BYTE else 4
