"""Bodies of type 1, and the payload of free_data messages ("Data Stream Sequence").

A body of type 1 tells where the buffers of a message lie in shared or remote memory::

    u64 total size | u64 count | count × (u64 offset, u64 length)

One pair stands for each buffer of the message's metadata, in its order; an absent or empty
buffer is (0, 0). A free_data message is a plain row of u64 offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ..errors import LimitError, ProtocolError

_U64 = 1 << 64
_HEADER = struct.Struct("<QQ")

Span = tuple[int, int]
"""An offset and a length, in bytes."""


def pack_spans(spans: Sequence[Span]) -> bytes:
    """Return a body of type 1.

    Examples
    --------
    >>> len(pack_spans([(0, 0), (64, 128)]))
    48
    """
    flat = [number for span in spans for number in span]
    return struct.pack(f"<{2 + len(flat)}Q", sum(flat[1::2]), len(spans), *flat)


def parse_spans(
    payload: bytes | memoryview, *, region_size: int, expected: int, sequence: int | None = None
) -> list[Span]:
    """Check a body of type 1 and return its (offset, length) pairs.

    Parameters
    ----------
    payload : bytes-like
        The body.
    region_size : int
        The size in bytes of the region that the offsets count from.
    expected : int
        How many buffers the message's metadata lists.
    sequence : int, optional
        The sequence number, for the error.

    Raises
    ------
    ProtocolError
        If the count is not `expected`, the size is not that of `expected` pairs, the total is
        not the sum of the lengths, a pair reaches outside the region, or two pairs overlap
        without being the same (the same buffer may serve twice).
    """

    def refuse(why: str) -> ProtocolError:
        return ProtocolError(f"a body of offsets {why}", sequence=sequence)

    nbytes = len(payload)
    if nbytes < _HEADER.size:
        raise refuse(f"has only {nbytes} bytes")
    total, count = _HEADER.unpack_from(payload)
    if count != expected:
        raise refuse(f"lists {count} buffers where the metadata lists {expected}")
    if nbytes != _HEADER.size + 16 * count:
        raise refuse(f"of {count} buffers has {nbytes} bytes")
    spans = list(struct.iter_unpack("<QQ", payload[_HEADER.size :]))
    for index, (offset, length) in enumerate(spans):
        if length == 0 and offset == 0:
            continue
        if offset + length >= _U64 or offset + length > region_size:
            raise refuse(
                f"places buffer {index} (offset {offset}, length {length}) outside the region "
                f"of {region_size} bytes"
            )
    if total != sum(length for _, length in spans):
        raise refuse(f"declares {total} bytes, not the sum of its lengths")
    end = 0
    for offset, length in sorted({span for span in spans if span[1]}):
        if offset < end:
            raise refuse(f"has buffers that overlap at offset {offset}")
        end = offset + length
    return spans


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Return the payload of a free_data message."""
    offsets = list(offsets)
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def parse_offsets(payload: bytes | memoryview, *, limit: int) -> list[int]:
    """Return the offsets of a free_data message.

    Raises
    ------
    LimitError
        If there are more than `limit`.
    ProtocolError
        If there is none, or the size is no multiple of 8 bytes.
    """
    if not payload or len(payload) % 8:
        raise ProtocolError(f"a free_data message of {len(payload)} bytes holds no row of u64")
    if len(payload) > 8 * limit:
        raise LimitError(
            f"a free_data message of {len(payload) // 8} offsets; the limit is {limit}"
        )
    return [offset for (offset,) in struct.iter_unpack("<Q", payload)]
