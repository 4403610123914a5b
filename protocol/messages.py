"""Messages of the metadata stream ("Metadata Stream Sequence" of the specification).

A `FrameRun` has the frames of consecutive messages that differ only in sequence number and data.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import LimitError, ProtocolError, RemoteError, remote_error
from ..formats.summary import MessageSummary
from .frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from .limits import Limits
from .memory import ReceivedBody
from .tags import BodyType, pack_body_tag

PREFIX = struct.Struct("<BI")
"""The type and the sequence number of a metadata message."""
_MAX_REASON_CHARS = 4000


class MetadataType(IntEnum):
    """The first byte of a metadata message."""

    END_OF_STREAM = 0
    """The stream has ended. The message has no payload, and its sequence number is the number of
    messages sent."""
    ARROW = 1
    """The payload is the FlatBuffer of an Arrow IPC message."""
    FAILURE = 2
    """The stream has failed. The payload is the reason (an extension of splitarrow)."""
    VORTEX = 3
    """The payload is the FlatBuffer of a Vortex IPC message (an extension of splitarrow)."""


MessageFormat = Callable[[bytes], MessageSummary]
"""Returns the summary of a message from its metadata. It raises `ProtocolError` for metadata that
is malformed or of another format."""


class Message(NamedTuple):
    """A complete message of a stream: its metadata and, if it has one, its body."""

    sequence: int
    """The sequence number (uint32)."""
    metadata: bytes
    """The FlatBuffer of the message."""
    body: ReceivedBody | None
    """The body, or None if the message has none."""
    body_type: BodyType
    """The content of the body."""
    message_type: int = MetadataType.ARROW
    """The format of the message, as the type of its metadata message."""


def expand_messages(received: Iterable[Message | MessageRun]) -> Iterator[Message]:
    """Yield all messages one by one, including those of runs."""
    for item in received:
        if isinstance(item, MessageRun):
            for index in range(item.count):
                sequence = item.sequence + index
                yield Message(sequence, item.metadata, item.body(index), item.body_type)
        else:
            yield item


def expand_frames(received: Iterable[IncomingFrame]) -> Iterator[UntaggedFrame | ReceivedFrame]:
    """Yield all frames one by one, including those of runs."""
    for item in received:
        if isinstance(item, MessageRun):
            for index in range(item.count):
                sequence = item.sequence + index
                yield UntaggedFrame(pack_metadata(MetadataType.ARROW, sequence, item.metadata))
                yield ReceivedFrame(pack_body_tag(sequence, item.body_type), item.body(index))
        else:
            yield item


def pack_metadata(metadata_type: int, sequence: int, payload: bytes | memoryview = b"") -> bytes:
    r"""Return a metadata message.

    Examples
    --------
    >>> pack_metadata(MetadataType.END_OF_STREAM, 3)
    b'\x00\x03\x00\x00\x00'
    """
    return b"".join((PREFIX.pack(metadata_type, sequence), payload))


def parse_metadata_prefix(message: bytes) -> tuple[MetadataType, int]:
    """Return the type and the sequence number of a metadata message.

    Raises `ProtocolError` if the message is too short, of an unknown type, or an end of stream with
    a payload.
    """
    if len(message) < PREFIX.size:
        raise ProtocolError(
            f"a metadata message has {len(message)} bytes; expected at least {PREFIX.size}"
        )
    number, sequence = PREFIX.unpack_from(message)
    try:
        metadata_type = MetadataType(number)
    except ValueError:
        raise ProtocolError(f"unknown metadata type {number}", sequence=sequence) from None
    if metadata_type is MetadataType.END_OF_STREAM and len(message) != PREFIX.size:
        raise ProtocolError(
            f"an end of stream has {len(message)} bytes; expected {PREFIX.size}", sequence=sequence
        )
    return metadata_type, sequence


def pack_failure(code: str, message: str) -> bytes:
    """Return the payload that reports a failure, for metadata type 2 and body type 255.

    A long message is cut, so that the payload stays far below ``Limits.failure_bytes``.
    """
    reason = _replace_surrogates(message[:_MAX_REASON_CHARS])
    return json.dumps({"code": code, "message": reason}).encode()


def parse_failure(
    payload: bytes | memoryview, limits: Limits, *, stream: str | None = None
) -> RemoteError:
    """Return the exception for a failure that the server reported.

    Raises `ProtocolError` if the payload is not a JSON object with a code and a message. Raises
    `LimitError` if it is larger than ``limits.failure_bytes``.
    """
    if len(payload) > limits.failure_bytes:
        raise LimitError(
            f"the failure message has {len(payload)} bytes; "
            f"the limit is {limits.failure_bytes} bytes",
            stream=stream,
        )
    try:
        failure: Any = json.loads(bytes(payload).decode())
        code, message = failure["code"], failure["message"]
        if not isinstance(code, str) or not isinstance(message, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProtocolError(
            "the failure message is not a JSON object with a code and a message", stream=stream
        ) from None
    return remote_error(_replace_surrogates(code), _replace_surrogates(message), stream=stream)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates. JSON and file names may contain them, but UTF-8 may not."""
    return text.encode("utf-8", "replace").decode()


class FrameRun(Sequence[OutgoingFrame]):
    """The frames of consecutive messages with equal metadata and bodies of equal size.

    It is the sequence of these frames: metadata, body, metadata, body, and so on. A byte stream
    encodes all of them at once instead, which costs a fraction.

    The sequence numbers do not roll over. `bodies` has the shape (messages, bytes).
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
