"""Reading Arrow IPC files ("IPC File Format"): the footer, and the messages in order.

::

    ARROW1 | 2 bytes | messages … | footer | i32 footer size | ARROW1

The footer lists a block for each dictionary batch and record batch. A server needs the blocks to
send the messages unchanged, and pyarrow does not expose them.

`MessageReader` reads one message after the other and leaves the bodies unread. Both framings may
occur ("Encapsulated message format"). The module performs no I/O: the caller passes a function that
reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from ...errors import InvalidDataError, LimitError, ProtocolError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import (
    PARSE_ERRORS,
    READER_ERRORS,
    find_field,
    find_table,
    find_vector,
    read_int16,
    read_root,
)
from .message import (
    CONTINUATION,
    MAX_PADDING,
    HeaderType,
    check_padding,
    parse_prefix,
    read_message_info,
)
from .schema import check_features

MAGIC = b"ARROW1"
HEAD_BYTES = 8
"""The size of the magic and its padding, before the first message."""
TAIL_BYTES = 10
"""The size of the fields after the footer: its size and the magic."""

BLOCK = struct.Struct("<qi4xq")
"""A block in the footer."""

_SIZE = struct.Struct("<i")
_VERSION, _SCHEMA, _DICTIONARIES, _RECORD_BATCHES = 4, 6, 8, 10
"""The slots of fields in the vtable of Footer."""
_ENDIANNESS, _FEATURES = 4, 10
"""The slots of fields in the vtable of Schema."""


class Block(NamedTuple):
    """The position of a message in a file."""

    offset: int
    """The offset of the message, including its prefix, in bytes."""
    metadata_length: int
    """The size of its prefix and its padded metadata in bytes."""
    body_length: int
    """The size of its body in bytes."""


class Blocks:
    """A sequence of blocks in the format of the footer. A file may have millions.

    Examples
    --------
    >>> blocks = Blocks(BLOCK.pack(8, 256, 1024))
    >>> len(blocks), blocks[0]
    (1, Block(offset=8, metadata_length=256, body_length=1024))
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        self.packed = packed
        """The bytes of the blocks, 24 for each."""

    def __len__(self) -> int:
        return len(self.packed) // BLOCK.size

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        return Block(*BLOCK.unpack_from(self.packed, index * BLOCK.size))

    def __iter__(self) -> Iterator[Block]:
        return map(Block._make, BLOCK.iter_unpack(self.packed))

    def __add__(self, other: Blocks) -> Blocks:
        return Blocks(self.packed + other.packed)

    def select(self, begin: int, end: int) -> Blocks:
        """Return the blocks from `begin` to `end`."""
        return Blocks(self.packed[begin * BLOCK.size : end * BLOCK.size])

    def iter_tuples(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Iterate over the blocks from `begin` to `end` as plain tuples, which is faster."""
        packed = memoryview(self.packed)[begin * BLOCK.size : end * BLOCK.size]
        return BLOCK.iter_unpack(packed)  # pyright: ignore[reportReturnType]


class Footer(NamedTuple):
    """The footer of a file. All its blocks are within the file, before the footer."""

    version: int
    """The number of the metadata version: 3 is V4, 4 is V5."""
    is_big_endian: bool
    """Whether the schema declares big-endian data."""
    dictionaries: Blocks
    """The dictionary batches in the order in which a reader must decode them."""
    record_batches: Blocks
    """The record batches, in order."""


class FooterSpan(NamedTuple):
    """The position of the footer in a file."""

    offset: int
    """The offset of the footer in bytes."""
    length: int
    """The size of the footer in bytes."""


def find_footer(tail: bytes, file_size: int) -> FooterSpan:
    """Return the position of the footer of a file, of which `tail` has the last bytes."""
    if file_size < HEAD_BYTES + TAIL_BYTES or len(tail) < TAIL_BYTES:
        raise InvalidDataError(f"the file has only {file_size} bytes; an Arrow IPC file has more")
    tail = tail[-TAIL_BYTES:]
    if tail[-len(MAGIC) :] != MAGIC:
        raise InvalidDataError(
            f"the Arrow IPC file is truncated: it has {tail[-len(MAGIC) :]!r} at byte "
            f"{file_size - len(MAGIC)}; expected {MAGIC!r}"
        )
    length = _SIZE.unpack_from(tail)[0]
    end = file_size - TAIL_BYTES
    if not 0 < length <= end - HEAD_BYTES:
        raise InvalidDataError(
            f"the Arrow IPC file declares a footer of {length} bytes at byte {end}, "
            f"but the file has {file_size} bytes"
        )
    return FooterSpan(end - length, length)


def wrap_footer(footer: bytes) -> bytes:
    """Return a file that has a footer and no messages."""
    return MAGIC.ljust(HEAD_BYTES, b"\0") + footer + _SIZE.pack(len(footer)) + MAGIC


def read_footer(footer: bytes, offset: int) -> Footer:
    """Read and check the footer at an offset of a file.

    Raises `InvalidDataError` if it is malformed, or a block is misaligned, empty, or not between
    the head and the footer.
    """
    try:
        root = read_root(footer)
        schema = find_table(footer, root, _SCHEMA)
        if not schema:
            raise InvalidDataError("the footer of the Arrow IPC file has no schema")
        version = read_int16(footer, root, _VERSION)
        endianness = read_int16(footer, schema, _ENDIANNESS)
        if find_field(footer, schema, _FEATURES):
            check_features(cast("fbs.Schema", fbs.Footer.GetRootAs(footer, 0).Schema()))
        dictionaries = _read_blocks(footer, root, _DICTIONARIES)
        record_batches = _read_blocks(footer, root, _RECORD_BATCHES)
    except READER_ERRORS:
        raise InvalidDataError(
            f"the footer of the Arrow IPC file, {len(footer)} bytes at byte {offset}, is malformed"
        ) from None
    if not 0 <= version <= fbs.MetadataVersion.V5:
        raise InvalidDataError(f"the Arrow IPC file has the unknown metadata version {version}")
    if endianness not in (fbs.Endianness.Little, fbs.Endianness.Big):
        raise InvalidDataError(f"the Arrow IPC file declares the byte order {endianness}")
    _check_blocks(dictionaries, offset, "dictionary batch")
    _check_blocks(record_batches, offset, "record batch")
    return Footer(version, endianness == fbs.Endianness.Big, dictionaries, record_batches)


def blank_blocks(footer: bytes) -> bytes:
    """Return a footer with zeros for its blocks, as files with one schema have in common.

    A malformed footer is returned unchanged.
    """
    blank = bytearray(footer)
    try:
        root = read_root(footer)
        for slot in (_DICTIONARIES, _RECORD_BATCHES):
            begin, count = find_vector(footer, root, slot, BLOCK.size)
            if begin:
                blank[begin : begin + count * BLOCK.size] = bytes(count * BLOCK.size)
    except PARSE_ERRORS:
        return footer
    return bytes(blank)


def read_footer_pairs(footer: bytes) -> list[tuple[bytes | None, bytes | None]]:
    """Return the custom metadata of a footer as pairs of keys and values."""
    try:
        root = fbs.Footer.GetRootAs(footer, 0)
        found = map(root.CustomMetadata, range(min(root.CustomMetadataLength(), len(footer))))
        return [(pair.Key(), pair.Value()) for pair in found if pair is not None]
    except READER_ERRORS:
        raise InvalidDataError("the custom metadata of the footer is malformed") from None


def _read_blocks(footer: bytes, root: int, slot: int) -> Blocks:
    begin, count = find_vector(footer, root, slot, BLOCK.size)
    return Blocks(footer[begin : begin + count * BLOCK.size]) if begin else Blocks()


def _check_blocks(blocks: Blocks, end: int, name: str) -> None:
    for index, (offset, metadata, body) in enumerate(BLOCK.iter_unpack(blocks.packed)):
        if (
            offset < HEAD_BYTES
            or metadata <= 0
            or body < 0
            or (offset | metadata | body) & 7
            or offset + metadata + body > end
        ):
            raise InvalidDataError(
                f"the footer of the Arrow IPC file places {name} {index} at byte {offset}, with "
                f"{metadata} bytes of metadata and a body of {body} bytes; expected multiples of 8 "
                f"between bytes {HEAD_BYTES} and {end}"
            )


Read = Callable[[int, int], bytes]
"""Returns bytes of a file: ``read(offset, nbytes)``."""

_WINDOW, _SMALL_WINDOW = 64 << 10, 4 << 10


class FramedMessage(NamedTuple):
    """The position of a message in a file, and its metadata."""

    offset: int
    """The offset of its prefix in bytes."""
    prefix_bytes: int
    """The size of its prefix: 8 bytes, or 4 in the format before Arrow 0.15."""
    metadata: bytes
    """Its padded FlatBuffer."""
    header_type: HeaderType
    """Its type."""
    body_length: int
    """The size of its body in bytes."""

    @property
    def metadata_length(self) -> int:
        """The size of its prefix and its metadata in bytes."""
        return self.prefix_bytes + len(self.metadata)

    @property
    def body_offset(self) -> int:
        """The offset of its body in bytes."""
        return self.offset + self.metadata_length

    @property
    def end(self) -> int:
        """The offset after its body in bytes."""
        return self.body_offset + self.body_length


class MessageReader:
    """Reads the metadata of messages in order, and skips their bodies.

    The messages begin at `offset` and end before `end`, usually the size of the file.
    """

    def __init__(
        self, read: Read, end: int, offset: int = 0, *, max_metadata_bytes: int = 1 << 30
    ) -> None:
        self._read_file = read
        self._end = end
        self.offset = offset
        """The offset of the next message; after the last one, that after the end marker."""
        self.cut_message: FramedMessage | None = None
        """The message whose metadata is complete and whose body is truncated, after that error."""
        self._max_metadata_bytes = max_metadata_bytes
        self._window = b""
        self._window_offset = 0
        self._last_message_bytes = 0

    def next_message(self) -> FramedMessage | None:
        """Return the next message and move behind it; None at the end. An end marker is optional.

        After an error, `offset` is that of the message.
        """
        offset, end = self.offset, self._end
        self.cut_message = None
        if offset == end:
            return None
        if end - offset < 4:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix_bytes = self._read(offset, min(8, end - offset))
        if prefix_bytes.startswith(CONTINUATION) and len(prefix_bytes) < 8:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix = parse_prefix(prefix_bytes)
        begin = offset + prefix.nbytes
        if prefix.metadata_length == 0:
            self.offset = begin
            return None
        if begin + prefix.metadata_length > end:
            raise self._truncation_error(
                f"its metadata ends at byte {begin + prefix.metadata_length}"
            )
        if prefix.metadata_length > self._max_metadata_bytes:
            raise LimitError(
                f"the message at byte {offset} has {prefix.metadata_length} bytes of metadata; the "
                f"limit is {self._max_metadata_bytes}"
            )
        metadata = self._read(begin, prefix.metadata_length)
        try:
            header_type, body_length = read_message_info(metadata)
        except ProtocolError as error:
            raise InvalidDataError(
                f"the message at byte {offset} is malformed: {error.message}"
            ) from None
        message = FramedMessage(offset, prefix.nbytes, metadata, header_type, body_length)
        if message.end > end:
            self.cut_message = message
            raise self._truncation_error(f"its body ends at byte {message.end}")
        self._last_message_bytes = message.end - offset
        self.offset = message.end
        return message

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file. One read serves several small messages."""
        begin = offset - self._window_offset
        if begin < 0 or begin + nbytes > len(self._window):
            has_small_messages = self._last_message_bytes < _WINDOW // 2
            window = _WINDOW if has_small_messages else _SMALL_WINDOW
            count = min(max(nbytes, window), self._end - offset)
            self._window = self._read_file(offset, count)
            self._window_offset, begin = offset, 0
        return self._window[begin : begin + nbytes]

    def _truncation_error(self, reason: str) -> InvalidDataError:
        return InvalidDataError(
            f"the stream is truncated: a message begins at byte {self.offset} and {reason}, "
            f"but the file has {self._end} bytes"
        )


def check_trailing_bytes(read: Read, end: int, size: int) -> None:
    """Refuse data after the end marker of a stream, which would otherwise be lost silently.

    The marker ends at `end`. Padding may follow it, up to the size of the file.
    Raises `InvalidDataError`; see `check_padding`.
    """
    rest = size - end
    check_padding(read(end, min(rest, MAX_PADDING + 1)), end, rest)
