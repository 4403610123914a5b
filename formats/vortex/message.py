"""Vortex IPC messages: headers, encapsulation, limits, streams in files, and the mark on the wire.

::

    u32 length of the header | header (FlatBuffer "Message") and zeros | body

All numbers are little-endian. The length includes the zeros. The header states the size of the
body. A stream begins with a dtype, and arrays or buffers follow. It has no end marker.

On the wire, the first message of a stream is an Arrow schema message, as in any other stream. The
custom metadata of the *message* has the pair ``splitarrow:format`` = ``vortex``, so that a reader
knows the format before an array arrives. With the pair ``splitarrow:storage`` = ``none``, the
arrays have the types of the schema, instead of their storage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import flatbuffers

from ...errors import InvalidDataError, LimitError, ProtocolError
from ...fbs import vortex_generated as fbs
from ..arrow.custom_metadata import add_message_metadata, set_message_metadata
from ..arrow.message import read_custom_metadata
from ..flatbuffer import (
    PARSE_ERRORS,
    Bytes,
    find_field,
    find_table,
    find_vector,
    follow,
    read_byte,
    read_int32,
    read_root,
    write_references,
)
from ..summary import MessageSummary


@dataclass(frozen=True, slots=True)
class VortexLimits:
    """Bounds on what a writer declares. They are checked before memory is allocated."""

    metadata_bytes: int = 16 << 20
    """The largest header of a message, dtype, or description of an array, in bytes."""
    body_bytes: int = 8 << 30
    """The largest body, in bytes."""
    decoded_bytes: int = 2 << 30
    """The largest array once decoded, as far as its messages declare it, in bytes."""
    buffers: int = 1 << 16
    """The largest number of buffers of an array."""
    nodes: int = 1 << 16
    """The largest number of nodes of an array, and of types in a dtype. A node to which several
    others refer counts each time."""
    nesting: int = 64
    """The deepest nesting of types in a dtype. A plain column has depth 1."""


DEFAULT_LIMITS = VortexLimits()

MAX_NODE_DEPTH = 128
"""The deepest nesting of the nodes of an array. One level of a type takes several nodes."""


Read = Callable[[int, int], bytes]
"""Returns bytes of a file: ``read(offset, nbytes)``."""

PREFIX = struct.Struct("<I")
"""The length of the header."""
BODY_ALIGNMENT = 64
"""The alignment of bodies in a file that `encode_message` writes, in bytes."""
MAX_ALIGNMENT_EXPONENT = 15
"""The largest alignment of a buffer is 32 KiB."""

_U64 = struct.Struct("<Q")
_U32_MAX = 0xFFFFFFFF
_HEADER_ALIGNMENT = 8
# The slots of fields in the vtables of the header.
_VERSION, _HEADER_TYPE, _HEADER, _BODY_SIZE = 4, 6, 8, 10
_ROW_COUNT, _ENCODINGS = 4, 6
_ALIGNMENT_EXPONENT = 4
_MAX_ENCODINGS = 1 << 16
_SMALLEST_HEADER = 8


class MessageKind(IntEnum):
    """The content of the body of a message."""

    ARRAY = fbs.MessageHeader.ArrayMessage
    """One encoded array."""
    BUFFER = fbs.MessageHeader.BufferMessage
    """One buffer of bytes."""
    DTYPE = fbs.MessageHeader.DTypeMessage
    """The type of the arrays that follow."""


class MessageHeader(NamedTuple):
    """The fields of the header of a message."""

    kind: MessageKind
    """The content of the body."""
    body_size: int
    """The size of the body in bytes."""
    row_count: int = 0
    """The number of rows of an array."""
    encodings: tuple[str, ...] = ()
    """The identifiers of the encodings of an array. Its nodes refer to them by position."""
    alignment_exponent: int = 0
    """The alignment that a buffer needs, as a power of two."""


class Message(NamedTuple):
    """A message: its header and its body."""

    metadata: bytes
    """The FlatBuffer of the header."""
    header: MessageHeader
    """The fields of the header."""
    body: Sequence[Any]
    """The pieces of the body, in order: ``bytes`` and other objects with the buffer protocol."""

    def join_body(self) -> bytes:
        """Return a copy of the body in one piece."""
        return b"".join(self.body)


def read_header(metadata: Bytes, limits: VortexLimits = DEFAULT_LIMITS) -> MessageHeader:
    """Read and check the header of a message, which zeros may follow.

    Raises `ProtocolError`, which names the field, or `LimitError` if the header or the declared
    body is too large.
    """
    if len(metadata) > limits.metadata_bytes:
        raise LimitError(
            f"the header has {len(metadata)} bytes; the limit is {limits.metadata_bytes}"
        )
    try:
        return _read_header(metadata, limits)
    except PARSE_ERRORS:
        raise ProtocolError(
            "the header is malformed: it is not the FlatBuffer of a Vortex message"
        ) from None


def _read_header(data: Bytes, limits: VortexLimits) -> MessageHeader:
    table = read_root(data)
    version, number = read_byte(data, table, _VERSION), read_byte(data, table, _HEADER_TYPE)
    if version != fbs.MessageVersion.V0:
        raise ProtocolError(f"the field version of the header is {version}; expected 0")
    try:
        kind = MessageKind(number)
    except ValueError:
        raise ProtocolError(
            f"the field header_type of the header is {number}; expected 1 (ArrayMessage), "
            "2 (BufferMessage) or 3 (DTypeMessage)"
        ) from None
    header = find_table(data, table, _HEADER)
    if not header:
        raise ProtocolError("the field header of the header is missing")
    position = find_field(data, table, _BODY_SIZE)
    body_size = _U64.unpack_from(data, position)[0] if position else 0
    if body_size > limits.body_bytes:
        raise LimitError(
            f"the field body_size of the header is {body_size}; the limit is {limits.body_bytes}"
        )
    if kind is MessageKind.ARRAY:
        rows = read_int32(data, header, _ROW_COUNT) & _U32_MAX
        return MessageHeader(kind, body_size, rows, _read_encodings(data, header))
    exponent = 0
    if kind is MessageKind.BUFFER:
        exponent = read_byte(data, header, _ALIGNMENT_EXPONENT)
        if exponent > MAX_ALIGNMENT_EXPONENT:
            raise ProtocolError(
                f"the field alignment_exponent of the header is {exponent}; expected at most "
                f"{MAX_ALIGNMENT_EXPONENT}"
            )
    else:
        find_field(data, header, 4)
        if body_size > limits.metadata_bytes:
            raise LimitError(
                f"the field body_size of the header is {body_size}, that of a dtype; the limit is "
                f"{limits.metadata_bytes}"
            )
    return MessageHeader(kind, body_size, alignment_exponent=exponent)


def _read_encodings(data: Bytes, header: int) -> tuple[str, ...]:
    start, count = find_vector(data, header, _ENCODINGS, 4)
    if count > _MAX_ENCODINGS:
        raise ProtocolError(
            f"the field encodings of the header has {count} entries; expected at most "
            f"{_MAX_ENCODINGS}"
        )
    found: list[str] = []
    nbytes = 0
    for index in range(count):
        text = follow(data, start + 4 * index)
        length = PREFIX.unpack_from(data, text)[0]
        nbytes += length
        # References to one long text would otherwise multiply it.
        if text + 4 + length > len(data) or nbytes > len(data):
            raise IndexError
        try:
            found.append(bytes(data[text + 4 : text + 4 + length]).decode())
        except UnicodeDecodeError:
            raise ProtocolError(
                f"entry {index} of the field encodings of the header is not valid UTF-8"
            ) from None
    return tuple(found)


def build_header(header: MessageHeader) -> bytes:
    """Return the FlatBuffer of a header. Its size is a multiple of 8 bytes."""
    builder: Any = flatbuffers.Builder(256)
    if header.kind is MessageKind.ARRAY:
        texts = [builder.CreateString(encoding) for encoding in header.encodings]
        encodings = write_references(builder, texts)
        fbs.ArrayMessageStart(builder)
        fbs.ArrayMessageAddRowCount(builder, header.row_count)
        fbs.ArrayMessageAddEncodings(builder, encodings)
        table = fbs.ArrayMessageEnd(builder)
    elif header.kind is MessageKind.BUFFER:
        fbs.BufferMessageStart(builder)
        fbs.BufferMessageAddAlignmentExponent(builder, header.alignment_exponent)
        table = fbs.BufferMessageEnd(builder)
    else:
        fbs.DTypeMessageStart(builder)
        table = fbs.DTypeMessageEnd(builder)
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, fbs.MessageVersion.V0)
    fbs.MessageAddHeaderType(builder, header.kind)
    fbs.MessageAddHeader(builder, table)
    fbs.MessageAddBodySize(builder, header.body_size)
    builder.Finish(fbs.MessageEnd(builder))
    data = bytes(builder.Output())
    return data + bytes(-len(data) % _HEADER_ALIGNMENT)


def build_message(
    kind: MessageKind,
    body: Sequence[Any],
    *,
    row_count: int = 0,
    encodings: Sequence[str] = (),
    alignment_exponent: int = 0,
) -> Message:
    """Return a message with this body, whose pieces are not copied.

    Examples
    --------
    >>> message = build_message(MessageKind.BUFFER, [b"abc", b"de"], alignment_exponent=3)
    >>> message.header.body_size
    5
    >>> read_header(message.metadata) == message.header
    True
    """
    size = sum(memoryview(piece).nbytes for piece in body)
    header = MessageHeader(kind, size, row_count, tuple(encodings), alignment_exponent)
    return Message(build_header(header), header, body)


def read_parts(parts: Sequence[Any], limits: VortexLimits = DEFAULT_LIMITS) -> Message:
    """Return the message that an encoder has written in parts."""
    if len(parts) < 2 or len(parts[0]) != PREFIX.size:
        raise ProtocolError(f"an encoded message has {len(parts)} parts; expected a length first")
    metadata = bytes(parts[1])
    header = read_header(metadata, limits)
    body = tuple(part for part in parts[2:] if memoryview(part).nbytes)
    size = sum(memoryview(piece).nbytes for piece in body)
    if PREFIX.unpack(parts[0])[0] != len(metadata) or size != header.body_size:
        raise ProtocolError(
            f"an encoded message has a header of {len(metadata)} bytes and a body of {size}; it "
            f"declares {PREFIX.unpack(parts[0])[0]} and {header.body_size}"
        )
    return Message(metadata, header, body)


def encode_message(message: Message, position: int | None = None) -> list[Any]:
    """Return the pieces of a message for a stream or file. Bodies are not copied.

    If `position`, the offset of the message in a file, is given, zeros after the header let the
    body begin at a multiple of 64 bytes, so that a reader can map its buffers. Otherwise the header
    is padded to a multiple of 8 bytes, as by other writers.
    """
    metadata = message.metadata
    if position is None:
        padding = -len(metadata) % _HEADER_ALIGNMENT
    else:
        padding = -(position + PREFIX.size + len(metadata)) % BODY_ALIGNMENT
    head = b"".join((PREFIX.pack(len(metadata) + padding), metadata, bytes(padding)))
    return [head, *message.body]


def summarize_header(metadata: bytes) -> MessageSummary:
    """Return the summary of a message on the wire, where an Arrow schema comes first."""
    header = read_header(metadata)
    return MessageSummary(header.kind.name, False, True, header.body_size)


class FramedHeader(NamedTuple):
    """The place of a message in a stream, and its header."""

    offset: int
    """The offset of its length in bytes."""
    metadata: bytes
    """The FlatBuffer of its header, with the zeros after it."""
    header: MessageHeader
    """The fields of its header."""

    @property
    def body_offset(self) -> int:
        """The offset of its body in bytes."""
        return self.offset + PREFIX.size + len(self.metadata)

    @property
    def end(self) -> int:
        """The offset after its body in bytes."""
        return self.body_offset + self.header.body_size


class HeaderReader:
    """Reads the headers of a stream in a file of `end` bytes, and skips the bodies."""

    def __init__(self, read: Read, end: int, limits: VortexLimits = DEFAULT_LIMITS) -> None:
        self._read = read
        self._end = end
        self._limits = limits
        self.offset = 0
        """The offset of the next message in bytes."""

    def next_header(self) -> FramedHeader | None:
        """Return the header of the next message and move behind its body; None at the end.

        Raises `ProtocolError`, which names the offset and the field, if the header is malformed, of
        an unknown version or type, or out of order. `InvalidDataError` means that the file ends
        inside of the message.
        """
        offset, end = self.offset, self._end
        if offset == end:
            return None
        begin = offset + PREFIX.size
        if begin > end:
            raise self._truncation_error(f"its length ends at byte {begin}")
        (length,) = PREFIX.unpack(self._read(offset, PREFIX.size))
        if length < _SMALLEST_HEADER:
            raise ProtocolError(
                f"the message at byte {offset} declares a header of {length} bytes; expected at "
                f"least {_SMALLEST_HEADER}"
            )
        if length > self._limits.metadata_bytes:
            raise LimitError(
                f"the message at byte {offset} declares a header of {length} bytes; the limit is "
                f"{self._limits.metadata_bytes}"
            )
        if begin + length > end:
            raise self._truncation_error(f"its header ends at byte {begin + length}")
        metadata = bytes(self._read(begin, length))
        try:
            header = read_header(metadata, self._limits)
        except ProtocolError as error:
            raise type(error)(f"the message at byte {offset}: {error.message}") from None
        is_dtype = header.kind is MessageKind.DTYPE
        if is_dtype != (offset == 0):
            problem = "is a second DTYPE" if is_dtype else f"is of the type {header.kind.name}"
            expected = "an ARRAY or a BUFFER" if is_dtype else "a DTYPE first"
            raise ProtocolError(f"the message at byte {offset} {problem}; expected {expected}")
        found = FramedHeader(offset, metadata, header)
        if found.end > end:
            raise self._truncation_error(f"its body ends at byte {found.end}")
        self.offset = found.end
        return found

    def _truncation_error(self, reason: str) -> InvalidDataError:
        return InvalidDataError(
            f"the stream is truncated: a message begins at byte {self.offset} and {reason}, but "
            f"the stream has {self._end} bytes"
        )


_KEY, _VORTEX = b"splitarrow:format", b"vortex"
_STORAGE_KEY, _NO_STORAGE = b"splitarrow:storage", b"none"


def mark_schema(metadata: bytes, *, has_storage: bool = True) -> bytes:
    """Return the schema message of a stream of Vortex arrays."""
    pairs = {_KEY: _VORTEX} if has_storage else {_KEY: _VORTEX, _STORAGE_KEY: _NO_STORAGE}
    return add_message_metadata(metadata, pairs)


def unmark_schema(metadata: bytes) -> bytes:
    """Return the schema message of a stream of record batches in Arrow; see `mark_schema`."""
    pairs = read_custom_metadata(metadata)
    if pairs.pop(_KEY, None) is None:
        return metadata
    pairs.pop(_STORAGE_KEY, None)
    return set_message_metadata(metadata, pairs)


def is_marked(metadata: bytes | memoryview) -> bool:
    """Return whether the stream of a schema message has Vortex arrays."""
    return read_custom_metadata(metadata).get(_KEY) == _VORTEX


def has_storage(metadata: bytes | memoryview) -> bool:
    """Return whether the arrays of a marked schema message have the storage of the schema."""
    return read_custom_metadata(metadata).get(_STORAGE_KEY) != _NO_STORAGE
