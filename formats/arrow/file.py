"""The footer of Arrow IPC files ("IPC File Format").

::

    ARROW1 | 2 bytes | messages … | footer | i32 footer size | ARROW1

The footer lists a block for each dictionary batch and record batch. A server needs the blocks to
send the messages unchanged, and pyarrow does not expose them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .features import check_schema_features

MAGIC = b"ARROW1"
HEAD_BYTES = 8
"""The size of the magic and its padding, before the first message."""
TAIL_BYTES = 10
"""The size of the fields after the footer: its size and the magic."""

BLOCK = struct.Struct("<qi4xq")
"""A block in the footer."""

_SIZE = struct.Struct("<i")
_DICTIONARIES, _RECORD_BATCHES = 8, 10  # the slots of fields in the vtable of Footer
_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError)


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
    """Return the position of the footer of a file.

    Parameters
    ----------
    tail : bytes
        The last bytes of the file, at least `TAIL_BYTES`.
    file_size : int
        The size of the file in bytes.

    Raises
    ------
    InvalidDataError
        If the file does not end like an Arrow IPC file. It may be truncated.
    """
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


def read_footer(footer: bytes, offset: int) -> Footer:
    """Read and check the footer of a file.

    Parameters
    ----------
    footer : bytes
        The FlatBuffer of the footer, which may be malformed.
    offset : int
        The offset of the footer in the file, in bytes.

    Raises
    ------
    InvalidDataError
        If the footer is malformed, or a block is misaligned, empty, or not between the head and the
        footer of the file.
    """
    try:
        root = fbs.Footer.GetRootAs(footer, 0)
        version = int(root.Version())
        schema = root.Schema()
        if schema is None:
            raise InvalidDataError("the footer of the Arrow IPC file has no schema")
        endianness = int(schema.Endianness())
        check_schema_features(schema)
        dictionaries = _read_blocks(footer, root, _DICTIONARIES)
        record_batches = _read_blocks(footer, root, _RECORD_BATCHES)
    except _PARSE_ERRORS:
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


def read_footer_pairs(footer: bytes) -> list[tuple[bytes | None, bytes | None]]:
    """Return the custom metadata of a footer as pairs of keys and values.

    Raises
    ------
    InvalidDataError
        If it is malformed.
    """
    try:
        root = fbs.Footer.GetRootAs(footer, 0)
        found = map(root.CustomMetadata, range(min(root.CustomMetadataLength(), len(footer))))
        return [(pair.Key(), pair.Value()) for pair in found if pair is not None]
    except _PARSE_ERRORS:
        raise InvalidDataError("the custom metadata of the footer is malformed") from None


def _read_blocks(footer: bytes, root: fbs.Footer, slot: int) -> Blocks:
    table = root._tab  # pyright: ignore[reportPrivateUsage]
    field = table.Offset(slot)
    if not field:
        return Blocks()
    begin = table.Vector(field)
    end = begin + table.VectorLen(field) * BLOCK.size
    if not 0 <= begin <= end <= len(footer):
        raise IndexError
    return Blocks(bytes(footer[begin:end]))


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
