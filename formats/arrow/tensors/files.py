"""Files of tensors: Arrow IPC messages, and ``.npy`` (NumPy Enhancement Proposal 1).

The bodies stay unread. Both framings may occur. A schema message that announces tensors may come
first: it declares the byte order, which is little-endian without it. Padding of zeros may follow a
body, up to the next multiple of 64 bytes, as pyarrow writes it.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from ....errors import InvalidDataError, LimitError, ProtocolError, UsageError
from ..file import Read, check_trailing_bytes
from ..message import CONTINUATION, HeaderType, parse_prefix, read_endianness, read_message_info
from ..numpy_arrays import require_numpy
from ..schema import read_schema
from .conversion import describe_dtype, make_dense_layout
from .labels import Labels, is_tensor_content, read_labels
from .layout import AnyLayout, TensorLayout, read_tensor_layout, row_major_strides
from .tensor import Tensor

MAX_TENSORS = 1 << 16
"""The largest number of tensors in a file."""
MAX_METADATA_BYTES = 1 << 20
"""The largest metadata of a tensor, in bytes."""
_ALIGNMENT = 64


class TensorMessage(NamedTuple):
    """The message of a tensor in a file."""

    offset: int
    """The offset of the message in the file, in bytes."""
    metadata: bytes
    """The FlatBuffer of the message."""
    layout: AnyLayout
    """The layout of the tensor."""
    labels: Labels
    """The labels of the tensor."""
    body_offset: int
    """The offset of the body in the file, in bytes."""
    is_big_endian: bool
    """Whether the values are big-endian."""


def scan_tensors(read: Read, size: int) -> Iterator[TensorMessage]:
    """Yield the messages of the tensors in a file of `size` bytes, after checking their metadata.

    Raises `InvalidDataError` or `LimitError`, which give the offset of the message.
    """
    position, count, is_big_endian = 0, 0, False
    is_first = True
    while (begin := _skip_padding(read, position, size)) < size:
        try:
            body_offset, metadata = _read_metadata(read, begin, size)
            if not metadata:
                check_trailing_bytes(read, body_offset, size)
                return
            info = read_message_info(metadata)
            if is_first and info.header_type is HeaderType.SCHEMA:
                if not is_tensor_content(read_schema(metadata)):
                    raise InvalidDataError("the schema announces no tensors")
                is_big_endian = read_endianness(metadata) == "big"
                is_first, position = False, body_offset
                continue
            is_first = False
            layout = read_tensor_layout(metadata)
            labels = read_labels(metadata, layout)
            position = body_offset + layout.body_length
            if position > size:
                raise InvalidDataError(
                    f"its body ends at byte {position}, but there are {size} bytes"
                )
        except ProtocolError as error:
            error.message = f"the message at byte {begin}: {error.message}"
            raise
        count += 1
        if count > MAX_TENSORS:
            raise LimitError(f"the file has more than {MAX_TENSORS} tensors")
        yield TensorMessage(begin, metadata, layout, labels, body_offset, is_big_endian)


def is_tensor_head(head: bytes) -> bool:
    """Return whether the first bytes of a file are the message of a tensor."""
    try:
        prefix = parse_prefix(head[:8])
        end = prefix.nbytes + prefix.metadata_length
        if not 0 < prefix.metadata_length <= len(head) - prefix.nbytes:
            return False
        metadata = head[prefix.nbytes : end]
        header_type = read_message_info(metadata).header_type
        if header_type is HeaderType.SCHEMA:
            return is_tensor_content(read_schema(metadata))
    except ProtocolError:
        return False
    return header_type in (HeaderType.TENSOR, HeaderType.SPARSE_TENSOR)


def _skip_padding(read: Read, position: int, size: int) -> int:
    """Return the offset of the next message; `size` if only zeros follow."""
    if not position:
        return 0
    aligned = min(-(-position // _ALIGNMENT) * _ALIGNMENT, size)
    padding = read(position, aligned - position)
    zeros = len(padding) - len(padding.lstrip(b"\0"))
    if zeros == len(padding):
        return aligned
    # After padding, a message begins at a multiple of 8. The first byte of a length may be 0.
    return max(position + -position % 8, (position + zeros) // 8 * 8) if zeros else position


def _read_metadata(read: Read, begin: int, size: int) -> tuple[int, bytes]:
    """Return the offset after the metadata of a message, and the metadata; empty at the end."""
    head = read(begin, min(8, size - begin))
    if len(head) < 4 or (head.startswith(CONTINUATION) and len(head) < 8):
        raise InvalidDataError("it is truncated in its prefix")
    prefix = parse_prefix(head)
    end = begin + prefix.nbytes + prefix.metadata_length
    if prefix.metadata_length > MAX_METADATA_BYTES:
        raise LimitError(
            f"its metadata has {prefix.metadata_length} bytes; the limit is {MAX_METADATA_BYTES}"
        )
    if end > size:
        raise InvalidDataError(f"its metadata ends at byte {end}, but there are {size} bytes")
    return end, read(begin + prefix.nbytes, prefix.metadata_length)


NPY_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 64 << 10
"""The largest header, in bytes."""
_MAX_BYTES = (1 << 63) - 1


class NpyHeader(NamedTuple):
    """The header of a ``.npy`` file."""

    layout: TensorLayout
    """The layout of the tensor, whose body begins after the header."""
    label: str | None
    """The label of the type of the values; None if it is the stored type."""
    is_big_endian: bool
    """Whether the values are big-endian."""
    data_offset: int
    """The offset of the values in the file, in bytes."""


def read_npy_header(head: bytes) -> NpyHeader:
    """Read the header of a ``.npy`` file."""
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
    """Return the header of a ``.npy`` file with a tensor, and the values that follow it.

    The values share the memory of the tensor if they have no gaps, in row- or column-major order.
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
