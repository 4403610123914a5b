"""Tags of body messages: uint64 ("Data Stream Sequence" of the specification).

::

    bit  63      56 55              32 31               0
        ┌──────────┬──────────────────┬──────────────────┐
        │ body type│   reserved, 0    │ sequence number  │
        └──────────┴──────────────────┴──────────────────┘

A receiver matches a body to its metadata with the mask ``0x00000000FFFFFFFF``, and only then
looks at the rest. That mask also matches a tag whose reserved bits are set; such a tag is
refused here, after the match.
"""

from __future__ import annotations

from enum import IntEnum

from ..errors import ProtocolError

SEQUENCE_MASK = 0x0000_0000_FFFF_FFFF
RESERVED_MASK = 0x00FF_FFFF_0000_0000
TYPE_SHIFT = 56


class BodyType(IntEnum):
    """What the body of a tagged message holds."""

    PACKED = 0
    """The packed body of an Arrow IPC message."""
    OFFSETS = 1
    """The places of the body's buffers in shared or remote memory."""
    FAILED = 255
    """The body stream failed; the body says why (an extension of splitarrow)."""


def body_tag(sequence: int, body_type: int = BodyType.PACKED) -> int:
    """Return the tag of the body of message `sequence`.

    Examples
    --------
    >>> hex(body_tag(7, BodyType.OFFSETS))
    '0x100000000000007'
    """
    return (body_type << TYPE_SHIFT) | sequence


def parse_body_tag(tag: int) -> tuple[int, BodyType]:
    """Return the sequence number and the body type of a tag.

    Raises
    ------
    ProtocolError
        If a reserved bit is set or the body type is unknown.
    """
    if tag & RESERVED_MASK:
        raise ProtocolError("the tag has reserved bits set", sequence=tag & SEQUENCE_MASK, tag=tag)
    try:
        body_type = BodyType(tag >> TYPE_SHIFT)
    except ValueError:
        raise ProtocolError(
            f"unknown body type {tag >> TYPE_SHIFT}", sequence=tag & SEQUENCE_MASK, tag=tag
        ) from None
    return tag & SEQUENCE_MASK, body_type


def is_request_value(value: int) -> bool:
    """Tell whether `value` may serve as ``want_data`` or ``free_data`` of a server.

    A server picks values with one of the bits 32-55 set, so that no legal body tag equals one.
    """
    return 0 <= value < 1 << 64 and bool(value & RESERVED_MASK)
