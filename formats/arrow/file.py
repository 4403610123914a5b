"""Arrow IPC files: where the footer lies, and what it says ("IPC File Format").

::

    ARROW1 | 2 bytes | messages … | footer | i32 footer size | ARROW1

The footer lists a block for each dictionary batch and record batch. pyarrow reads it but does
not show it; a server that sends messages as they lie needs the blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs

MAGIC = b"ARROW1"
HEAD_BYTES = 8
"""The size of what is in front of the first message: the magic and its padding."""
TAIL_BYTES = 10
"""The size of what is behind the footer: its size and the magic."""

BLOCK = struct.Struct("<qi4xq")
"""A block as it lies in the footer."""

_SIZE = struct.Struct("<i")
_DICTIONARIES, _RECORD_BATCHES = 8, 10  # the places of fields in the vtable of Footer
_GARBAGE = (struct.error, IndexError, OverflowError, TypeError, ValueError)


class Block(NamedTuple):
    """Where a message lies in a file."""

    offset: int
    """Where the message begins, with its prefix, in bytes from the start of the file."""
    metadata_length: int
    """The size of its prefix and its padded metadata, in bytes."""
    body_length: int
    """The size of its body, in bytes."""


class Blocks:
    """A row of blocks, packed as in the footer: a file may have millions.

    Examples
    --------
    >>> blocks = Blocks(BLOCK.pack(8, 256, 1024))
    >>> len(blocks), blocks[0]
    (1, Block(offset=8, metadata_length=256, body_length=1024))
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        self.packed = packed
        """24 bytes for each block."""

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

    def tuples(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Iterate over the blocks from `begin` to `end` as plain tuples, which is faster."""
        stretch = memoryview(self.packed)[begin * BLOCK.size : end * BLOCK.size]
        return BLOCK.iter_unpack(stretch)  # pyright: ignore[reportReturnType]


class Footer(NamedTuple):
    """What the footer of a file says. All its blocks lie in the file, in front of the footer."""

    version: int
    """The metadata version, as the format numbers them: 3 is V4, 4 is V5."""
    is_big_endian: bool
    """Whether the data is declared to be big-endian."""
    dictionaries: Blocks
    """The dictionary batches, in the order in which they have to be read."""
    record_batches: Blocks
    """The record batches, in order."""


class FooterSpan(NamedTuple):
    """Where the footer lies in a file."""

    offset: int
    """Where it begins, in bytes."""
    length: int
    """Its size in bytes."""


def find_footer(tail: bytes, file_size: int) -> FooterSpan:
    """Read where the footer of a file lies.

    Parameters
    ----------
    tail : bytes
        The last bytes of the file: `TAIL_BYTES` of them are looked at.
    file_size : int
        The size of the file in bytes.

    Raises
    ------
    InvalidDataError
        If the file does not end as an Arrow IPC file does: it may have been cut short.
    """
    if file_size < HEAD_BYTES + TAIL_BYTES or len(tail) < TAIL_BYTES:
        raise InvalidDataError(f"an Arrow IPC file cannot have only {file_size} bytes")
    tail = tail[-TAIL_BYTES:]
    if tail[-len(MAGIC) :] != MAGIC:
        raise InvalidDataError(
            f"the Arrow IPC file is cut short: at byte {file_size - len(MAGIC)}, "
            f"its end, is {tail[-len(MAGIC) :]!r} instead of {MAGIC!r}"
        )
    length = _SIZE.unpack_from(tail)[0]
    end = file_size - TAIL_BYTES
    if not 0 < length <= end - HEAD_BYTES:
        raise InvalidDataError(
            f"the Arrow IPC file of {file_size} bytes declares, at byte {end}, "
            f"a footer of {length} bytes"
        )
    return FooterSpan(end - length, length)


def read_footer(footer: bytes, offset: int) -> Footer:
    """Read, and check, the footer of a file.

    Parameters
    ----------
    footer : bytes
        The FlatBuffer of the footer. Nothing needs to have verified it.
    offset : int
        Where it begins in the file, in bytes.

    Raises
    ------
    InvalidDataError
        If it is malformed, or a block lies outside the messages' part of the file, is
        misaligned, or is empty.
    """
    try:
        root = fbs.Footer.GetRootAs(footer, 0)
        version = int(root.Version())
        schema = root.Schema()
        if schema is None:
            raise InvalidDataError("the footer of the Arrow IPC file has no schema")
        endianness = int(schema.Endianness())
        dictionaries = _vector(footer, root, _DICTIONARIES)
        record_batches = _vector(footer, root, _RECORD_BATCHES)
    except _GARBAGE:
        raise InvalidDataError(
            f"the footer of the Arrow IPC file, {len(footer)} bytes at byte {offset}, is malformed"
        ) from None
    if not 0 <= version <= fbs.MetadataVersion.V5:
        raise InvalidDataError(f"the Arrow IPC file has the unknown metadata version {version}")
    if endianness not in (fbs.Endianness.Little, fbs.Endianness.Big):
        raise InvalidDataError(f"the Arrow IPC file declares the byte order {endianness}")
    _check(dictionaries, offset, "dictionary batch")
    _check(record_batches, offset, "record batch")
    return Footer(version, endianness == fbs.Endianness.Big, dictionaries, record_batches)


def _vector(footer: bytes, root: fbs.Footer, slot: int) -> Blocks:
    table = root._tab  # pyright: ignore[reportPrivateUsage]
    place = table.Offset(slot)
    if not place:
        return Blocks()
    begin = table.Vector(place)
    end = begin + table.VectorLen(place) * BLOCK.size
    if not 0 <= begin <= end <= len(footer):
        raise IndexError
    return Blocks(bytes(footer[begin:end]))


def _check(blocks: Blocks, end: int, what: str) -> None:
    for index, (offset, metadata, body) in enumerate(BLOCK.iter_unpack(blocks.packed)):
        if (
            offset < HEAD_BYTES
            or metadata <= 0
            or body < 0
            or (offset | metadata | body) & 7
            or offset + metadata + body > end
        ):
            raise InvalidDataError(
                f"the footer of the Arrow IPC file places {what} {index} at byte {offset} with "
                f"{metadata} bytes of metadata and {body} of body; messages lie between bytes "
                f"{HEAD_BYTES} and {end}, in multiples of 8"
            )
