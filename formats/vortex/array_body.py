"""The body of an array message: its buffers, and the table with the tree of its nodes.

Implementations write the buffers first, then the FlatBuffer of the table, then the length of the
FlatBuffer (u32). The text of the specification puts the FlatBuffer first. `read_array_body` accepts
that order, too, for bodies that are not valid in the usual one. The bytes may be malformed. Every
node, buffer and reference is checked against the limits, and the time is proportional to the nodes.

`decode_body` decompresses the buffers that are compressed with LZ4, under a bound (extra
``vortex``). vortex-data ignores the flag of such a buffer and returns wrong values. The
specification does not say which format of LZ4 a buffer has. A buffer that begins with the magic
number of the frame format is a frame, since no block begins with these bytes. Any other is one
block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError, MissingExtraError, install_hint
from ..flatbuffer import PARSE_ERRORS, Bytes, find_field, find_table, find_vector, follow, read_root
from .message import (
    BODY_ALIGNMENT,
    DEFAULT_LIMITS,
    MAX_ALIGNMENT_EXPONENT,
    MAX_NODE_DEPTH,
    Read,
    VortexLimits,
)


class LazyBytes:
    """A part of a file that is read when it is sliced. Its offset and size are in bytes.

    Examples
    --------
    >>> part = LazyBytes(lambda offset, nbytes: b"abcdef"[offset : offset + nbytes], 2, 3)
    >>> part[1:], part.nbytes
    (b'de', 3)
    """

    __slots__ = ("_offset", "_read", "nbytes")

    def __init__(self, read: Read, offset: int, nbytes: int) -> None:
        self._read = read
        self._offset = offset
        self.nbytes = nbytes

    def __getitem__(self, span: slice) -> bytes:
        begin, end, _ = span.indices(self.nbytes)
        return self._read(self._offset + begin, end - begin) if end > begin else b""


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
    """Read and check the table ``Array``."""
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


_LENGTH = struct.Struct("<I")
_TABLE_ALIGNMENT = 8
_HEAD_BYTES = 1 << 20


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

    Only the table is read of a body in a file, and up to 1 MiB more if the table comes first. The
    error for a body that is malformed in both orders is that of the usual order.
    """
    data = body if isinstance(body, LazyBytes) else memoryview(body).cast("B")
    try:
        return _read_table_last(data, encodings, limits)
    except (InvalidDataError, LimitError) as error:
        try:
            return _read_table_first(data, encodings, limits)
        except (InvalidDataError, LimitError):
            raise error from None


def _read_table_last(
    data: memoryview | LazyBytes, encodings: int, limits: VortexLimits
) -> ArrayBody:
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


def _read_table_first(
    data: memoryview | LazyBytes, encodings: int, limits: VortexLimits
) -> ArrayBody:
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
    """Return the pieces of a body with these uncompressed buffers, which are not copied.

    The table, whose structs ``Buffer`` are replaced, comes last. `alignment` is the smallest
    alignment of a buffer in the body, in bytes.
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


_MAGIC = b"\x04\x22\x4d\x18"
_MAX_RATIO = 255
"""The largest ratio at which LZ4 compresses: each further byte extends a match by 255 bytes."""
_SMALLEST_BOUND = 64
_U32_MAX = 0xFFFFFFFF


def decode_body(body: ArrayBody, max_decoded_bytes: int) -> list[Any]:
    """Return the pieces of a body that vortex-data decodes: no LZ4, and the table last.

    Buffers that are not compressed are not copied. Raises `LimitError` if all buffers together have
    more than `max_decoded_bytes`, `InvalidDataError` if a buffer is not valid LZ4, and
    `MissingExtraError` if one is compressed and lz4 is not installed.
    """
    entries = body.table.buffers
    if not body.has_table_first and not any(entry.is_compressed for entry in entries):
        return [body.data]
    left = max_decoded_bytes
    buffers: list[Any] = []
    for number, entry in enumerate(entries):
        data: Any = body.find_buffer(number)
        if entry.is_compressed:
            data = _decompress(data, left, number)
        left -= len(data)
        if left < 0:
            raise LimitError(
                f"the buffers of the array have more than {max_decoded_bytes} bytes after "
                "decompression, which is the limit"
            )
        buffers.append(data)
    exponents = [entry.alignment_exponent for entry in entries]
    return build_array_body(body.table_data, body.table.entries_offset, exponents, buffers)


def _decompress(data: Bytes, max_bytes: int, number: int) -> bytes:
    """Return a decompressed buffer of at most `max_bytes`, or of one byte more."""
    try:
        frames: Any = import_module("lz4.frame")
        blocks: Any = import_module("lz4.block")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"buffer {number} is compressed with LZ4, which needs the package lz4; "
            f"run {install_hint('vortex')}"
        ) from None
    try:
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            bound = min(max_bytes, _U32_MAX, max(_SMALLEST_BOUND, len(data) * _MAX_RATIO))
            return blocks.decompress(data, uncompressed_size=bound)
        decompressor = frames.LZ4FrameDecompressor()
        found: bytes = decompressor.decompress(data, max_length=max_bytes + 1)
    except (RuntimeError, ValueError, MemoryError, blocks.LZ4BlockError) as error:
        raise InvalidDataError(
            f"buffer {number} cannot be decompressed with LZ4 to at most {max_bytes} bytes: {error}"
        ) from None
    if len(found) <= max_bytes and not decompressor.eof:
        raise InvalidDataError(f"buffer {number} is truncated LZ4")
    if decompressor.unused_data:
        raise InvalidDataError(
            f"buffer {number} has {len(decompressor.unused_data)} bytes after its LZ4 frame"
        )
    return found
