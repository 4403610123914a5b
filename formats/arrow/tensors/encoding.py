"""Writing Tensor and SparseTensor messages ("Tensor (Multi-dimensional Array) Message Format")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any

import flatbuffers

from ....fbs import arrow_generated as fbs
from ...flatbuffer import write_longs, write_references
from ..custom_metadata import finish_message, pad, write_pairs
from ..encoder import EncodedMessage
from ..message import BufferSpan, encapsulate, read_custom_metadata
from ..metadata_limits import survey_custom_metadata
from .labels import Labels
from .layout import (
    AnyLayout,
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseIndex,
    SparseLayout,
    TensorLayout,
    ValueType,
    find_type_name,
)
from .tensor import AnyTensor, SparseTensor

BUFFER_ALIGNMENT = 64
"""The alignment of buffers in a body, and of bodies in a file, in bytes."""
_V4, _V5 = 3, 4
_PRECISIONS = {"float16": 0, "float32": 1, "float64": 2}


def encode_tensor(tensor: AnyTensor, *, legacy: bool = False) -> EncodedMessage:
    """Return the message of a tensor, whose body consists of the tensor's own buffers."""
    buffers = tensor.buffers if isinstance(tensor, SparseTensor) else (tensor.buffer,)
    lengths = [span.length for span in tensor.layout.buffers]
    spans, body_length = plan_body(lengths)
    layout = with_buffers(tensor.layout, spans, body_length)
    body = list(_fill_gaps(buffers, spans, body_length))
    metadata = encode_metadata(layout, tensor.labels, legacy=legacy)
    return EncodedMessage(metadata, body, body_length, 0)


def write_message(message: EncodedMessage, *, legacy: bool = False) -> Iterator[Any]:
    """Yield the parts of an encapsulated message.

    The prefix and the metadata have a multiple of 64 bytes, so that a body at the beginning of a
    file is aligned. So does the body, so that another message may follow.
    """
    prefix_bytes = 4 if legacy else 8
    nbytes = len(message.metadata) + prefix_bytes
    metadata = message.metadata + bytes(-nbytes % BUFFER_ALIGNMENT)
    if legacy:
        yield struct.pack("<i", len(metadata)) + metadata
    else:
        yield encapsulate(metadata)
    yield from message.body or ()
    if padding := -message.body_length % BUFFER_ALIGNMENT:
        yield bytes(padding)


def plan_body(lengths: Sequence[int]) -> tuple[tuple[BufferSpan, ...], int]:
    """Return aligned spans for buffers of these lengths in bytes, and the size of the body."""
    spans: list[BufferSpan] = []
    end = 0
    for length in lengths:
        begin = -(-end // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT if length else 0
        spans.append(BufferSpan(begin, length))
        end = max(end, begin + length)
    return tuple(spans), end + -end % 8


def with_buffers(layout: AnyLayout, spans: Sequence[BufferSpan], body_length: int) -> AnyLayout:
    """Return a layout whose buffers, of the same sizes, are elsewhere in a body."""
    if isinstance(layout, TensorLayout):
        return replace(layout, data=spans[0], body_length=body_length)
    index: SparseIndex = layout.index
    match index:
        case CooLayout():
            index = replace(index, indices=spans[0])
        case CsxLayout():
            index = replace(index, indptr=spans[0], indices=spans[1])
        case CsfLayout():
            inner = len(index.indptr)
            index = replace(index, indptr=tuple(spans[:inner]), indices=tuple(spans[inner:-1]))
    return replace(layout, index=index, data=spans[-1], body_length=body_length)


def encode_metadata(
    layout: AnyLayout,
    labels: Labels,
    *,
    legacy: bool = False,
    others: Mapping[bytes, bytes] = MappingProxyType({}),
) -> bytes:
    """Return the metadata of the message of a tensor, padded to 8 bytes."""
    builder: Any = flatbuffers.Builder(512)
    pairs = {**others, **labels.to_metadata()}
    custom = write_pairs(builder, [*pairs.items()])
    if isinstance(layout, SparseLayout):
        header_type, header = fbs.MessageHeader.SparseTensor, _write_sparse(builder, layout)
    else:
        header_type, header = fbs.MessageHeader.Tensor, _write_dense(builder, layout)
    version = _V4 if legacy else _V5
    length = layout.body_length
    return pad(finish_message(builder, version, header_type, header, length, custom=custom))


def add_name(metadata: bytes, layout: AnyLayout, labels: Labels, name: str) -> tuple[bytes, Labels]:
    """Return the metadata of a message, and its labels, with a name."""
    survey_custom_metadata(metadata)
    labels = replace(labels, name=name)
    return encode_metadata(layout, labels, others=read_custom_metadata(metadata)), labels


def _fill_gaps(
    buffers: Iterable[Any], spans: Sequence[BufferSpan], body_length: int
) -> Iterator[Any]:
    """Yield buffers at their spans, and zeros between them."""
    end = 0
    for buffer, (offset, length) in zip(buffers, spans, strict=True):
        if length:
            if offset > end:
                yield bytes(offset - end)
            yield buffer
            end = offset + length
    if body_length > end:
        yield bytes(body_length - end)


def _write_dense(builder: Any, layout: TensorLayout) -> int:
    kind, value_type = _write_type(builder, layout.type)
    shape = _write_shape(builder, layout)
    strides = write_longs(builder, layout.strides)
    fbs.TensorStart(builder)
    fbs.TensorAddTypeType(builder, kind)
    fbs.TensorAddType(builder, value_type)
    fbs.TensorAddShape(builder, shape)
    fbs.TensorAddStrides(builder, strides)
    fbs.TensorAddData(builder, fbs.CreateBuffer(builder, *layout.data))
    return fbs.TensorEnd(builder)


def _write_sparse(builder: Any, layout: SparseLayout) -> int:
    kind, value_type = _write_type(builder, layout.type)
    shape = _write_shape(builder, layout)
    index_type, index = _write_index(builder, layout.index)
    fbs.SparseTensorStart(builder)
    fbs.SparseTensorAddTypeType(builder, kind)
    fbs.SparseTensorAddType(builder, value_type)
    fbs.SparseTensorAddShape(builder, shape)
    fbs.SparseTensorAddNonZeroLength(builder, layout.non_zero_length)
    fbs.SparseTensorAddSparseIndexType(builder, index_type)
    fbs.SparseTensorAddSparseIndex(builder, index)
    fbs.SparseTensorAddData(builder, fbs.CreateBuffer(builder, *layout.data))
    return fbs.SparseTensorEnd(builder)


def _write_index(builder: Any, index: SparseIndex) -> tuple[int, int]:
    """Write an index; return its number in the union SparseTensorIndex, and its position."""
    kinds = fbs.SparseTensorIndex
    match index:
        case CooLayout():
            indices_type = _write_int_type(builder, index.indices_type)
            strides = write_longs(builder, index.strides)
            fbs.SparseTensorIndexCOOStart(builder)
            fbs.SparseTensorIndexCOOAddIndicesType(builder, indices_type)
            fbs.SparseTensorIndexCOOAddIndicesStrides(builder, strides)
            buffer = fbs.CreateBuffer(builder, *index.indices)
            fbs.SparseTensorIndexCOOAddIndicesBuffer(builder, buffer)
            fbs.SparseTensorIndexCOOAddIsCanonical(builder, index.is_canonical)
            return kinds.SparseTensorIndexCOO, fbs.SparseTensorIndexCOOEnd(builder)
        case CsxLayout():
            indptr_type = _write_int_type(builder, index.indptr_type)
            indices_type = _write_int_type(builder, index.indices_type)
            fbs.SparseMatrixIndexCSXStart(builder)
            fbs.SparseMatrixIndexCSXAddCompressedAxis(builder, int(index.axis == "column"))
            fbs.SparseMatrixIndexCSXAddIndptrType(builder, indptr_type)
            buffer = fbs.CreateBuffer(builder, *index.indptr)
            fbs.SparseMatrixIndexCSXAddIndptrBuffer(builder, buffer)
            fbs.SparseMatrixIndexCSXAddIndicesType(builder, indices_type)
            buffer = fbs.CreateBuffer(builder, *index.indices)
            fbs.SparseMatrixIndexCSXAddIndicesBuffer(builder, buffer)
            return kinds.SparseMatrixIndexCSX, fbs.SparseMatrixIndexCSXEnd(builder)
        case CsfLayout():
            indptr_type = _write_int_type(builder, index.indptr_type)
            indices_type = _write_int_type(builder, index.indices_type)
            indptr = write_longs(builder, [*chain(*index.indptr)], 2)
            indices = write_longs(builder, [*chain(*index.indices)], 2)
            fbs.SparseTensorIndexCSFStartAxisOrderVector(builder, len(index.axis_order))
            for axis in reversed(index.axis_order):
                builder.PrependInt32(axis)
            order = builder.EndVector()
            fbs.SparseTensorIndexCSFStart(builder)
            fbs.SparseTensorIndexCSFAddIndptrType(builder, indptr_type)
            fbs.SparseTensorIndexCSFAddIndptrBuffers(builder, indptr)
            fbs.SparseTensorIndexCSFAddIndicesType(builder, indices_type)
            fbs.SparseTensorIndexCSFAddIndicesBuffers(builder, indices)
            fbs.SparseTensorIndexCSFAddAxisOrder(builder, order)
            return kinds.SparseTensorIndexCSF, fbs.SparseTensorIndexCSFEnd(builder)


def _write_type(builder: Any, value_type: ValueType) -> tuple[int, int]:
    """Write a type; return its number in the union Type, and its position."""
    precision = _PRECISIONS.get(find_type_name(value_type))
    if precision is None:
        return fbs.Type.Int, _write_int_type(builder, value_type)
    fbs.FloatingPointStart(builder)
    fbs.FloatingPointAddPrecision(builder, precision)
    return fbs.Type.FloatingPoint, fbs.FloatingPointEnd(builder)


def _write_int_type(builder: Any, value_type: ValueType) -> int:
    fbs.IntStart(builder)
    fbs.IntAddBitWidth(builder, value_type.bit_width)
    fbs.IntAddIsSigned(builder, not find_type_name(value_type).startswith("u"))
    return fbs.IntEnd(builder)


def _write_shape(builder: Any, layout: AnyLayout) -> int:
    names = layout.dim_names or ("",) * len(layout.shape)
    texts = [builder.CreateString(name) if name else 0 for name in names]
    positions: list[int] = []
    for size, text in zip(layout.shape, texts, strict=True):
        fbs.TensorDimStart(builder)
        fbs.TensorDimAddSize(builder, size)
        if text:
            fbs.TensorDimAddName(builder, text)
        positions.append(fbs.TensorDimEnd(builder))
    return write_references(builder, positions)
