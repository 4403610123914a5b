"""Projection of record batches: new metadata and ranges of the original body.

Nothing is decoded, and the body is not read. The metadata of a projected message is built once for
each shape. Later messages of that shape only fill in its numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flatbuffers
import pyarrow as pa

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import READER_ERRORS, cast_table, write_longs
from .checker import plan_batch
from .custom_metadata import finish_message, pad, write_pairs
from .data_types import has_unions
from .message import align

_ALIGNMENT = 8
_MAX_GAP = 64
_MAX_TEMPLATES = 16
_PLACEHOLDER = 0x5EED_5EED_5EED
_NODES, _BUFFERS = 6, 8  # the slots of fields in the vtable of RecordBatch


class ColumnCounts(NamedTuple):
    """The numbers of nodes and buffers of a column in the metadata of a batch."""

    nodes: int
    """The number of field nodes."""
    buffers: int
    """The number of buffers, without the variadic data buffers of views."""
    views: int
    """The number of view arrays, each of which has variadic data buffers."""


class BodyRange(NamedTuple):
    """A range of the original body."""

    offset: int
    """The offset of the range in bytes."""
    nbytes: int
    """The size of the range in bytes."""
    padding: int
    """The number of zero bytes that follow it in the projected body."""


class ProjectedMessage(NamedTuple):
    """A projected message."""

    metadata: bytes
    """Its padded FlatBuffer."""
    body: list[BodyRange]
    """The ranges of the original body that form its body."""
    body_length: int
    """The size of its body in bytes."""
    rows: int
    """The number of rows."""


class Projector:
    """Projects the record batches of one stream to some columns, in order, without dictionaries."""

    def __init__(self, schema: pa.Schema, columns: Sequence[int]) -> None:
        self._shapes = [find_column_counts(field.type) for field in schema]
        self._columns = tuple(columns)
        self._has_unions = has_unions(schema)
        self._templates: dict[Any, _MetadataTemplate] = {}

    def project(self, metadata: bytes | memoryview) -> ProjectedMessage:
        """Project a record batch; raises `InvalidDataError` if it does not fit the schema."""
        try:
            message = fbs.Message.GetRootAs(metadata, 0)
            table: Any = message.Header()
            batch = fbs.RecordBatch()
            batch.Init(table.Bytes, table.Pos)
            return self._project(message, batch)
        except READER_ERRORS:
            raise InvalidDataError("the metadata is not an Arrow IPC batch") from None

    def _project(self, message: Any, batch: Any) -> ProjectedMessage:
        if self._has_unions and message.Version() != fbs.MetadataVersion.V5:
            raise InvalidDataError("cannot project unions of metadata versions before V5")
        nodes = list(_read_pairs(batch, _NODES))
        buffers = list(_read_pairs(batch, _BUFFERS))
        variadic = [
            batch.VariadicBufferCounts(i) for i in range(batch.VariadicBufferCountsLength())
        ]
        spans, end = self._locate_columns(variadic)
        if end != (len(nodes), len(buffers), len(variadic)):
            raise InvalidDataError(
                "the field nodes or buffers of a record batch do not match its schema"
            )
        kept_nodes: list[int] = []
        kept_buffers: list[int] = []
        kept_variadic: list[int] = []
        for column in self._columns:
            begin, end = spans[column]
            for length, nulls in nodes[begin[0] : end[0]]:
                kept_nodes += (length, nulls)
            kept_buffers += range(begin[1], end[1])
            kept_variadic += variadic[begin[2] : end[2]]
        body = _BodyBuilder(buffers, message.BodyLength())
        for index in kept_buffers:
            body.add(index)
        template = self._find_template(
            message, batch, len(kept_nodes), len(kept_buffers), kept_variadic
        )
        rows = int(batch.Length())
        metadata = template.fill(body.length, rows, kept_nodes, body.spans)
        return ProjectedMessage(metadata, body.list_ranges(), body.length, rows)

    def _locate_columns(self, variadic: list[int]) -> tuple[list[Any], tuple[int, int, int]]:
        """Return the range of each column among the nodes, buffers and variadic counts."""
        spans: list[Any] = []
        node = buffer = view = 0
        for shape in self._shapes:
            begin = (node, buffer, view)
            node += shape.nodes
            further = variadic[view : view + shape.views]
            if min(further, default=0) < 0:
                raise IndexError
            buffer += shape.buffers + sum(further)
            view += shape.views
            spans.append((begin, (node, buffer, view)))
        return spans, (node, buffer, view)

    def _find_template(
        self, message: Any, batch: Any, nodes: int, buffers: int, variadic: list[int]
    ) -> _MetadataTemplate:
        compression = batch.Compression()
        codec = None if compression is None else (compression.Codec(), compression.Method())
        pairs = tuple(
            (message.CustomMetadata(index).Key(), message.CustomMetadata(index).Value())
            for index in range(message.CustomMetadataLength())
        )
        key = (message.Version(), codec, pairs, nodes, buffers, tuple(variadic))
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            found = self._templates[key] = _MetadataTemplate(*key)
        return found


class _BodyBuilder:
    """Builds a body from ranges of another body, few and large if possible."""

    def __init__(self, buffers: list[tuple[int, int]], body_length: int) -> None:
        self._buffers = buffers
        self._limit = body_length
        self._runs: list[list[int]] = []
        self._last = -2
        self.spans: list[int] = []
        self.length = 0

    def add(self, index: int) -> None:
        """Append a buffer of the original body."""
        offset, nbytes = self._buffers[index]
        if not 0 <= offset <= offset + nbytes <= self._limit or nbytes < 0:
            raise InvalidDataError(
                f"a buffer of {nbytes} bytes at byte {offset} is outside its body of "
                f"{self._limit} bytes"
            )
        if not nbytes:
            self.spans += (self.length, 0)
            self._last += self._last == index - 1  # an empty buffer does not split a range
            return
        run = self._runs[-1] if self._runs else None
        if (
            run is not None
            and index == self._last + 1
            and offset % _ALIGNMENT == run[0] % _ALIGNMENT
        ):
            gap = offset - (run[0] + run[1])
            if 0 <= gap < _MAX_GAP:
                run[1] += gap + nbytes
                self.spans += (run[2] + offset - run[0], nbytes)
                self._extend(run, index)
                return
        run = [offset, nbytes, self.length]
        self._runs.append(run)
        self.spans += (self.length, nbytes)
        self._extend(run, index)

    def _extend(self, run: list[int], index: int) -> None:
        """Set the end of the body to the end of `run`, whose last buffer is `index`."""
        self._last = index
        self.length = align(run[2] + run[1])

    def list_ranges(self) -> list[BodyRange]:
        return [
            BodyRange(offset, nbytes, align(target + nbytes) - target - nbytes)
            for offset, nbytes, target in self._runs
        ]


class _MetadataTemplate:
    """The metadata of record batches of one shape, whose numbers `fill` sets."""

    def __init__(
        self, version: int, codec: Any, pairs: Any, nodes: int, buffers: int, variadic: Any
    ) -> None:
        builder: Any = flatbuffers.Builder(512)
        buffer_vector = write_longs(builder, [0] * (2 * buffers), 2)
        node_vector = write_longs(builder, [0] * nodes, 2)
        counts = write_longs(builder, variadic) if variadic else 0
        compression = 0
        if codec is not None:
            fbs.BodyCompressionStart(builder)
            fbs.BodyCompressionAddCodec(builder, codec[0])
            fbs.BodyCompressionAddMethod(builder, codec[1])
            compression = fbs.BodyCompressionEnd(builder)
        fbs.RecordBatchStart(builder)
        fbs.RecordBatchAddLength(builder, _PLACEHOLDER)
        fbs.RecordBatchAddNodes(builder, node_vector)
        fbs.RecordBatchAddBuffers(builder, buffer_vector)
        if compression:
            fbs.RecordBatchAddCompression(builder, compression)
        if counts:
            fbs.RecordBatchAddVariadicBufferCounts(builder, counts)
        header = fbs.RecordBatchEnd(builder)
        custom = write_pairs(builder, pairs)
        kind = fbs.MessageHeader.RecordBatch
        data = finish_message(builder, version, kind, header, _PLACEHOLDER, custom=custom)
        self._template = pad(data)
        message: Any = fbs.Message.GetRootAs(self._template, 0)
        batch = cast_table(message.Header(), fbs.RecordBatch)
        outer, inner = message._tab, batch._tab
        self._length_at = outer.Pos + outer.Offset(10)
        self._rows_at = inner.Pos + inner.Offset(4)
        self._nodes_at = inner.Vector(inner.Offset(_NODES))
        self._buffers_at = inner.Vector(inner.Offset(_BUFFERS))
        self._nodes = struct.Struct(f"<{nodes}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def fill(self, body_length: int, rows: int, nodes: list[int], buffers: list[int]) -> bytes:
        """Return the metadata of one message."""
        data = bytearray(self._template)
        struct.pack_into("<q", data, self._length_at, body_length)
        struct.pack_into("<q", data, self._rows_at, rows)
        self._nodes.pack_into(data, self._nodes_at, *nodes)
        self._buffers.pack_into(data, self._buffers_at, *buffers)
        return bytes(data)


def find_column_counts(data_type: Any) -> ColumnCounts:
    """Return the numbers of nodes and buffers of a column of a type.

    Examples
    --------
    >>> find_column_counts(pa.list_(pa.string()))
    ColumnCounts(nodes=2, buffers=5, views=0)
    """
    plan = plan_batch([pa.field("", data_type)])
    return ColumnCounts(len(plan.arrays), plan.buffers, plan.views)


def _read_pairs(batch: Any, slot: int) -> Iterator[tuple[int, int]]:
    """Iterate over a vector of structs of two i64."""
    table = batch._tab
    field = table.Offset(slot)
    if not field:
        return iter(())
    begin = table.Vector(field)
    end = begin + 16 * table.VectorLen(field)
    if end > len(table.Bytes):
        raise IndexError
    return struct.iter_unpack("<qq", memoryview(table.Bytes)[begin:end])  # pyright: ignore[reportReturnType]
