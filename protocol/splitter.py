"""Splitting of a dataset's messages into the frames of the two streams ("Server Sequence")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import ProtocolError
from .bodies import Span, pack_spans
from .frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from .messages import PREFIX, MetadataType, pack_failure, pack_metadata
from .sequence import MAX_SEQUENCE
from .tags import BodyType, pack_body_tag
from .uri import Streams


class SourceMessage(NamedTuple):
    """A message from a source of data."""

    metadata: bytes | memoryview
    """The FlatBuffer of the message."""
    body: Sequence[Any] | None
    """The buffers of the packed body, in order. None if the message has no body."""
    body_length: int = 0
    """The size of the body in bytes: the sum over its buffers."""
    rows: int = 0
    """The number of rows of a record batch. 0 for other messages."""
    message_type: int = MetadataType.ARROW
    """The format of the message, as the type of its metadata message."""


class Splitter:
    """Numbers the messages of one stream and splits each into its two frames.

    Parameters
    ----------
    streams : Streams
        The streams to make frames for. Two splitters for the two streams number the same messages
        alike.
    first_sequence : int
        The sequence number of the first message.
    """

    def __init__(self, streams: Streams = Streams.BOTH, first_sequence: int = 0) -> None:
        self._sends_metadata = streams.carries_metadata
        self._sends_bodies = streams.carries_bodies
        self._next = first_sequence
        self._ended = False

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next message (uint32)."""
        return self._next

    def split(
        self, messages: Iterable[SourceMessage], body_type: BodyType = BodyType.PACKED
    ) -> list[OutgoingFrame]:
        """Return the frames of the next messages, in the order to send them in.

        Raises
        ------
        ProtocolError
            If the stream has ended.
        """
        if self._ended:
            raise ProtocolError("the stream has ended", sequence=self._next)
        frames: list[OutgoingFrame] = []
        sequence = self._next
        sends_metadata, sends_bodies = self._sends_metadata, self._sends_bodies
        pack = PREFIX.pack
        for metadata, body, body_length, _, message_type in messages:
            if sends_metadata:
                frames.append(UntaggedFrame(b"".join((pack(message_type, sequence), metadata))))
            if body is not None and sends_bodies:
                frames.append(TaggedFrame(pack_body_tag(sequence, body_type), body_length, body))
            sequence = (sequence + 1) & MAX_SEQUENCE
        self._next = sequence
        return frames

    def split_remote(self, message: SourceMessage, spans: Sequence[Span]) -> list[OutgoingFrame]:
        """Return the frames of the next message, with a body of type 1.

        Parameters
        ----------
        message : SourceMessage
            The message. Its body is ignored.
        spans : sequence of (offset, length)
            The location of each of its buffers in the region.

        Raises
        ------
        ProtocolError
            If the stream has ended.
        """
        payload = pack_spans(spans)
        return self.split(
            [message._replace(body=(payload,), body_length=len(payload))], BodyType.OFFSETS
        )

    def end(self) -> list[OutgoingFrame]:
        """Return the frames that end the stream: a message that counts those before it."""
        self._ended = True
        if not self._sends_metadata:
            return []
        return [UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, self._next))]

    def fail(self, code: str, message: str) -> list[OutgoingFrame]:
        """Return the frames that report the failure of the stream. Nothing may follow them.

        Parameters
        ----------
        code : str
            A gRPC status name.
        message : str
            The explanation for the reader.
        """
        self._ended = True
        payload = pack_failure(code, message)
        if self._sends_metadata:
            return [UntaggedFrame(pack_metadata(MetadataType.FAILURE, self._next, payload))]
        return [TaggedFrame(pack_body_tag(self._next, BodyType.FAILURE), len(payload), (payload,))]
