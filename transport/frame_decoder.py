"""Decoding of frames from a byte stream, without I/O."""

from __future__ import annotations

import struct

from ..errors import ProtocolError, UsageError
from ..protocol.frames import (
    IncomingFrame,
    MessageRun,
    make_received_frame,
    make_untagged_frame,
)
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
from ..protocol.tags import SEQUENCE_MASK, BodyType, pack_body_tag
from .framing import HEADER, PREFACE, TAGGED, UNTAGGED, check_body_size, check_metadata_size

DIRECT_BYTES = 32 << 10
"""The smallest body whose missing part is received alone, straight into the body's memory."""
_HEADER_BYTES = HEADER.size
_TAG_OFFSET = 16
"""The offset of the tag in a header, in bytes."""
_METADATA_HEADROOM = 8 - PREFIX.size
"""The bytes by which the prefix of Arrow IPC exceeds that of a metadata message."""
_MIN_LOOKAHEAD = 64
_MIN_RUN = 2
_RUN_TYPES = {pack_body_tag(0, kind): kind for kind in (BodyType.PACKED, BodyType.OFFSETS)}
"""The types of bodies that runs consist of, by their bits in a tag."""


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

    Parameters
    ----------
    limits : Limits
        Bounds on the sizes of frames.
    staging : int
        The size of the staging area in bytes.
    allocator : Allocator
        Supplies the memory of bodies.

    Raises
    ------
    UsageError
        If the allocator does not supply host memory.
    """

    _tag: int
    """The tag of the incomplete body."""
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
    ) -> None:
        if not allocator.is_host:
            raise UsageError("a byte stream is received into host memory; use a host allocator")
        self._limits = limits
        self._pool = BodyPool(allocator)
        self._staging = memoryview(bytearray(staging))
        self._begin = 0
        self._end = 0
        self._preface_due = True
        self._headroom = 1024
        # The incomplete frame: a body, or metadata larger than the staging area.
        self._body: ReceivedBody | None = None
        self._metadata: bytearray | None = None
        # The bytes received since the last body.
        self._since_body = 0
        self._frames: list[IncomingFrame] = []

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes received so far end with a complete frame."""
        return self._body is None and self._metadata is None and self._begin == self._end

    @property
    def missing_body_bytes(self) -> int:
        """The number of bytes that the body being received still lacks, or 0."""
        return 0 if self._body is None else self._body.nbytes - self._filled

    @property
    def preface_received(self) -> bool:
        """Whether the peer's preface has arrived."""
        return not self._preface_due

    @property
    def has_frames(self) -> bool:
        """Whether `take` has frames to return."""
        return bool(self._frames)

    def take(self) -> list[IncomingFrame]:
        """Remove and return the completed frames."""
        frames, self._frames = self._frames, []
        return frames

    def targets(self) -> list[memoryview]:
        """Return the buffers for the next bytes, in order."""
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

        Raises
        ------
        PrefaceError
            If the peer did not begin with the preface.
        ProtocolError
            If a header is malformed.
        LimitError
            If a frame is larger than the limits allow. No memory was allocated for it.
        """
        body, metadata = self._body, self._metadata
        if body is not None:
            rest = body.nbytes - self._filled
            if nbytes < rest:
                self._filled += nbytes
                return
            self._frames.append(make_received_frame((self._tag, body)))
            self._body = None
            nbytes -= rest
        elif metadata is not None:
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
        if self._preface_due:
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
                    self._begin_body(body, tag, staging[start:end])
                    begin = end
                    break
                body.view[body.start :] = staging[start:stop]
                frames.append(make_received_frame((tag, body)))
                begin = stop
                if metadata and length + self._headroom <= SMALL_BODY_BYTES:
                    begin = self._decode_run(begin, end, metadata, length, tag)
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
        self._preface_due = False
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

    def _begin_body(self, body: ReceivedBody, tag: int, arrived: memoryview) -> None:
        """Begin to receive an incomplete body."""
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

    def _decode_run(self, begin: int, end: int, payload: bytes, length: int, tag: int) -> int:
        """Decode the messages that repeat the previous one and return the offset after them.

        Parameters
        ----------
        begin, end : int
            The undecoded bytes of the staging area.
        payload : bytes
            The metadata message decoded last.
        length, tag : int
            The size and the tag of its body.
        """
        metadata = payload[PREFIX.size :]
        period = _HEADER_BYTES + len(payload) + _HEADER_BYTES + length
        stride = MessageRun.stride_of(length, self._headroom)
        most = min((end - begin) // period, ARENA_BYTES // stride)
        if most < _MIN_RUN or not metadata:
            return begin
        sequence = tag & SEQUENCE_MASK
        body_type = _RUN_TYPES.get(tag - sequence)
        if body_type is None or PREFIX.unpack_from(payload) != (MetadataType.ARROW, sequence):
            return begin
        staging = self._staging
        first = begin + _HEADER_BYTES + PREFIX.size
        if bytes(staging[first : first + len(metadata)]) != metadata:
            return begin
        count = self._count_run(staging[begin : begin + most * period], payload, length, tag)
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

    def _count_run(self, data: memoryview, payload: bytes, length: int, tag: int) -> int:
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
