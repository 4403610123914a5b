"""The bounds on everything that a peer sends or asks for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..formats.arguments import check_integer

_END = 1 << 64


@dataclass(frozen=True, slots=True, repr=False)
class Limits:
    """Bounds on the input of a peer. They are checked before memory is allocated.

    The defaults suit record batches of up to some hundred MiB.
    """

    metadata_bytes: int = 16 << 20
    """The largest metadata message, and the largest schema once decoded, in bytes."""
    body_bytes: int = 8 << 30
    """The largest body, and the largest dictionaries between two record batches, in bytes."""
    decoded_bytes: int = 2 << 30
    """The largest body once decompressed, byte-swapped or merged, in bytes."""
    ticket_bytes: int = 64 << 10
    """The largest ticket, in bytes."""
    pending_messages: int = 4096
    """The largest number of messages that may wait for an earlier one or for their other frame."""
    pending_bytes: int = 1 << 30
    """The largest total size of the frames that wait, in bytes."""
    duplicates: int = 1 << 16
    """The largest number of frames in succession that have all arrived before, and of keep-alives
    in succession."""
    buffers: int = 1 << 20
    """The largest number of buffers in a message."""
    nesting: int = 64
    """The deepest nesting of types in a schema. A plain column has depth 1."""
    free_offsets: int = 1 << 16
    """The largest number of offsets in a free_data message."""
    failure_bytes: int = 64 << 10
    """The largest payload that reports the failure of a stream, in bytes."""
    bad_frees: int = 1000
    """The number of unknown or surplus frees after which a connection is closed."""
    calls: int = 4096
    """The largest number of concurrent calls of the control plane."""
    uploads: int = 8
    """The number of concurrent uploads, which the principals share. Each may run one."""
    upload_message_bytes: int = 256 << 20
    """The largest message of an upload, which holds one record batch, in bytes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_integer(field.name, getattr(self, field.name), 1, _END)

    def __repr__(self) -> str:
        """Return the limits that differ from the defaults."""
        changed = [
            f"{field.name}={value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"Limits({', '.join(changed)})"


DEFAULT_LIMITS = Limits()
