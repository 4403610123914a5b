"""The header of a ``.npy`` file (NumPy Enhancement Proposal 1), whose values are a tensor."""

from __future__ import annotations

import ast
import struct
from math import prod
from typing import Any, NamedTuple

from ....errors import InvalidDataError, UsageError
from ..numpy_arrays import require_numpy
from .conversion import describe_dtype, make_dense_layout
from .labels import Labels
from .layout import TensorLayout, row_major_strides
from .tensor import Tensor

NPY_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 64 << 10
"""The largest header, in bytes."""
_MAX_BYTES = (1 << 63) - 1
_ALIGNMENT = 64


class NpyHeader(NamedTuple):
    """The contents of a header."""

    layout: TensorLayout
    """The layout of the tensor, whose body begins after the header."""
    label: str | None
    """The label of the type of the values; None if it is the stored type."""
    is_big_endian: bool
    """Whether the values are big-endian."""
    data_offset: int
    """The offset of the values in the file, in bytes."""


def read_npy_header(head: bytes) -> NpyHeader:
    """Read the header of a file.

    Parameters
    ----------
    head : bytes
        The first bytes of the file: the whole header, or `MAX_HEADER_BYTES`.

    Raises
    ------
    InvalidDataError
        If the header is malformed, too large, or describes values that tensors cannot have.
    MissingExtraError
        If NumPy is not installed.
    """
    try:
        if not head.startswith(NPY_MAGIC):
            raise ValueError(f"it does not begin with {NPY_MAGIC!r}")
        major = head[6]
        size = struct.Struct("<H" if major == 1 else "<I")
        begin = 8 + size.size
        end = begin + size.unpack_from(head, 8)[0]
        if major not in (1, 2, 3) or end > min(len(head), MAX_HEADER_BYTES):
            raise ValueError(f"it has version {major} and {end} bytes")
        header: Any = ast.literal_eval(head[begin:end].decode("latin1" if major < 3 else "utf8"))
        shape, is_fortran = header["shape"], header["fortran_order"]
        dtype = require_numpy().dtype(header["descr"])
        valid = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if not valid or type(is_fortran) is not bool:
            raise ValueError(f"it declares the shape {shape!r}")
    except (
        ValueError,
        KeyError,
        TypeError,
        SyntaxError,
        struct.error,
        IndexError,
        RecursionError,
        MemoryError,
    ) as error:
        raise InvalidDataError(f"the header of the .npy file is malformed: {error}") from None
    try:
        stored, label = describe_dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes > _MAX_BYTES:
            raise UsageError(f"an array of the shape {shape} is larger than 2^63 bytes")
        strides = row_major_strides(shape[::-1] if is_fortran else shape, dtype.itemsize)
        strides = strides[::-1] if is_fortran else strides
        layout = make_dense_layout(stored, label, shape, strides, nbytes)
    except UsageError as error:
        raise InvalidDataError(error.message) from None
    return NpyHeader(layout, label, not dtype.isnative, end)


def write_npy_header(tensor: Tensor) -> tuple[bytes, Any]:
    """Return the header of a file with a tensor, and the values that follow it.

    The values share the memory of the tensor if they have no gaps, in row- or column-major order.

    Raises
    ------
    MissingExtraError
        If NumPy is not installed.
    """
    array = tensor.to_numpy()
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    values = array.T if is_fortran else require_numpy().ascontiguousarray(array)
    text = repr(
        {"descr": array.dtype.str, "fortran_order": is_fortran, "shape": array.shape}
    ).encode()
    nbytes = -(-(10 + len(text) + 1) // _ALIGNMENT) * _ALIGNMENT
    padded = text.ljust(nbytes - 11) + b"\n"
    return NPY_MAGIC + struct.pack("<BBH", 1, 0, len(padded)) + padded, values


def npy_labels(header: NpyHeader, name: str | None) -> Labels:
    """Return the labels of the tensor in a file."""
    return Labels(name, header.label)
