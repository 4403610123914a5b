"""Memory as UCX sees it: its types, what a peer may read of it, and the regions of a peer."""

from __future__ import annotations

import os
import struct
import weakref
from threading import Thread
from typing import Any

from ...errors import ProtocolError, TransportError
from ..memory.mapped_region import MappedRegion
from .ffi import OK, describe, ffi, ucp
from .lanes import list_rdma_adapters

MEMORY_TYPES = {1: 0, 2: 1, 13: 2}
"""The memory types of UCX by those of DLPack: the processor's, CUDA's, and CUDA's managed."""
_FIELD_MEMORY_TYPES = 1 << 2
_FIELDS = 1 | 1 << 1 | 1 << 3 | 1 << 4  # address, length, protection, memory type
_PROTECTION_READ = 1 | 1 << 8  # by this process, and by peers
_HEADER = struct.Struct("<QQ")
_MAX_KEY_BYTES = 4096
_ADDRESS_SPACE = 1 << 64


def list_device_types(context: Any) -> frozenset[int]:
    """Return the types of memory, as in DLPack, that a context can send from and receive into.

    Those of CUDA are among them if the library has found its modules and a driver.
    """
    attributes = ffi.new("ucp_context_attr_t *")
    attributes.field_mask = _FIELD_MEMORY_TYPES
    if ucp.ucp_context_query(context, attributes) != OK:
        return frozenset()
    known = int(attributes.memory_types)
    return frozenset(code for code, number in MEMORY_TYPES.items() if known >> number & 1)


def list_direct_types(context: Any) -> frozenset[int]:
    """Return the types of memory that a context moves without copies in small pieces.

    Without an RDMA adapter, the library copies memory of a device through the host in pieces of
    8 KiB. Copies of whole bodies are faster, and are made elsewhere.
    """
    return list_device_types(context) if list_rdma_adapters() else frozenset({1})


class Registration:
    """Memory of this process that peers may read while this object lives.

    The memory has to stay mapped as long. Raises `TransportError` if the library refuses.
    """

    def __init__(self, context: Any, address: int, nbytes: int) -> None:
        self.address = address
        """The address of the memory."""
        self.nbytes = nbytes
        """The size in bytes."""
        params = ffi.new("ucp_mem_map_params_t *")
        params.field_mask = _FIELDS
        params.address = ffi.cast("void *", address)
        params.length = nbytes
        params.prot = _PROTECTION_READ
        created = ffi.new("ucp_mem_h *")
        _check(_map(context, params, created))
        # The end of the process frees the memory too, when the library may be gone already.
        weakref.finalize(self, _unmap, context, created[0], os.getpid()).atexit = False
        buffer, size = ffi.new("void **"), ffi.new("size_t *")
        _check(ucp.ucp_rkey_pack(context, created[0], buffer, size))
        self.key = bytes(ffi.buffer(buffer[0], size[0]))
        """The packed remote key."""
        ucp.ucp_rkey_buffer_release(buffer[0])

    def announcement(self) -> bytes:
        """Return the message that announces the region."""
        return _HEADER.pack(self.address, self.nbytes) + self.key


def _map(context: Any, params: Any, created: Any) -> int:
    """Call ``ucp_mem_map`` on a thread where no context of a device is current.

    Elsewhere the library page-locks host memory too, which fails if it is mapped for reading only.
    """
    if list_device_types(context) <= {1}:
        return ucp.ucp_mem_map(context, params, created)
    results: list[int] = []
    thread = Thread(target=lambda: results.append(ucp.ucp_mem_map(context, params, created)))
    thread.start()
    thread.join()
    return results[0]


def _unmap(context: Any, handle: Any, process: int) -> None:
    if process == os.getpid():  # A forked child leaves the memory to its parent.
        ucp.ucp_mem_unmap(context, handle)


def register(region: MappedRegion, context: Any) -> Registration:
    """Return the registration of a mapped region. The region owns it, and has one per context."""
    registration = region.registrations.get(context)
    if registration is None:
        registration = Registration(context, region.address, region.size)
        region.registrations[context] = registration
    return registration


class AnnouncedRegion:
    """A region of the peer's memory that the peer has announced.

    Raises `ProtocolError` if the announcement is malformed.
    """

    def __init__(self, endpoint: Any, payload: bytes) -> None:
        self.key: Any = None
        """The library's remote key; None once destroyed."""
        if not _HEADER.size < len(payload) <= _HEADER.size + _MAX_KEY_BYTES:
            raise ProtocolError(
                f"a region was announced in {len(payload)} bytes; expected an address, a size and "
                f"a key of at most {_MAX_KEY_BYTES} bytes"
            )
        self.address, self.size = _HEADER.unpack_from(payload)
        if self.address + self.size >= _ADDRESS_SPACE:
            raise ProtocolError(
                f"a region of {self.size} bytes was announced at address {self.address:#x}, which "
                "reaches beyond the end of memory"
            )
        created = ffi.new("ucp_rkey_h *")
        status = ucp.ucp_ep_rkey_unpack(endpoint, payload[_HEADER.size :], created)
        if status != OK:
            raise ProtocolError(f"the remote key of a region is malformed: {describe(status)}")
        self.key = created[0]

    def destroy(self) -> None:
        """Destroy the key. Idempotent."""
        key, self.key = self.key, None
        if key is not None:
            ucp.ucp_rkey_destroy(key)


def _check(status: int) -> None:
    if status != OK:
        raise TransportError(f"UCX cannot register memory: {describe(status)}")
