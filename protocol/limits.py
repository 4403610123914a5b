"""Every bound that a peer's bytes are held to, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is accepted from a peer. All are checked before memory is allocated.

    The defaults suit batches up to some hundred MiB; raise a limit for larger ones.
    """

    metadata_bytes: int = 16 << 20
    """The largest metadata message, in bytes."""
    body_bytes: int = 8 << 30
    """The largest body of one message, in bytes."""
    decoded_bytes: int = 2 << 30
    """The largest body of one message after decompression, as it declares itself, in bytes."""
    ticket_bytes: int = 64 << 10
    """The largest ticket, in bytes."""
    pending_messages: int = 4096
    """How many messages may wait for an earlier one, or for their other half."""
    pending_bytes: int = 1 << 30
    """How many bytes may wait for an earlier message, or for their other half."""
    buffers: int = 1 << 20
    """How many buffers one message may have."""
    nesting: int = 64
    """How deep the types of a schema may nest."""
    free_offsets: int = 1 << 16
    """How many offsets one free_data message may carry."""
    bad_frees: int = 1000
    """How many unknown or surplus frees a connection may send before it is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise UsageError(f"the limit {field.name} must be at least 1")


DEFAULT_LIMITS = Limits()
