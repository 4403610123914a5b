"""The message that announces a region.

Its tag is ``want_data``, and its payload::

    16 bytes identifier of the listener, as in the URI's remote_handle | u64 size in bytes

The region's descriptor comes with the first byte of the message (``SCM_RIGHTS``). The region of a
guarded file has a second one, its revocation socket (`splitarrow.transport.memory.revocation`).
Offsets count from the region that was announced last.
"""

from __future__ import annotations

import struct

from ...errors import NotAPeerError, ProtocolError

HANDLE_BYTES = 16
"""The size of the identifier, in bytes."""
_MESSAGE = struct.Struct(f"<{HANDLE_BYTES}sQ")


def pack_announcement(handle: bytes, size: int) -> bytes:
    """Return the message that announces a region.

    Parameters
    ----------
    handle : bytes
        The 16 bytes of the listener's ``remote_handle``.
    size : int
        The size of the region in bytes.
    """
    return _MESSAGE.pack(handle, size)


def parse_announcement(payload: bytes | memoryview, handle: bytes) -> int:
    """Return the size of the region that is announced, in bytes.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    NotAPeerError
        If its identifier is not `handle` because another server now listens at the path.
    """
    if len(payload) != _MESSAGE.size:
        raise ProtocolError(
            f"a region was announced in {len(payload)} bytes; expected {_MESSAGE.size}"
        )
    received, size = _MESSAGE.unpack(payload)
    if received != handle:
        raise NotAPeerError(
            "the announced region does not match the remote_handle of the URI; the server has "
            "restarted since it issued the URI: get a new URI from it"
        )
    return size
