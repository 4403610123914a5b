"""From a message and its body to a tensor, without copying the body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError, LimitError
from ..numpy_arrays import require_numpy
from .indices import check_indices
from .labels import read_labels
from .layout import (
    AnyLayout,
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseLayout,
    TensorLayout,
    ValueType,
    find_type_name,
    item_bytes,
    row_major_strides,
)
from .parsing import read_tensor_layout
from .sparse_tensor import AnyTensor, SparseTensor
from .tensor import Tensor, view_array

MAX_SWAPPED_BYTES = 2 << 30
"""The default limit on the bytes of a tensor of foreign byte order."""


def decode_tensor(
    metadata: bytes | memoryview,
    body: Any,
    *,
    swap_bytes: bool = False,
    check_values: bool = True,
    max_swapped_bytes: int = MAX_SWAPPED_BYTES,
) -> AnyTensor:
    """Return the tensor of a message.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of a Tensor or SparseTensor message.
    body : pyarrow.Buffer
        The packed body. The tensor shares its memory and keeps it alive.
    swap_bytes : bool
        Whether the body has the other byte order than this machine. Its bytes are then swapped,
        into new memory.
    check_values : bool
        Whether to check the indices of a sparse tensor. Code that follows wrong ones, such as
        SciPy's, reads and writes outside its memory.
    max_swapped_bytes : int
        The largest body to swap, in bytes.

    Raises
    ------
    ProtocolError
        If the message is malformed. `InvalidDataError` and `LimitError` are subclasses.
    MissingExtraError
        If the tensor is sparse, or its bytes have to be swapped, and NumPy is not installed.
    """
    layout = read_tensor_layout(metadata)
    if body.size != layout.body_length:
        raise InvalidDataError(
            f"the body of the tensor has {body.size} bytes; its metadata declares "
            f"{layout.body_length}"
        )
    buffers = [body.slice(offset, length) for offset, length in layout.buffers]
    return make_tensor(
        metadata,
        layout,
        buffers,
        swap_bytes=swap_bytes,
        check_values=check_values,
        max_swapped_bytes=max_swapped_bytes,
    )


def make_tensor(
    metadata: bytes | memoryview,
    layout: AnyLayout,
    buffers: Sequence[Any],
    *,
    swap_bytes: bool = False,
    check_values: bool = True,
    max_swapped_bytes: int = MAX_SWAPPED_BYTES,
) -> AnyTensor:
    """Return a tensor whose buffers are anywhere in memory; see `decode_tensor`.

    Parameters
    ----------
    metadata : bytes-like
        The FlatBuffer of the message.
    layout : TensorLayout or SparseLayout
        Its layout, as `read_tensor_layout` returns it.
    buffers : sequence of pyarrow.Buffer
        The buffers, of the sizes and in the order of ``layout.buffers``.
    swap_bytes, check_values, max_swapped_bytes
        See `decode_tensor`.
    """
    labels = read_labels(metadata, layout)
    if swap_bytes:
        nbytes = sum(buffer.size for buffer in buffers)
        if nbytes > max_swapped_bytes:
            raise LimitError(
                f"a tensor of {nbytes} bytes has the other byte order; the limit for swapping is "
                f"{max_swapped_bytes}"
            )
    if isinstance(layout, TensorLayout):
        if swap_bytes:
            layout, buffers = _swap_dense(layout, buffers[0])
        return Tensor(layout, buffers[0], labels)
    if swap_bytes:
        buffers = _swap_sparse(layout, buffers)
    tensor = SparseTensor(layout, tuple(buffers), labels)
    if check_values:
        check_indices(layout, tensor.index_arrays)
    return tensor


def _swap_dense(layout: TensorLayout, buffer: Any) -> tuple[TensorLayout, list[Any]]:
    name = find_type_name(layout.type) or ""
    array = view_array(buffer, name, layout.shape, layout.strides)
    swapped = require_numpy().ascontiguousarray(array.byteswap())
    strides = row_major_strides(layout.shape, item_bytes(layout.type))
    return replace(layout, strides=strides), [pa.py_buffer(swapped.reshape(-1))]


def _swap_sparse(layout: SparseLayout, buffers: Sequence[Any]) -> list[Any]:
    index = layout.index
    types: list[ValueType]
    match index:
        case CooLayout():
            width = item_bytes(index.indices_type)
            if any(stride % width for stride in index.strides):
                raise InvalidDataError(
                    f"indicesStrides {index.strides} are no multiples of {width} bytes"
                )
            types = [index.indices_type]
        case CsxLayout():
            types = [index.indptr_type, index.indices_type]
        case CsfLayout():
            types = [index.indptr_type] * len(index.indptr)
            types += [index.indices_type] * len(index.indices)
    types.append(layout.type)
    return [
        _swap_buffer(buffer, value_type) for buffer, value_type in zip(buffers, types, strict=True)
    ]


def _swap_buffer(buffer: Any, value_type: ValueType) -> Any:
    count = buffer.size // item_bytes(value_type)
    array = view_array(buffer, find_type_name(value_type) or "", (count,))
    return pa.py_buffer(array.byteswap())
