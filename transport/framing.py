"""Frames on byte streams (TCP and Unix sockets), without I/O.

A connection begins with 8 bytes each way, ``SPLTARW`` and a version byte. Then frames follow::

    u8 kind (0 untagged, 1 tagged) | u8 0 | u16 0 | u32 0 | u64 length | u64 tag | payload

All numbers are little-endian; the tag of an untagged frame is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from ..errors import LimitError, ProtocolError
from ..protocol.frames import (
    SHARED_BYTES,
    SMALL_BYTES,
    BodyArena,
    Incoming,
    Outgoing,
    ReceivedBody,
    Run,
    TaggedReceived,
    Untagged,
    make_received,
    make_untagged,
)
from ..protocol.limits import Limits
from ..protocol.messages import PREFIX, MetadataType

PREFACE = b"SPLTARW\x01"
HEADER = struct.Struct("<QQQ")
UNTAGGED, TAGGED = 0, 1
"""The first word of a header: the kind, and the seven bytes after it, which are 0."""
_TAG_AT = 16
_JOINED_BYTES = 1 << 10
"""Up to this size a body that is one piece of bytes goes with the headers: offsets, mostly."""
_SHORTEST_RUN = 2

DIRECT_BYTES = 32 << 10
"""From this size on the rest of a body is received straight into its own memory."""
_METADATA_HEADROOM = 8 - 5  # an encapsulated message's prefix replaces the protocol's
_MOST_HEADROOM = 64 << 10
"""The most room in front of a body that is smaller than that, in bytes."""


class PrefaceError(ProtocolError):
    """The peer began with something else than the preface; `received` tells with what."""

    received: bytes = b""


class FrameDecoder:
    """Turns the bytes of one direction of a connection into frames.

    The driver receives into `targets`, calls `advance` with the number of bytes, and gets the
    frames that are complete from `take`. Small frames pass through a staging area, many in one
    read. The rest of a large body is received into its final place, without another copy; the
    same read takes what follows the body into the staging area. How much follows is guessed
    from the message before, so that the next body is not staged in turn.

    Parameters
    ----------
    limits : Limits
        Bounds on the sizes of frames.
    staging : int
        The size of the staging area in bytes.
    """

    def __init__(self, limits: Limits, *, staging: int = 256 << 10) -> None:
        self._limits = limits
        self._staging = memoryview(bytearray(staging))
        self._begin = 0
        self._end = 0
        self._preface_due = True
        self._body: ReceivedBody | None = None
        self._tag = 0
        self._filled = 0
        self._between = 0
        self._guess = 4096
        self._headroom = 1024
        self._long: tuple[bytearray, int] | None = None
        self._arena = BodyArena()
        self._frames: list[Incoming] = []

    @property
    def at_boundary(self) -> bool:
        """Whether no part of an unfinished frame is held."""
        return self._body is None and self._long is None and self._begin == self._end

    @property
    def lacking(self) -> int:
        """How many bytes the body that is being received still lacks; 0 if there is none."""
        return 0 if self._body is None else self._body.nbytes - self._filled

    @property
    def preface_received(self) -> bool:
        """Whether the peer's preface has been seen."""
        return not self._preface_due

    def targets(self) -> list[memoryview]:
        """Return where the next bytes belong, in order."""
        staging = self._staging
        body = self._body
        if body is not None:
            rest = body.view[body.start + self._filled :]
            if body.nbytes >= DIRECT_BYTES:
                return [rest, staging[self._end : self._end + self._guess]]
            return [rest, staging[self._end :]]
        if self._long is not None:
            return [memoryview(self._long[0])[self._long[1] :]]
        return [staging[self._end :]]

    def advance(self, nbytes: int) -> None:
        """Note that `nbytes` bytes were received into `targets`.

        Raises
        ------
        PrefaceError
            If the peer does not begin with the preface.
        ProtocolError
            If a header is malformed.
        LimitError
            If a frame is larger than allowed; nothing has been allocated for it.
        """
        body = self._body
        if body is not None:
            rest = body.nbytes - self._filled
            if nbytes < rest:
                self._filled += nbytes
                return
            self._frames.append(TaggedReceived(self._tag, body))
            self._body = None
            nbytes -= rest
        elif self._long is not None:
            payload, filled = self._long
            filled += nbytes
            if filled < len(payload):
                self._long = (payload, filled)
                return
            self._long = None
            self._untagged(bytes(payload))
            nbytes = 0
        self._end += nbytes
        self._parse()

    @property
    def has_frames(self) -> bool:
        """Whether `take` has something to return."""
        return bool(self._frames)

    def take(self) -> list[Incoming]:
        """Return, and forget, the frames that are complete."""
        frames, self._frames = self._frames, []
        return frames

    def _untagged(self, payload: bytes) -> None:
        self._frames.append(Untagged(payload))
        self._headroom = len(payload) + _METADATA_HEADROOM

    def _parse(self) -> None:
        staging, begin, end = self._staging, self._begin, self._end
        if self._preface_due:
            begin = self._parse_preface(begin, end)
        limits = self._limits
        unpack = HEADER.unpack_from
        frames = self._frames
        payload = b""  # of the untagged frame just before
        while end - begin >= HEADER.size:
            kind, length, tag = unpack(staging, begin)
            have = end - begin - HEADER.size
            if kind == UNTAGGED:
                if tag:
                    raise ProtocolError("an untagged frame with a tag", tag=tag)
                if length > limits.metadata_bytes:
                    check_sizes(limits, untagged=length)
                begin += HEADER.size
                self._between += HEADER.size + length
                if have < length:
                    if HEADER.size + length <= staging.nbytes:
                        begin -= HEADER.size
                        self._between -= HEADER.size + length
                        break
                    long = bytearray(length)
                    long[:have] = staging[begin:end]
                    self._long = (long, have)
                    begin = end
                    break
                payload = bytes(staging[begin : begin + length])
                begin += length
                frames.append(make_untagged((payload,)))
                self._headroom = length + _METADATA_HEADROOM
            elif kind == TAGGED:
                if length > limits.body_bytes:
                    check_sizes(limits, tagged=length, tag=tag)
                begin += HEADER.size
                headroom = self._headroom
                if have >= length and length + headroom <= SMALL_BYTES:
                    body = self._arena.body(length, headroom)
                    body.view[body.start :] = staging[begin : begin + length]
                    begin += length
                    self._between = 0
                    frames.append(make_received((tag, body)))
                    if payload:
                        begin = self._parse_run(begin, end, payload, length, tag)
                        payload = b""
                    continue
                payload = b""
                if headroom > _MOST_HEADROOM and headroom > length:
                    headroom = 0
                try:
                    body = ReceivedBody(length, headroom)
                except MemoryError:
                    raise LimitError(f"no memory for a body of {length} bytes", tag=tag) from None
                if length >= DIRECT_BYTES:
                    self._guess = max(self._between + HEADER.size, 64)
                self._between = 0
                if have < length:
                    body.view[body.start : body.start + have] = staging[begin:end]
                    self._body, self._tag, self._filled = body, tag, have
                    begin = end
                    break
                body.view[body.start :] = staging[begin : begin + length]
                begin += length
                frames.append(make_received((tag, body)))
            else:
                raise ProtocolError(f"a frame begins with {kind:#018x}: no kind of frame does")
        if begin == end:
            begin = end = 0
        elif begin:
            rest = bytes(staging[begin:end])
            begin, end = 0, len(rest)
            staging[:end] = rest
        self._begin, self._end = begin, end

    def _parse_run(self, begin: int, end: int, payload: bytes, length: int, tag: int) -> int:
        """Take the messages that are like the one just parsed; return where they end.

        Parameters
        ----------
        begin, end : int
            What there is in the staging area.
        payload : bytes
            The metadata message just parsed.
        length, tag : int
            The size and the tag of the body behind it.
        """
        staging = self._staging
        size = len(payload)
        period = HEADER.size + size + HEADER.size + length
        stride = Run.stride_of(length, self._headroom)
        most = min((end - begin) // period, SHARED_BYTES // stride)
        at = begin + HEADER.size + PREFIX.size
        metadata = payload[PREFIX.size :]
        if (
            most < _SHORTEST_RUN
            or not metadata
            or PREFIX.unpack_from(payload) != (MetadataType.MESSAGE, tag)
            or bytes(staging[at : at + len(metadata)]) != metadata
        ):
            return begin
        before = HEADER.pack(UNTAGGED, size, 0) + payload[:1]
        between = metadata + HEADER.pack(TAGGED, length, 0)[:_TAG_AT]
        due = tag + 1
        for head, sequence, middle, number in struct.iter_unpack(
            f"<{len(before)}sI{len(between)}sQ{length}x", staging[begin : begin + most * period]
        ):
            if number != due or sequence != due or middle != between or head != before:
                break
            due += 1
        count = due - tag - 1
        if count < _SHORTEST_RUN:
            return begin
        run = Run(tag + 1, metadata, length, self._headroom, count)
        view, to = run.view, run.start
        for body in range(begin + period - length, begin + count * period, period):
            view[to : to + length] = staging[body : body + length]
            to += stride
        self._frames.append(run)
        return begin + count * period

    def _parse_preface(self, begin: int, end: int) -> int:
        got = bytes(self._staging[begin : min(end, begin + len(PREFACE))])
        if got != PREFACE[: len(got)]:
            error = PrefaceError("the peer does not begin with the preface of the protocol")
            error.received = bytes(self._staging[begin : min(end, begin + 64)])
            raise error
        if len(got) < len(PREFACE):
            return begin
        self._preface_due = False
        return begin + len(PREFACE)


def check_sizes(
    limits: Limits, *, untagged: int = 0, tagged: int = 0, tag: int | None = None
) -> None:
    """Refuse a frame that is larger than the limits allow.

    Raises
    ------
    LimitError
        If it is.
    """
    if untagged > limits.metadata_bytes:
        raise LimitError(
            f"an untagged frame of {untagged} bytes; the limit is {limits.metadata_bytes}"
        )
    if tagged > limits.body_bytes:
        raise LimitError(
            f"a tagged frame of {tagged} bytes; the limit is {limits.body_bytes}", tag=tag
        )


def encode(frames: Iterable[Outgoing]) -> list[Any]:
    """Return the parts that make up frames on the wire, in order.

    Headers, metadata and short bodies of offsets are joined; the parts of other bodies are passed
    on as they are.
    """
    pack = HEADER.pack
    parts: list[Any] = []
    head: list[bytes] = []
    for frame in frames:
        if isinstance(frame, Untagged):
            head.append(pack(UNTAGGED, len(frame.payload), 0))
            head.append(frame.payload)
        else:
            tag, nbytes, body = frame
            head.append(pack(TAGGED, nbytes, tag))
            if nbytes <= _JOINED_BYTES and len(body) == 1 and type(body[0]) is bytes:
                head.append(body[0])
            elif nbytes:
                parts.append(b"".join(head))
                head.clear()
                parts.extend(body)
    if head:
        parts.append(b"".join(head))
    return parts
