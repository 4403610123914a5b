"""The bounds on Vortex messages from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VortexLimits:
    """Bounds on what a writer declares. They are checked before memory is allocated."""

    metadata_bytes: int = 16 << 20
    """The largest header of a message, dtype, or description of an array, in bytes."""
    body_bytes: int = 8 << 30
    """The largest body, in bytes."""
    decoded_bytes: int = 2 << 30
    """The largest array once decoded, as far as its messages declare it, in bytes."""
    buffers: int = 1 << 16
    """The largest number of buffers of an array."""
    nodes: int = 1 << 16
    """The largest number of nodes of an array, and of types in a dtype. A node to which several
    others refer counts each time."""
    nesting: int = 64
    """The deepest nesting of types in a dtype. A plain column has depth 1."""


DEFAULT_LIMITS = VortexLimits()

MAX_NODE_DEPTH = 128
"""The deepest nesting of the nodes of an array. One level of a type takes several nodes."""
