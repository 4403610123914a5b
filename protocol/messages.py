"""Messages of the metadata stream ("Metadata Stream Sequence" of the specification).

::

    u8 type | u32 sequence number | payload

All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import LimitError, ProtocolError, RemoteError, remote_error
from .frames import Incoming, ReceivedBody, Run, TaggedReceived, Untagged
from .tags import BodyType

PREFIX = struct.Struct("<BI")
FAILURE_BYTES = 64 << 10
"""The largest payload of a failure that is read, in bytes."""
_REASON_CHARACTERS = 4000


class MetadataType(IntEnum):
    """The first byte of a metadata message."""

    END_OF_STREAM = 0
    """Exactly 5 bytes; the sequence number tells how many messages were sent."""
    MESSAGE = 1
    """The FlatBuffer of an Arrow IPC message follows."""
    FAILED = 2
    """The stream failed; the payload says why (an extension of splitarrow)."""
    VORTEX = 3
    """The FlatBuffer of a Vortex IPC message follows (an extension of splitarrow)."""


class Message(NamedTuple):
    """A message of a stream, complete: its metadata and, where it has one, its body."""

    sequence: int
    """The sequence number (uint32)."""
    metadata: bytes
    """The FlatBuffer of the Arrow IPC message."""
    body: ReceivedBody | None
    """The body; None for a message that has none."""
    body_type: BodyType
    """What the body holds."""


def single_messages(received: Iterable[Message | Run]) -> Iterator[Message]:
    """Yield messages; those of a run, one by one."""
    for item in received:
        if isinstance(item, Run):
            for index in range(item.count):
                sequence = item.sequence + index
                yield Message(sequence, item.metadata, item.body(index), BodyType.PACKED)
        else:
            yield item


def single_frames(received: Iterable[Incoming]) -> Iterator[Untagged | TaggedReceived]:
    """Yield frames; those of a run, one by one."""
    for item in received:
        if isinstance(item, Run):
            for index in range(item.count):
                sequence = item.sequence + index
                metadata = metadata_message(MetadataType.MESSAGE, sequence, item.metadata)
                yield Untagged(metadata)
                yield TaggedReceived(sequence, item.body(index))
        else:
            yield item


def metadata_message(metadata_type: int, sequence: int, payload: bytes | memoryview = b"") -> bytes:
    r"""Return a metadata message.

    Examples
    --------
    >>> metadata_message(MetadataType.END_OF_STREAM, 3)
    b'\x00\x03\x00\x00\x00'
    """
    return b"".join((PREFIX.pack(metadata_type, sequence), payload))


def parse_metadata_prefix(payload: bytes) -> tuple[MetadataType, int]:
    """Return the type and the sequence number of a metadata message.

    Raises
    ------
    ProtocolError
        If the message is too short, of an unknown type, or an end of stream that is not
        exactly 5 bytes long.
    """
    if len(payload) < PREFIX.size:
        raise ProtocolError(f"a metadata message of {len(payload)} bytes is too short")
    kind, sequence = PREFIX.unpack_from(payload)
    try:
        metadata_type = MetadataType(kind)
    except ValueError:
        raise ProtocolError(f"unknown metadata type {kind}", sequence=sequence) from None
    if metadata_type is MetadataType.END_OF_STREAM and len(payload) != PREFIX.size:
        raise ProtocolError(
            f"an end of stream of {len(payload)} bytes, not {PREFIX.size}", sequence=sequence
        )
    return metadata_type, sequence


def failure_payload(code: str, message: str) -> bytes:
    """Return the payload of a failure: of metadata type 2 and of body type 255.

    A very long message is cut, so that the payload stays below `FAILURE_BYTES`.
    """
    reason = _as_text(message[:_REASON_CHARACTERS])
    return json.dumps({"code": code, "message": reason}).encode()


def _as_text(text: str) -> str:
    """Replace halves of surrogate pairs: JSON and file names can hold them, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def parse_failure(payload: bytes | memoryview, *, stream: str | None = None) -> RemoteError:
    """Return the exception for a failure that the server reported.

    Raises
    ------
    ProtocolError
        If the payload is not the JSON object that it must be.
    LimitError
        If it is longer than `FAILURE_BYTES`.
    """
    if len(payload) > FAILURE_BYTES:
        raise LimitError(
            f"a failure message of {len(payload)} bytes; the limit is {FAILURE_BYTES}",
            stream=stream,
        )
    try:
        failure: Any = json.loads(bytes(payload).decode())
        code, message = failure["code"], failure["message"]
        if not isinstance(code, str) or not isinstance(message, str):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProtocolError(
            "a failure message is not the JSON object it must be", stream=stream
        ) from None
    return remote_error(_as_text(code), _as_text(message), stream=stream)
