"""An encoded message of Arrow IPC: its metadata and the parts of its body."""

from __future__ import annotations

from typing import Any, NamedTuple


class EncodedMessage(NamedTuple):
    """A message of a stream."""

    metadata: bytes
    """The padded FlatBuffer of the message, without continuation marker and length."""
    body: list[Any] | None
    """The parts of the packed body, in order. None if the message has no body.

    A part is a ``pyarrow.Buffer`` or ``bytes``. The buffer of an array is not copied, and the part
    keeps it alive.
    """
    body_length: int
    """The size of all parts in bytes."""
    rows: int
    """The number of rows of a record batch; 0 for other messages."""
