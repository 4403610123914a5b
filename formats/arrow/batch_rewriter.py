"""Record batches and dictionary batches with another byte order, metadata version or compression.

A message of another version or order keeps its rows and the order of its buffers. Compressed
buffers whose bytes change are decompressed, changed, and compressed again.

The physical layout of the columns comes from the FlatBuffer of the schema ("Columnar Format").
pyarrow's schemas lack what this needs: pyarrow has no Python class for the intervals of months or
of days and milliseconds.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast

import flatbuffers
import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import READER_ERRORS, cast_table, write_longs
from .custom_metadata import finish_message, write_pairs
from .message import CODECS, OLD_COMPRESSION_KEY, BatchTable, read_batch_table

Units = tuple[int, ...]
"""The sizes in bytes of the numbers that a buffer repeats: (1,) has no byte order."""

BYTES: Units = (1,)
"""The units of bitmaps, characters and bytes."""
VIEWS: Units = (16, 0)
"""Stands for the views of strings, whose layout depends on their length."""

_TYPE = fbs.Type
_FLOAT_BYTES = {0: 2, 1: 4, 2: 8}
_INTERVALS: dict[int, Units] = {0: (4,), 1: (4,), 2: (4, 4, 8)}
_FIXED: dict[int, tuple[Units, ...]] = {
    _TYPE.Binary: ((4,), BYTES),
    _TYPE.Utf8: ((4,), BYTES),
    _TYPE.LargeBinary: ((8,), BYTES),
    _TYPE.LargeUtf8: ((8,), BYTES),
    _TYPE.Bool: (BYTES,),
    _TYPE.FixedSizeBinary: (BYTES,),
    _TYPE.Timestamp: ((8,),),
    _TYPE.Duration: ((8,),),
    _TYPE.List: ((4,),),
    _TYPE.Map: ((4,),),
    _TYPE.LargeList: ((8,),),
    _TYPE.ListView: ((4,), (4,)),
    _TYPE.LargeListView: ((8,), (8,)),
    _TYPE.FixedSizeList: (),
    _TYPE.Struct_: (),
    _TYPE.BinaryView: (VIEWS,),
    _TYPE.Utf8View: (VIEWS,),
}
_NO_VALIDITY = {_TYPE.Null, _TYPE.RunEndEncoded, _TYPE.Union}


class ColumnLayout(NamedTuple):
    """The buffers of one column, without those of its children."""

    buffers: tuple[Units, ...]
    """The units of each buffer that the metadata always lists, in order."""
    children: tuple[ColumnLayout, ...]
    """The layouts of the children."""
    is_view: bool = False
    """Whether further buffers with bytes follow, as many as the metadata counts."""
    had_validity: bool = False
    """Whether a validity bitmap came first before V5, as in unions and run ends."""


class SchemaLayout(NamedTuple):
    """The layouts of all columns and dictionaries of a schema."""

    columns: tuple[ColumnLayout, ...]
    """The columns, in order."""
    dictionaries: dict[int, ColumnLayout]
    """The values of each dictionary, by its ID."""


def walk(layout: ColumnLayout) -> Iterator[ColumnLayout]:
    """Yield a layout and those of all its descendants, in the order of the metadata."""
    yield layout
    for child in layout.children:
        yield from walk(child)


def read_layout(schema: fbs.Schema) -> SchemaLayout:
    """Return the layout of a schema, which `survey_schema` has accepted."""
    dictionaries: dict[int, ColumnLayout] = {}
    try:
        columns = tuple(
            _read_field(schema.Fields(index), dictionaries)
            for index in range(schema.FieldsLength())
        )
    except READER_ERRORS:
        raise InvalidDataError("a field of the schema is malformed") from None
    return SchemaLayout(columns, dictionaries)


def _read_field(field: Any, dictionaries: dict[int, ColumnLayout]) -> ColumnLayout:
    kind = field.TypeType()
    children = [field.Children(index) for index in range(field.ChildrenLength())]
    values = ColumnLayout(
        _list_buffers(kind, field.Type()),
        tuple(_read_field(child, dictionaries) for child in children),
        kind in (_TYPE.BinaryView, _TYPE.Utf8View),
        kind in (_TYPE.Union, _TYPE.RunEndEncoded),
    )
    encoding = field.Dictionary()
    if encoding is None:
        return values
    dictionaries[int(encoding.Id())] = values
    index = encoding.IndexType()
    return ColumnLayout((BYTES, ((4 if index is None else index.BitWidth() // 8),)), ())


def _list_buffers(kind: int, table: Any) -> tuple[Units, ...]:
    """Return the units of the buffers of a type."""
    if table is None:
        raise IndexError
    if kind == _TYPE.Union:
        return (
            (BYTES,)
            if cast_table(table, fbs.Union).Mode() == fbs.UnionMode.Sparse
            else (BYTES, (4,))
        )
    if kind in _NO_VALIDITY:
        return ()
    return (BYTES, *(_FIXED[kind] if kind in _FIXED else (_measure_number(kind, table),)))


def _measure_number(kind: int, table: Any) -> Units:
    """Return the units of the values of a numeric type."""
    match kind:
        case _TYPE.Int:
            return (cast_table(table, fbs.Int).BitWidth() // 8,)
        case _TYPE.FloatingPoint:
            return (_FLOAT_BYTES[cast_table(table, fbs.FloatingPoint).Precision()],)
        case _TYPE.Decimal:
            return (cast_table(table, fbs.Decimal).BitWidth() // 8,)
        case _TYPE.Date:
            return (4 if cast_table(table, fbs.Date).Unit() == fbs.DateUnit.DAY else 8,)
        case _TYPE.Time:
            return (cast_table(table, fbs.Time).BitWidth() // 8,)
        case _TYPE.Interval:
            return _INTERVALS[cast_table(table, fbs.Interval).Unit()]
        case _:
            raise InvalidDataError(f"a field of the schema has the unknown type {kind}")


_TYPE_CODES = {2: "H", 4: "I", 8: "Q"}
_VIEW_BYTES, _INLINE_BYTES = 16, 12
_LITTLE, _BIG = struct.Struct("<i12x"), struct.Struct(">i12x")


def swap_bytes(
    data: bytes | memoryview, units: Units, *, is_big: bool
) -> bytes | bytearray | memoryview:
    r"""Return a buffer with the bytes of each number reversed. The result for views needs `is_big`.

    Bytes after the last complete element are copied.

    Examples
    --------
    >>> bytes(swap_bytes(b"\1\0\2\0", (2,), is_big=False)).hex()
    '00010002'
    """
    view = memoryview(data).cast("B")
    if units == BYTES or not view.nbytes:
        return view
    if units == VIEWS:
        return _swap_views(view, is_big=is_big)
    if len(units) == 1 and units[0] in _TYPE_CODES:
        (size,) = units
        whole = view.nbytes - view.nbytes % size
        numbers = array(_TYPE_CODES[size])
        numbers.frombytes(view[:whole])
        numbers.byteswap()
        swapped = memoryview(numbers).cast("B")
        return swapped if whole == view.nbytes else bytes(swapped) + bytes(view[whole:])
    return _permute(view, units)


def _permute(view: memoryview, units: Units) -> bytearray:
    """Reverse the bytes of each unit of records of any size."""
    size = sum(units)
    whole = view.nbytes - view.nbytes % size
    swapped = bytearray(view)
    source = bytes(view[:whole])
    for end, unit in zip(accumulate(units), units, strict=True):
        for place in range(unit):
            swapped[end - unit + place : whole : size] = source[end - 1 - place :: size]
    return swapped


def _swap_views(view: memoryview, *, is_big: bool) -> bytearray:
    """Reverse views: a length, and either the bytes themselves or a prefix, index and offset."""
    swapped = bytearray(view)
    whole = view.nbytes - view.nbytes % _VIEW_BYTES
    source = bytes(view[:whole])
    # The length, the index and the offset; the prefix has no order.
    for begin in (0, 8, 12):
        for place in range(4):
            swapped[begin + place : whole : _VIEW_BYTES] = source[begin + 3 - place :: _VIEW_BYTES]
    lengths = (_BIG if is_big else _LITTLE).iter_unpack(source)
    for number, (length,) in enumerate(lengths):
        if 0 <= length <= _INLINE_BYTES:
            begin = number * _VIEW_BYTES
            swapped[begin + 4 : begin + _VIEW_BYTES] = source[begin + 4 : begin + _VIEW_BYTES]
    return swapped


_CODEC_NUMBERS = {name: number for number, name in CODECS.items()}
_ALIGNMENT = 64
_LENGTH = struct.Struct("<q")
_NOT_COMPRESSED = _LENGTH.pack(-1)
_VERSION_5 = fbs.MetadataVersion.V5


class RewrittenMessage(NamedTuple):
    """A message in its new form."""

    metadata: bytes
    """The FlatBuffer of the message."""
    body: list[Any]
    """The parts of its body, in order."""
    body_length: int
    """The size of all parts in bytes."""


class BatchRewriter:
    """Rewrites the batches of one stream.

    `version` is a value of ``fbs.MetadataVersion``. A `version` or `compression` of None keeps that
    of each message. `max_bytes` bounds the decompressed size of a message.
    """

    def __init__(
        self,
        layout: SchemaLayout,
        *,
        is_big: bool = False,
        swaps: bool = False,
        version: int | None = None,
        compression: str | None = None,
        dictionary_ids: Mapping[int, int] | None = None,
        max_bytes: int = 1 << 32,
    ) -> None:
        self._layout = layout
        self._is_big = is_big
        self._swaps = swaps
        self._version = version
        self._compression = compression
        self._dictionary_ids = dictionary_ids or {}
        self._max_bytes = max_bytes

    def rewrite(self, metadata: bytes | memoryview, body: memoryview) -> RewrittenMessage:
        """Return a record batch or dictionary batch in its new form.

        The new body may share the memory of `body`. Raises `InvalidDataError` if the message does
        not fit the schema, or has a union of a version before V5 with nulls, which V5 lacks.
        """
        try:
            return self._rewrite(metadata, body)
        except READER_ERRORS as error:
            raise InvalidDataError(
                f"the metadata of a batch does not fit its schema: {error}"
            ) from None

    def _rewrite(self, metadata: bytes | memoryview, body: memoryview) -> RewrittenMessage:
        message: Any = fbs.Message.GetRootAs(metadata, 0)
        table = read_batch_table(metadata)
        dictionary_id = table.dictionary_id
        if dictionary_id is not None:
            dictionary_id = self._dictionary_ids.get(dictionary_id, dictionary_id)
        codec = None if table.codec is None else CODECS[table.codec]
        if codec is None and _declares_old_compression(message):
            raise InvalidDataError("cannot rewrite a body that is compressed as in Arrow 0.17")
        version = table.version if self._version is None else self._version
        target = codec if self._compression is None else self._compression
        target = None if target == "none" else target
        buffers = _Buffers(body, table.buffers, codec, target, self._max_bytes)
        views, node_count = iter(table.variadic_counts), 0
        columns = self._find_columns(dictionary_id)
        for column in (each for layout in columns for each in walk(layout)):
            if column.had_validity and table.version < _VERSION_5:
                if table.nodes[2 * node_count + 1]:
                    raise InvalidDataError(
                        "a column of a metadata version before V5 has nulls of its own, which "
                        "later versions cannot express"
                    )
                buffers.skip()
            if column.had_validity and version < _VERSION_5:
                buffers.add_empty()
            for units in _list_units(column, views):
                buffers.copy(units if self._swaps else BYTES, is_big=self._is_big)
            node_count += 1
        if 2 * node_count != len(table.nodes) or not buffers.is_exhausted:
            raise InvalidDataError("the numbers of nodes and buffers do not fit the schema")
        body_length = buffers.pad()
        rewritten = table._replace(
            version=version,
            body_length=body_length,
            buffers=tuple(buffers.spans),
            codec=None if target is None else _CODEC_NUMBERS[target],
            dictionary_id=dictionary_id,
        )
        return RewrittenMessage(_write_metadata(message, rewritten), buffers.parts, body_length)

    def _find_columns(self, dictionary_id: int | None) -> Sequence[ColumnLayout]:
        """Return the layouts of the columns of a record batch or dictionary batch."""
        if dictionary_id is None:
            return self._layout.columns
        if dictionary_id not in self._layout.dictionaries:
            raise InvalidDataError(f"a dictionary has the ID {dictionary_id}, which no field has")
        return (self._layout.dictionaries[dictionary_id],)


class _Buffers:
    """The buffers of a body, taken in order, and the parts of the new body."""

    def __init__(
        self,
        body: memoryview,
        spans: Sequence[int],
        codec: str | None,
        target: str | None,
        max_bytes: int,
    ) -> None:
        self._max_bytes = self._left_bytes = max_bytes
        self._body = body
        numbers = iter(spans)
        self._spans = zip(numbers, numbers, strict=True)
        self._left = len(spans) // 2
        self._codec = None if codec is None else pa.Codec(cast(Any, codec))
        self._target = None if target is None else pa.Codec(cast(Any, target))
        self._keeps_codec = codec == target
        self.parts: list[Any] = []
        self.spans: list[int] = []
        self._length = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether all buffers were taken."""
        return not self._left

    def skip(self) -> memoryview:
        """Take a buffer, and return it."""
        offset, length = next(self._spans, (0, -1))
        self._left -= 1
        if not 0 <= offset <= offset + length <= self._body.nbytes or length < 0:
            raise InvalidDataError(
                f"a buffer of {length} bytes at byte {offset} is outside its body of "
                f"{self._body.nbytes} bytes, or missing"
            )
        return self._body[offset : offset + length]

    def add_empty(self) -> None:
        """Append an empty buffer."""
        self.spans += (self.pad(), 0)

    def copy(self, units: Units, *, is_big: bool) -> None:
        """Take a buffer, and append it with its bytes in the other order."""
        data: Any = self.skip()
        parts = [data]
        if data.nbytes and not (self._keeps_codec and units == BYTES):
            if self._codec is not None:
                data = memoryview(self._decompress(self._codec, data))
            data = swap_bytes(data, units, is_big=is_big)
            parts = [data] if self._target is None else compress_buffer(self._target, data)
        begin = self.pad()
        length = sum(memoryview(part).nbytes for part in parts)
        self.parts += parts
        self.spans += (begin, length)
        self._length += length

    def _decompress(self, codec: pa.Codec, data: memoryview) -> Any:
        """Return the content of a compressed buffer, within the limit of all together."""
        size = _LENGTH.unpack_from(data)[0] if data.nbytes >= _LENGTH.size else -2
        if size < -1:
            raise InvalidDataError(f"a compressed buffer of {data.nbytes} bytes has no length")
        if size == -1:
            return data[_LENGTH.size :]
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise LimitError(f"a batch decompresses to more than {self._max_bytes} bytes")
        try:
            return codec.decompress(data[_LENGTH.size :], size)
        except (pa.ArrowException, OSError) as error:
            raise InvalidDataError(f"a buffer cannot be decompressed: {error}") from None

    def pad(self) -> int:
        """Pad the body to the alignment of buffers, and return its size in bytes."""
        padding = -self._length % _ALIGNMENT
        if padding:
            self.parts.append(bytes(padding))
            self._length += padding
        return self._length


def compress_buffer(codec: pa.Codec, data: Any) -> list[Any]:
    """Return the parts of a compressed buffer: its length, and its compressed bytes.

    A buffer that does not shrink is stored unchanged, after the length -1 ("BodyCompression"). An
    empty one has no parts.
    """
    nbytes = memoryview(data).nbytes
    if not nbytes:
        return []
    compressed: Any = codec.compress(data)
    if compressed.size < nbytes:
        return [_LENGTH.pack(nbytes), compressed]
    return [_NOT_COMPRESSED, data]


def _list_units(column: ColumnLayout, views: Iterator[int]) -> Iterator[Units]:
    """Yield the units of the buffers of one column in a batch."""
    yield from column.buffers
    if column.is_view:
        for _ in range(next(views)):
            yield BYTES


def _declares_old_compression(message: Any) -> bool:
    pairs = map(message.CustomMetadata, range(message.CustomMetadataLength()))
    return any(pair.Key() == OLD_COMPRESSION_KEY for pair in pairs)


def _write_metadata(message: Any, table: BatchTable) -> bytes:
    """Return the FlatBuffer of a batch, with the custom metadata of the original message."""
    builder: Any = flatbuffers.Builder(256 + 8 * (len(table.buffers) + len(table.nodes)))
    buffers = write_longs(builder, table.buffers, 2)
    nodes = write_longs(builder, table.nodes, 2)
    variadic = write_longs(builder, table.variadic_counts) if table.variadic_counts else 0
    compression = 0
    if table.codec is not None:
        fbs.BodyCompressionStart(builder)
        fbs.BodyCompressionAddCodec(builder, table.codec)
        compression = fbs.BodyCompressionEnd(builder)
    fbs.RecordBatchStart(builder)
    fbs.RecordBatchAddLength(builder, table.rows)
    fbs.RecordBatchAddNodes(builder, nodes)
    fbs.RecordBatchAddBuffers(builder, buffers)
    if compression:
        fbs.RecordBatchAddCompression(builder, compression)
    if variadic:
        fbs.RecordBatchAddVariadicBufferCounts(builder, variadic)
    header, kind = fbs.RecordBatchEnd(builder), fbs.MessageHeader.RecordBatch
    if table.dictionary_id is not None:
        kind = fbs.MessageHeader.DictionaryBatch
        fbs.DictionaryBatchStart(builder)
        fbs.DictionaryBatchAddId(builder, table.dictionary_id)
        fbs.DictionaryBatchAddData(builder, header)
        fbs.DictionaryBatchAddIsDelta(builder, table.is_delta)
        header = fbs.DictionaryBatchEnd(builder)
    pairs = [
        (pair.Key(), pair.Value())
        for pair in map(message.CustomMetadata, range(message.CustomMetadataLength()))
    ]
    custom = write_pairs(builder, pairs)
    return finish_message(builder, table.version, kind, header, table.body_length, custom=custom)
