"""The reassembler with a message format of its own, some of whose messages have no body."""

from __future__ import annotations

import pytest

from helpers.streams import feed_frames
from splitarrow.errors import ProtocolError
from splitarrow.formats.summary import MessageSummary
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message, MetadataType, pack_metadata
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.tags import pack_body_tag


def summarize(metadata: bytes) -> MessageSummary:
    """Read the format of these tests: a name, and the size of the body, which may be missing."""
    name, _, size = metadata.decode().partition(" ")
    return MessageSummary(name, name == "SCHEMA", bool(size), int(size or 0))


def metadata(sequence: int, text: str) -> UntaggedFrame:
    return UntaggedFrame(pack_metadata(MetadataType.ARROW, sequence, text.encode()))


def body(sequence: int, payload: bytes) -> ReceivedFrame:
    return ReceivedFrame(pack_body_tag(sequence), ReceivedBody.copy(payload))


def receive(*frames: IncomingFrame) -> list[Message]:
    ready: list[Message] = []
    feed_frames(Reassembler({MetadataType.ARROW: summarize}), frames, ready)
    return ready


def test_messages_without_a_body_follow_messages_with_one() -> None:
    ready = receive(
        metadata(0, "SCHEMA"),
        metadata(1, "DATA 3"),
        body(1, b"abc"),
        metadata(2, "NOTE"),
        metadata(3, "DATA 3"),
        body(3, b"def"),
    )
    assert [bytes(item.body) if item.body else None for item in ready] == [
        None,
        b"abc",
        None,
        b"def",
    ]


@pytest.mark.parametrize("body_first", [False, True])
def test_a_body_for_a_message_without_one_is_refused(body_first: bool) -> None:
    halves = [body(1, b"abc"), metadata(1, "NOTE")]
    # The metadata of message 2 alone must not let message 1 pass.
    frames = halves if body_first else [metadata(2, "NOTE"), *halves]
    with pytest.raises(ProtocolError, match="a body for a NOTE message, which has none"):
        receive(metadata(0, "SCHEMA"), *frames)
