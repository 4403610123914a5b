"""From the frames of the two streams back to messages ("Client Sequence").

Metadata and bodies may come in any order, from one connection or from two, and more than
once. Messages come out in the order of their sequence numbers, each with its body. The usual
case, everything in order, takes a short path through `Reassembler.feed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from ..errors import LimitError, ProtocolError, RemoteError
from ..formats.arrow.message import HeaderType, MessageFacts, message_facts
from .frames import Incoming, ReceivedBody, Run, Untagged
from .limits import DEFAULT_LIMITS, Limits
from .messages import (
    PREFIX,
    Message,
    MetadataType,
    parse_failure,
    parse_metadata_prefix,
    single_frames,
)
from .sequence import LAST, distance, following
from .tags import BodyType, body_tag, parse_body_tag
from .uri import StreamKind

_MESSAGE = int(MetadataType.MESSAGE)
_PACKED = BodyType.PACKED
_OFFSETS = BodyType.OFFSETS
_OFFSETS_TAG = body_tag(0, _OFFSETS)
_make_message = partial(tuple.__new__, Message)


class _Half(NamedTuple):
    """Metadata that waits for its body, or for its turn."""

    metadata: bytes
    facts: MessageFacts


class Reassembler:
    """Matches bodies to metadata and puts the messages of one stream in order.

    Parameters
    ----------
    limits : Limits
        Bounds on what may wait.
    stream : str, optional
        The stream's name, for errors.
    first_sequence : int
        The sequence number of the first message.

    Attributes
    ----------
    failure : RemoteError or None
        Why the server gave up, once it said so. Messages before it are still good.
    duplicates : int
        How many frames came more than once and were ignored.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        *,
        stream: str | None = None,
        first_sequence: int = 0,
    ) -> None:
        self._limits = limits
        self._stream = stream
        self._next = first_sequence
        self._delivered = 0
        self._metadata: dict[int, _Half] = {}
        self._bodies: dict[int, tuple[BodyType, ReceivedBody]] = {}
        self._pending_bytes = 0
        self._end: int | None = None
        self._head: _Half | None = None
        self._known: _Half | None = None
        self.failure: RemoteError | None = None
        self.duplicates = 0

    @property
    def finished(self) -> bool:
        """Whether the end is proven: end of stream, no gap before it, no body outstanding."""
        return self._next == self._end and self.failure is None

    @property
    def delivered(self) -> int:
        """How many messages have come out."""
        return self._delivered

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for an earlier message, or for their other half."""
        return self._pending_bytes

    @property
    def needs_body(self) -> bool:
        """Whether the next message waits for its body, not for its metadata."""
        return self._head is not None or self._next in self._metadata

    def missing(self) -> str:
        """Say what the stream still waits for, for the error of a connection that was cut."""
        if self._next == self._end:
            return "nothing"
        if self.needs_body:
            return f"the body of message {self._next}"
        if self._next in self._bodies:
            return f"the metadata of message {self._next}"
        if self._end is not None:
            return f"message {self._next}; the end of the stream counts {self._end}"
        return f"message {self._next} or the end of the stream"

    def feed(
        self,
        frames: Iterable[Incoming],
        ready: list[Message | Run],
        origin: StreamKind = StreamKind.BOTH,
    ) -> None:
        """Take frames in; append the messages that are complete, in order, to `ready`.

        Parameters
        ----------
        frames : iterable of Untagged, TaggedReceived or Run
            What arrived.
        ready : list of Message or Run
            Where complete messages go. If an error is raised, those before it are there.
        origin : StreamKind
            Which of the streams the connection carries.

        Raises
        ------
        ProtocolError
            If a frame, or the row of them, breaks the protocol.
        LimitError
            If more would have to wait than the limits allow.
        """
        in_order = self._in_order and origin is not StreamKind.BODY
        takes_bodies = origin is not StreamKind.METADATA
        for frame in frames:
            head = self._head
            if isinstance(frame, Untagged):
                payload = frame.payload
                if in_order and head is None and len(payload) > PREFIX.size:
                    kind, sequence = PREFIX.unpack_from(payload)
                    if kind == _MESSAGE and sequence == self._next:
                        metadata = payload[PREFIX.size :]
                        known = self._known
                        if known is None or metadata != known.metadata:
                            known = self._half(metadata, sequence)
                        if known is self._known or known.facts.header_type.has_body:
                            self._head = known  # its body is most likely next
                            continue
                self._park()
                self._take_metadata(payload, ready, origin)
            elif isinstance(frame, Run):
                if in_order and head is None and takes_bodies and self._follows(frame):
                    ready.append(frame)
                    self._next = (self._next + frame.count) & LAST
                    self._delivered += frame.count
                else:
                    self.feed(single_frames((frame,)), ready, origin)
            else:
                tag, body = frame
                if head is not None and takes_bodies:
                    due = self._next
                    body_type = None
                    if tag == due and body.nbytes == head.facts.body_length:
                        body_type = _PACKED
                    elif tag == due | _OFFSETS_TAG:
                        body_type = _OFFSETS
                    if body_type is not None:
                        ready.append(_make_message((due, head.metadata, body, body_type)))
                        self._next = (due + 1) & LAST
                        self._delivered += 1
                        self._head = None
                        continue
                self._park()
                self._take_body(tag, body, ready, origin)
            in_order = self._in_order and origin is not StreamKind.BODY

    @property
    def _in_order(self) -> bool:
        """Whether nothing waits but, at most, the next message's metadata at hand."""
        return not (
            self._metadata
            or self._bodies
            or self._end is not None
            or self.failure
            or self._delivered == 0
        )

    def _follows(self, run: Run) -> bool:
        """Tell whether a run is what comes next, and like the message before it."""
        known = self._known
        return (
            known is not None
            and run.sequence == self._next
            and run.nbytes == known.facts.body_length
            and known.facts.header_type.has_body
            and run.metadata == known.metadata
        )

    def _park(self) -> None:
        """Put the metadata at hand to what waits, so that there is one place to look."""
        head = self._head
        if head is not None:
            self._head = None
            self._metadata[self._next] = head
            self._wait(len(head.metadata), self._next)

    def _half(self, metadata: bytes, sequence: int) -> _Half:
        known = self._known
        if known is not None and metadata == known.metadata and self._delivered:
            return known
        try:
            facts = message_facts(metadata)
        except ProtocolError as error:
            raise self._error(error.message, sequence) from None
        if facts.body_length > self._limits.body_bytes:
            raise LimitError(
                f"the message declares a body of {facts.body_length} bytes; "
                f"the limit is {self._limits.body_bytes}",
                stream=self._stream,
                sequence=sequence,
            )
        is_schema = facts.header_type is HeaderType.SCHEMA
        if sequence == self._next and self._delivered == 0 and not is_schema:
            raise self._error(
                f"the first message is a {facts.header_type.name}, not a schema", sequence
            )
        if is_schema and not (sequence == self._next and self._delivered == 0):
            raise self._error("a second schema", sequence)
        half = _Half(metadata, facts)
        if not is_schema:
            self._known = half
        return half

    def _take_metadata(
        self, payload: bytes, ready: list[Message | Run], origin: StreamKind
    ) -> None:
        try:
            kind, sequence = parse_metadata_prefix(payload)
        except ProtocolError as error:
            error.stream = self._stream
            raise
        if not origin.metadata:
            raise self._error("a metadata message on the connection for bodies", sequence)
        if self.failure is not None:
            raise self._error("a message after the failure of the stream", sequence)
        if kind is MetadataType.END_OF_STREAM:
            self._take_end(sequence)
        elif kind is MetadataType.FAILED:
            self.failure = parse_failure(payload[PREFIX.size :], stream=self._stream)
        elif kind is MetadataType.VORTEX:
            raise self._error("a Vortex message, which was not asked for", sequence)
        elif self._is_due(sequence):
            metadata = payload[PREFIX.size :]
            earlier = self._metadata.get(sequence)
            if earlier is not None:
                if earlier.metadata != metadata:
                    raise self._error("two different metadata messages of one number", sequence)
                self.duplicates += 1
                return
            self._metadata[sequence] = self._half(metadata, sequence)
            self._wait(len(metadata), sequence)
            self._deliver(ready)

    def _take_end(self, count: int) -> None:
        if self._end is not None:
            if self._end != count:
                raise self._error(f"two ends of the stream: {self._end} and {count}", count)
            self.duplicates += 1
            return
        ahead = distance(count, self._next)
        if ahead == 0 and self._delivered == 0:
            raise self._error("the stream ended before its schema", count)
        last = max((distance(s, self._next) for s in (*self._metadata, *self._bodies)), default=-1)
        if ahead <= last:
            raise self._error(
                f"the end of the stream counts {count}, but message "
                f"{following(self._next, last)} came",
                count,
            )
        if ahead > self._limits.pending_messages:
            raise self._error(f"the end of the stream counts {count} messages, too many", count)
        self._end = count

    def _take_body(
        self, tag: int, body: ReceivedBody, ready: list[Message | Run], origin: StreamKind
    ) -> None:
        try:
            sequence, body_type = parse_body_tag(tag)
        except ProtocolError as error:
            error.stream = self._stream
            raise
        if not origin.body:
            raise self._error("a body on the connection for metadata", sequence, tag)
        if self.failure is not None:
            raise self._error("a message after the failure of the stream", sequence, tag)
        if body_type is BodyType.FAILED:
            self.failure = parse_failure(body.view[body.start :], stream=self._stream)
            return
        if distance(sequence, self._next) == -self._delivered:
            raise self._error("a body for the SCHEMA message, which has none", sequence, tag)
        if not self._is_due(sequence, tag):
            return
        if sequence in self._bodies:
            if self._bodies[sequence][1].nbytes != body.nbytes:
                raise self._error("two different bodies of one number", sequence, tag)
            self.duplicates += 1
            return
        self._bodies[sequence] = (body_type, body)
        self._wait(body.nbytes, sequence)
        self._deliver(ready)

    def _is_due(self, sequence: int, tag: int | None = None) -> bool:
        """Tell whether a message is still to come out; refuse numbers that cannot be."""
        ahead = distance(sequence, self._next)
        if ahead < 0:
            if -ahead > self._delivered:
                raise self._error("a sequence number before the first", sequence, tag)
            self.duplicates += 1
            return False
        if self._end is not None and ahead >= distance(self._end, self._next):
            raise self._error(
                f"a message beyond the end of the stream, which counts {self._end}", sequence, tag
            )
        if ahead >= self._limits.pending_messages:
            raise LimitError(
                f"message {self._next} is missing and {ahead} later ones would have to wait",
                stream=self._stream,
                sequence=sequence,
                tag=tag,
            )
        return True

    def _wait(self, nbytes: int, sequence: int) -> None:
        self._pending_bytes += nbytes
        if self._pending_bytes <= self._limits.pending_bytes:
            return
        # One message may be larger than the limit, as long as it does not wait for others.
        if set(self._metadata) | set(self._bodies) == {self._next}:
            return
        raise LimitError(
            f"{self._pending_bytes} bytes wait for {self.missing()}; "
            f"the limit is {self._limits.pending_bytes}",
            stream=self._stream,
            sequence=sequence,
        )

    def _deliver(self, ready: list[Message | Run]) -> None:
        while (half := self._metadata.get(self._next)) is not None:
            sequence = self._next
            entry = self._bodies.get(sequence)
            if half.facts.header_type.has_body:
                if entry is None:
                    return
                body_type, body = entry
                if body_type is BodyType.PACKED and body.nbytes != half.facts.body_length:
                    raise self._error(
                        f"a body of {body.nbytes} bytes where the metadata declares "
                        f"{half.facts.body_length}",
                        sequence,
                    )
                message = Message(sequence, half.metadata, body, body_type)
                self._pending_bytes -= body.nbytes
            elif entry is not None:
                raise self._error(
                    f"a body for a {half.facts.header_type.name} message, which has none", sequence
                )
            else:
                message = Message(sequence, half.metadata, None, BodyType.PACKED)
            self._pending_bytes -= len(half.metadata)
            del self._metadata[sequence]
            self._bodies.pop(sequence, None)
            ready.append(message)
            self._next = (sequence + 1) & LAST
            self._delivered += 1

    def _error(self, message: str, sequence: int, tag: int | None = None) -> ProtocolError:
        return ProtocolError(message, stream=self._stream, sequence=sequence, tag=tag)
