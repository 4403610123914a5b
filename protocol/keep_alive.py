"""Requests for keep-alives (an extension of splitarrow).

A reader that sends one, before its data request, learns from keep-alives that the server still
works on the stream while the stream has nothing to send. The payload is the interval in
milliseconds, as a little-endian u32.
"""

from __future__ import annotations

import struct

from ..errors import ProtocolError

KEEP_ALIVES_PER_TIMEOUT = 3
"""The number of keep-alives that a reader requests for each stall timeout."""
MIN_INTERVAL = 0.1
"""The shortest interval in seconds. A server takes this one in place of a shorter one."""
_PAYLOAD = struct.Struct("<I")
_MAX_MILLISECONDS = (1 << 32) - 1


def pack_interval(seconds: float) -> bytes:
    r"""Return the payload of a request for keep-alives.

    Examples
    --------
    >>> pack_interval(10.0)
    b"\x10'\x00\x00"
    """
    return _PAYLOAD.pack(min(max(round(seconds * 1000), 1), _MAX_MILLISECONDS))


def parse_interval(payload: bytes) -> float:
    """Return the interval that a request for keep-alives asks for, in seconds.

    Raises
    ------
    ProtocolError
        If the payload does not have 4 bytes.
    """
    if len(payload) != _PAYLOAD.size:
        raise ProtocolError(
            f"a request for keep-alives has {len(payload)} bytes; expected {_PAYLOAD.size}"
        )
    return max(_PAYLOAD.unpack(payload)[0] / 1000, MIN_INTERVAL)
