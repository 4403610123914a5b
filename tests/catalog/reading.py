"""Reading what a dataset serves: back from messages to tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from splitarrow.formats.arrow.message import HeaderType, encapsulate, message_facts
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.server.catalog.base import GROUP_BYTES, Dataset, Encoding, Source
from splitarrow.transport.regions import FileRegion

PLAIN = Encoding()


class Served(NamedTuple):
    """What one reader was served."""

    groups: list[list[SourceMessage]]
    """The groups; regions of files have been replaced by their bytes."""
    regions: int
    """How many regions of files there were."""
    blocking: bool
    """What the source said."""

    @property
    def messages(self) -> list[SourceMessage]:
        return [message for group in self.groups for message in group]

    @property
    def rows(self) -> int:
        return sum(message.rows for message in self.messages)

    @property
    def stream(self) -> bytes:
        """All of it as an Arrow IPC stream, without an end marker."""
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


def drain(source: Source) -> Served:
    """Read a source to its end, close it, and check what every source keeps to."""
    groups: list[list[SourceMessage]] = []
    regions = 0
    with closing(source):
        for group in source:
            assert group
            assert len(group) == 1 or sum(m.body_length for m in group[:-1]) <= GROUP_BYTES
            read: list[SourceMessage] = []
            for metadata, body, body_length, rows in group:
                facts = message_facts(metadata)
                assert body_length == facts.body_length
                assert (body is not None) == facts.header_type.has_body
                parts = None if body is None else [_bytes(part) for part in body]
                assert body_length == sum(map(len, parts or ()))
                regions += sum(isinstance(part, FileRegion) for part in body or ())
                assert rows == 0 or facts.header_type is HeaderType.RECORD_BATCH
                read.append(SourceMessage(bytes(metadata), parts, body_length, rows))
            groups.append(read)
    assert message_facts(groups[0][0].metadata).header_type is HeaderType.SCHEMA
    return Served(groups, regions, source.blocking)


def _bytes(part: Any) -> bytes:
    if isinstance(part, FileRegion):
        data = bytearray(part.nbytes)
        part.read_into(memoryview(data))
        return bytes(data)
    return bytes(part)


def serve(dataset: Dataset, encoding: Encoding = PLAIN, **asked: Any) -> Served:
    """Return what a dataset serves for a request."""
    return drain(dataset.open(Request("name", **asked), encoding))


def write_file(
    path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None, **options: Any
) -> Path:
    """Write an Arrow IPC file."""
    found = list(batches)
    write_options = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schema or found[0].schema, options=write_options) as writer,
    ):
        for batch in found:
            writer.write_batch(batch)
    return path


def write_stream(
    path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None, **options: Any
) -> Path:
    """Write an Arrow IPC stream."""
    found = list(batches)
    write_options = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, schema or found[0].schema, options=write_options) as writer,
    ):
        for batch in found:
            writer.write_batch(batch)
    return path


def write_parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a Parquet file, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def numbers(batches: int = 3, rows: int = 100, start: int = 0) -> list[pa.RecordBatch]:
    """Return batches of a row number, a text with nulls, and a dictionary column."""
    made: list[pa.RecordBatch] = []
    for number in range(batches):
        first = start + number * rows
        values = range(first, first + rows)
        texts = [None if value % 3 == 0 else f"text {value}" for value in values]
        words = pa.array(["one", "two", "three"])
        indices = pa.array([value % 3 for value in values], pa.int8())
        made.append(
            pa.record_batch(
                {
                    "n": pa.array(values, pa.int64()),
                    "t": pa.array(texts, pa.string()),
                    "d": pa.DictionaryArray.from_arrays(indices, words),
                }
            )
        )
    return made


def asking(*requests: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return what is asked for in several requests: fields of `Request`."""
    return requests


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch that has rows but no column."""
    nothing: Any = pa.array([{}] * rows, pa.struct([]))
    return pa.RecordBatch.from_struct_array(nothing)


def table_of(batches: list[pa.RecordBatch]) -> pa.Table:
    """Return the table that the batches make up."""
    return pa.Table.from_batches(batches)
