"""Frames that wait for an earlier message or for the other frame of their own message."""

from __future__ import annotations

from ..errors import ProtocolError
from .memory import ReceivedBody
from .messages import Message
from .metadata import ParsedMetadata
from .tags import BodyType


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

    def __bool__(self) -> bool:
        return bool(self.metadata or self.bodies)

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

        Raises
        ------
        ProtocolError
            If the message has a body that its metadata excludes, or a packed body of another
            size than its metadata declares.
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
