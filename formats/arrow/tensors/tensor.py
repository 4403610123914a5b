"""Dense tensors: their values in memory, as arrays of NumPy and Arrow, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from ..numpy_arrays import require_numpy
from .labels import NO_LABELS, Labels
from .layout import TensorLayout, ValueType, find_type_name, item_bytes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor:
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
    def type(self) -> ValueType:
        """The Arrow type of the stored values, such as ``pyarrow.float64()``."""
        return self.layout.type

    @property
    def dtype(self) -> str:
        """The name of the type of the values in NumPy, such as ``float64``."""
        return self.labels.dtype or find_type_name(self.layout.type) or ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.layout.shape[:-1] if self.labels.is_complex else self.layout.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The distances between neighbors along each dimension, in bytes."""
        return self.layout.strides[: len(self.shape)]

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the dimensions, ``""`` for one without a name; empty if none has a name."""
        return self.layout.dim_names[: len(self.shape)]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the values in bytes."""
        return prod(self.layout.shape) * item_bytes(self.layout.type)

    @property
    def name(self) -> str | None:
        """The name of the tensor in its dataset; None if it has none."""
        return self.labels.name

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
        layout = self.layout
        array = view_array(self.buffer, self.stored_dtype, layout.shape, layout.strides)
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
        return find_type_name(self.layout.type) or ""

    def to_arrow(self) -> pa.Tensor:
        """Return a ``pyarrow.Tensor`` of the stored values over the same memory.

        Raises
        ------
        MissingExtraError
            If NumPy is not installed.
        """
        layout = self.layout
        array = view_array(self.buffer, self.stored_dtype, layout.shape, layout.strides)
        names: Any = [*layout.dim_names] or None
        return pa.Tensor.from_numpy(array, dim_names=names)

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
    buffer: Any, dtype: str, shape: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """Return a read-only array over a buffer, which has room for it."""
    numpy = require_numpy()
    array = numpy.ndarray(shape, dtype, memoryview(buffer).cast("B"), 0, strides)
    array.flags.writeable = False
    return array


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape for people.

    >>> format_shape((2, 3)), format_shape(())
    ('2 × 3', 'scalar')
    """
    return " × ".join(f"{size:,}" for size in shape) or "scalar"
