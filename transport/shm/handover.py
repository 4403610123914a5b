"""How a region is handed over: a message with the tag of ``want_data``, and its descriptor.

::

    16 bytes id of the region, as the URI's remote_handle | u64 size in bytes

The descriptor comes with the first byte of the message (SCM_RIGHTS), and a second one may:
see `watch`. A server may hand over another region later in a stream; offsets count from the
one that came last.
"""

from __future__ import annotations

import struct

from ...errors import NotAPeerError, ProtocolError

HANDLE_BYTES = 16
"""The size of the id of a region, in bytes."""
_MESSAGE = struct.Struct(f"<{HANDLE_BYTES}sQ")


def pack_handover(handle: bytes, size: int) -> bytes:
    """Return the message that a region's descriptor goes with.

    Parameters
    ----------
    handle : bytes
        The 16 bytes of the listener's ``remote_handle``.
    size : int
        The size of the region in bytes.
    """
    return _MESSAGE.pack(handle, size)


def parse_handover(payload: bytes | memoryview, handle: bytes) -> int:
    """Return the size of the region that is handed over, in bytes.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    NotAPeerError
        If the region is not one of the URI's: another server has taken the socket's place.
    """
    if len(payload) != _MESSAGE.size:
        raise ProtocolError(f"a region is announced in {len(payload)} bytes, not {_MESSAGE.size}")
    got, size = _MESSAGE.unpack(payload)
    if got != handle:
        raise NotAPeerError(
            "the region is not the one that the URI's remote_handle names: the server has been "
            "started anew since the URI was made; ask it for another"
        )
    return size
