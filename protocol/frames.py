"""The two kinds of messages that a transport carries ("Requirements" of the specification).

They are named tuples, not dataclasses: two are made for each message of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa


class Part(Protocol):
    """A piece of an outgoing body: anything that knows its size.

    ``pyarrow.Buffer``, a region of a file, or memory of a device: the core passes it on and
    never looks inside. A transport knows which kinds it can send (see its capabilities).
    """

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        ...


class Untagged(NamedTuple):
    """A message without a tag: it belongs to the metadata stream."""

    payload: bytes
    """The whole message."""


class Tagged(NamedTuple):
    """A message with a tag, as it is sent: a request, a body, or freed offsets."""

    tag: int
    """The tag (uint64)."""
    nbytes: int
    """The size of the payload in bytes: the sum over its parts."""
    parts: Sequence[Any]
    """The payload, in order: bytes-like objects or other `Part`."""


class ReceivedBody:
    """The payload of a received tagged message, in memory of its own.

    The payload lies at a 64-byte aligned address, in an allocation that has room in front of
    it. A decoder may write the message's metadata into that room, so that the two lie
    contiguous, as Arrow's decoder wants them, although they came apart.

    Whoever holds `buffer`, or a slice of it, keeps the memory alive.
    """

    __slots__ = ("buffer", "nbytes", "start", "view")

    def __init__(self, nbytes: int, headroom: int = 0) -> None:
        start = (headroom + 63) & ~63
        self.buffer: pa.Buffer = pa.allocate_buffer(start + nbytes)
        """The whole allocation, owned by this object and its slices."""
        self.view = memoryview(self.buffer).cast("B")
        """A writable view of the whole allocation, as bytes."""
        self.start = start
        """Where the payload begins, in bytes; also the size of the room in front."""
        self.nbytes = nbytes
        """The size of the payload in bytes."""

    @classmethod
    def wrapping(cls, buffer: pa.Buffer) -> ReceivedBody:
        """Return a body that is `buffer` itself, without room in front."""
        body = cls.__new__(cls)
        body.buffer = buffer
        body.view = memoryview(buffer).cast("B")
        body.start = 0
        body.nbytes = buffer.size
        return body

    @classmethod
    def copy_of(cls, payload: bytes | memoryview, headroom: int = 0) -> ReceivedBody:
        """Return a body that holds a copy of `payload`."""
        data = memoryview(payload).cast("B")
        body = cls(data.nbytes, headroom)
        body.view[body.start :] = data
        return body

    def payload(self) -> pa.Buffer:
        """Return the payload alone; the memory is shared."""
        return self.buffer.slice(self.start, self.nbytes)

    def __bytes__(self) -> bytes:
        return bytes(self.view[self.start :])


class TaggedReceived(NamedTuple):
    """A message with a tag, as it was received."""

    tag: int
    """The tag (uint64)."""
    body: ReceivedBody
    """The payload."""


Outgoing = Untagged | Tagged
Incoming = Untagged | TaggedReceived
