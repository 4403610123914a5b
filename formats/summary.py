"""The properties of a message that the protocol needs, whatever the format of the message."""

from __future__ import annotations

from typing import NamedTuple


class MessageSummary(NamedTuple):
    """The properties of one message, read from its metadata."""

    name: str
    """The type of the message in its format, such as ``RECORD_BATCH``, for errors."""
    is_schema: bool
    """Whether the message is a schema. Every stream begins with one."""
    has_body: bool
    """Whether a body follows the metadata. A body may have 0 bytes."""
    body_length: int
    """The declared size of the packed body in bytes."""
    is_array: bool = False
    """Whether the body is a single array, which may be larger than the limit on bodies as long as
    no memory is allocated for it."""
