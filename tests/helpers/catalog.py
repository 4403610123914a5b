"""Writing files, and reading datasets: from messages back to tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import pyarrow as pa

from splitarrow.formats.arrow.message import HeaderType, encapsulate, read_message_info
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.dataset import ENCODED_GROUP_BYTES, Encoding, ServedDataset, Source
from splitarrow.transport.memory.files import FileSpan

DEFAULTS = Encoding()
"""The server's defaults for encoding."""


class StreamContents(NamedTuple):
    """The messages that one reader received from a source."""

    groups: list[list[SourceMessage]]
    """The groups of messages. Regions of files are replaced by their bytes."""
    regions: int
    """The number of regions of files."""
    blocking: bool
    """`Source.blocking`."""

    @property
    def messages(self) -> list[SourceMessage]:
        return [message for group in self.groups for message in group]

    @property
    def rows(self) -> int:
        return sum(message.rows for message in self.messages)

    @property
    def stream(self) -> bytes:
        """The messages as an Arrow IPC stream without an end marker."""
        return b"".join(
            piece
            for message in self.messages
            for piece in (encapsulate(message.metadata), *(message.body or ()))
        )

    @property
    def batches(self) -> list[pa.RecordBatch]:
        with pa.ipc.open_stream(self.stream) as reader:
            return list(reader)

    @property
    def schema(self) -> pa.Schema:
        with pa.ipc.open_stream(self.stream) as reader:
            return reader.schema

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, self.schema)


def read_source(source: Source, pause: Callable[[], object] = lambda: None) -> StreamContents:
    """Read a source to its end, close it, and check the rules for all sources.

    `pause` is called after each group.
    """
    groups: list[list[SourceMessage]] = []
    regions = 0
    with closing(source):
        for group in source:
            assert group
            assert len(group) == 1 or sum(m.body_length for m in group[:-1]) <= ENCODED_GROUP_BYTES
            read: list[SourceMessage] = []
            for metadata, body, body_length, rows, _ in group:
                facts = read_message_info(metadata)
                assert body_length == facts.body_length
                assert (body is not None) == facts.header_type.has_body
                parts = None if body is None else [_bytes(part) for part in body]
                assert body_length == sum(map(len, parts or ()))
                regions += sum(isinstance(part, FileSpan) for part in body or ())
                assert rows == 0 or facts.header_type is HeaderType.RECORD_BATCH
                read.append(SourceMessage(bytes(metadata), parts, body_length, rows))
            groups.append(read)
            pause()
    assert read_message_info(groups[0][0].metadata).header_type is HeaderType.SCHEMA
    return StreamContents(groups, regions, source.blocking)


def _bytes(part: Any) -> bytes:
    if isinstance(part, FileSpan):
        data = bytearray(part.nbytes)
        part.read_into(memoryview(data))
        return bytes(data)
    return bytes(part)


def read_dataset(
    dataset: ServedDataset, encoding: Encoding = DEFAULTS, **fields: Any
) -> StreamContents:
    """Open a dataset with the given fields of a request, and read it to its end."""
    return read_source(dataset.open(Request("name", **fields), encoding))


def number_batches(batches: int = 3, rows: int = 100, start: int = 0) -> list[pa.RecordBatch]:
    """Return batches with a row number, a text with nulls and a dictionary column."""
    result: list[pa.RecordBatch] = []
    for number in range(batches):
        first = start + number * rows
        values = range(first, first + rows)
        texts = [None if value % 3 == 0 else f"text {value}" for value in values]
        words = pa.array(["one", "two", "three"])
        indices = pa.array([value % 3 for value in values], pa.int8())
        result.append(
            pa.record_batch(
                {
                    "n": pa.array(values, pa.int64()),
                    "t": pa.array(texts, pa.string()),
                    "d": pa.DictionaryArray.from_arrays(indices, words),
                }
            )
        )
    return result


def requests(*fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the fields of several requests, typed for `read_dataset`."""
    return fields


def batch_without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch with rows but no column."""
    nothing: Any = pa.array([{}] * rows, pa.struct([]))
    return pa.RecordBatch.from_struct_array(nothing)


def to_table(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return a table with these batches."""
    return pa.Table.from_batches(batches)
