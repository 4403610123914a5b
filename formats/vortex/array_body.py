"""The body of an array message: its buffers, and the table that describes them.

Implementations write the buffers first, then the FlatBuffer of the table, then the length of the
FlatBuffer (u32). The text of the specification puts the FlatBuffer first. `read_array_body` accepts
that order, too, for bodies that are not valid in the usual one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError
from ..arrow.flatbuffer import Bytes
from .array_table import BUFFER, ArrayTable, read_array_table
from .lazy_bytes import LazyBytes
from .limits import DEFAULT_LIMITS, VortexLimits
from .message import BODY_ALIGNMENT

_LENGTH = struct.Struct("<I")
_TABLE_ALIGNMENT = 8
_HEAD_BYTES = 1 << 20

_Data = memoryview | LazyBytes


class ArrayBody(NamedTuple):
    """A checked body of an array message."""

    data: memoryview | LazyBytes
    """The body, as bytes."""
    table: ArrayTable
    """Its nodes and buffers."""
    table_data: Bytes
    """The FlatBuffer of the table."""
    buffers_offset: int
    """The offset of the first buffer, with the padding before it, in the body in bytes."""

    @property
    def has_table_first(self) -> bool:
        """Whether the body has the order in the text of the specification."""
        return self.buffers_offset > 0

    def find_buffer(self, number: int) -> Bytes:
        """Return the bytes of a buffer, without a copy if the body is in memory."""
        entry = self.table.buffers[number]
        begin = self.buffers_offset + entry.offset
        return self.data[begin : begin + entry.length]


def read_array_body(body: Any, encodings: int, limits: VortexLimits = DEFAULT_LIMITS) -> ArrayBody:
    """Read and check the body of an array message.

    Parameters
    ----------
    body : bytes-like or LazyBytes
        The body, in one piece. Of a body that is not in memory, only the table is read, and of one
        with its table first, up to 1 MiB more.
    encodings : int
        The number of encodings in the header of the message.
    limits : VortexLimits
        Bounds what the body declares.

    Raises
    ------
    InvalidDataError
        If the body is malformed in both orders. The error is that of the order that implementations
        write.
    LimitError
        If the body exceeds a limit.
    """
    data = body if isinstance(body, LazyBytes) else memoryview(body).cast("B")
    try:
        return _read_table_last(data, encodings, limits)
    except (InvalidDataError, LimitError):
        other = _find_table_first(data, encodings, limits)
        if other is None:
            raise
        return other


def _find_table_first(data: _Data, encodings: int, limits: VortexLimits) -> ArrayBody | None:
    try:
        return _read_table_first(data, encodings, limits)
    except (InvalidDataError, LimitError):
        return None


def _read_table_last(data: _Data, encodings: int, limits: VortexLimits) -> ArrayBody:
    size = data.nbytes
    if size < _LENGTH.size:
        raise InvalidDataError(
            f"the body of the array has {size} bytes; expected the length of its FlatBuffer at "
            "its end"
        )
    (length,) = _LENGTH.unpack(data[size - _LENGTH.size :])
    begin = size - _LENGTH.size - length
    if begin < 0:
        raise InvalidDataError(
            f"the length of the FlatBuffer at the end of the body is {length}; the body has {size} "
            "bytes"
        )
    if length > limits.metadata_bytes:
        raise LimitError(
            f"the FlatBuffer of the array has {length} bytes; the limit is {limits.metadata_bytes}"
        )
    table_data = data[begin : begin + length]
    table = read_array_table(table_data, encodings, limits)
    rest = begin - table.buffer_bytes
    if not 0 <= rest < BODY_ALIGNMENT:
        raise InvalidDataError(
            f"the buffers of the array have {table.buffer_bytes} bytes with their padding; the "
            f"body has {begin} bytes for them"
        )
    return ArrayBody(data, table, table_data, 0)


def _read_table_first(data: _Data, encodings: int, limits: VortexLimits) -> ArrayBody:
    most = limits.metadata_bytes
    head = data[: min(most, _HEAD_BYTES) if isinstance(data, LazyBytes) else most]
    table = read_array_table(head, encodings, limits)
    begin = data.nbytes - table.buffer_bytes
    if begin <= 0:
        raise InvalidDataError("the buffers of the array are larger than its body")
    table_data = data[:begin]
    # The table must be valid without the buffers after it.
    return ArrayBody(data, read_array_table(table_data, encodings, limits), table_data, begin)


def build_array_body(
    table_data: Bytes,
    entries_offset: int,
    exponents: Sequence[int],
    buffers: Sequence[Any],
    alignment: int = 1,
) -> list[Any]:
    """Return the pieces of a body with these buffers, uncompressed, and with the table last.

    Parameters
    ----------
    table_data : bytes-like
        The FlatBuffer of the table, as checked. Its structs ``Buffer`` are replaced.
    entries_offset : int
        The offset of the first of them; see `ArrayTable`.
    exponents : sequence of int
        The alignment of each buffer, as a power of two.
    buffers : sequence of bytes-like
        The buffers. They are not copied.
    alignment : int
        The smallest alignment of a buffer that is not empty, from the first byte of the body. Each
        buffer has at least its own.
    """
    table = bytearray(table_data)
    pieces: list[Any] = []
    offset = 0
    for number, (exponent, buffer) in enumerate(zip(exponents, buffers, strict=True)):
        nbytes = memoryview(buffer).nbytes
        padding = -offset % max(1 << exponent, alignment) if nbytes else 0
        BUFFER.pack_into(table, entries_offset + number * BUFFER.size, padding, exponent, 0, nbytes)
        if padding:
            pieces.append(bytes(padding))
        if nbytes:
            pieces.append(buffer)
        offset += padding + nbytes
    pieces.append(bytes(-offset % _TABLE_ALIGNMENT) + bytes(table) + _LENGTH.pack(len(table)))
    return pieces
