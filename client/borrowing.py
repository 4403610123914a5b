"""Bodies that lie in a server's memory: checked, leased, and laid out for Arrow's decoder."""

from __future__ import annotations

import struct

import pyarrow as pa

from ..errors import ProtocolError
from ..formats.arrow.message import BatchFacts, batch_facts, encapsulate, message_facts
from ..formats.arrow.placement import ALIGNMENT, check_lengths, placement, repacked
from ..protocol.bodies import Span, parse_spans
from ..protocol.frames import PlacedBody, ReceivedBody, Region
from ..protocol.limits import Limits
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from .returns import Returns


class FramedBody(ReceivedBody):
    """A body that lies behind its own metadata, framed as Arrow's decoder wants it."""

    __slots__ = ()

    def __init__(self, buffer: pa.Buffer, start: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer).cast("B")
        self.start = start
        self.nbytes = buffer.size - start


class _Layout:
    """How the packed bodies of messages alike look, wherever they lie."""

    def __init__(self, metadata: bytes, facts: BatchFacts) -> None:
        self.metadata = metadata
        self.head = encapsulate(metadata)
        self.body_length = message_facts(metadata).body_length
        self.lengths = tuple(length for _, length in facts.buffers)
        self.total = sum(self.lengths)
        self.filled = tuple(
            (2 + 2 * index, place) for index, (place, length) in enumerate(facts.buffers) if length
        )
        self.unpack = struct.Struct(f"<{2 + 2 * len(facts.buffers)}Q").unpack
        self._empty = tuple(
            2 + 2 * index for index, (_, length) in enumerate(facts.buffers) if not length
        )

    def begin(self, payload: memoryview) -> int:
        """Return where the body begins that a payload describes; -1 if it is another layout."""
        try:
            values = self.unpack(payload)
        except struct.error:
            return -1
        if values[3::2] != self.lengths or values[:2] != (self.total, len(self.lengths)):
            return -1
        first, place = self.filled[0]
        begin: int = values[first] - place
        for index, place in self.filled:
            if values[index] - place != begin:
                return -1
        if any(values[index] for index in self._empty):
            return -1
        return begin


class Borrower:
    """Turns messages whose bodies are offsets into messages whose bodies are the memory itself.

    Parameters
    ----------
    returns : Returns or None
        Where what was leased is given back; None if the channel has fetched it, and has done so.
    limits : Limits
        Bounds on the number of buffers and the size of a body.
    """

    def __init__(self, returns: Returns | None, limits: Limits) -> None:
        self._returns = returns
        self._limits = limits
        self._layout: _Layout | None = None
        self.nbytes = 0
        """How many bytes have been leased, padding left out."""

    def packed(self, message: Message) -> Message:
        """Return the message with its body as one stretch of memory.

        Nothing is copied, but for buffers at places that Arrow's decoder does not take.

        Raises
        ------
        ProtocolError
            If the body's offsets do not fit the metadata or the region; nothing of the region
            has been looked at then.
        DatasetError
            If the region is a file and has changed.
        """
        sequence, metadata, body, _ = message
        if not isinstance(body, PlacedBody):
            raise ProtocolError("a body of offsets without a region", sequence=sequence)
        body.region.check()
        layout = self._layout
        if layout is not None and metadata == layout.metadata:
            begin = layout.begin(body.view[body.start :])
            if (
                begin >= 0
                and begin % ALIGNMENT == 0
                and begin + layout.body_length <= body.region.size
            ):
                memory = self._packed_at(begin, layout, body.region)
                return Message(sequence, layout.metadata, memory, BodyType.PACKED)
        return self._placed(message, body)

    def _packed_at(self, begin: int, layout: _Layout, region: Region) -> ReceivedBody:
        lease = self._lease(tuple([begin + place for _, place in layout.filled]), layout.total)
        framed = region.framed(layout.head, begin, layout.body_length, lease)
        if framed is not None:
            return FramedBody(framed, len(layout.head))
        return ReceivedBody.wrapping(region.buffer(begin, layout.body_length, lease))

    def _lease(self, offsets: tuple[int, ...], nbytes: int) -> object:
        """Return what gives offsets back when it dies."""
        if self._returns is None:
            return None
        self.nbytes += nbytes
        return self._returns.lease(offsets)

    def _placed(self, message: Message, body: PlacedBody) -> Message:
        """Find a body wherever it lies, after all checks."""
        sequence, metadata, _, _ = message
        facts, region = batch_facts(metadata, max_buffers=self._limits.buffers), body.region
        spans = parse_spans(
            body.view[body.start :],
            region_size=region.size,
            expected=len(facts.buffers),
            sequence=sequence,
        )
        check_lengths(facts, spans)
        offsets = tuple([offset for offset, length in spans if length])
        lease = self._lease(offsets, sum(length for _, length in spans))
        placed = placement(metadata, facts, spans, region.size)
        if placed is None:
            metadata, memory = _copied(metadata, spans, region)
            del lease  # it is not needed any more
        else:
            if placed.metadata is metadata and any(length for _, length in spans):
                self._layout = _Layout(metadata, facts)
            metadata = placed.metadata
            memory = region.buffer(placed.begin, placed.nbytes, lease)
        return Message(sequence, metadata, ReceivedBody.wrapping(memory), BodyType.PACKED)


def _copied(metadata: bytes, spans: list[Span], region: Region) -> tuple[bytes, pa.Buffer]:
    """Copy buffers that begin where Arrow's decoder takes none."""
    placed, places = repacked(metadata, spans)
    memory = pa.allocate_buffer(placed.nbytes)
    view = memoryview(memory).cast("B")
    end = 0
    for (place, length), (offset, _) in zip(places, spans, strict=True):
        if length:
            view[end:place] = bytes(place - end)  # the padding between
            end = place + length
            view[place:end] = memoryview(region.buffer(offset, length, None)).cast("B")
    view[end:] = bytes(placed.nbytes - end)
    return placed.metadata, memory
