"""Receiving messages that repeat the previous one, many in one read, each in its final place."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from ..protocol.frames import MessageRun
from ..protocol.memory import BodyPool
from ..protocol.messages import PREFIX, MetadataType
from ..protocol.sequence import MAX_SEQUENCE
from ..protocol.tags import SEQUENCE_MASK, BodyType, pack_body_tag
from .framing import HEADER, TAGGED, UNTAGGED

RUN_BYTES = 528 << 10
"""The largest allocation that messages share, in bytes: two bodies of 256 KiB and their headers."""
_MAX_CAUTION = 64
"""The most repetitions after which a run is expected."""
_TAG_OFFSET = 16
"""The offset of the tag in a header, in bytes."""
_TAG = struct.Struct("<Q")
_SEQUENCE = struct.Struct("<I")


class Repetitions:
    """Decides when to expect that the next messages repeat the last one.

    One repetition is enough. After expectations that did not come true, it takes more of them:
    a wrong one costs an allocation and a copy of the bytes that have arrived.
    """

    __slots__ = ("_count", "_last", "_needed")

    def __init__(self) -> None:
        self._last = (b"", 0, 0)
        self._count = 0
        self._needed = 1

    def record(self, payload: bytes, nbytes: int, tag: int) -> bool:
        """Record a message; return whether to expect that the next ones repeat it.

        Parameters
        ----------
        payload : bytes
            The metadata message; empty if none was directly before the body.
        nbytes : int
            The size of the body in bytes.
        tag : int
            The tag of the body.
        """
        last_payload, last_nbytes, last_tag = self._last
        self._last = (payload, nbytes, tag)
        if (
            nbytes != last_nbytes
            or tag != last_tag + 1
            or not nbytes
            or len(payload) <= PREFIX.size
            or payload[PREFIX.size :] != last_payload[PREFIX.size :]
            or payload[: PREFIX.size] != PREFIX.pack(MetadataType.ARROW, tag & MAX_SEQUENCE)
            or 2 * MessageRun.stride_of(nbytes, _measure_head(payload)) > RUN_BYTES
        ):
            self._count = 0
            return False
        self._count += 1
        return self._count >= self._needed and tag < MAX_SEQUENCE

    def adjust(self, received: int) -> None:
        """Record how many messages an expected run has received until one differed."""
        self._needed = 1 if received else min(2 * self._needed, _MAX_CAUTION)


def _measure_head(payload: bytes) -> int:
    """Return the size of what precedes a body: a metadata message and two headers, in bytes."""
    return 2 * HEADER.size + len(payload)


class ExpectedRun:
    """Receives the messages after one that they probably repeat.

    A message differs from the one before it in its sequence number and its data. Its headers and
    metadata therefore have known sizes, and are received directly in front of the body, which lands
    at its final, aligned address. Each header is compared as soon as it arrives. A message that
    differs is left to the caller, byte for byte.

    Parameters
    ----------
    payload : bytes
        The metadata message that the next ones repeat.
    nbytes : int
        The size of its body in bytes.
    sequence : int
        Its sequence number, less than the last one before the rollover.
    pool : BodyPool
        Supplies the memory.
    """

    __slots__ = (
        "_before",
        "_between",
        "_buffer",
        "_capacity",
        "_checked",
        "_filled",
        "_first",
        "_head_bytes",
        "_metadata",
        "_nbytes",
        "_offset",
        "_period",
        "_pool",
        "_stride",
        "_taken",
        "_view",
        "received_messages",
    )

    def __init__(self, payload: bytes, nbytes: int, sequence: int, pool: BodyPool) -> None:
        self._metadata = payload[PREFIX.size :]
        self._nbytes = nbytes
        self._pool = pool
        self._before = HEADER.pack(UNTAGGED, len(payload), 0) + payload[:1]
        self._between = self._metadata + HEADER.pack(TAGGED, nbytes, 0)[:_TAG_OFFSET]
        self._head_bytes = _measure_head(payload)
        self._period = self._head_bytes + nbytes
        self._stride = MessageRun.stride_of(nbytes, self._head_bytes)
        self._offset = self._stride - MessageRun.stride_of(nbytes, 0) - self._head_bytes
        self._first = sequence + 1
        self._buffer: pa.Buffer | None = None
        self._view = memoryview(b"")
        self._capacity = self._filled = self._checked = self._taken = 0
        self.received_messages = 0
        """The number of messages that `take` has returned."""

    @property
    def is_full(self) -> bool:
        """Whether the memory allocated so far is filled."""
        return self._filled == self._capacity * self._period

    @property
    def has_ended(self) -> bool:
        """Whether no number is left for another message, because the next one rolls over."""
        return self._first > MAX_SEQUENCE

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes received so far end with a complete message."""
        return not self._filled % self._period

    @property
    def has_messages(self) -> bool:
        """Whether `take` has messages to return."""
        return self._filled >= (self._taken + 1) * self._period

    @property
    def missing_body_bytes(self) -> int:
        """The number of bytes that the body being received still lacks, or 0."""
        rest = self._filled % self._period
        return 0 if rest < self._head_bytes else self._period - rest

    def targets(self) -> list[memoryview]:
        """Return the places of the next bytes, in order.

        Raises
        ------
        LimitError
            If there is not enough memory.
        """
        if self._buffer is None:
            self._allocate()
        view, stride, period = self._view, self._stride, self._period
        index, rest = divmod(self._filled, period)
        begin = index * stride + self._offset
        end = self._capacity * stride
        return [
            view[begin + rest : begin + period],
            *[view[at : at + period] for at in range(begin + stride, end, stride)],
        ]

    def _allocate(self) -> None:
        self._capacity = min(RUN_BYTES // self._stride, MAX_SEQUENCE + 1 - self._first)
        nbytes = self._capacity * self._stride
        self._buffer = self._pool.allocate_buffer(nbytes, pack_body_tag(self._first))
        self._view = memoryview(self._buffer).cast("B")

    def advance(self, nbytes: int) -> bool:
        """Record bytes that were received into `targets`; return whether they are as expected.

        If they are not, `take` returns the messages before the difference, and `rest` what
        follows them.
        """
        self._filled += nbytes
        view, head_bytes = self._view, self._head_bytes
        while (available := self._filled - self._checked * self._period) > 0:
            begin = self._checked * self._stride + self._offset
            head = bytes(view[begin : begin + min(available, head_bytes)])
            if head != self._make_head(self._first + self._checked)[: len(head)]:
                return False
            if available < head_bytes:
                break
            self._checked += 1
        return True

    def _make_head(self, sequence: int) -> bytes:
        """Return what precedes the body of a message."""
        number, tag = _SEQUENCE.pack(sequence), _TAG.pack(pack_body_tag(sequence))
        return b"".join((self._before, number, self._between, tag))

    def take(self) -> MessageRun | None:
        """Remove and return the messages that are complete; None if there are none."""
        end = min(self._filled // self._period, self._checked)
        begin, count = self._taken, end - self._taken
        if not count or self._buffer is None:
            return None
        at, size = begin * self._stride, count * self._stride
        buffer, view = self._buffer.slice(at, size), self._view[at : at + size]
        sequence = self._first + begin
        run = MessageRun(
            *(sequence, self._metadata, self._nbytes, self._head_bytes, count),
            *(buffer, BodyType.PACKED, view),
        )
        self._taken = end
        self.received_messages += count
        if end == self._capacity:
            self._first += end
            self._buffer, self._view = None, memoryview(b"")
            self._capacity = self._filled = self._checked = self._taken = 0
        return run

    def rest(self) -> Iterator[memoryview]:
        """Yield the bytes after the messages that `take` has returned, in order."""
        begin = self._taken * self._stride + self._offset
        missing = self._filled - self._taken * self._period
        while missing > 0:
            size = min(missing, self._period)
            yield self._view[begin : begin + size]
            begin += self._stride
            missing -= size


def count_repetitions(data: memoryview, payload: bytes, length: int, tag: int) -> int:
    """Return the number of messages in `data` that differ only in sequence number and data."""
    before = HEADER.pack(UNTAGGED, len(payload), 0) + payload[:1]
    between = payload[PREFIX.size :] + HEADER.pack(TAGGED, length, 0)[:_TAG_OFFSET]
    layout = f"<{len(before)}sI{len(between)}sQ{length}x"
    expected, type_bits = (tag & SEQUENCE_MASK) + 1, tag & ~SEQUENCE_MASK
    first = expected
    for head, sequence, middle, number in struct.iter_unpack(layout, data):
        if (
            sequence != expected
            or number != expected | type_bits
            or middle != between
            or head != before
        ):
            break
        expected += 1
    return expected - first
