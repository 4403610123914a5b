"""Frames: the messages that a transport carries ("Requirements" of the specification).

Untagged frames form the metadata stream, tagged frames the body stream. They are named tuples
because two of them are made for each message of a stream, and a named tuple is cheap to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from .memory import ReceivedBody
from .regions import Region, RemoteBody
from .tags import BodyType


class UntaggedFrame(NamedTuple):
    """A frame without a tag: a metadata message."""

    payload: bytes
    """The whole message."""


class TaggedFrame(NamedTuple):
    """A frame with a tag, to be sent: a request, a body, or freed offsets."""

    tag: int
    """The tag (uint64)."""
    nbytes: int
    """The size of the payload in bytes: the sum over `buffers`."""
    buffers: Sequence[Any]
    """The payload in order. Each element is bytes-like or has an attribute ``nbytes``: a span of
    a file, a region announcement. The core passes them on and never looks inside."""


class ReceivedFrame(NamedTuple):
    """A received frame with a tag."""

    tag: int
    """The tag (uint64)."""
    body: ReceivedBody
    """The payload."""


class MessageRun:
    """Consecutive messages with equal metadata and bodies of equal size.

    Their frames arrived back to back: metadata, body, metadata, body, and so on. Their sequence
    numbers increase by one. A decoder handles a run in one loop, which costs far less than
    handling the frames one by one.

    Attributes
    ----------
    nbytes : int
        The size of each body in bytes.
    start : int
        The offset of the first body in `buffer`, and the headroom of each, in bytes.
    stride : int
        The distance between the beginnings of two bodies in bytes.
    region : Region or None
        The region that offsets refer to. The transport sets it.
    view : memoryview
        The same memory as `buffer`, as writable bytes.
    """

    __slots__ = (
        "body_type",
        "buffer",
        "count",
        "metadata",
        "nbytes",
        "region",
        "sequence",
        "start",
        "stride",
        "view",
    )

    def __init__(
        self,
        sequence: int,
        metadata: bytes,
        nbytes: int,
        headroom: int,
        count: int,
        buffer: pa.Buffer,
        body_type: BodyType = BodyType.PACKED,
        view: memoryview | None = None,
    ) -> None:
        self.body_type = body_type
        self.region: Region | None = None
        self.sequence = sequence
        self.metadata = metadata
        self.nbytes = nbytes
        self.count = count
        self.start = (headroom + 63) & ~63
        self.stride = self.stride_of(nbytes, headroom)
        self.buffer = buffer
        self.view = memoryview(buffer).cast("B") if view is None else view

    @staticmethod
    def stride_of(nbytes: int, headroom: int) -> int:
        """Return the size of a body with its headroom, both padded to 64 bytes."""
        return ((headroom + 63) & ~63) + ((nbytes + 63) & ~63)

    def body(self, index: int) -> ReceivedBody:
        """Return one of the bodies. The memory is shared."""
        begin = index * self.stride
        end = begin + self.start + self.nbytes
        buffer = self.buffer.slice(begin, end - begin)
        body = ReceivedBody(buffer, self.view[begin:end], self.start, self.nbytes)
        return body if self.region is None else RemoteBody(body, self.region)


make_untagged_frame = partial(tuple.__new__, UntaggedFrame)
make_received_frame = partial(tuple.__new__, ReceivedFrame)
"""Make a frame from the tuple of its fields, at a third of the cost of the constructor."""

OutgoingFrame = UntaggedFrame | TaggedFrame
IncomingFrame = UntaggedFrame | ReceivedFrame | MessageRun
