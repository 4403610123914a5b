"""The two kinds of messages that a transport carries ("Requirements" of the specification).

They are named tuples, not dataclasses: two are made for each message of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

SHARED_BYTES = 128 << 10
"""The size of an allocation that small bodies share, in bytes."""
SMALL_BYTES = 16 << 10
"""The largest body that shares one, in bytes, with its room in front."""


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


class Region(Protocol):
    """Memory of another process that a transport has mapped; it can only be read."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        ...

    def check(self) -> None:
        """Check that it still is what was mapped; raise `DatasetError` if not."""
        ...

    def framed(self, head: bytes, offset: int, nbytes: int, owner: object) -> pa.Buffer | None:
        """Return a stretch together with `head`, which lies right in front of it.

        None if that is not so, and cannot be made so. The other parameters are as those of
        `buffer`.
        """
        ...

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        """Return a stretch, without copying it.

        Parameters
        ----------
        offset, nbytes : int
            The stretch, in bytes; it lies within the region.
        owner : object
            What lives as long as the buffer and all that is made of it.
        """
        ...


class PlacedBody(ReceivedBody):
    """A body of type 1: where the buffers of a message lie in a region."""

    __slots__ = ("region",)

    def __init__(self, body: ReceivedBody, region: Region) -> None:
        self.buffer = body.buffer
        self.view = body.view
        self.start = body.start
        self.nbytes = body.nbytes
        self.region = region
        """What the offsets count from."""


class Handover(NamedTuple):
    """A part that gives the peer a descriptor of what it may map, along with its bytes."""

    payload: bytes
    """The bytes that go with it."""
    descriptors: tuple[Any, ...]
    """What has the descriptors: they stay open until this object is gone."""

    @property
    def nbytes(self) -> int:
        """The size of the payload in bytes."""
        return len(self.payload)


class BodyArena:
    """Makes small bodies: many share an allocation, each with its own room in front.

    A small body costs a slice and not an allocation. One that is kept keeps its neighbours'
    memory too, up to `SHARED_BYTES`.
    """

    __slots__ = ("_at", "_buffer", "_view")

    def __init__(self) -> None:
        self._at = SHARED_BYTES
        self._buffer: pa.Buffer | None = None
        self._view = memoryview(b"")

    def body(self, nbytes: int, headroom: int) -> ReceivedBody:
        """Return a body with at least `headroom` bytes in front; both are within `SMALL_BYTES`."""
        start = (headroom + 63) & ~63
        begin = self._at
        end = begin + start + nbytes
        if end > SHARED_BYTES or self._buffer is None:
            self._buffer = pa.allocate_buffer(SHARED_BYTES)
            self._view = memoryview(self._buffer).cast("B")
            begin, end = 0, start + nbytes
        self._at = (end + 63) & ~63
        body = ReceivedBody.__new__(ReceivedBody)
        body.buffer = self._buffer.slice(begin, end - begin)
        body.view = self._view[begin:end]
        body.start = start
        body.nbytes = nbytes
        return body


class TaggedReceived(NamedTuple):
    """A message with a tag, as it was received."""

    tag: int
    """The tag (uint64)."""
    body: ReceivedBody
    """The payload."""


class Run:
    """Small messages alike that came back to back: metadata, body, metadata, body, and so on.

    Their metadata is the same but for the sequence numbers, which count up by one; so are the
    sizes of their bodies. A thousand of them cost little more than one, where each is not a
    frame of its own. The bodies lie in one allocation, each with room in front.
    """

    __slots__ = ("buffer", "count", "metadata", "nbytes", "sequence", "start", "stride", "view")

    def __init__(
        self, sequence: int, metadata: bytes, nbytes: int, headroom: int, count: int
    ) -> None:
        self.sequence = sequence
        """The sequence number of the first."""
        self.metadata = metadata
        """What follows the type and the sequence number in the metadata message of each."""
        self.nbytes = nbytes
        """The size of each body in bytes."""
        self.count = count
        """How many messages there are."""
        self.start = (headroom + 63) & ~63
        """Where the first body begins in `buffer`, in bytes; also the room in front of each."""
        self.stride = self.stride_of(nbytes, headroom)
        """How far the beginnings of two bodies are apart, in bytes."""
        self.buffer: pa.Buffer = pa.allocate_buffer(self.stride * count)
        """The memory of all bodies."""
        self.view = memoryview(self.buffer).cast("B")
        """A writable view of it."""

    @staticmethod
    def stride_of(nbytes: int, headroom: int) -> int:
        """Return what a body takes up, with the room in front of it."""
        return ((headroom + 63) & ~63) + ((nbytes + 63) & ~63)

    def body(self, index: int) -> ReceivedBody:
        """Return one of the bodies; the memory is shared."""
        begin = index * self.stride
        end = begin + self.start + self.nbytes
        body = ReceivedBody.__new__(ReceivedBody)
        body.buffer = self.buffer.slice(begin, end - begin)
        body.view = self.view[begin:end]
        body.start = self.start
        body.nbytes = self.nbytes
        return body


make_untagged = partial(tuple.__new__, Untagged)
make_received = partial(tuple.__new__, TaggedReceived)
"""Make the two from a tuple of their fields, at a third of the cost: one each for a message."""

Outgoing = Untagged | Tagged
Incoming = Untagged | TaggedReceived | Run
