"""Sparse tensors: their values and indices in memory, as arrays of NumPy, SciPy and Arrow."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import pyarrow as pa

from ....errors import LimitError, UsageError
from ..numpy_arrays import require_numpy
from .labels import NO_LABELS, Labels
from .layout import (
    CooLayout,
    CsfLayout,
    CsxLayout,
    SparseLayout,
    ValueType,
    find_type_name,
    item_bytes,
)
from .scipy_arrays import make_scipy_array
from .tensor import Tensor, format_shape, view_array

MAX_DENSE_BYTES = 1 << 30
"""The default limit of `SparseTensor.to_dense`, in bytes."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SparseTensor:
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
    def type(self) -> ValueType:
        """The Arrow type of the stored values."""
        return self.layout.type

    @property
    def dtype(self) -> str:
        """The name of the type of the values in NumPy."""
        return self.labels.dtype or find_type_name(self.layout.type) or ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.layout.shape

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the dimensions, ``""`` for one without a name; empty if none has a name."""
        return self.layout.dim_names

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def non_zero_length(self) -> int:
        """The number of stored values."""
        return self.layout.non_zero_length

    @property
    def nbytes(self) -> int:
        """The size of the values and of the index in bytes."""
        return sum(span.length for span in self.layout.buffers)

    @property
    def name(self) -> str | None:
        """The name of the tensor in its dataset; None if it has none."""
        return self.labels.name

    @property
    def values(self) -> Any:
        """The stored values as a read-only ``numpy.ndarray`` over the same memory."""
        shape = (self.non_zero_length,)
        array = view_array(self.buffers[-1], find_type_name(self.type) or "", shape)
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
                dtype = find_type_name(index.indices_type) or ""
                return (view_array(buffers[0], dtype, (count, self.ndim), index.strides),)
            case CsxLayout():
                rows = self.shape[0 if index.axis == "row" else 1]
                indptr_type = find_type_name(index.indptr_type) or ""
                indices_type = find_type_name(index.indices_type) or ""
                return (
                    view_array(buffers[0], indptr_type, (rows + 1,)),
                    view_array(buffers[1], indices_type, (count,)),
                )
            case CsfLayout():
                return self._csf_arrays(index)

    def _csf_arrays(self, index: CsfLayout) -> tuple[Any, ...]:
        levels = len(index.indices)
        width = item_bytes(index.indices_type)
        nodes = [span.length // width for span in index.indices]
        if nodes:
            nodes[-1] = self.non_zero_length
        indptr_type = find_type_name(index.indptr_type) or ""
        indices_type = find_type_name(index.indices_type) or ""
        return (
            *(
                view_array(self.buffers[level], indptr_type, (nodes[level] + 1,))
                for level in range(levels - 1)
            ),
            *(
                view_array(self.buffers[max(levels - 1, 0) + level], indices_type, (nodes[level],))
                for level in range(levels)
            ),
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
        is_canonical = isinstance(index, CooLayout) and index.is_canonical
        return make_scipy_array(
            self.kind, self.values, self.index_arrays, self.shape, is_canonical=is_canonical
        )

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.SparseCOOTensor`` or the like of the stored values.

        Raises
        ------
        UsageError
            If pyarrow cannot represent the tensor.
        """
        names: Any = [*self.dim_names] or None
        arrays, shape = self.index_arrays, self.shape
        values = view_array(
            self.buffers[-1], find_type_name(self.type) or "", (self.non_zero_length, 1)
        )
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
