"""Payloads of body messages and requests ("Data Stream Sequence").

These are bodies of type 1, the freed offsets of free_data messages, and the interval of keep-alive
requests (an extension of splitarrow).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..errors import LimitError, ProtocolError

_U64 = 1 << 64
_HEADER = struct.Struct("<QQ")
_PAIR_BYTES = 16

Span = tuple[int, int]
"""An offset and a length in bytes."""


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

    Raises `ProtocolError` if the body does not have `expected` pairs, its total is not the sum of
    the lengths, a pair is outside the region of `region_size` bytes, or two pairs overlap. Equal
    pairs do not count as an overlap, because a message may use one buffer twice.
    """

    def invalid(problem: str) -> ProtocolError:
        return ProtocolError(f"invalid body of offsets: {problem}", sequence=sequence)

    nbytes = len(payload)
    if nbytes < _HEADER.size:
        raise invalid(f"it has {nbytes} bytes, less than its header")
    total, count = _HEADER.unpack_from(payload)
    if count != expected:
        raise invalid(f"it lists {count} buffers; the metadata lists {expected}")
    if nbytes != _HEADER.size + _PAIR_BYTES * count:
        raise invalid(f"it has {nbytes} bytes for {count} buffers")
    spans = list(struct.iter_unpack("<QQ", payload[_HEADER.size :]))
    for index, (offset, length) in enumerate(spans):
        if offset + length >= _U64 or offset + length > region_size:
            raise invalid(
                f"buffer {index} (offset {offset}, length {length}) is outside the region of "
                f"{region_size} bytes"
            )
    size = sum(length for _, length in spans)
    if total != size:
        raise invalid(f"it declares {total} bytes; its buffers have {size}")
    end = 0
    for offset, length in sorted({span for span in spans if span[1]}):
        if offset < end:
            raise invalid(f"buffers overlap at offset {offset}")
        end = offset + length
    return spans


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Return the payload of a free_data message."""
    offsets = list(offsets)
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def parse_offsets(payload: bytes | memoryview, *, limit: int) -> list[int]:
    """Return the offsets of a free_data message.

    Raises `LimitError` if there are more than `limit` offsets. Raises `ProtocolError` if there are
    none, or the size is not a multiple of 8 bytes.
    """
    if not payload or len(payload) % 8:
        raise ProtocolError(
            f"a free_data message has {len(payload)} bytes; expected 8 bytes for each offset"
        )
    if len(payload) > 8 * limit:
        raise LimitError(
            f"a free_data message has {len(payload) // 8} offsets; the limit is {limit}"
        )
    return [offset for (offset,) in struct.iter_unpack("<Q", payload)]


KEEP_ALIVES_PER_TIMEOUT = 3
"""The number of keep-alives that a reader requests for each stall timeout."""
MIN_INTERVAL = 0.1
"""The shortest interval in seconds. A server takes this one in place of a shorter one."""
_PAYLOAD = struct.Struct("<I")
_MAX_MILLISECONDS = (1 << 32) - 1


@lru_cache(maxsize=8)
def pack_interval(seconds: float) -> bytes:
    r"""Return the payload of a request for keep-alives.

    Examples
    --------
    >>> pack_interval(10.0)
    b"\x10'\x00\x00"
    """
    return _PAYLOAD.pack(min(max(round(seconds * 1000), 1), _MAX_MILLISECONDS))


def parse_interval(payload: bytes) -> float:
    """Return the interval in seconds; raise `ProtocolError` unless the payload has 4 bytes."""
    if len(payload) != _PAYLOAD.size:
        raise ProtocolError(
            f"a request for keep-alives has {len(payload)} bytes; expected {_PAYLOAD.size}"
        )
    return max(_PAYLOAD.unpack(payload)[0] / 1000, MIN_INTERVAL)
