"""Bodies in a server's memory: checked, leased, and arranged for Arrow's decoder.

Implements the receiving side of body type 1 (offsets) of the dissociated protocol, for regions that
this process has mapped.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from ...errors import ProtocolError
from ...formats.arrow.body_layout import (
    ALIGNMENT,
    check_buffer_lengths,
    locate_body,
    plan_packed_body,
)
from ...formats.arrow.framing import encapsulate
from ...formats.arrow.message import BatchLayout, read_batch_layout, read_message_info
from ...protocol.bodies import Span, parse_spans
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator, ReceivedBody
from ...protocol.messages import Message
from ...protocol.regions import Region, RemoteBody
from ...protocol.tags import BodyType
from .lease_returns import Lease, LeaseReturns


class EncapsulatedBody(ReceivedBody):
    """A body that follows its own metadata in memory, as an encapsulated Arrow message.

    Parameters
    ----------
    buffer : pyarrow.Buffer
        The encapsulated message.
    start : int
        The offset of the body in the buffer, in bytes.
    """

    __slots__ = ()

    def __init__(self, buffer: pa.Buffer, start: int) -> None:
        super().__init__(buffer, memoryview(buffer).cast("B"), start, buffer.size - start)


class _PackedLayout:
    """The layout of packed bodies that share one metadata, at any offset of a region.

    A body of type 1 whose buffers have this layout is contiguous, so that it is decoded where it
    is. Comparing the numbers of the payload with those of the layout replaces parsing them.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the message.
    layout : BatchLayout
        Its buffers.
    """

    def __init__(self, metadata: bytes, layout: BatchLayout) -> None:
        self.metadata = metadata
        self.head = encapsulate(metadata)
        """The metadata as the start of an encapsulated message."""
        self.body_length = read_message_info(metadata).body_length
        """The size of a packed body in bytes."""
        self.lengths = tuple(length for _, length in layout.buffers)
        """The size of each buffer in bytes."""
        self.total = sum(self.lengths)
        """The size of all buffers in bytes, without padding."""
        self.filled = tuple(
            (2 + 2 * index, offset)
            for index, (offset, length) in enumerate(layout.buffers)
            if length
        )
        """For each buffer that is not empty: the index of its offset among the numbers of the
        payload, and its offset in a packed body."""
        self._empty = tuple(
            2 + 2 * index for index, (_, length) in enumerate(layout.buffers) if not length
        )
        self._unpack = struct.Struct(f"<{2 + 2 * len(layout.buffers)}Q").unpack

    def find(self, payload: memoryview) -> int:
        """Return the offset of the packed body that a payload describes.

        Returns
        -------
        int
            The offset in the region, in bytes; negative if the body has another layout.
        """
        try:
            numbers = self._unpack(payload)
        except struct.error:
            return -1
        if numbers[3::2] != self.lengths or numbers[:2] != (self.total, len(self.lengths)):
            return -1
        first, offset = self.filled[0]
        begin: int = numbers[first] - offset
        for index, offset in self.filled:
            if numbers[index] - offset != begin:
                return -1
        if any(numbers[index] for index in self._empty):
            return -1
        return begin


class RemoteBodies:
    """Resolves bodies of offsets (type 1) to the memory that they refer to.

    Parameters
    ----------
    lease_returns : LeaseReturns or None
        Returns the leases. `None` if the channel has read the bodies itself, and freed them.
    limits : Limits
        Bounds on the number of buffers and the size of a body.
    allocator : Allocator
        Supplies the memory of buffers that must be copied.
    """

    def __init__(
        self,
        lease_returns: LeaseReturns | None,
        limits: Limits,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> None:
        self._allocator = allocator
        self._lease_returns = lease_returns
        self._limits = limits
        self._layout: _PackedLayout | None = None
        self.leased_bytes = 0
        """The size of all buffers leased so far, without padding, in bytes."""

    def resolve(self, message: Message) -> Message:
        """Return the message with a packed body, which is the memory of the region itself.

        Nothing is copied, except buffers whose alignment Arrow's decoder does not accept.

        Raises
        ------
        ProtocolError
            If the offsets do not fit the metadata or the region. The region was not read then.
        DatasetError
            If the region is a file, and it has changed.
        """
        sequence, metadata, body, *_ = message
        if not isinstance(body, RemoteBody):
            raise ProtocolError("a body of offsets has no region", sequence=sequence)
        body.region.check()
        layout = self._layout
        if layout is not None and metadata == layout.metadata:
            begin = layout.find(body.view[body.start :])
            if (
                begin >= 0
                and begin % ALIGNMENT == 0
                and begin + layout.body_length <= body.region.size
            ):
                memory = self._take_packed(begin, layout, body.region)
                return Message(sequence, layout.metadata, memory, BodyType.PACKED)
        return self._resolve_spans(message, body)

    def _take_packed(self, begin: int, layout: _PackedLayout, region: Region) -> ReceivedBody:
        offsets = tuple([begin + offset for _, offset in layout.filled])
        lease = self._lease(offsets, layout.total)
        message = region.prefixed_buffer(layout.head, begin, layout.body_length, lease)
        if message is not None:
            return EncapsulatedBody(message, len(layout.head))
        return ReceivedBody.wrap(region.buffer(begin, layout.body_length, lease))

    def _lease(self, offsets: tuple[int, ...], nbytes: int) -> Lease | None:
        if self._lease_returns is None:
            return None
        self.leased_bytes += nbytes
        return self._lease_returns.lease(offsets)

    def _resolve_spans(self, message: Message, body: RemoteBody) -> Message:
        """Resolve a body of any layout."""
        sequence, metadata, *_ = message
        layout, region = read_batch_layout(metadata, max_buffers=self._limits.buffers), body.region
        spans = parse_spans(
            body.view[body.start :],
            region_size=region.size,
            expected=len(layout.buffers),
            sequence=sequence,
        )
        check_buffer_lengths(layout, spans)
        offsets = tuple([offset for offset, length in spans if length])
        lease = self._lease(offsets, sum(length for _, length in spans))
        location = locate_body(metadata, layout, spans, region.size)
        if location is None:
            metadata, memory = _copy_buffers(metadata, spans, region, self._allocator)
            del lease  # The copy does not need it.
        else:
            if location.metadata is metadata and offsets:
                self._layout = _PackedLayout(metadata, layout)
            metadata = location.metadata
            memory = region.buffer(location.begin, location.nbytes, lease)
        return Message(sequence, metadata, ReceivedBody.wrap(memory), BodyType.PACKED)


def _copy_buffers(
    metadata: bytes, spans: list[Span], region: Region, allocator: Allocator
) -> tuple[bytes, pa.Buffer]:
    """Copy buffers to aligned memory; return it with metadata that describes it."""
    location, copies = plan_packed_body(metadata, spans)
    memory = allocator.allocate(location.nbytes)
    view = memoryview(memory).cast("B")
    end = 0
    for (target, length), (source, _) in zip(copies, spans, strict=True):
        if length:
            view[end:target] = bytes(target - end)  # the padding in between
            end = target + length
            view[target:end] = memoryview(region.buffer(source, length, None)).cast("B")
    view[end:] = bytes(location.nbytes - end)
    return location.metadata, memory
