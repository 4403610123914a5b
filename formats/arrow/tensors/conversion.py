"""Tensors of arrays: NumPy, SciPy and pyarrow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal

import pyarrow as pa

from ....errors import ProtocolError, UsageError
from ..message import BufferSpan
from ..numpy_arrays import require_numpy
from .decoding import check_indices, find_unsorted
from .encoding import plan_body, with_buffers
from .labels import NO_LABELS, Labels, find_stored_type
from .layout import (
    MAX_DIMENSIONS,
    VALUE_TYPES,
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseIndex,
    SparseLayout,
    TensorLayout,
    ValueType,
    item_bytes,
    row_major_strides,
)
from .tensor import AnyTensor, SparseTensor, Tensor, is_scipy_array

_NOWHERE = BufferSpan(0, 0)
_MAX_AXIS_ORDERS = 720
_SUPPORTED = "booleans, integers, floats of 16 to 64 bits, complex numbers, dates and durations"


def convert_to_tensor(source: Any, name: str | None = None) -> AnyTensor | None:
    """Return a tensor of an array, None if the object is not an array.

    The tensor shares the memory of an array without gaps, in any order of its dimensions, in this
    machine's byte order. It has a copy of others. The same holds for the arrays of a sparse array,
    whose indices are checked, and sorted where their format requires it.

    Raises `UsageError` if tensors cannot have such values, or an index is wrong.
    """
    labels = NO_LABELS if name is None else Labels(name)
    if isinstance(source, (Tensor, SparseTensor)):
        return source
    if isinstance(source, pa.Tensor):
        return _from_numpy(source.to_numpy(), labels, _read_names(source))
    try:
        if is_scipy_array(source):
            return _from_scipy(source, labels)
        if (sparse := _from_arrow(source, labels)) is not None:
            return sparse
    except ProtocolError as error:
        raise UsageError(f"the sparse tensor is invalid: {error.message}") from None
    # An object can be an array only if its library is loaded.
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(source, (numpy.ndarray, numpy.generic)):
        return None
    if isinstance(source, numpy.ma.MaskedArray):
        raise UsageError("a masked array has no form as a tensor; fill its masked values first")
    return _from_numpy(numpy.asarray(source), labels)


def describe_dtype(dtype: Any) -> tuple[ValueType, str | None]:
    """Return the type that stores values of NumPy, and their label if it is another type."""
    name = dtype.newbyteorder("=").name
    if name in VALUE_TYPES:
        return VALUE_TYPES[name][0], None
    stored = find_stored_type(name)
    if stored is None:
        raise UsageError(f"a tensor cannot have values of the type {dtype}; expected {_SUPPORTED}")
    return stored, name


def make_dense_layout(
    stored: ValueType, label: str | None, shape: Sequence[int], strides: Sequence[int], nbytes: int
) -> TensorLayout:
    """Return the layout of a dense array in one buffer. Its strides are in bytes."""
    if label is not None and label.startswith("complex"):
        shape, strides = (*shape, 2), (*strides, item_bytes(stored))
    if len(shape) > MAX_DIMENSIONS:
        raise UsageError(
            f"the array has {len(shape)} dimensions as a tensor; the limit is {MAX_DIMENSIONS}"
        )
    span = BufferSpan(0, nbytes)
    return TensorLayout(stored, tuple(shape), tuple(strides), (), span, nbytes)


def _from_numpy(array: Any, labels: Labels, dim_names: tuple[str, ...] = ()) -> Tensor:
    numpy = require_numpy()
    stored, label = describe_dtype(array.dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # The dimensions from the slowest to the fastest: then a gap or an overlap shows.
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    flat = array.transpose(order)
    if not flat.flags.c_contiguous:
        flat = array = numpy.ascontiguousarray(array).reshape(array.shape)
    shape = array.shape
    strides = array.strides if array.size else row_major_strides(shape, array.itemsize)
    strides = _clean_strides(shape, strides, array.itemsize)
    memory = pa.py_buffer(flat.reshape(-1).view("u1")) if array.size else pa.py_buffer(b"")
    layout = make_dense_layout(stored, label, shape, strides, memory.size)
    if dim_names:
        padding = ("",) * (len(layout.shape) - len(dim_names))
        layout = replace(layout, dim_names=(*dim_names, *padding))
    return Tensor(layout, memory, Labels(labels.name, label))


def _clean_strides(shape: Sequence[int], strides: Sequence[int], width: int) -> tuple[int, ...]:
    """Return strides in which a dimension of one value has a stride that no check refuses."""
    return tuple(
        max(stride, width) if size == 1 else stride
        for size, stride in zip(shape, strides, strict=True)
    )


def _read_names(source: Any) -> tuple[str, ...]:
    names = tuple(name or "" for name in source.dim_names or ())
    return names if any(names) else ()


def _from_scipy(source: Any, labels: Labels) -> SparseTensor:
    kind = source.format
    if kind == "coo":
        return _make_coo(source.data, source.coords, source.shape, labels)
    if kind not in ("csr", "csc"):
        source, kind = source.tocsr(), "csr"
    return _make_csx(kind, source.data, source.indptr, source.indices, source.shape, labels)


def _from_arrow(source: Any, labels: Labels) -> SparseTensor | None:
    names = _read_names(source) if isinstance(source, _ARROW_TYPES) else ()
    match source:
        case pa.SparseCOOTensor():
            values, coordinates = source.to_numpy()
            columns = [coordinates[:, axis] for axis in range(coordinates.shape[1])]
            return _make_coo(values, columns, source.shape, labels, names)
        case pa.SparseCSRMatrix() | pa.SparseCSCMatrix():
            kind = "csr" if isinstance(source, pa.SparseCSRMatrix) else "csc"
            return _make_csx(kind, *source.to_numpy(), source.shape, labels, names)
        case pa.SparseCSFTensor():
            return _from_arrow_csf(source, labels, names)
        case _:
            return None


_ARROW_TYPES = (pa.SparseCOOTensor, pa.SparseCSRMatrix, pa.SparseCSCMatrix, pa.SparseCSFTensor)


def _from_arrow_csf(source: Any, labels: Labels, names: tuple[str, ...]) -> SparseTensor:
    numpy = require_numpy()
    values, indptr, indices = source.to_numpy()
    order = _find_axis_order(source, values, indptr, indices)
    indptr_type, indptr_arrays = _prepare_alike(indptr, numpy.int64)
    indices_type, indices_arrays = _prepare_alike(indices, numpy.int64)
    index = CsfLayout(
        indptr_type,
        (_NOWHERE,) * len(indptr_arrays),
        indices_type,
        (_NOWHERE,) * len(indices_arrays),
        order,
    )
    return _make_sparse(
        values, index, [*indptr_arrays, *indices_arrays], source.shape, labels, names
    )


def _find_axis_order(source: Any, values: Any, indptr: Any, indices: Any) -> tuple[int, ...]:
    """Return the order of the dimensions in the index, which pyarrow does not expose.

    The tensor equals only a tensor with the same order. Dimensions in the order of their sizes,
    which pyarrow chooses, are tried first.
    """
    dimensions = range(len(source.shape))
    by_size = tuple(sorted(dimensions, key=lambda axis: source.shape[axis]))
    candidates = [by_size, *permutations(dimensions)] if len(dimensions) <= 6 else [by_size]
    names: Any = source.dim_names or None
    for order in candidates[:_MAX_AXIS_ORDERS]:
        # The index alone decides, and a tensor with other values is never equal.
        options: Any = {"axis_order": [*order], "dim_names": names}
        other = pa.SparseCSFTensor.from_numpy(values, indptr, indices, source.shape, **options)
        if other.equals(source):
            return order
    raise UsageError(
        "cannot find the order of the dimensions of the tensor in CSF format; build it with the "
        "default axis_order"
    )


def _make_coo(
    values: Any,
    columns: Sequence[Any],
    shape: Sequence[int],
    labels: Labels,
    dim_names: tuple[str, ...] = (),
) -> SparseTensor:
    numpy = require_numpy()
    count, width_type = len(values), numpy.result_type(*columns) if columns else numpy.int64
    # By columns, so that the coordinates along one dimension are contiguous, as in SciPy.
    matrix = numpy.empty((len(columns), count), numpy.dtype(width_type).newbyteorder("="))
    for row, column in zip(matrix, columns, strict=True):
        row[...] = column
    indices_type, _ = _prepare(matrix)
    width = item_bytes(indices_type)
    is_canonical = find_unsorted(matrix.T) is None
    index = CooLayout(indices_type, (width, count * width), _NOWHERE, is_canonical)
    return _make_sparse(values, index, [matrix], shape, labels, dim_names)


def _make_csx(
    kind: Literal["csr", "csc"],
    values: Any,
    indptr: Any,
    indices: Any,
    shape: Sequence[int],
    labels: Labels,
    dim_names: tuple[str, ...] = (),
) -> SparseTensor:
    numpy = require_numpy()
    count = int(indptr[-1]) if len(indptr) else 0
    values, indices = values.reshape(-1)[:count], indices[:count]  # SciPy may reserve more
    indptr_type, indptr = _prepare(indptr)
    indices_type, indices = _prepare(indices)
    spans = numpy.repeat(numpy.arange(len(indptr) - 1), numpy.diff(indptr.astype(numpy.int64)))
    if len(spans) == len(indices) > 1:
        falls = (indices[1:] < indices[:-1]) & (spans[1:] == spans[:-1])
        if falls.any():
            order = numpy.lexsort((indices, spans))
            values, indices = values[order], indices[order]
    axis: Literal["row", "column"] = "row" if kind == "csr" else "column"
    index = CsxLayout(axis, indptr_type, _NOWHERE, indices_type, _NOWHERE)
    return _make_sparse(values, index, [indptr, indices], shape, labels, dim_names)


def _make_sparse(
    values: Any,
    index: SparseIndex,
    arrays: Sequence[Any],
    shape: Sequence[int],
    labels: Labels,
    dim_names: tuple[str, ...],
) -> SparseTensor:
    """Return a sparse tensor of arrays, whose indices are checked."""
    values = values.reshape(-1)
    stored, label = describe_dtype(values.dtype)
    if label is not None and label != "bool":
        raise UsageError(
            f"a sparse tensor cannot have values of the type {label}; serve its parts, such "
            "as .real and .imag, as tensors of their own"
        )
    _, values = _prepare(values if label is None else values.view("u1"))
    buffers = tuple(pa.py_buffer(each.reshape(-1)) for each in (*arrays, values))
    layout = SparseLayout(
        stored, tuple(map(int, shape)), dim_names, len(values), index, _NOWHERE, 0
    )
    spans, body_length = plan_body([buffer.size for buffer in buffers])
    layout = with_buffers(layout, spans, body_length)
    assert isinstance(layout, SparseLayout)
    tensor = SparseTensor(layout, buffers, Labels(labels.name, label))
    check_indices(layout, tensor.index_arrays)
    return tensor


def _prepare(array: Any) -> tuple[ValueType, Any]:
    """Return the type of an array, and the array without gaps in this machine's byte order."""
    numpy = require_numpy()
    stored, _ = describe_dtype(array.dtype)
    return stored, numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _prepare_alike(arrays: Sequence[Any], default: Any) -> tuple[ValueType, list[Any]]:
    """Return arrays of one type, and that type."""
    numpy = require_numpy()
    common = numpy.result_type(*arrays) if len(arrays) else numpy.dtype(default)
    prepared = [_prepare(each.astype(common, copy=False))[1] for each in arrays]
    return describe_dtype(common)[0], prepared
