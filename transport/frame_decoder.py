"""Decoding of frames from a byte stream, without I/O.

Small messages often repeat the previous one: they differ only in sequence number and data. The
decoder predicts such a run, and receives all of it with one read, each body in its final place.
It checks the frames as it checks any others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from ..errors import ProtocolError, UsageError
from ..protocol.frames import IncomingFrame, MessageRun, make_received_frame, make_untagged_frame
from ..protocol.limits import Limits
from ..protocol.memory import (
    ARENA_BYTES,
    DEFAULT_ALLOCATOR,
    SMALL_BODY_BYTES,
    Allocator,
    BodyPool,
    ReceivedBody,
)
from ..protocol.messages import PREFIX, MetadataType
from ..protocol.tags import MAX_SEQUENCE, SEQUENCE_MASK, BodyType, pack_body_tag
from .framing import HEADER, PREFACE, TAGGED, UNTAGGED, check_body_size, check_metadata_size

RUN_BYTES = 528 << 10
"""The largest allocation that messages share, in bytes: two bodies of 256 KiB and their headers."""
DIRECT_BYTES = 32 << 10
"""The smallest body whose missing part is received alone, straight into the body's memory."""
_HEADER_BYTES = HEADER.size
_METADATA_HEADROOM = 8 - PREFIX.size
"""The bytes by which the prefix of Arrow IPC exceeds that of a metadata message."""
_MIN_LOOKAHEAD = 64
_MIN_RUN = 2
_RUN_TYPES = {pack_body_tag(0, kind): kind for kind in (BodyType.PACKED, BodyType.OFFSETS)}
"""The types of bodies that runs consist of, by their bits in a tag."""
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

        `payload` is the metadata message directly before the body, or empty.
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

    The arguments describe that message. Its number is less than the last one before the rollover.
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
        """Return the places of the next bytes, in order."""
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
    """Return how many messages in `data` differ from one only in sequence number and data."""
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


class PrefaceError(ProtocolError):
    """The peer's first bytes are not the preface.

    Attributes
    ----------
    received : bytes
        The first bytes that the peer sent.
    """

    received: bytes = b""


class FrameDecoder:
    """Decodes the frames of one direction of a connection.

    The caller receives bytes into the buffers of `targets`, reports their number to `advance`,
    and takes the completed frames with `take`.

    Small frames pass through a staging area, many in one read. The missing part of a large body
    is received straight into the memory of the body. The same read receives a few more bytes
    into the staging area: the headers and the metadata in front of the next body. The decoder
    predicts their size from the previous message, so that the next body is not staged in turn.

    After two messages that are alike, an `ExpectedRun` receives those that follow. As soon as one
    differs, its bytes are decoded like all others.

    Only bodies of the default allocator are expected in runs, because they share an allocation. A
    server, which expects no runs, receives few bodies, and keeps no memory for the next one.
    Raises `UsageError` if the allocator does not supply host memory.
    """

    _tag: int
    """The tag of the incomplete body."""
    _body_metadata: bytes
    """The metadata message directly before it; empty if there is none."""
    _filled: int
    """The number of bytes of the incomplete frame that have arrived."""
    _lookahead: int
    """The number of bytes expected between a large body and the next one."""

    def __init__(
        self,
        limits: Limits,
        *,
        staging: int = 256 << 10,
        allocator: Allocator = DEFAULT_ALLOCATOR,
        expects_runs: bool = True,
    ) -> None:
        if not allocator.is_host:
            raise UsageError("a byte stream is received into host memory; use a host allocator")
        self._limits = limits
        self._pool = BodyPool(allocator, shared=expects_runs)
        self._staging = memoryview(bytearray(staging))
        self._begin = 0
        self._end = 0
        self.preface_received = False
        """Whether the peer's preface has arrived."""
        self._headroom = 1024
        # The incomplete frame: a body, or metadata larger than the staging area.
        self._body: ReceivedBody | None = None
        self._metadata: bytearray | None = None
        # The bytes received since the last body.
        self._since_body = 0
        self._frames: list[IncomingFrame] = []
        self._run: ExpectedRun | None = None
        self._repetitions = Repetitions()
        self._expects_runs = expects_runs and allocator is DEFAULT_ALLOCATOR

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes received so far end with a complete frame."""
        if self._run is not None:
            return self._run.at_boundary
        return self._body is None and self._metadata is None and self._begin == self._end

    @property
    def missing_body_bytes(self) -> int:
        """The number of bytes that the body being received still lacks, or 0."""
        if self._run is not None:
            return self._run.missing_body_bytes
        return 0 if self._body is None else self._body.nbytes - self._filled

    @property
    def has_frames(self) -> bool:
        """Whether `take` has frames to return."""
        return bool(self._frames) or (self._run is not None and self._run.has_messages)

    @property
    def has_full_run(self) -> bool:
        """Whether expected messages have filled an allocation, to be taken before the next one."""
        return self._run is not None and bool(self._frames)

    def take(self) -> list[IncomingFrame]:
        """Remove and return the completed frames."""
        if self._run is not None:
            self._take_run(self._run)
        frames, self._frames = self._frames, []
        return frames

    def targets(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in order."""
        if self._run is not None:
            return self._run.targets()
        staging = self._staging
        body = self._body
        if body is not None:
            rest = body.view[body.start + self._filled :]
            if body.nbytes >= DIRECT_BYTES:
                return [rest, staging[self._end : self._end + self._lookahead]]
            return [rest, staging[self._end :]]
        if self._metadata is not None:
            return [memoryview(self._metadata)[self._filled :]]
        return [staging[self._end :]]

    def advance(self, nbytes: int) -> None:
        """Decode `nbytes` bytes that were received into `targets`.

        Raises `PrefaceError` if the peer did not begin with the preface, `ProtocolError` if a
        header is malformed, and `LimitError` if a frame is too large, before allocating memory.
        """
        body, metadata, run = self._body, self._metadata, self._run
        if run is not None:
            if not run.advance(nbytes):
                self._end_run(run)
            elif run.is_full:
                self._take_run(run)
            return
        if body is not None:
            rest = body.nbytes - self._filled
            if nbytes < rest:
                self._filled += nbytes
                return
            self._frames.append(make_received_frame((self._tag, body)))
            self._body = None
            self._end += nbytes - rest
            if self._is_repeated(self._body_metadata, body.nbytes, self._tag):
                self._begin_run(self._begin, self._end, self._body_metadata, body.nbytes, self._tag)
            else:
                self._decode()
            return
        if metadata is not None:
            self._filled += nbytes
            if self._filled < len(metadata):
                return
            self._frames.append(make_untagged_frame((bytes(metadata),)))
            self._headroom = len(metadata) + _METADATA_HEADROOM
            self._metadata = None
            nbytes = 0
        self._end += nbytes
        self._decode()

    def _decode(self) -> None:
        """Decode the staging area. The loop runs for every frame that passes through it."""
        staging, begin, end = self._staging, self._begin, self._end
        if not self.preface_received:
            begin = self._decode_preface(begin, end)
        limits, frames = self._limits, self._frames
        unpack = HEADER.unpack_from
        metadata = b""  # the untagged frame directly before a body
        while end - begin >= _HEADER_BYTES:
            kind, length, tag = unpack(staging, begin)
            start = begin + _HEADER_BYTES
            stop = start + length
            if kind == UNTAGGED:
                if tag:
                    raise ProtocolError("an untagged frame has a tag other than 0", tag=tag)
                if length > limits.metadata_bytes:
                    check_metadata_size(length, limits)
                if stop > end:
                    begin = self._begin_metadata(begin, end, length)
                    break
                metadata = bytes(staging[start:stop])
                frames.append(make_untagged_frame((metadata,)))
                self._headroom = length + _METADATA_HEADROOM
                self._since_body += _HEADER_BYTES + length
                begin = stop
            elif kind == TAGGED:
                if length > limits.body_bytes:
                    check_body_size(length, limits, tag)
                body = self._pool.allocate(length, self._headroom, tag)
                if length >= DIRECT_BYTES:
                    self._lookahead = max(self._since_body + _HEADER_BYTES, _MIN_LOOKAHEAD)
                self._since_body = 0
                if stop > end:
                    self._begin_body(body, tag, metadata, staging[start:end])
                    begin = end
                    break
                body.view[body.start :] = staging[start:stop]
                frames.append(make_received_frame((tag, body)))
                begin = stop
                if metadata and length + self._headroom <= SMALL_BODY_BYTES:
                    begin = self._decode_run(begin, end, metadata, length, tag)
                elif self._is_repeated(metadata, length, tag):
                    self._begin_run(begin, end, metadata, length, tag)
                    return
                metadata = b""
            else:
                raise ProtocolError(
                    f"a frame header begins with {kind:#018x}; expected 0 (untagged) or 1 (tagged)"
                )
        self._keep_rest(begin, end)

    def _decode_preface(self, begin: int, end: int) -> int:
        """Check the preface as far as it has arrived, and return the offset after it."""
        received = bytes(self._staging[begin : min(end, begin + len(PREFACE))])
        if received != PREFACE[: len(received)]:
            error = PrefaceError("the peer's first bytes are not the preface of splitarrow")
            error.received = bytes(self._staging[begin : min(end, begin + 64)])
            raise error
        if len(received) < len(PREFACE):
            return begin
        self.preface_received = True
        return begin + len(PREFACE)

    def _begin_metadata(self, begin: int, end: int, length: int) -> int:
        """Begin to receive incomplete metadata and return the offset of the undecoded bytes.

        Metadata that fits into the staging area stays there until it is complete.
        """
        if _HEADER_BYTES + length <= self._staging.nbytes:
            return begin
        arrived = self._staging[begin + _HEADER_BYTES : end]
        self._metadata = bytearray(length)
        self._metadata[: arrived.nbytes] = arrived
        self._filled = arrived.nbytes
        self._since_body += _HEADER_BYTES + length
        return end

    def _begin_body(
        self, body: ReceivedBody, tag: int, metadata: bytes, arrived: memoryview
    ) -> None:
        """Begin to receive an incomplete body."""
        self._body_metadata = metadata
        body.view[body.start : body.start + arrived.nbytes] = arrived
        self._body, self._tag, self._filled = body, tag, arrived.nbytes

    def _keep_rest(self, begin: int, end: int) -> None:
        """Move the bytes that were not decoded to the start of the staging area."""
        if begin == end:
            begin = end = 0
        elif begin:
            rest = bytes(self._staging[begin:end])
            begin, end = 0, len(rest)
            self._staging[:end] = rest
        self._begin, self._end = begin, end

    def _is_repeated(self, payload: bytes, length: int, tag: int) -> bool:
        """Return whether to expect that the next messages repeat this one."""
        return self._expects_runs and self._repetitions.record(payload, length, tag)

    def _begin_run(self, begin: int, end: int, payload: bytes, length: int, tag: int) -> None:
        """Expect that messages repeat this one, which the undecoded bytes follow."""
        self._run = ExpectedRun(payload, length, tag, self._pool)
        arrived = memoryview(bytes(self._staging[begin:end]))
        self._begin = self._end = 0
        self._receive(arrived)

    def _take_run(self, run: ExpectedRun) -> None:
        """Complete the frames of the messages that an expected run has received."""
        received = run.take()
        if received is not None:
            self._frames.append(received)
        if run.has_ended:
            self._run = None

    def _end_run(self, run: ExpectedRun) -> None:
        """Decode what an expected run has received and did not expect."""
        self._take_run(run)
        self._run = None
        self._repetitions.adjust(run.received_messages)
        self._expects_runs = False
        for part in run.rest():
            self._receive(part)
        self._expects_runs = True

    def end_expectations(self) -> None:
        """Decode the bytes of an incomplete message, of which no more will arrive."""
        if self._run is not None:
            self._end_run(self._run)

    def _receive(self, arrived: memoryview) -> None:
        """Receive bytes that have arrived elsewhere."""
        while arrived.nbytes:
            target = self.targets()[0]
            count = min(target.nbytes, arrived.nbytes)
            target[:count] = arrived[:count]
            self.advance(count)
            arrived = arrived[count:]

    def _decode_run(self, begin: int, end: int, payload: bytes, length: int, tag: int) -> int:
        """Decode the messages that repeat the previous one and return the offset after them."""
        metadata = payload[PREFIX.size :]
        period = _HEADER_BYTES + len(payload) + _HEADER_BYTES + length
        most = (end - begin) // period
        if most < _MIN_RUN or not metadata:
            return begin
        stride = MessageRun.stride_of(length, self._headroom)
        most = min(most, ARENA_BYTES // stride)
        if most < _MIN_RUN:
            return begin
        sequence = tag & SEQUENCE_MASK
        body_type = _RUN_TYPES.get(tag - sequence)
        if body_type is None or PREFIX.unpack_from(payload) != (MetadataType.ARROW, sequence):
            return begin
        staging = self._staging
        first = begin + _HEADER_BYTES + PREFIX.size
        if bytes(staging[first : first + len(metadata)]) != metadata:
            return begin
        count = count_repetitions(staging[begin : begin + most * period], payload, length, tag)
        if count < _MIN_RUN:
            return begin
        buffer = self._pool.allocate_buffer(stride * count, tag)
        run = MessageRun(sequence + 1, metadata, length, self._headroom, count, buffer, body_type)
        view, target = run.view, run.start
        for body in range(begin + period - length, begin + count * period, period):
            view[target : target + length] = staging[body : body + length]
            target += stride
        self._frames.append(run)
        return begin + count * period
