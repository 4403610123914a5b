"""Splitting of a dataset's messages into the frames of the two streams ("Server Sequence")."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError
from .frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from .messages import PREFIX, FrameRun, MetadataType, pack_failure, pack_metadata
from .payloads import Span, pack_spans
from .tags import MAX_SEQUENCE, BodyType, pack_body_tag
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


class SourceRun(Sequence[SourceMessage]):
    """Consecutive record batches with equal metadata and bodies of equal size.

    It is the sequence of their messages. Whatever handles many of them can handle them at once.
    """

    __slots__ = ("metadata", "rows")

    def __init__(self, metadata: bytes, rows: int) -> None:
        self.metadata = metadata
        self.rows = rows

    @abstractmethod
    def message(self, index: int) -> SourceMessage:
        """Return one of the messages, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> SourceMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SourceMessage]: ...
    def __getitem__(self, index: int | slice) -> SourceMessage | Sequence[SourceMessage]:
        numbers = range(len(self))[index]
        return self.message(numbers) if isinstance(numbers, int) else [*map(self.message, numbers)]


class PackedRun(SourceRun):
    """A run whose bodies are in the memory of this process.

    The packed bodies have the shape (messages, bytes). A body has at least one byte.
    """

    __slots__ = ("bodies",)

    def __init__(self, metadata: bytes, rows: int, bodies: NDArray[np.uint8]) -> None:
        super().__init__(metadata, rows)
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    def message(self, index: int) -> SourceMessage:
        """Return one of the messages."""
        body = memoryview(self.bodies[index])
        return SourceMessage(self.metadata, (body,), body.nbytes, self.rows)


def count_rows(messages: Sequence[SourceMessage]) -> int:
    """Return the number of rows of a group of messages."""
    if len(messages) == 1:  # as large messages are: the check below takes longer than all of this
        return messages[0].rows
    if isinstance(messages, SourceRun):
        return messages.rows * len(messages)
    rows = 0
    for message in messages:
        rows += message.rows
    return rows


class Splitter:
    """Numbers the messages of one stream and splits each into its two frames.

    Two splitters for the two streams number the same messages alike.
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
    ) -> Sequence[OutgoingFrame]:
        """Return the frames of the next messages, in the order to send them in."""
        if isinstance(messages, PackedRun):
            run = self._split_run(messages.metadata, messages.bodies, body_type)
            if run is not None:
                return run
        self._check_open()
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

    def split_remote(
        self, message: SourceMessage, spans: Sequence[Span]
    ) -> Sequence[OutgoingFrame]:
        """Return the frames of the next message, with a body of type 1 in place of its own."""
        payload = pack_spans(spans)
        return self.split(
            [message._replace(body=(payload,), body_length=len(payload))], BodyType.OFFSETS
        )

    def split_remote_run(
        self, metadata: bytes, payloads: NDArray[np.uint8]
    ) -> Sequence[OutgoingFrame] | None:
        """Return the frames of the next messages, which have equal metadata and bodies of type 1.

        `payloads` has the shape (messages, bytes). Return None if the messages cannot be sent at
        once: their numbers roll over, or this is only one of the two streams. Raises
        `ProtocolError` if the stream has ended.
        """
        return self._split_run(metadata, payloads, BodyType.OFFSETS)

    def _split_run(
        self, metadata: bytes, bodies: NDArray[np.uint8], body_type: BodyType
    ) -> FrameRun | None:
        self._check_open()
        sequence, end = self._next, self._next + len(bodies)
        if end > MAX_SEQUENCE or not (self._sends_metadata and self._sends_bodies):
            return None
        self._next = end
        return FrameRun(MetadataType.ARROW, sequence, metadata, bodies, body_type)

    def _check_open(self) -> None:
        if self._ended:
            raise ProtocolError("the stream has ended", sequence=self._next)

    def end(self) -> list[OutgoingFrame]:
        """Return the frames that end the stream: a message that counts those before it."""
        self._ended = True
        if not self._sends_metadata:
            return []
        return [UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, self._next))]

    def fail(self, code: str, message: str) -> list[OutgoingFrame]:
        """Return the frames that report the failure of the stream. Nothing may follow them."""
        self._ended = True
        payload = pack_failure(code, message)
        if self._sends_metadata:
            return [UntaggedFrame(pack_metadata(MetadataType.FAILURE, self._next, payload))]
        return [TaggedFrame(pack_body_tag(self._next, BodyType.FAILURE), len(payload), (payload,))]
