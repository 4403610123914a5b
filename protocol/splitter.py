"""From the messages of a dataset to the frames of the two streams ("Server Sequence")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import ProtocolError
from .bodies import Span, pack_spans
from .frames import Outgoing, Tagged, Untagged
from .messages import PREFIX, MetadataType, failure_payload, metadata_message
from .sequence import LAST
from .tags import BodyType, body_tag
from .uri import StreamKind


class SourceMessage(NamedTuple):
    """A message as a source of data hands it over."""

    metadata: bytes | memoryview
    """The FlatBuffer of the Arrow IPC message."""
    body: Sequence[Any] | None
    """The parts of the packed body, in order; None for a message that has no body."""
    body_length: int = 0
    """The size of the body in bytes: the sum over its parts."""
    rows: int = 0
    """How many rows the message carries; 0 for all but record batches."""


class Splitter:
    """Numbers the messages of one stream and splits each into its two frames.

    Parameters
    ----------
    kind : StreamKind
        Which frames are wanted: both, or those of one stream only. Two splitters of different
        kinds, fed the same messages, number them alike.
    first_sequence : int
        The sequence number of the first message.
    """

    def __init__(self, kind: StreamKind = StreamKind.BOTH, first_sequence: int = 0) -> None:
        self._metadata = kind.metadata
        self._body = kind.body
        self._next = first_sequence
        self._ended = False

    @property
    def sent(self) -> int:
        """The sequence number that follows the last message's (uint32)."""
        return self._next

    def split(
        self, messages: Iterable[SourceMessage], body_type: BodyType = BodyType.PACKED
    ) -> list[Outgoing]:
        """Return the frames of the next messages, in the order in which they should leave.

        Raises
        ------
        ProtocolError
            If the stream has ended.
        """
        if self._ended:
            raise ProtocolError("the stream has ended", sequence=self._next)
        frames: list[Outgoing] = []
        sequence = self._next
        want_metadata, want_body = self._metadata, self._body
        pack = PREFIX.pack
        for metadata, body, body_length, _ in messages:
            if want_metadata:
                frames.append(Untagged(b"".join((pack(MetadataType.MESSAGE, sequence), metadata))))
            if body is not None and want_body:
                frames.append(Tagged(body_tag(sequence, body_type), body_length, body))
            sequence = (sequence + 1) & LAST
        self._next = sequence
        return frames

    def split_placed(self, message: SourceMessage, spans: Sequence[Span]) -> list[Outgoing]:
        """Return the frames of the next message, whose body lies in a region: type 1.

        Parameters
        ----------
        message : SourceMessage
            Its body is not looked at.
        spans : sequence of (offset, length)
            Where each of its buffers lies.

        Raises
        ------
        ProtocolError
            If the stream has ended.
        """
        payload = pack_spans(spans)
        return self.split(
            [message._replace(body=(payload,), body_length=len(payload))], BodyType.OFFSETS
        )

    def end(self) -> list[Outgoing]:
        """Return the end of the stream: a message that counts those before it."""
        self._ended = True
        if not self._metadata:
            return []
        return [Untagged(metadata_message(MetadataType.END_OF_STREAM, self._next))]

    def fail(self, code: str, message: str) -> list[Outgoing]:
        """Return the failure of the stream, for the peer to raise; nothing may follow it."""
        self._ended = True
        payload = failure_payload(code, message)
        if self._metadata:
            return [Untagged(metadata_message(MetadataType.FAILED, self._next, payload))]
        return [Tagged(body_tag(self._next, BodyType.FAILED), len(payload), (payload,))]
