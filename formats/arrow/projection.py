"""Some columns of a record batch as it lies: new metadata, and where the buffers are.

Nothing is decoded, and no buffer is looked at. The metadata of a projected message is laid out
once for each shape; of further messages only the numbers are filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import flatbuffers
import pyarrow as pa

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .truncation import has_unions

_GARBAGE = (struct.error, IndexError, OverflowError, TypeError, ValueError)
_ALIGNMENT = 8
_MOST_GAP = 64
_PLACEHOLDER = 0x5EED_5EED_5EED
_NODES, _BUFFERS, _VARIADIC = 6, 8, 12  # the places of fields in the vtable of RecordBatch


class Shape(NamedTuple):
    """What a column has in the metadata of a batch."""

    nodes: int
    """How many field nodes."""
    buffers: int
    """How many buffers, those of values in views aside."""
    views: int
    """How many arrays of views, each of which has further buffers."""


class Stretch(NamedTuple):
    """A stretch of the body of the original."""

    offset: int
    """Where it begins, in bytes."""
    nbytes: int
    """How long it is."""
    padding: int
    """How many zeros follow it in the projected body."""


class Projected(NamedTuple):
    """A projected message."""

    metadata: bytes
    """Its FlatBuffer, padded."""
    body: list[Stretch]
    """What its body is made of."""
    body_length: int
    """The size of its body in bytes."""
    rows: int
    """How many rows it has."""


class Projector:
    """Projects the record batches of one stream.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the stream.
    columns : sequence of int
        The columns to keep, in order. None of them holds dictionaries.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[int]) -> None:
        self._shapes = [shape_of(field.type) for field in schema]
        self._columns = tuple(columns)
        self._has_unions = has_unions(schema)
        self._layouts: dict[Any, _Layout] = {}

    def project(self, metadata: bytes | memoryview) -> Projected:
        """Project a record batch.

        Raises
        ------
        InvalidDataError
            If its metadata does not fit the schema.
        """
        try:
            message = fbs.Message.GetRootAs(metadata, 0)
            table: Any = message.Header()
            batch = fbs.RecordBatch()
            batch.Init(table.Bytes, table.Pos)
            return self._project(message, batch)
        except _GARBAGE:
            raise InvalidDataError("the metadata is not an Arrow IPC batch") from None

    def _project(self, message: Any, batch: Any) -> Projected:
        if self._has_unions and message.Version() != fbs.MetadataVersion.V5:
            raise InvalidDataError("a union of an old version cannot be projected")
        nodes = list(_pairs(batch, _NODES))
        buffers = list(_pairs(batch, _BUFFERS))
        variadic = [
            batch.VariadicBufferCounts(i) for i in range(batch.VariadicBufferCountsLength())
        ]
        spans, end = self._spans(variadic)
        if end != (len(nodes), len(buffers), len(variadic)):
            raise InvalidDataError(
                "a record batch has other field nodes or buffers than its schema"
            )
        kept_nodes: list[int] = []
        kept_buffers: list[int] = []
        kept_variadic: list[int] = []
        for column in self._columns:
            begin, behind = spans[column]
            for length, nulls in nodes[begin[0] : behind[0]]:
                kept_nodes += (length, nulls)
            kept_buffers += range(begin[1], behind[1])
            kept_variadic += variadic[begin[2] : behind[2]]
        body = _Body(buffers, message.BodyLength())
        for index in kept_buffers:
            body.add(index)
        layout = self._layout(message, batch, len(kept_nodes), len(kept_buffers), kept_variadic)
        rows = int(batch.Length())
        filled = layout.fill(body.length, rows, kept_nodes, body.places)
        return Projected(filled, body.stretches(), body.length, rows)

    def _spans(self, variadic: list[int]) -> tuple[list[Any], tuple[int, int, int]]:
        """Return where each column begins and ends among nodes, buffers and variadic counts."""
        spans: list[Any] = []
        node = buffer = view = 0
        for shape in self._shapes:
            begin = (node, buffer, view)
            node += shape.nodes
            further = variadic[view : view + shape.views]
            if len(further) < shape.views or min(further, default=0) < 0:
                raise IndexError
            buffer += shape.buffers + sum(further)
            view += shape.views
            spans.append((begin, (node, buffer, view)))
        return spans, (node, buffer, view)

    def _layout(
        self, message: Any, batch: Any, nodes: int, buffers: int, variadic: list[int]
    ) -> _Layout:
        compression = batch.Compression()
        codec = None if compression is None else (compression.Codec(), compression.Method())
        pairs = tuple(
            (message.CustomMetadata(index).Key(), message.CustomMetadata(index).Value())
            for index in range(message.CustomMetadataLength())
        )
        key = (message.Version(), codec, pairs, nodes, buffers, tuple(variadic))
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) > 16:
                self._layouts.clear()
            found = self._layouts[key] = _Layout(*key)
        return found


class _Body:
    """Puts a body together from buffers of another one."""

    def __init__(self, buffers: list[tuple[int, int]], body_length: int) -> None:
        self._buffers = buffers
        self._limit = body_length
        self._runs: list[list[int]] = []
        self._last = -2
        self.places: list[int] = []
        self.length = 0

    def add(self, index: int) -> None:
        offset, nbytes = self._buffers[index]
        if not 0 <= offset <= offset + nbytes <= self._limit or nbytes < 0:
            raise InvalidDataError(
                f"a buffer at byte {offset} of {nbytes} bytes lies outside its body"
            )
        if not nbytes:
            self.places += (self.length, 0)
            self._last += self._last == index - 1  # it does not keep its neighbours apart
            return
        run = self._runs[-1] if self._runs else None
        if (
            run is not None
            and index == self._last + 1
            and offset % _ALIGNMENT == run[0] % _ALIGNMENT
        ):
            gap = offset - (run[0] + run[1])
            if 0 <= gap < _MOST_GAP:
                run[1] += gap + nbytes
                self.places += (run[2] + offset - run[0], nbytes)
                self._end(run, index)
                return
        run = [offset, nbytes, self.length]
        self._runs.append(run)
        self.places += (self.length, nbytes)
        self._end(run, index)

    def _end(self, run: list[int], index: int) -> None:
        self._last = index
        self.length = _padded(run[2] + run[1])

    def stretches(self) -> list[Stretch]:
        return [
            Stretch(offset, nbytes, _padded(place + nbytes) - place - nbytes)
            for offset, nbytes, place in self._runs
        ]


class _Layout:
    """The metadata of record batches of one shape, with places for the numbers."""

    def __init__(
        self, version: int, codec: Any, pairs: Any, nodes: int, buffers: int, variadic: Any
    ) -> None:
        builder: Any = flatbuffers.Builder(512)
        fbs.RecordBatchStartBuffersVector(builder, buffers)
        for _ in range(buffers):
            fbs.CreateBuffer(builder, 0, 0)
        buffer_vector = builder.EndVector()
        fbs.RecordBatchStartNodesVector(builder, nodes // 2)
        for _ in range(nodes // 2):
            fbs.CreateFieldNode(builder, 0, 0)
        node_vector = builder.EndVector()
        counts = _longs(builder, variadic) if variadic else None
        compression = None
        if codec is not None:
            fbs.BodyCompressionStart(builder)
            fbs.BodyCompressionAddCodec(builder, codec[0])
            fbs.BodyCompressionAddMethod(builder, codec[1])
            compression = fbs.BodyCompressionEnd(builder)
        fbs.RecordBatchStart(builder)
        fbs.RecordBatchAddLength(builder, _PLACEHOLDER)
        fbs.RecordBatchAddNodes(builder, node_vector)
        fbs.RecordBatchAddBuffers(builder, buffer_vector)
        if compression is not None:
            fbs.RecordBatchAddCompression(builder, compression)
        if counts is not None:
            fbs.RecordBatchAddVariadicBufferCounts(builder, counts)
        header = fbs.RecordBatchEnd(builder)
        custom = _custom(builder, pairs) if pairs else None
        fbs.MessageStart(builder)
        fbs.MessageAddVersion(builder, version)
        fbs.MessageAddHeaderType(builder, fbs.MessageHeader.RecordBatch)
        fbs.MessageAddHeader(builder, header)
        fbs.MessageAddBodyLength(builder, _PLACEHOLDER)
        if custom is not None:
            fbs.MessageAddCustomMetadata(builder, custom)
        builder.Finish(fbs.MessageEnd(builder))
        data = bytes(builder.Output())
        self._template = data + bytes(-len(data) % _ALIGNMENT)
        message: Any = fbs.Message.GetRootAs(self._template, 0)
        table = message.Header()
        inner = fbs.RecordBatch()
        inner.Init(table.Bytes, table.Pos)
        place: Any = inner
        outer, inner_table = message._tab, place._tab
        self._length_at = outer.Pos + outer.Offset(10)
        self._rows_at = inner_table.Pos + inner_table.Offset(4)
        self._nodes_at = inner_table.Vector(inner_table.Offset(_NODES))
        self._buffers_at = inner_table.Vector(inner_table.Offset(_BUFFERS))
        self._nodes = struct.Struct(f"<{nodes}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def fill(self, body_length: int, rows: int, nodes: list[int], buffers: list[int]) -> bytes:
        data = bytearray(self._template)
        struct.pack_into("<q", data, self._length_at, body_length)
        struct.pack_into("<q", data, self._rows_at, rows)
        self._nodes.pack_into(data, self._nodes_at, *nodes)
        self._buffers.pack_into(data, self._buffers_at, *buffers)
        return bytes(data)


def shape_of(data_type: Any) -> Shape:
    """Return what a column of a type has in the metadata of a batch.

    Examples
    --------
    >>> shape_of(pa.list_(pa.string()))
    Shape(nodes=2, buffers=5, views=0)
    """
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return shape_of(data_type.storage_type)
    own, views = 2, 0
    children: list[Any] = []
    if types.is_null(data_type):
        own = 0
    elif isinstance(data_type, pa.DictionaryType):
        pass
    elif data_type in (pa.string_view(), pa.binary_view()):
        views = 1
    elif data_type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        own = 3
    elif types.is_run_end_encoded(data_type):
        own, children = 0, [data_type.run_end_type, data_type.value_type]
    else:
        children = [data_type.field(index).type for index in range(data_type.num_fields)]
        if types.is_struct(data_type) or types.is_fixed_size_list(data_type):
            own = 1
        elif types.is_union(data_type):
            own = 1 if data_type.mode == "sparse" else 2
        elif types.is_list_view(data_type) or types.is_large_list_view(data_type):
            own = 3
    below = [shape_of(child) for child in children]
    return Shape(
        1 + sum(shape.nodes for shape in below),
        own + sum(shape.buffers for shape in below),
        views + sum(shape.views for shape in below),
    )


def has_dictionaries(data_type: Any) -> bool:
    """Tell whether a type is, or holds, a dictionary."""
    if isinstance(data_type, pa.BaseExtensionType):
        return has_dictionaries(data_type.storage_type)
    if isinstance(data_type, pa.DictionaryType):
        return True
    if pa.types.is_run_end_encoded(data_type):
        return has_dictionaries(data_type.value_type)
    return any(has_dictionaries(data_type.field(i).type) for i in range(data_type.num_fields))


def _pairs(batch: Any, slot: int) -> Iterator[tuple[int, int]]:
    """Return a vector of structs of two i64."""
    table = batch._tab
    place = table.Offset(slot)
    if not place:
        return iter(())
    begin = table.Vector(place)
    end = begin + 16 * table.VectorLen(place)
    if not 0 <= begin <= end <= len(table.Bytes):
        raise IndexError
    return struct.iter_unpack("<qq", memoryview(table.Bytes)[begin:end])  # pyright: ignore[reportReturnType]


def _longs(builder: Any, values: Sequence[int]) -> int:
    fbs.RecordBatchStartVariadicBufferCountsVector(builder, len(values))
    for value in reversed(values):
        builder.PrependInt64(value)
    return builder.EndVector()


def _custom(builder: Any, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> int:
    places: list[int] = []
    for key, value in pairs:
        texts = [None if text is None else builder.CreateString(text) for text in (key, value)]
        fbs.KeyValueStart(builder)
        if texts[0] is not None:
            fbs.KeyValueAddKey(builder, texts[0])
        if texts[1] is not None:
            fbs.KeyValueAddValue(builder, texts[1])
        places.append(fbs.KeyValueEnd(builder))
    fbs.MessageStartCustomMetadataVector(builder, len(places))
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return builder.EndVector()


def _padded(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNMENT
