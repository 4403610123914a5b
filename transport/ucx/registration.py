"""Memory that peers may read, and what they need to read it.

A region is handed over by a message with the tag of ``want_data``, in front of the first body
whose offsets count from it::

    u64 address | u64 size in bytes | the packed remote key
"""

from __future__ import annotations

import os
import struct
from typing import Any

from ...errors import ProtocolError, TransportError
from ..shm.mapping import MappedRegion
from .library import OK, describe, ffi, ucp

_FIELDS = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4  # address, length, protection, type of memory
_READ = 1 << 0 | 1 << 8  # by this process, and by peers
_HEADER = struct.Struct("<QQ")
_MOST_KEY = 4096


class Registration:
    """A stretch of this process's memory that peers may read while this object lives.

    Parameters
    ----------
    context : object
        The context of the workers whose peers read it.
    address, nbytes : int
        The stretch; it stays mapped as long as this object lives.

    Raises
    ------
    TransportError
        If the library refuses.
    """

    def __init__(self, context: Any, address: int, nbytes: int) -> None:
        self._context = context
        self.address = address
        """Where it begins."""
        self.nbytes = nbytes
        """Its size in bytes."""
        self._handle: Any = None
        self._process = os.getpid()
        params = ffi.new("ucp_mem_map_params_t *")
        params.field_mask = _FIELDS
        params.address = ffi.cast("void *", address)
        params.length = nbytes
        params.prot = _READ
        made = ffi.new("ucp_mem_h *")
        _check(ucp.ucp_mem_map(context, params, made))
        self._handle = made[0]
        buffer, size = ffi.new("void **"), ffi.new("size_t *")
        _check(ucp.ucp_rkey_pack(context, self._handle, buffer, size))
        self.key = bytes(ffi.buffer(buffer[0], size[0]))
        """The packed remote key."""
        ucp.ucp_rkey_buffer_release(buffer[0])

    def announcement(self) -> bytes:
        """Return the message that hands the region over."""
        return _HEADER.pack(self.address, self.nbytes) + self.key

    def __del__(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self._process == os.getpid():
            ucp.ucp_mem_unmap(self._context, handle)


def registered(region: MappedRegion, context: Any) -> Registration:
    """Return a registration of a mapped region. It is made once, and ends with the region."""
    made = region.registrations.get(context)
    if made is None:
        made = Registration(context, region.address, region.size)
        region.registrations[context] = made
    return made


class RemoteRegion:
    """A region of a peer's memory.

    Parameters
    ----------
    endpoint : object
        The connection with the peer.
    payload : bytes
        The message that hands the region over.

    Raises
    ------
    ProtocolError
        If it is malformed.
    """

    def __init__(self, endpoint: Any, payload: bytes) -> None:
        self.key: Any = None
        """The library's remote key; None once destroyed."""
        if not _HEADER.size < len(payload) <= _HEADER.size + _MOST_KEY:
            raise ProtocolError(f"a region is announced in {len(payload)} bytes")
        self.address, self.size = _HEADER.unpack_from(payload)
        if self.address + self.size >= 1 << 64:
            raise ProtocolError("a region is announced that reaches beyond the end of memory")
        made = ffi.new("ucp_rkey_h *")
        status = ucp.ucp_ep_rkey_unpack(endpoint, payload[_HEADER.size :], made)
        if status != OK:
            raise ProtocolError(f"the remote key of a region is refused: {describe(status)}")
        self.key = made[0]

    def destroy(self) -> None:
        """Give the key back. Idempotent."""
        key, self.key = self.key, None
        if key is not None:
            ucp.ucp_rkey_destroy(key)


def _check(status: int) -> None:
    if status != OK:
        raise TransportError(f"UCX cannot register memory: {describe(status)}")
