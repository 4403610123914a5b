"""Reassembly of messages from the frames of the two streams ("Client Sequence").

Frames wait for an earlier message, or for the other frame of their own message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import partial
from typing import NamedTuple

from ..errors import LimitError, ProtocolError, RemoteError
from .frames import IncomingFrame, MessageRun, UntaggedFrame
from .limits import DEFAULT_LIMITS, Limits
from .memory import ReceivedBody
from .messages import (
    PREFIX,
    Message,
    MessageFormat,
    MetadataType,
    expand_frames,
    parse_failure,
    parse_metadata_prefix,
)
from .tags import MAX_SEQUENCE, BodyType, pack_body_tag, parse_body_tag
from .uri import Streams

_PACKED, _OFFSETS = BodyType.PACKED, BodyType.OFFSETS
_OFFSETS_TAG = pack_body_tag(0, _OFFSETS)
_PREFIX_SIZE = PREFIX.size
_make_message = partial(tuple.__new__, Message)


class ParsedMetadata(NamedTuple):
    """The metadata of one message, and the properties that reassembly needs."""

    message_type: int
    """The format of the message, as the type of its metadata message."""
    payload: bytes
    """The FlatBuffer of the message."""
    name: str
    """The type of the message in its format, for errors."""
    has_body: bool
    """Whether a body follows the metadata."""
    body_length: int
    """The declared size of the packed body in bytes."""


def advance(sequence: int, steps: int = 1) -> int:
    """Return the sequence number `steps` after `sequence`.

    Examples
    --------
    >>> advance(MAX_SEQUENCE)
    0
    """
    return (sequence + steps) & MAX_SEQUENCE


def distance(sequence: int, base: int) -> int:
    """Return the number of steps from `base` to `sequence`, negative if `sequence` is earlier.

    This is serial-number arithmetic (RFC 1982): of two numbers, the one that is less than 2**31
    steps ahead of the other is the later one.

    Examples
    --------
    >>> distance(1, MAX_SEQUENCE), distance(MAX_SEQUENCE, 1)
    (2, -2)
    """
    ahead = (sequence - base) & MAX_SEQUENCE
    return ahead if ahead <= MAX_SEQUENCE >> 1 else ahead - (MAX_SEQUENCE + 1)


class PendingFrames:
    """The frames of messages that cannot be delivered yet, by sequence number.

    Attributes
    ----------
    metadata : dict of int to ParsedMetadata
        Metadata without its body, or of a message that is not due.
    bodies : dict of int to (BodyType, ReceivedBody)
        Bodies without their metadata, or of messages that are not due.
    nbytes : int
        The size of all these frames in bytes.
    """

    __slots__ = ("bodies", "metadata", "nbytes")

    def __init__(self) -> None:
        self.metadata: dict[int, ParsedMetadata] = {}
        self.bodies: dict[int, tuple[BodyType, ReceivedBody]] = {}
        self.nbytes = 0

    @property
    def sequences(self) -> set[int]:
        """The sequence numbers of all waiting frames."""
        return self.metadata.keys() | self.bodies.keys()

    def add_metadata(self, sequence: int, metadata: ParsedMetadata) -> None:
        """Keep the metadata of message `sequence`."""
        self.metadata[sequence] = metadata
        self.nbytes += len(metadata.payload)

    def add_body(self, sequence: int, body_type: BodyType, body: ReceivedBody) -> None:
        """Keep the body of message `sequence`."""
        self.bodies[sequence] = body_type, body
        self.nbytes += body.nbytes

    def take(self, sequence: int) -> Message | None:
        """Remove and return message `sequence`, or return None if it is incomplete.

        Raises `ProtocolError` if the message has a body that its metadata excludes, or a packed
        body of another size than its metadata declares.
        """
        metadata = self.metadata.get(sequence)
        if metadata is None:
            return None
        message_type, payload, name, has_body, body_length = metadata
        body_type, body = self.bodies.get(sequence, (BodyType.PACKED, None))
        if body is None and has_body:
            return None
        if body is not None:
            if not has_body:
                raise ProtocolError(
                    f"received a body for a {name} message, which has none",
                    sequence=sequence,
                )
            if body_type is BodyType.PACKED and body.nbytes != body_length:
                raise ProtocolError(
                    f"the body has {body.nbytes} bytes; the metadata declares {body_length}",
                    sequence=sequence,
                )
            self.nbytes -= body.nbytes
            del self.bodies[sequence]
        self.nbytes -= len(payload)
        del self.metadata[sequence]
        return Message(sequence, payload, body, body_type, message_type)


class DuplicateCounter:
    """Counts duplicates, and bounds those that arrive in succession.

    A network or a proxy may repeat frames. A server that only repeats itself would keep its reader
    busy forever.

    Attributes
    ----------
    total : int
        The number of all duplicates.
    """

    def __init__(self, limit: int, name: str = "duplicates") -> None:
        self.total = 0
        self._limit = limit
        self._name = name
        self._successive = 0
        self._position: object = None

    def count(self, position: object) -> None:
        """Count a duplicate; `position` differs if new frames have arrived since the last one.

        Raises `LimitError` if too many duplicates have arrived in succession.
        """
        self.total += 1
        if position != self._position:
            self._position, self._successive = position, 0
        self._successive += 1
        if self._successive > self._limit:
            raise LimitError(
                f"{self._successive} {self._name} arrived in succession; the limit is {self._limit}"
            )


class Reassembler:
    """Matches bodies to metadata and delivers the messages of one stream in order.

    It refuses messages whose type is not in `formats`.

    Attributes
    ----------
    delivered : int
        The number of messages delivered.
    failure : RemoteError or None
        The failure that the server reported. The messages delivered before it are valid.
    keep_alives : DuplicateCounter
        The keep-alives that arrived.
    """

    def __init__(
        self,
        formats: Mapping[MetadataType, MessageFormat],
        limits: Limits = DEFAULT_LIMITS,
        *,
        stream: str | None = None,
        first_sequence: int = 0,
        keep_alive_tags: Set[int] = frozenset(),
    ) -> None:
        self._formats: Mapping[int, MessageFormat] = {**formats}
        self._limits = limits
        self._stream = stream
        self._next = first_sequence
        self.delivered = 0
        self._pending = PendingFrames()
        self._end: int | None = None
        self._head: ParsedMetadata | None = None
        """The metadata of message `_next`, if its body is the next frame to expect."""
        self._latest: ParsedMetadata | None = None
        """The last metadata with a body. Most messages repeat it byte for byte."""
        self.failure: RemoteError | None = None
        self._duplicates = DuplicateCounter(limits.duplicates)
        self._keep_alive_tags = keep_alive_tags
        self.keep_alives = DuplicateCounter(limits.duplicates, "keep-alives")

    @property
    def finished(self) -> bool:
        """Whether the stream ended, and every message that its end counts was delivered."""
        return self._next == self._end and self.failure is None

    @property
    def duplicates(self) -> int:
        """The number of frames that arrived again and were ignored."""
        return self._duplicates.total

    @property
    def position(self) -> tuple[object, ...]:
        """A value that changes with every frame that is neither a duplicate nor a keep-alive."""
        pending = self._pending
        metadata = len(pending.metadata) + bool(self._head)
        return self.delivered, metadata, len(pending.bodies), self._end

    @property
    def pending_bytes(self) -> int:
        """The size in bytes of the frames that wait."""
        return self._pending.nbytes

    @property
    def needs_body(self) -> bool:
        """Whether the next message lacks its body rather than its metadata."""
        return self._head is not None or self._next in self._pending.metadata

    def missing(self) -> str:
        """Describe the frame that the stream waits for, for the error of a broken connection."""
        if self._next == self._end:
            return "nothing"
        if self.needs_body:
            return f"the body of message {self._next}"
        if self._next in self._pending.bodies:
            return f"the metadata of message {self._next}"
        if self._end is not None:
            return f"message {self._next}; the end of the stream counts {self._end} messages"
        return f"message {self._next} or the end of the stream"

    def feed(
        self,
        frames: Iterable[IncomingFrame],
        ready: list[Message | MessageRun],
        origin: Streams = Streams.BOTH,
    ) -> None:
        """Accept received frames and append the messages that they complete to `ready`.

        If this method raises, the list holds the messages before the error. Raises `ProtocolError`
        if a frame, or its position in the stream, violates the protocol. Raises `LimitError` if
        more frames would have to wait than the limits allow.
        """
        in_order = self._is_in_order(origin)
        takes_bodies, unpack = origin.carries_bodies, PREFIX.unpack_from
        try:
            # This loop runs for every message. It calls no function for one that repeats the last.
            for frame in frames:
                head = self._head
                if isinstance(frame, UntaggedFrame):
                    payload = frame.payload
                    if in_order and head is None and len(payload) > _PREFIX_SIZE:
                        message_type, sequence = unpack(payload)
                        if sequence == self._next:
                            latest, metadata = self._latest, payload[_PREFIX_SIZE:]
                            if (
                                latest
                                and message_type == latest.message_type
                                and metadata == latest.payload
                            ):
                                self._head = latest
                                continue
                            if message_type in self._formats:
                                parsed = self._parse(message_type, metadata, sequence)
                                if parsed.has_body:
                                    self._head = parsed
                                else:
                                    fields = (sequence, metadata, None, _PACKED, message_type)
                                    ready.append(_make_message(fields))
                                    self._next = (sequence + 1) & MAX_SEQUENCE
                                    self.delivered += 1
                                continue
                elif isinstance(frame, MessageRun):
                    if in_order and head is None and takes_bodies and self._continues(frame):
                        ready.append(frame)
                        self._next = (self._next + frame.count) & MAX_SEQUENCE
                        self.delivered += frame.count
                        continue
                elif head is not None and takes_bodies:
                    tag, body = frame
                    sequence = self._next
                    body_type = None
                    if tag == sequence and body.nbytes == head.body_length:
                        body_type = _PACKED
                    elif tag == sequence | _OFFSETS_TAG:
                        body_type = _OFFSETS
                    if body_type is not None:
                        fields = (sequence, head.payload, body, body_type, head.message_type)
                        ready.append(_make_message(fields))
                        self._next = (sequence + 1) & MAX_SEQUENCE
                        self.delivered += 1
                        self._head = None
                        continue
                self._feed_out_of_order(frame, ready, origin)
                in_order = self._is_in_order(origin)
        except ProtocolError as error:
            error.stream = self._stream
            raise

    def _is_in_order(self, origin: Streams) -> bool:
        """Return whether no frame waits, except perhaps the metadata of the next message."""
        return (
            not self._pending.metadata
            and not self._pending.bodies
            and self._end is None
            and self.failure is None
            and origin.carries_metadata
        )

    def _continues(self, run: MessageRun) -> bool:
        """Return whether a run is due and consists of messages like the one before it."""
        latest = self._latest
        return (
            latest is not None
            and latest.message_type == MetadataType.ARROW
            and run.sequence == self._next
            and (run.body_type is not _PACKED or run.nbytes == latest.body_length)
            and run.metadata == latest.payload
        )

    def _feed_out_of_order(
        self, frame: IncomingFrame, ready: list[Message | MessageRun], origin: Streams
    ) -> None:
        """Accept a frame that `feed` does not handle by itself."""
        if isinstance(frame, MessageRun):
            self.feed(expand_frames((frame,)), ready, origin)
            return
        if self._head is not None:
            self._pending.add_metadata(self._next, self._head)
            self._head = None
        if isinstance(frame, UntaggedFrame):
            self._add_metadata(frame.payload, origin)
        elif frame.tag in self._keep_alive_tags:
            self.keep_alives.count(self.position)
        else:
            self._add_body(frame.tag, frame.body, origin)
        while (message := self._pending.take(self._next)) is not None:
            ready.append(message)
            self._next = (self._next + 1) & MAX_SEQUENCE
            self.delivered += 1

    def _add_metadata(self, message: bytes, origin: Streams) -> None:
        message_type, sequence = parse_metadata_prefix(message)
        if not origin.carries_metadata:
            raise ProtocolError(
                "received metadata on the connection of the body stream", sequence=sequence
            )
        if self.failure is not None:
            raise ProtocolError("received a message after the stream failed", sequence=sequence)
        payload = message[_PREFIX_SIZE:]
        if message_type is MetadataType.END_OF_STREAM:
            self._add_end(sequence)
        elif message_type is MetadataType.FAILURE:
            self.failure = parse_failure(payload, self._limits, stream=self._stream)
        elif message_type not in self._formats:
            accepted = ", ".join(MetadataType(each).name for each in self._formats)
            raise ProtocolError(
                f"the stream carries a {message_type.name} message; this reader accepts {accepted}",
                sequence=sequence,
            )
        elif self._is_outstanding(sequence):
            earlier = self._pending.metadata.get(sequence)
            if earlier is None:
                metadata = self._parse(message_type, payload, sequence)
                self._pending.add_metadata(sequence, metadata)
                self._check_pending_bytes(sequence)
            elif (message_type, payload) != (earlier.message_type, earlier.payload):
                raise ProtocolError(
                    "received different metadata with one sequence number", sequence=sequence
                )
            else:
                self._duplicates.count(self.position)

    def _parse(self, message_type: int, payload: bytes, sequence: int) -> ParsedMetadata:
        """Return the parsed and checked metadata of a message that is outstanding."""
        latest = self._latest
        if self.delivered and latest is not None and latest[:2] == (message_type, payload):
            return latest
        try:
            name, is_schema, has_body, body_length, is_array = self._formats[message_type](payload)
        except ProtocolError as error:
            error.sequence = sequence
            raise
        if body_length > self._limits.body_bytes and not is_array:
            raise LimitError(
                f"the metadata declares a body of {body_length} bytes; "
                f"the limit is {self._limits.body_bytes} bytes",
                sequence=sequence,
            )
        is_first = self.delivered == 0 and sequence == self._next
        if is_first and not is_schema:
            raise ProtocolError(f"the first message is a {name}, not a schema", sequence=sequence)
        if is_schema and not is_first:
            raise ProtocolError("received a second schema", sequence=sequence)
        metadata = ParsedMetadata(message_type, payload, name, has_body, body_length)
        if has_body:
            self._latest = metadata
        return metadata

    def _add_end(self, count: int) -> None:
        if self._end == count:
            self._duplicates.count(self.position)
            return
        if self._end is not None:
            raise ProtocolError(
                f"received two ends of the stream, with {self._end} and {count} messages",
                sequence=count,
            )
        outstanding = distance(count, self._next)
        if outstanding == 0 and self.delivered == 0:
            raise ProtocolError("the stream ended before its schema", sequence=count)
        last = max((distance(s, self._next) for s in self._pending.sequences), default=-1)
        if outstanding <= last:
            raise ProtocolError(
                f"the end of the stream counts {count} messages, but message "
                f"{advance(self._next, last)} arrived",
                sequence=count,
            )
        if outstanding > self._limits.pending_messages:
            raise ProtocolError(
                f"the stream ended with {outstanding} messages outstanding; "
                f"the limit is {self._limits.pending_messages}",
                sequence=count,
            )
        self._end = count

    def _add_body(self, tag: int, body: ReceivedBody, origin: Streams) -> None:
        sequence, body_type = parse_body_tag(tag)
        if not origin.carries_bodies:
            raise ProtocolError(
                "received a body on the connection of the metadata stream",
                sequence=sequence,
                tag=tag,
            )
        if self.failure is not None:
            raise ProtocolError(
                "received a body after the stream failed", sequence=sequence, tag=tag
            )
        if body_type is BodyType.FAILURE:
            payload = body.view[body.start :]
            self.failure = parse_failure(payload, self._limits, stream=self._stream)
            return
        if distance(sequence, self._next) == -self.delivered:
            raise ProtocolError(
                "received a body for the schema message, which has none", sequence=sequence, tag=tag
            )
        if not self._is_outstanding(sequence, tag):
            return
        if sequence not in self._pending.bodies:
            self._pending.add_body(sequence, body_type, body)
            self._check_pending_bytes(sequence)
        elif self._pending.bodies[sequence][1].nbytes != body.nbytes:
            raise ProtocolError(
                "received bodies of different sizes with one sequence number",
                sequence=sequence,
                tag=tag,
            )
        else:
            self._duplicates.count(self.position)

    def _is_outstanding(self, sequence: int, tag: int | None = None) -> bool:
        """Return whether message `sequence` is still to be delivered, or count a duplicate."""
        ahead = distance(sequence, self._next)
        if ahead < 0:
            if -ahead > self.delivered:
                raise ProtocolError(
                    "the sequence number precedes the first of the stream",
                    sequence=sequence,
                    tag=tag,
                )
            self._duplicates.count(self.position)
            return False
        if self._end is not None and ahead >= distance(self._end, self._next):
            raise ProtocolError(
                f"the message is beyond the end of the stream, which counts {self._end} messages",
                sequence=sequence,
                tag=tag,
            )
        if ahead >= self._limits.pending_messages:
            raise LimitError(
                f"message {self._next} is missing, and this message is {ahead} ahead of it; "
                f"at most {self._limits.pending_messages} messages may wait",
                sequence=sequence,
                tag=tag,
            )
        return True

    def _check_pending_bytes(self, sequence: int) -> None:
        """Check the size of the waiting frames, after one of message `sequence` was added.

        A single message may exceed the limit as long as it waits for no other message.
        """
        pending = self._pending
        if pending.nbytes > self._limits.pending_bytes and pending.sequences != {self._next}:
            raise LimitError(
                f"{pending.nbytes} bytes wait for {self.missing()}; "
                f"the limit is {self._limits.pending_bytes} bytes",
                sequence=sequence,
            )
