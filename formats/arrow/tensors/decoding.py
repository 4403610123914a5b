"""From a message and its body to a tensor, without copying the body.

Each check of a sparse index passes once over an array, so that all of them take time in proportion
to the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError, LimitError
from ..numpy_arrays import require_numpy
from .labels import read_labels
from .layout import (
    AnyLayout,
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseLayout,
    TensorLayout,
    ValueType,
    item_bytes,
    read_tensor_layout,
    row_major_strides,
)
from .tensor import AnyTensor, SparseTensor, Tensor, view_array


def check_indices(layout: SparseLayout, arrays: tuple[Any, ...]) -> None:
    """Check the positions of the values of a sparse tensor.

    Raises `InvalidDataError`, which names the field and the place, if an index is outside its
    dimension, positions decrease or do not cover all values, or indices are not sorted although
    their format requires it.
    """
    match layout.index:
        case CooLayout():
            _check_coo(layout, layout.index, arrays[0])
        case CsxLayout():
            _check_csx(layout, layout.index, *arrays)
        case CsfLayout():
            levels = len(layout.shape)
            _check_csf(layout, layout.index, arrays[: levels - 1], arrays[-levels:])


def _check_coo(layout: SparseLayout, index: CooLayout, coordinates: Any) -> None:
    for dimension, size in enumerate(layout.shape):
        _check_range(coordinates[:, dimension], size, f"the indices of dimension {dimension}")
    if not index.is_canonical or len(coordinates) < 2:
        return
    row = find_unsorted(coordinates)
    if row is not None:
        raise InvalidDataError(
            f"the coordinates are not sorted and distinct at value {row}, although isCanonical is "
            "true"
        )


def find_unsorted(coordinates: Any) -> int | None:
    """Return the first row that is not greater than the one before it, None if there is none.

    The rows of the matrix are compared from the first column to the last.
    """
    numpy = require_numpy()
    before, after = coordinates[:-1], coordinates[1:]
    # From the last dimension to the first: whether the rest of a row exceeds that of the one before
    is_greater = numpy.zeros(len(after), bool)
    for dimension in reversed(range(coordinates.shape[1])):
        one, other = before[:, dimension], after[:, dimension]
        is_greater &= one == other
        is_greater |= one < other
    place = _find_first(~is_greater)
    return None if place is None else place + 1


def _check_csx(layout: SparseLayout, index: CsxLayout, indptr: Any, indices: Any) -> None:
    other = layout.shape[1 if index.axis == "row" else 0]
    _check_positions(indptr, layout.non_zero_length, "indptr")
    _check_range(indices, other, "indices")
    _check_sorted(indptr, indices, "indices", distinct=False)


def _check_csf(
    layout: SparseLayout, index: CsfLayout, indptr: tuple[Any, ...], indices: tuple[Any, ...]
) -> None:
    for level, nodes in enumerate(indices):
        dimension = index.axis_order[level]
        _check_range(nodes, layout.shape[dimension], f"indices[{level}]")
        if level:
            _check_positions(indptr[level - 1], len(nodes), f"indptr[{level - 1}]")
            _check_sorted(indptr[level - 1], nodes, f"indices[{level}]", distinct=True)
    if len(indices) and len(indices[0]) > 1:
        place = _find_first(indices[0][1:] <= indices[0][:-1])
        if place is not None:
            raise InvalidDataError(f"indices[0] is not sorted and distinct at {place + 1}")


def _check_range(values: Any, size: int, field: str) -> None:
    if not len(values):
        return
    if int(values.max()) >= size or int(values.min()) < 0:
        place = _find_first((values < 0) | (values >= size))
        assert place is not None
        raise InvalidDataError(
            f"{field}: item {place} is {values[place]}; expected 0 to {size - 1}"
        )


def _check_positions(positions: Any, count: int, field: str) -> None:
    """Check that positions begin with 0, never decrease, and end with `count`."""
    first, last = int(positions[0]), int(positions[-1])
    if first or last != count:
        raise InvalidDataError(f"{field} covers {first} to {last}; expected 0 to {count}")
    place = _find_first(positions[1:] < positions[:-1])
    if place is not None:
        raise InvalidDataError(f"{field} decreases at {place + 1}")


def _check_sorted(positions: Any, values: Any, field: str, *, distinct: bool) -> None:
    """Check that values increase within each span of positions."""
    if len(values) < 2:
        return
    decreases = values[1:] <= values[:-1] if distinct else values[1:] < values[:-1]
    starts = positions[1:-1]
    starts = starts[(starts > 0) & (starts < len(values))]
    decreases[starts.astype("int64") - 1] = False  # a new span begins
    place = _find_first(decreases)
    if place is not None:
        raise InvalidDataError(f"{field} is not sorted{' and distinct' * distinct} at {place + 1}")


def _find_first(flags: Any) -> int | None:
    """Return the index of the first true value."""
    if not flags.any():
        return None
    return int(flags.argmax())


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
    """Return the tensor of a message, which shares the memory of the body and keeps it alive.

    With `swap_bytes`, its values are swapped into new memory. `check_values` checks the indices of
    a sparse tensor: code that follows wrong ones, such as SciPy's, reads and writes outside its
    memory. Sparse tensors and swapping need NumPy.
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
    """Return a tensor whose buffers are anywhere in memory; see `decode_tensor`."""
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
    array = view_array(buffer, layout.type, layout.shape, layout.strides)
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
    array = view_array(buffer, value_type, (count,))
    return pa.py_buffer(array.byteswap())


def check_tensor_message(
    metadata: bytes | memoryview, body: Any = None, *, swap_bytes: bool = False
) -> AnyLayout:
    """Check a Tensor or SparseTensor message, and return its layout.

    Without `body`, the check takes time in proportion to the metadata: types, shape, strides,
    buffers and their sizes, and labels. With it, the indices of a sparse tensor are checked too, in
    time in proportion to them.

    Raises `ProtocolError` if the message is malformed; the error names the field and the place in
    it. `InvalidDataError` and `LimitError` are subclasses.
    """
    if body is not None:
        return decode_tensor(metadata, body, swap_bytes=swap_bytes).layout
    layout = read_tensor_layout(metadata)
    read_labels(metadata, layout)
    return layout
