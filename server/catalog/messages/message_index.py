"""An index of the messages in a file: the offset, the size and the rows of each."""

from __future__ import annotations

from array import array
from itertools import chain

import pyarrow as pa

from ....errors import ProtocolError
from ....formats.arrow.file import Blocks
from ....formats.arrow.message import (
    HeaderType,
    RowCountLayout,
    RowCountReader,
    parse_prefix,
    read_message_info,
)
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from ..batch_ranges import BatchRanges
from ..dataset import GROUP_BYTES

REGION_BYTES = 256 << 10
"""The size in bytes from which a body is sent as a region of its file."""
_MAX_GAP = 4 << 10
_NOT_A_RECORD_BATCH = -1


class MessageIndex:
    """The messages of a stream in a file.

    `codec` is the compression of the bodies: ``lz4``, ``zstd`` or None. `dictionaries` is the
    number of dictionary batches, all before the first record batch; None if it is unknown.

    A group of messages has at most GROUP_BYTES or a single message, is contiguous in the file apart
    from small gaps, and has either small bodies or bodies of at least REGION_BYTES. The first
    record batch ends a group, because a reader waits for it.
    """

    __slots__ = (
        "_dictionaries",
        "_row_counts",
        "blocks",
        "codec",
        "group_ends",
        "is_sparse",
        "row_layout",
        "schema",
        "schema_metadata",
    )

    def __init__(
        self,
        schema: pa.Schema,
        schema_metadata: bytes,
        blocks: Blocks,
        codec: str | None,
        dictionaries: int | None = None,
    ) -> None:
        self.schema = schema
        self.schema_metadata = schema_metadata
        self.blocks = blocks
        self.codec = codec
        self.group_ends = _find_group_ends(blocks, (dictionaries or 0) + 1)
        """For each group, the index in `blocks` after its last message."""
        self.is_sparse = False
        """Whether messages of the file are left out between those of the index."""
        self._dictionaries = dictionaries
        self._row_counts: array[int] | None = None
        self.row_layout: RowCountLayout | None = None
        """The layout of the first record batches, once a reader has read them."""

    def schema_message(self) -> SourceMessage:
        """Return the schema message, which begins the stream."""
        return SourceMessage(self.schema_metadata, None)

    def has_schema_message_of(self, other: MessageIndex | None) -> bool:
        """Return whether the messages of another file may follow these in one stream."""
        return other is not None and self.schema_metadata == other.schema_metadata

    def without_blocks(self) -> MessageIndex:
        """Return an index with the schema and the codec, whose size does not depend on the file."""
        return MessageIndex(self.schema, self.schema_metadata, Blocks(), self.codec)

    def count_batches(self, file: SourceFile) -> int:
        """Return the number of record batches; raises as `list_rows` does."""
        if self._dictionaries is not None:
            return len(self.blocks) - self._dictionaries
        return len(self.list_rows(file))

    def list_rows(self, file: SourceFile) -> list[int]:
        """Return the rows of each record batch. The first call reads the metadata of all messages.

        Raises `DatasetError` if the file cannot be read or does not match the index.
        """
        return [rows for rows in self._count_rows(file) if rows != _NOT_A_RECORD_BATCH]

    def select_batches(self, file: SourceFile, batches: BatchRanges) -> MessageIndex:
        """Return an index of some record batches and the dictionary batches that they need.

        Raises as `list_rows` does.
        """
        if batches.ranges is None:
            return self
        leading = self._dictionaries
        if leading is None:
            kept = self._find_messages(file, batches)
        else:
            kept = [(0, leading), *((leading + a, leading + b) for a, b in batches.ranges)]
        blocks = Blocks(b"".join(self.blocks.select(*span).packed for span in kept))
        selected = MessageIndex(self.schema, self.schema_metadata, blocks, self.codec, leading)
        selected.is_sparse = batches.is_sparse
        counts = self._row_counts
        if counts is not None:
            selected._row_counts = array("q", chain.from_iterable(counts[a:b] for a, b in kept))
        return selected

    def _find_messages(self, file: SourceFile, batches: BatchRanges) -> list[tuple[int, int]]:
        """Return ranges of messages: record batches, and the dictionary batches before the last."""
        rows = self._count_rows(file)
        numbers = [at for at, count in enumerate(rows) if count != _NOT_A_RECORD_BATCH]
        chosen = batches.select(numbers)
        if not chosen:
            return []
        left_out = set(numbers).difference(chosen)
        return [(at, at + 1) for at in range(chosen[-1] + 1) if at not in left_out]

    def _count_rows(self, file: SourceFile) -> array[int]:
        """Return the rows of each message, with -1 for messages that are not record batches."""
        if self._row_counts is None:
            row_reader = RowCountReader()
            counts = array("q")
            offset = 0
            try:
                for offset, metadata, body in self.blocks.iter_tuples(0, len(self.blocks)):
                    data = file.read(offset, metadata)
                    rows = row_reader.read(data, 0, metadata, body)
                    if not rows and not _is_record_batch(data):
                        rows = _NOT_A_RECORD_BATCH
                    counts.append(rows)
            except ProtocolError as error:
                raise file.corruption_error(offset, error.message) from None
            self._row_counts = counts
        return self._row_counts


def _is_record_batch(data: bytes) -> bool:
    """Return whether an encapsulated message is a record batch."""
    info = read_message_info(memoryview(data)[parse_prefix(data[:8]).nbytes :])
    return info.header_type is HeaderType.RECORD_BATCH


def _find_group_ends(blocks: Blocks, first: int) -> array[int]:
    """Return the ends of the groups; the group before message `first` ends there."""
    ends = array("Q")
    group_begin = message_end = -1
    is_region = False
    for index, (offset, metadata, body) in enumerate(blocks.iter_tuples(0, len(blocks))):
        end = offset + metadata + body
        if index and (
            index == first
            or end - group_begin > GROUP_BYTES
            or (body >= REGION_BYTES) != is_region
            or not 0 <= offset - message_end <= _MAX_GAP
        ):
            ends.append(index)
            group_begin = offset
        elif not index:
            group_begin = offset
        message_end = end
        is_region = body >= REGION_BYTES
    if len(blocks):
        ends.append(len(blocks))
    return ends
