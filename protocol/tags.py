"""Tags of body messages: uint64 ("Data Stream Sequence" of the specification).

The lower half of a tag is the sequence number of its message: uint32, rolling over at 2**32.
"""

from __future__ import annotations

from enum import IntEnum

from ..errors import ProtocolError

MAX_SEQUENCE = (1 << 32) - 1
"""The last number before the rollover. Also the mask of a sequence number."""
SEQUENCE_MASK = 0x0000_0000_FFFF_FFFF
RESERVED_MASK = 0x00FF_FFFF_0000_0000
TYPE_SHIFT = 56

WANT_DATA = 0x0000_0100_0000_0001
FREE_DATA = 0x0000_0100_0000_0002
KEEP_ALIVE = 0x0000_0100_0000_0003
TRACE = 0x0000_0100_0000_0004
"""The request tags of a listener whose URI has none. They are constant, so that a reader's URI
stays valid when the server restarts or moves, and a short URI such as ``tcp://host/flights`` needs
no tags."""


class BodyType(IntEnum):
    """The content of a tagged message."""

    PACKED = 0
    """The packed body of an Arrow IPC message."""
    OFFSETS = 1
    """The offsets and lengths of the body's buffers in shared or remote memory."""
    FAILURE = 255
    """The reason why the body stream failed (an extension of splitarrow)."""


def pack_body_tag(sequence: int, body_type: int = BodyType.PACKED) -> int:
    """Return the tag of the body of message `sequence`.

    Examples
    --------
    >>> hex(pack_body_tag(7, BodyType.OFFSETS))
    '0x100000000000007'
    """
    return (body_type << TYPE_SHIFT) | sequence


def parse_body_tag(tag: int) -> tuple[int, BodyType]:
    """Return the sequence number and the body type; raise `ProtocolError` if invalid."""
    sequence = tag & SEQUENCE_MASK
    if tag & RESERVED_MASK:
        raise ProtocolError("the tag has reserved bits set", sequence=sequence, tag=tag)
    try:
        return sequence, BodyType(tag >> TYPE_SHIFT)
    except ValueError:
        raise ProtocolError(
            f"unknown body type {tag >> TYPE_SHIFT}", sequence=sequence, tag=tag
        ) from None


def is_request_tag(value: int) -> bool:
    """Return whether a server may use `value` as a tag that its URI names.

    At least one of the bits 32-55 must be set, so that no legal body tag equals the value.
    """
    return value >> 64 == 0 and bool(value & RESERVED_MASK)
