"""The memory of devices, as UCX and DLPack count its types."""

from __future__ import annotations

from typing import Any

from .ffi import OK, ffi, ucp

MEMORY_TYPES = {1: 0, 2: 1, 13: 2}
"""The memory types of UCX by those of DLPack: the processor's, CUDA's, and CUDA's managed."""
_FIELD_MEMORY_TYPES = 1 << 2


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
