"""Dense and sparse tensors in memory, as arrays of NumPy, SciPy and Arrow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError, LimitError, MissingExtraError, UsageError, install_hint
from ..numpy_arrays import require_numpy
from .labels import NO_LABELS, Labels
from .layout import (
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseLayout,
    TensorLayout,
    ValueType,
    find_type_name,
    item_bytes,
)


class _ArrayProperties:
    """The properties that dense and sparse tensors share."""

    __slots__ = ()

    layout: Any
    labels: Labels

    @property
    def type(self) -> ValueType:
        """The Arrow type of the stored values, such as ``pyarrow.float64()``."""
        return self.layout.type

    @property
    def dtype(self) -> str:
        """The name of the type of the values in NumPy, such as ``float64``."""
        return self.labels.dtype or find_type_name(self.layout.type)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.layout.shape[:-1] if self.labels.is_complex else self.layout.shape

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the dimensions, ``""`` for one without a name; empty if none has a name."""
        return self.layout.dim_names[: len(self.shape)]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def name(self) -> str | None:
        """The name of the tensor in its dataset; None if it has none."""
        return self.labels.name


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(_ArrayProperties):
    """A dense tensor.

    `Stream.read_tensor` returns it. The arrays that it returns share its memory and keep it alive:
    they are read-only, and valid after the stream is closed.

    Examples
    --------
    >>> import numpy, splitarrow
    >>> matrix = numpy.arange(6.0).reshape(2, 3)
    >>> with splitarrow.serve({"m": matrix}) as server:
    ...     with splitarrow.open(server.uri("m")) as stream:
    ...         tensor = stream.read_tensor()
    >>> tensor
    <splitarrow.Tensor: float64, 2 × 3, 48 bytes>
    >>> tensor.to_numpy().sum()
    np.float64(15.0)
    """

    layout: TensorLayout
    """The layout, as it is stored."""
    buffer: Any
    """The memory of the values, as a ``pyarrow.Buffer``."""
    labels: Labels = field(default=NO_LABELS)
    """The name of the tensor, and the type of its values in NumPy if that is not `type`."""

    @property
    def strides(self) -> tuple[int, ...]:
        """The distances between neighbors along each dimension, in bytes."""
        return self.layout.strides[: len(self.shape)]

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        return prod(self.layout.shape) * item_bytes(self.layout.type)

    def to_numpy(self) -> Any:
        """Return the values as a read-only ``numpy.ndarray`` over the same memory.

        Raises
        ------
        MissingExtraError
            If NumPy is not installed.
        InvalidDataError
            If the values are labeled as booleans, and one is neither 0 nor 1.
        """
        numpy = require_numpy()
        array = self._view()
        dtype = self.labels.dtype
        if dtype is None:
            return array
        if dtype == "bool" and array.size and int(array.max()) > 1:
            raise InvalidDataError("the tensor is labeled bool, but has values other than 0 and 1")
        array = array.view(dtype)
        array = array[..., 0] if self.labels.is_complex else array
        return numpy.asarray(array)

    @property
    def stored_dtype(self) -> str:
        """The name of the type of the stored values in NumPy."""
        return find_type_name(self.layout.type)

    def to_arrow(self) -> pa.Tensor:
        """Return a ``pyarrow.Tensor`` of the stored values over the same memory.

        Raises
        ------
        MissingExtraError
            If NumPy is not installed.
        """
        names: Any = [*self.layout.dim_names] or None
        return pa.Tensor.from_numpy(self._view(), dim_names=names)

    def _view(self) -> Any:
        layout = self.layout
        return view_array(self.buffer, layout.type, layout.shape, layout.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values as NumPy's conversions expect."""
        array = self.to_numpy()
        return require_numpy().array(array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Export the values through DLPack; the options are those of ``numpy.ndarray``.

        The memory is read-only, so that consumers have to support version 1 of DLPack.
        """
        return self.to_numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device that holds the values: the processor."""
        return (1, 0)

    def __repr__(self) -> str:
        return (
            f"<splitarrow.Tensor: {self.dtype}, {format_shape(self.shape)}, {self.nbytes:,} bytes>"
        )


def view_array(
    buffer: Any, value_type: ValueType, shape: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """Return a read-only array over a buffer, which has room for it."""
    numpy, dtype = require_numpy(), find_type_name(value_type)
    array = numpy.ndarray(shape, dtype, memoryview(buffer).cast("B"), 0, strides)
    array.flags.writeable = False
    return array


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape for people.

    >>> format_shape((2, 3)), format_shape(())
    ('2 × 3', 'scalar')
    """
    return " × ".join(f"{size:,}" for size in shape) or "scalar"


def _with_scipy_indices(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays of one type that SciPy computes with: int32 or int64."""
    names = {array.dtype.name for array in arrays}
    if names in ({"int32"}, {"int64"}):
        return arrays
    return tuple(array.astype("int64") for array in arrays)


def is_scipy_array(source: Any) -> bool:
    """Return whether an object is a sparse matrix or array. It does not import SciPy."""
    sparse: Any = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(source)


def _require_scipy() -> Any:
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "scipy":
            raise
        raise MissingExtraError(
            f"scipy is not installed; install it with: {install_hint('scipy')}"
        ) from None


MAX_DENSE_BYTES = 1 << 30
"""The default limit of `SparseTensor.to_dense`, in bytes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseTensor(_ArrayProperties):
    """A sparse tensor: by coordinates (COO), compressed rows (CSR), columns (CSC) or fibers (CSF).

    `Stream.read_tensor` returns it. The arrays that it returns share its memory, as those of
    `Tensor` do.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> import numpy
    >>> matrix = pyarrow.SparseCSRMatrix.from_dense_numpy(numpy.eye(3))
    >>> with splitarrow.serve({"m": matrix}) as server:
    ...     with splitarrow.open(server.uri("m")) as stream:
    ...         tensor = stream.read_tensor()
    >>> tensor
    <splitarrow.SparseTensor: csr, float64, 3 × 3, 3 values>
    >>> tensor.values
    array([1., 1., 1.])
    """

    layout: SparseLayout
    """The layout, as it is stored."""
    buffers: tuple[Any, ...]
    """The memory of the index and of the values, as ``pyarrow.Buffer``, in the order of
    ``layout.buffers``."""
    labels: Labels = field(default=NO_LABELS)
    """The name of the tensor, and the type of its values in NumPy if that is not `type`."""

    @property
    def kind(self) -> str:
        """The format of the index: ``coo``, ``csr``, ``csc`` or ``csf``."""
        return self.layout.kind

    @property
    def non_zero_length(self) -> int:
        """The number of stored values."""
        return self.layout.non_zero_length

    @property
    def nbytes(self) -> int:
        """The size of the values and of the index in bytes."""
        return sum(span.length for span in self.layout.buffers)

    @property
    def values(self) -> Any:
        """The stored values as a read-only ``numpy.ndarray`` over the same memory."""
        shape = (self.non_zero_length,)
        array = view_array(self.buffers[-1], self.type, shape)
        return array if self.labels.dtype is None else array.view(self.labels.dtype)

    @property
    def index_arrays(self) -> tuple[Any, ...]:
        """The arrays of the index, read-only, over the same memory.

        COO: the matrix of the coordinates, one row for each value. CSR and CSC: ``indptr`` and
        ``indices``. CSF: the ``indptr`` of each level, then the ``indices`` of each level.
        """
        index, buffers, count = self.layout.index, self.buffers, self.non_zero_length
        match index:
            case CooLayout():
                shape = (count, self.ndim)
                return (view_array(buffers[0], index.indices_type, shape, index.strides),)
            case CsxLayout():
                rows = self.shape[0 if index.axis == "row" else 1]
                return (
                    view_array(buffers[0], index.indptr_type, (rows + 1,)),
                    view_array(buffers[1], index.indices_type, (count,)),
                )
            case CsfLayout():
                return self._csf_arrays(index)

    def _csf_arrays(self, index: CsfLayout) -> tuple[Any, ...]:
        width = item_bytes(index.indices_type)
        nodes = [span.length // width for span in index.indices]
        if nodes:
            nodes[-1] = self.non_zero_length
        inner = len(index.indptr)
        indptr = zip(self.buffers[:inner], nodes[:inner], strict=True)
        indices = zip(self.buffers[inner:-1], nodes, strict=True)
        return (
            *(view_array(buffer, index.indptr_type, (count + 1,)) for buffer, count in indptr),
            *(view_array(buffer, index.indices_type, (count,)) for buffer, count in indices),
        )

    def coordinates(self) -> Any:
        """Return the coordinates of the stored values as a matrix: a row for each value.

        Of a tensor in coordinate format, the matrix shares the memory of the index.

        Raises
        ------
        MissingExtraError
            If NumPy is not installed.
        """
        numpy = require_numpy()
        arrays, index = self.index_arrays, self.layout.index
        if isinstance(index, CooLayout):
            return arrays[0]
        coordinates = numpy.empty((self.non_zero_length, self.ndim), numpy.int64)
        if isinstance(index, CsxLayout):
            axis = 0 if index.axis == "row" else 1
            coordinates[:, axis] = _repeat(arrays[0])
            coordinates[:, 1 - axis] = arrays[1]
            return coordinates
        levels = self.ndim
        indptr, indices = arrays[: levels - 1], arrays[-levels:] if levels else ()
        node: Any = slice(None)
        for level in reversed(range(levels)):
            coordinates[:, index.axis_order[level]] = indices[level][node]
            if level:
                parents = _repeat(indptr[level - 1])
                node = parents[node]
        return coordinates

    def to_numpy(self) -> tuple[Any, ...]:
        """Return the values and the arrays of the index, as pyarrow's sparse tensors do.

        COO: the values and the coordinates. CSR and CSC: the values, ``indptr`` and ``indices``.
        CSF: the values, the list of ``indptr`` and the list of ``indices``.
        """
        arrays = self.index_arrays
        if isinstance(self.layout.index, CsfLayout):
            inner = max(self.ndim - 1, 0)
            return (self.values, [*arrays[:inner]], [*arrays[inner:]])
        return (self.values, *arrays)

    def to_dense(self, *, max_bytes: int = MAX_DENSE_BYTES) -> Any:
        """Return all values, zeros included, as a new ``numpy.ndarray``.

        Values with equal coordinates are added.

        Parameters
        ----------
        max_bytes : int
            The largest array to allocate, in bytes.

        Raises
        ------
        LimitError
            If the array would be larger.
        """
        numpy = require_numpy()
        nbytes = prod(self.shape) * item_bytes(self.type)
        if nbytes > max_bytes:
            raise LimitError(
                f"the tensor of the shape {self.shape} has {nbytes} bytes with its zeros; the "
                f"limit is {max_bytes}; raise max_bytes"
            )
        values = self.values
        dense = numpy.zeros(self.shape, values.dtype)
        numpy.add.at(dense, tuple(self.coordinates().T), values)
        return dense

    def to_scipy(self) -> Any:
        """Return the tensor as a sparse array of SciPy, over the same memory.

        COO becomes ``coo_array``, CSR ``csr_array``, CSC ``csc_array``. CSF has no form in SciPy.

        Raises
        ------
        MissingExtraError
            If SciPy is not installed.
        UsageError
            If SciPy has no such array.
        """
        index = self.layout.index
        if isinstance(index, CsfLayout):
            raise UsageError(
                "SciPy has no arrays in CSF format; use coordinates() and values, or to_dense()"
            )
        sparse = _require_scipy()
        values, shape = self.values, self.shape
        try:
            arrays = _with_scipy_indices(self.index_arrays)
            if isinstance(index, CooLayout):
                coordinates = tuple(arrays[0].T)
                array = sparse.coo_array((values, coordinates), shape=shape, copy=False)
                array.has_canonical_format = index.is_canonical
                return array
            make = sparse.csr_array if index.axis == "row" else sparse.csc_array
            # The constructor with arrays would copy indices that fit into fewer bits.
            array = make(shape, dtype=values.dtype)
            array.data, (array.indptr, array.indices) = values, arrays
        except (TypeError, ValueError) as error:
            raise UsageError(f"SciPy cannot represent the sparse tensor: {error}") from None
        return array

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.SparseCOOTensor`` or the like of the stored values.

        Raises
        ------
        UsageError
            If pyarrow cannot represent the tensor.
        """
        names: Any = [*self.dim_names] or None
        arrays, shape = self.index_arrays, self.shape
        values = view_array(self.buffers[-1], self.type, (self.non_zero_length, 1))
        try:
            match self.layout.index:
                case CooLayout():
                    return pa.SparseCOOTensor.from_numpy(values, arrays[0], shape, dim_names=names)
                case CsxLayout():
                    make: Any = pa.SparseCSRMatrix if self.kind == "csr" else pa.SparseCSCMatrix
                    return make.from_numpy(values, *arrays, shape, dim_names=names)
                case CsfLayout(axis_order=order):
                    inner = self.ndim - 1
                    csf: Any = pa.SparseCSFTensor
                    return csf.from_numpy(
                        values,
                        [*arrays[:inner]],
                        [*arrays[inner:]],
                        shape,
                        axis_order=[*order],
                        dim_names=names,
                    )
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise UsageError(f"pyarrow cannot represent the sparse tensor: {error}") from None

    def __repr__(self) -> str:
        count = self.non_zero_length
        return (
            f"<splitarrow.SparseTensor: {self.kind}, {self.dtype}, {format_shape(self.shape)}, "
            f"{count:,} value{'' if count == 1 else 's'}>"
        )


AnyTensor = Tensor | SparseTensor
"""A dense or sparse tensor."""


def _repeat(indptr: Any) -> Any:
    """Return the number of its span for each of the positions that the spans cover."""
    numpy = require_numpy()
    counts = numpy.diff(indptr.astype(numpy.int64))
    return numpy.repeat(numpy.arange(len(counts)), counts)
