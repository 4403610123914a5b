"""The description of an encoded array: the tree of its nodes, and its buffers.

The bytes may be malformed. Every node, buffer and reference is checked against the limits, and the
time is proportional to the nodes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError
from ..arrow.flatbuffer import (
    PARSE_ERRORS,
    Bytes,
    find_field,
    find_table,
    find_vector,
    follow,
    read_root,
)
from .limits import MAX_NODE_DEPTH, VortexLimits
from .message import MAX_ALIGNMENT_EXPONENT

BUFFER = struct.Struct("<HBBI")
"""The struct ``Buffer``: padding, alignment exponent, compression, length."""
_U16 = struct.Struct("<H")
_MIN_PADDING_BOUND = 64
_COMPRESSIONS = 2
# The slots of fields in the vtables of Array and ArrayNode.
_ROOT, _BUFFERS = 4, 6
_ENCODING, _METADATA, _CHILDREN, _NODE_BUFFERS = 4, 6, 8, 10


class BufferEntry(NamedTuple):
    """One buffer of an array."""

    offset: int
    """Its offset from the first byte of the buffers, in bytes."""
    length: int
    """Its size in the body, in bytes."""
    alignment_exponent: int
    """The alignment that its values need, as a power of two."""
    is_compressed: bool
    """Whether it is compressed with LZ4."""


class ArrayNode(NamedTuple):
    """One node of an array."""

    encoding: int
    """The position of its encoding in the header of the message."""
    metadata: bytes
    """The parameters of the encoding."""
    buffers: tuple[int, ...]
    """The numbers of its buffers."""
    children: tuple[ArrayNode, ...]
    """Its children."""


class ArrayTable(NamedTuple):
    """The table ``Array`` of a body."""

    root: ArrayNode
    """The root of the nodes."""
    buffers: list[BufferEntry]
    """The buffers, in the order of the body."""
    buffer_bytes: int
    """The size of all buffers and the padding before each, in bytes."""
    entries_offset: int
    """The offset of the first struct ``Buffer`` in the FlatBuffer, in bytes."""


def read_array_table(data: Bytes, encodings: int, limits: VortexLimits) -> ArrayTable:
    """Read and check the table ``Array``.

    Parameters
    ----------
    data : bytes-like
        Its FlatBuffer.
    encodings : int
        The number of encodings in the header of the message.
    limits : VortexLimits
        Bounds the numbers of nodes and buffers.

    Raises
    ------
    InvalidDataError
        If it is malformed. The error names the field, and the node or the buffer.
    LimitError
        If it exceeds a limit.
    """
    try:
        table = read_root(data)
        start, count = find_vector(data, table, _BUFFERS, BUFFER.size)
        if count > limits.buffers:
            raise LimitError(f"the array has {count} buffers; the limit is {limits.buffers}")
        entries, total = _read_buffers(data, start, count)
        root = find_table(data, table, _ROOT)
        if not root:
            raise InvalidDataError("the field root of the array is missing")
        node = _NodeReader(data, encodings, count, limits).read(root, 1, "root")
    except PARSE_ERRORS:
        raise InvalidDataError("the FlatBuffer of the array is malformed") from None
    return ArrayTable(node, entries, total, start)


def _read_buffers(data: Bytes, start: int, count: int) -> tuple[list[BufferEntry], int]:
    entries: list[BufferEntry] = []
    offset = 0
    # A copy: an unfinished iterator over a view, in the traceback of an error, crashes Python 3.11
    # when it is collected.
    fields = BUFFER.iter_unpack(bytes(data[start : start + count * BUFFER.size]))
    for number, (padding, exponent, compression, length) in enumerate(fields):
        if exponent > MAX_ALIGNMENT_EXPONENT:
            raise InvalidDataError(
                f"the field alignment_exponent of buffer {number} is {exponent}; expected at most "
                f"{MAX_ALIGNMENT_EXPONENT}"
            )
        if padding and padding >= max(1 << exponent, _MIN_PADDING_BOUND):
            raise InvalidDataError(
                f"the field padding of buffer {number} is {padding}; expected less than "
                f"{max(1 << exponent, _MIN_PADDING_BOUND)}, for an alignment to {1 << exponent}"
            )
        if compression >= _COMPRESSIONS:
            raise InvalidDataError(
                f"the field compression of buffer {number} is {compression}; expected 0 (none) or "
                "1 (LZ4)"
            )
        offset += padding
        entries.append(BufferEntry(offset, length, exponent, bool(compression)))
        offset += length
    return entries, offset


class _NodeReader:
    """Reads the nodes of one array, with budgets for nodes and metadata."""

    def __init__(self, data: Bytes, encodings: int, buffers: int, limits: VortexLimits) -> None:
        self._data = data
        self._encodings = encodings
        self._buffers = buffers
        self._limits = limits
        self._nodes = limits.nodes
        # References to the same bytes would otherwise multiply them.
        self._bytes = len(data)

    def read(self, table: int, depth: int, path: str) -> ArrayNode:
        data, limits = self._data, self._limits
        self._nodes -= 1
        if self._nodes < 0:
            raise LimitError(f"the array has more than {limits.nodes} nodes")
        if depth > MAX_NODE_DEPTH:
            raise LimitError(f"the array nests more than {MAX_NODE_DEPTH} nodes")
        position = find_field(data, table, _ENCODING)
        encoding = _U16.unpack_from(data, position)[0] if position else 0
        if encoding >= self._encodings:
            raise InvalidDataError(
                f"the field encoding of node {path} is {encoding}; the header of the message has "
                f"{self._encodings} encodings"
            )
        metadata = self._read_bytes(table, _METADATA, 1)
        numbers = self._read_bytes(table, _NODE_BUFFERS, _U16.size)
        buffers = tuple(number for (number,) in _U16.iter_unpack(numbers))
        if buffers and max(buffers) >= self._buffers:
            raise InvalidDataError(
                f"the field buffers of node {path} refers to buffer {max(buffers)}; the array has "
                f"{self._buffers} buffers"
            )
        start, count = find_vector(data, table, _CHILDREN, 4)
        if count > self._nodes:
            raise LimitError(f"the array has more than {limits.nodes} nodes")
        children = tuple(
            self.read(follow(data, start + 4 * index), depth + 1, f"{path}.{index}")
            for index in range(count)
        )
        return ArrayNode(encoding, metadata, buffers, children)

    def _read_bytes(self, table: int, slot: int, item_bytes: int) -> bytes:
        start, count = find_vector(self._data, table, slot, item_bytes)
        nbytes = count * item_bytes
        self._bytes -= nbytes
        if self._bytes < 0:
            raise IndexError
        return bytes(self._data[start : start + nbytes])
