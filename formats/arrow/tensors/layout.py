"""The layout of a tensor: all metadata of a Tensor or SparseTensor message (Tensor.fbs).

The checks of the metadata take time in proportion to it, and look at no byte of the body.
`decoding.check_indices` checks the values in a sparse index.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import pyarrow as pa

from ....errors import InvalidDataError, LimitError
from ...flatbuffer import (
    PARSE_ERRORS,
    Bytes,
    find_field,
    find_table,
    find_vector,
    follow,
    read_byte,
    read_int16,
    read_int32,
    read_int64,
    read_root,
    read_string,
)
from ..message import BufferSpan, HeaderType, MessageInfo, read_message_info

ValueType = Any
"""A `pyarrow.DataType` of numbers: integers of 8 to 64 bits, or floats of 16 to 64 bits."""

VALUE_TYPES: dict[str, tuple[Any, int]] = {
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), bits // 8) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), bits // 8) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (getattr(pa, f"float{bits}")(), bits // 8) for bits in (16, 32, 64)},
}
"""The types of the values of tensors and their sizes in bytes, by their names in NumPy."""

_NAMES = {value_type: name for name, (value_type, _) in VALUE_TYPES.items()}


def find_type_name(value_type: ValueType) -> str:
    """Return the name in NumPy of a type that tensors can have."""
    return _NAMES[value_type]


def item_bytes(value_type: ValueType) -> int:
    """Return the size of a value in bytes."""
    return value_type.bit_width // 8


def row_major_strides(shape: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the strides in bytes of a tensor without gaps whose last dimension varies fastest.

    Examples
    --------
    >>> row_major_strides((2, 3), 8)
    (24, 8)
    """
    strides: list[int] = []
    step = width
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The layout of a dense tensor (table Tensor)."""

    type: ValueType
    """The type of the values."""
    shape: tuple[int, ...]
    """The sizes of the dimensions."""
    strides: tuple[int, ...]
    """The distances between neighbors along each dimension, in bytes."""
    dim_names: tuple[str, ...]
    """The names of the dimensions, ``""`` for one without a name; empty if none has a name."""
    data: BufferSpan
    """The span of the values in the body."""
    body_length: int
    """The size of the body in bytes."""

    @property
    def buffers(self) -> tuple[BufferSpan, ...]:
        """The spans of all buffers, in the order of a body of offsets."""
        return (self.data,)


@dataclass(frozen=True, slots=True)
class CooLayout:
    """The index of a sparse tensor in coordinate format (table SparseTensorIndexCOO)."""

    indices_type: ValueType
    """The type of the coordinates."""
    strides: tuple[int, int]
    """The distances between values, and between the coordinates of one value, in bytes."""
    indices: BufferSpan
    """The span of the coordinates: a matrix of one row for each value."""
    is_canonical: bool
    """Whether the coordinates are sorted and distinct."""

    @property
    def buffers(self) -> tuple[BufferSpan, ...]:
        """The spans of the buffers of the index."""
        return (self.indices,)


@dataclass(frozen=True, slots=True)
class CsxLayout:
    """The index of a compressed sparse matrix (table SparseMatrixIndexCSX)."""

    axis: Literal["row", "column"]
    """The compressed axis: ``row`` in CSR, ``column`` in CSC."""
    indptr_type: ValueType
    """The type of the positions."""
    indptr: BufferSpan
    """The span of the positions at which each row or column begins, and of the end."""
    indices_type: ValueType
    """The type of the indices."""
    indices: BufferSpan
    """The span of the indices along the other axis, one for each value."""

    @property
    def buffers(self) -> tuple[BufferSpan, ...]:
        """The spans of the buffers of the index."""
        return (self.indptr, self.indices)


@dataclass(frozen=True, slots=True)
class CsfLayout:
    """The index of a sparse tensor as a tree of fibers (table SparseTensorIndexCSF)."""

    indptr_type: ValueType
    """The type of the positions."""
    indptr: tuple[BufferSpan, ...]
    """For each level but the last: the positions at which the children of each node begin."""
    indices_type: ValueType
    """The type of the indices."""
    indices: tuple[BufferSpan, ...]
    """For each level: the index of each node along the level's dimension."""
    axis_order: tuple[int, ...]
    """The dimension of each level."""

    @property
    def buffers(self) -> tuple[BufferSpan, ...]:
        """The spans of the buffers of the index."""
        return (*self.indptr, *self.indices)


SparseIndex = CooLayout | CsxLayout | CsfLayout
"""The index of a sparse tensor."""


@dataclass(frozen=True, slots=True)
class SparseLayout:
    """The layout of a sparse tensor (table SparseTensor)."""

    type: ValueType
    """The type of the values."""
    shape: tuple[int, ...]
    """The sizes of the dimensions."""
    dim_names: tuple[str, ...]
    """The names of the dimensions, as in `TensorLayout`."""
    non_zero_length: int
    """The number of stored values."""
    index: SparseIndex
    """The positions of the values."""
    data: BufferSpan
    """The span of the values in the body."""
    body_length: int
    """The size of the body in bytes."""

    @property
    def buffers(self) -> tuple[BufferSpan, ...]:
        """The spans of all buffers, in the order of a body of offsets: the index, the values."""
        return (*self.index.buffers, self.data)

    @property
    def kind(self) -> str:
        """The format of the index: ``coo``, ``csr``, ``csc`` or ``csf``."""
        match self.index:
            case CooLayout():
                return "coo"
            case CsxLayout():
                return "csr" if self.index.axis == "row" else "csc"
            case CsfLayout():
                return "csf"


AnyLayout = TensorLayout | SparseLayout
"""The layout of a dense or sparse tensor."""


MAX_DIMENSIONS = 64
"""The largest number of dimensions: that of NumPy."""
MAX_NAME_BYTES = 4096
"""The largest name of a dimension, in bytes. Metadata can refer to one name many times."""
_MAX_BYTES = (1 << 63) - 1

# The slots of fields in the vtables of Message.fbs, Schema.fbs and Tensor.fbs.
_MESSAGE_HEADER = 8
_TYPE_TYPE, _TYPE, _SHAPE = 4, 6, 8
_TENSOR_STRIDES, _TENSOR_DATA = 10, 12
_SPARSE_LENGTH, _SPARSE_INDEX_TYPE, _SPARSE_INDEX, _SPARSE_DATA = 10, 12, 14, 16
_DIM_SIZE, _DIM_NAME = 4, 6
_COO_TYPE, _COO_STRIDES, _COO_INDICES, _COO_IS_CANONICAL = 4, 6, 8, 10
_CSX_AXIS, _CSX_INDPTR_TYPE, _CSX_INDPTR, _CSX_INDICES_TYPE, _CSX_INDICES = 4, 6, 8, 10, 12
_CSF_INDPTR_TYPE, _CSF_INDPTR, _CSF_INDICES_TYPE, _CSF_INDICES, _CSF_ORDER = 4, 6, 8, 10, 12
_INT_BITS, _INT_IS_SIGNED = 4, 6
_FLOAT_PRECISION = 4
_INT, _FLOAT = 2, 3
_FLOATS = ("float16", "float32", "float64")
_BUFFER = struct.Struct("<qq")


def read_tensor_layout(metadata: Bytes) -> AnyLayout:
    """Read and check the layout of a tensor.

    Raises `ProtocolError` if `metadata` is not an Arrow IPC message, `LimitError` if it exceeds
    `MAX_DIMENSIONS` or `MAX_NAME_BYTES`, and `InvalidDataError`, which names the field, if the
    tensor is impossible or does not fit into the body.
    """
    info = read_message_info(metadata)
    if info.header_type not in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR):
        raise InvalidDataError(f"received a {info.header_type.name} message; expected a tensor")
    try:
        root = read_root(metadata)
        table = follow(metadata, find_field(metadata, root, _MESSAGE_HEADER))
        if info.header_type is HeaderType.TENSOR:
            return _read_dense(metadata, table, info)
        return _read_sparse(metadata, table, info)
    except PARSE_ERRORS:
        raise InvalidDataError(
            f"the metadata of the {info.header_type.name} is malformed"
        ) from None
    except UnicodeDecodeError:
        raise InvalidDataError("a dimension of the tensor has a name that is not UTF-8") from None


def read_tensor_buffers(metadata: Bytes) -> list[BufferSpan]:
    """Return the spans of the buffers of a tensor, in the order of a body of offsets."""
    return list(read_tensor_layout(metadata).buffers)


def _read_dense(data: Bytes, table: int, info: MessageInfo) -> TensorLayout:
    value_type = _read_value_type(data, table)
    shape, names = _read_shape(data, table)
    width = item_bytes(value_type)
    span = _read_buffer(data, table, _TENSOR_DATA, "data")
    strides = _read_strides(data, table, _TENSOR_STRIDES, "strides")
    if not strides:
        _check_size(shape, width)
        strides = row_major_strides(shape, width)
    layout = TensorLayout(value_type, shape, strides, names, span, info.body_length)
    _check_buffers(layout)
    _check_strides(shape, strides, width, span.length, "strides")
    return layout


def _read_sparse(data: Bytes, table: int, info: MessageInfo) -> SparseLayout:
    value_type = _read_value_type(data, table)
    shape, names = _read_shape(data, table)
    count = read_int64(data, table, _SPARSE_LENGTH)
    span = _read_buffer(data, table, _SPARSE_DATA, "data")
    _check_count(count, value_type, span, "data")
    kind = read_byte(data, table, _SPARSE_INDEX_TYPE)
    index_table = find_table(data, table, _SPARSE_INDEX)
    if not index_table:
        raise InvalidDataError("the sparse tensor lacks the field sparseIndex")
    index: SparseIndex
    match kind:
        case 1:
            index = _read_coo(data, index_table, len(shape), count)
        case 2:
            index = _read_csx(data, index_table, shape, count)
        case 3:
            index = _read_csf(data, index_table, len(shape), count)
        case _:
            raise InvalidDataError(
                f"the sparse tensor has an index of the unknown type {kind}; expected COO, CSX or "
                "CSF"
            )
    layout = SparseLayout(value_type, shape, names, count, index, span, info.body_length)
    _check_buffers(layout)
    return layout


def _read_coo(data: Bytes, table: int, dimensions: int, count: int) -> CooLayout:
    index_type = _read_index_type(data, table, _COO_TYPE, "indicesType")
    width = item_bytes(index_type)
    span = _read_buffer(data, table, _COO_INDICES, "indicesBuffer")
    strides = _read_strides(data, table, _COO_STRIDES, "indicesStrides")
    shape = (count, dimensions)
    if not strides:
        _check_size(shape, width)
        strides = row_major_strides(shape, width)
    _check_strides(shape, strides, width, span.length, "indicesStrides")
    is_canonical = bool(read_byte(data, table, _COO_IS_CANONICAL))
    return CooLayout(index_type, (strides[0], strides[1]), span, is_canonical)


def _read_csx(data: Bytes, table: int, shape: tuple[int, ...], count: int) -> CsxLayout:
    if len(shape) != 2:
        raise InvalidDataError(
            f"a compressed sparse matrix has {len(shape)} dimensions; expected 2"
        )
    axis = read_int16(data, table, _CSX_AXIS)
    if axis not in (0, 1):
        raise InvalidDataError(f"compressedAxis is {axis}; expected 0 (rows) or 1 (columns)")
    indptr_type = _read_index_type(data, table, _CSX_INDPTR_TYPE, "indptrType")
    indices_type = _read_index_type(data, table, _CSX_INDICES_TYPE, "indicesType")
    indptr = _read_buffer(data, table, _CSX_INDPTR, "indptrBuffer")
    indices = _read_buffer(data, table, _CSX_INDICES, "indicesBuffer")
    _check_count(shape[axis] + 1, indptr_type, indptr, "indptrBuffer")
    _check_count(count, indices_type, indices, "indicesBuffer")
    return CsxLayout("column" if axis else "row", indptr_type, indptr, indices_type, indices)


def _read_csf(data: Bytes, table: int, dimensions: int, count: int) -> CsfLayout:
    indptr_type = _read_index_type(data, table, _CSF_INDPTR_TYPE, "indptrType")
    indices_type = _read_index_type(data, table, _CSF_INDICES_TYPE, "indicesType")
    indptr = _read_buffers(data, table, _CSF_INDPTR, "indptrBuffers", max(dimensions - 1, 0))
    indices = _read_buffers(data, table, _CSF_INDICES, "indicesBuffers", dimensions)
    start, length = find_vector(data, table, _CSF_ORDER, 4)
    if length != dimensions:
        raise InvalidDataError(f"axisOrder has {length} dimensions; expected {dimensions}")
    order = struct.unpack_from(f"<{length}i", data, start)
    if sorted(order) != list(range(dimensions)):
        raise InvalidDataError(f"axisOrder is {order}; expected each dimension once")
    if dimensions:
        _check_count(count, indices_type, indices[-1], f"indicesBuffers[{dimensions - 1}]")
    for level, span in enumerate(indptr):
        nodes = indices[level].length // item_bytes(indices_type)
        _check_count(nodes + 1, indptr_type, span, f"indptrBuffers[{level}]")
    return CsfLayout(indptr_type, indptr, indices_type, indices, order)


def _read_value_type(data: Bytes, table: int) -> ValueType:
    kind = read_byte(data, table, _TYPE_TYPE)
    position = find_table(data, table, _TYPE)
    if not position:
        raise InvalidDataError("the tensor lacks the field type")
    if kind == _INT:
        return _read_int_type(data, position, "type")
    if kind == _FLOAT:
        precision = read_int16(data, position, _FLOAT_PRECISION)
        if 0 <= precision < len(_FLOATS):
            return VALUE_TYPES[_FLOATS[precision]][0]
        raise InvalidDataError(f"the type of the tensor has the unknown precision {precision}")
    raise InvalidDataError(
        f"the tensor has values of the type {kind} (Schema.fbs); expected integers or floats"
    )


def _read_index_type(data: Bytes, table: int, slot: int, field: str) -> ValueType:
    position = find_table(data, table, slot)
    if not position:
        raise InvalidDataError(f"the index of the sparse tensor lacks the field {field}")
    return _read_int_type(data, position, field)


def _read_int_type(data: Bytes, table: int, field: str) -> ValueType:
    bits = read_int32(data, table, _INT_BITS)
    name = f"{'' if read_byte(data, table, _INT_IS_SIGNED) else 'u'}int{bits}"
    if name not in VALUE_TYPES:
        raise InvalidDataError(f"{field} is an integer of {bits} bits; expected 8, 16, 32 or 64")
    return VALUE_TYPES[name][0]


def _read_shape(data: Bytes, table: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    start, count = find_vector(data, table, _SHAPE, 4)
    if not start:
        raise InvalidDataError("the tensor lacks the field shape")
    if count > MAX_DIMENSIONS:
        raise LimitError(f"the tensor has {count} dimensions; the limit is {MAX_DIMENSIONS}")
    shape: list[int] = []
    names: list[str] = []
    for index in range(count):
        dimension = follow(data, start + 4 * index)
        size = read_int64(data, dimension, _DIM_SIZE)
        if size < 0:
            raise InvalidDataError(f"shape[{index}] is {size}; expected 0 or more")
        name = read_string(data, dimension, _DIM_NAME) or b""
        if len(name) > MAX_NAME_BYTES:
            raise LimitError(
                f"the name of dimension {index} has {len(name)} bytes; the limit is "
                f"{MAX_NAME_BYTES}"
            )
        shape.append(size)
        names.append(name.decode())
    return tuple(shape), tuple(names) if any(names) else ()


def _read_strides(data: Bytes, table: int, slot: int, field: str) -> tuple[int, ...]:
    start, count = find_vector(data, table, slot, 8)
    if count > MAX_DIMENSIONS:
        raise InvalidDataError(f"{field} has {count} items; expected one for each dimension")
    return struct.unpack_from(f"<{count}q", data, start)


def _read_buffer(data: Bytes, table: int, slot: int, field: str) -> BufferSpan:
    position = find_field(data, table, slot)
    if not position:
        raise InvalidDataError(f"the tensor lacks the field {field}")
    return BufferSpan(*_BUFFER.unpack_from(data, position))


def _read_buffers(
    data: Bytes, table: int, slot: int, field: str, expected: int
) -> tuple[BufferSpan, ...]:
    start, count = find_vector(data, table, slot, _BUFFER.size)
    if count != expected:
        raise InvalidDataError(f"{field} has {count} buffers; expected {expected}")
    end = start + count * _BUFFER.size
    return tuple(BufferSpan(*pair) for pair in _BUFFER.iter_unpack(data[start:end]))


def _check_size(shape: tuple[int, ...], width: int) -> None:
    """Check that the strides and the size of a tensor without gaps fit into 64 bits.

    NumPy makes no array of a larger shape, even if a dimension of it has the size 0.
    """
    if prod(max(size, 1) for size in shape) * width > _MAX_BYTES:
        raise InvalidDataError(f"a tensor of the shape {shape} is larger than 2^63 bytes")


def _check_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], width: int, nbytes: int, field: str
) -> None:
    """Check that all values are inside a buffer, and that no two of them overlap."""
    if len(strides) != len(shape):
        raise InvalidDataError(
            f"{field} has {len(strides)} items; expected one for each of {len(shape)} dimensions"
        )
    for index, stride in enumerate(strides):
        if stride < 0:
            raise InvalidDataError(f"{field}[{index}] is {stride}; expected 0 or more")
    if 0 in shape:
        _check_size(shape, width)
        return
    # In the order of the strides, each step has to leave everything before it behind.
    extent = width
    for stride, size, index in sorted(
        (stride, size, index)
        for index, (stride, size) in enumerate(zip(strides, shape, strict=True))
        if size > 1
    ):
        if stride < extent:
            raise InvalidDataError(
                f"{field}[{index}] is {stride}, so that values overlap; expected at least {extent}"
            )
        extent += stride * (size - 1)
    if extent > nbytes:
        raise InvalidDataError(
            f"a tensor of the shape {shape} with {field} {strides} has {extent} bytes; its buffer "
            f"has {nbytes}"
        )


def _check_count(count: int, value_type: ValueType, span: BufferSpan, field: str) -> None:
    """Check that a buffer has room for a number of values."""
    if count < 0:
        raise InvalidDataError(f"non_zero_length is {count}; expected 0 or more")
    needed = count * item_bytes(value_type)
    if needed > span.length:
        raise InvalidDataError(
            f"{field} has {span.length} bytes; {count} values of {value_type} need {needed}"
        )


def _check_buffers(layout: AnyLayout) -> None:
    """Check that all buffers are inside the body, and that none overlap."""
    for number, (offset, length) in enumerate(layout.buffers):
        if offset < 0 or length < 0 or offset + length > layout.body_length:
            raise InvalidDataError(
                f"buffer {number} (offset {offset}, length {length}) is outside the body of "
                f"{layout.body_length} bytes"
            )
    end = 0
    for offset, length in sorted(span for span in layout.buffers if span.length):
        if offset < end:
            raise InvalidDataError(f"the buffers of the tensor overlap at offset {offset}")
        end = offset + length
