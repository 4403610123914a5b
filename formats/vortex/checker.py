"""Checks of Vortex messages before anything decodes them.

The checks compare every count, length, alignment and reference with the header, the dtype, the body
and the limits. Their time is proportional to the metadata: they read no value of a buffer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError
from .array_body import ArrayBody, LazyBytes, read_array_body
from .dtype import DType
from .encodings import NodeContent, walk_contents
from .message import DEFAULT_LIMITS, MessageHeader, MessageKind, VortexLimits


class CheckedArray(NamedTuple):
    """An array message that has passed the checks."""

    body: ArrayBody
    """Its nodes and buffers."""
    rows: int
    """The number of rows."""
    buffer_bytes: int
    """The size of its buffers in the body, in bytes."""
    has_compressed_buffers: bool
    """Whether a buffer is compressed with LZ4."""
    declared_bytes: int
    """The smallest size of the decoded rows in Arrow, in bytes."""


def check_array(
    header: MessageHeader,
    body: Any,
    dtype: DType,
    limits: VortexLimits = DEFAULT_LIMITS,
) -> CheckedArray:
    """Check an array message.

    Raises `InvalidDataError` if the message is malformed, or does not fit the dtype. The error
    names the field, and the node or the buffer. Raises `LimitError` if the message exceeds a limit.
    """
    check_body_size(header, body)
    if header.kind is not MessageKind.ARRAY:
        raise InvalidDataError(f"the message is a {header.kind.name}; expected an ARRAY")
    nbytes = (header.row_count * dtype.count_row_bits() + 7) // 8
    if nbytes > limits.decoded_bytes:
        raise LimitError(
            f"the field row_count of the header is {header.row_count}; the rows of {dtype} have at "
            f"least {nbytes} bytes, and the limit is {limits.decoded_bytes}"
        )
    found = read_array_body(body, len(header.encodings), limits)
    nbytes += _check_nodes(header, found, dtype, limits)
    return CheckedArray(
        found,
        header.row_count,
        found.table.buffer_bytes,
        any(entry.is_compressed for entry in found.table.buffers),
        nbytes,
    )


def _check_nodes(header: MessageHeader, body: ArrayBody, dtype: DType, limits: VortexLimits) -> int:
    """Check all nodes; return the smallest size of the elements of lists in Arrow, in bytes."""
    bits = 0
    content = NodeContent(dtype, header.row_count)
    table = body.table
    for found in walk_contents(table.root, content, header.encodings, table.buffers):
        if found.is_elements and found.rows is not None and found.dtype is not None:
            bits += found.rows * found.dtype.count_row_bits()
        if bits > 8 * limits.decoded_bytes:
            raise LimitError(
                f"the lists of the array have at least {bits // 8} bytes of elements; the limit is "
                f"{limits.decoded_bytes}"
            )
    return bits // 8


def check_body_size(header: MessageHeader, body: Any) -> None:
    """Compare the size of a body with that in the header.

    Raises `InvalidDataError` if they differ.
    """
    size = body.nbytes if isinstance(body, LazyBytes) else memoryview(body).nbytes
    if size != header.body_size:
        raise InvalidDataError(
            f"the field body_size of the header is {header.body_size}; the body has {size} bytes"
        )
