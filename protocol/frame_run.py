"""Outgoing frames of consecutive messages that differ only in sequence number and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from .frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from .messages import pack_metadata
from .tags import BodyType, pack_body_tag


class FrameRun(Sequence[OutgoingFrame]):
    """The frames of consecutive messages with equal metadata and bodies of equal size.

    It is the sequence of these frames: metadata, body, metadata, body, and so on. A byte stream
    encodes all of them at once instead, which costs a fraction.

    Parameters
    ----------
    message_type : int
        The type of the metadata messages.
    sequence : int
        The sequence number of the first message. The numbers of the others do not roll over.
    metadata : bytes
        The payload of each metadata message, after its type and sequence number.
    bodies : numpy.ndarray of uint8
        The bodies, with the shape (messages, bytes).
    body_type : BodyType
        The content of the bodies.
    """

    __slots__ = ("bodies", "body_type", "message_type", "metadata", "sequence")

    def __init__(
        self,
        message_type: int,
        sequence: int,
        metadata: bytes,
        bodies: NDArray[np.uint8],
        body_type: BodyType = BodyType.PACKED,
    ) -> None:
        self.body_type = body_type
        self.message_type = message_type
        self.sequence = sequence
        self.metadata = metadata
        self.bodies = bodies

    def __len__(self) -> int:
        return 2 * len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> OutgoingFrame: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[OutgoingFrame]: ...
    def __getitem__(self, index: int | slice) -> OutgoingFrame | Sequence[OutgoingFrame]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number, is_body = divmod(range(len(self))[index], 2)
        sequence = self.sequence + number
        if not is_body:
            return UntaggedFrame(pack_metadata(self.message_type, sequence, self.metadata))
        body = memoryview(self.bodies[number])
        return TaggedFrame(pack_body_tag(sequence, self.body_type), body.nbytes, (body,))
