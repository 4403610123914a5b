"""The layout of a tensor: everything in the metadata of a Tensor or SparseTensor message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import pyarrow as pa

from ..message import BufferSpan

ValueType = Any
"""A `pyarrow.DataType` of numbers: integers of 8 to 64 bits, or floats of 16 to 64 bits."""

VALUE_TYPES: dict[str, tuple[Any, int]] = {
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), bits // 8) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), bits // 8) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (getattr(pa, f"float{bits}")(), bits // 8) for bits in (16, 32, 64)},
}
"""The types of the values of tensors and their sizes in bytes, by their names in NumPy."""

_NAMES = {value_type: name for name, (value_type, _) in VALUE_TYPES.items()}


def find_type_name(value_type: ValueType) -> str | None:
    """Return the name of a type in NumPy, None if tensors cannot have such values."""
    return _NAMES.get(value_type)


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


def count_values(layout: AnyLayout) -> int:
    """Return the number of stored values."""
    return layout.non_zero_length if isinstance(layout, SparseLayout) else prod(layout.shape)
