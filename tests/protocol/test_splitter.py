"""The splitter numbers messages and gives each its frames."""

from __future__ import annotations

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.protocol.frames import Tagged, Untagged
from splitarrow.protocol.messages import MetadataType, metadata_message, parse_failure
from splitarrow.protocol.sequence import LAST
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.tags import BodyType, body_tag
from splitarrow.protocol.uri import StreamKind

SCHEMA = SourceMessage(b"schema", None)
BATCH = SourceMessage(b"batch", [b"ab", b"cde"], 5)
EMPTY = SourceMessage(b"empty", [], 0)


def test_the_frames_of_a_stream_on_one_connection() -> None:
    splitter = Splitter()
    assert splitter.split([SCHEMA, BATCH, EMPTY]) == [
        Untagged(b"\x01\0\0\0\0schema"),
        Untagged(b"\x01\x01\0\0\0batch"),
        Tagged(1, 5, [b"ab", b"cde"]),
        Untagged(b"\x01\x02\0\0\0empty"),
        Tagged(2, 0, []),
    ]
    assert splitter.sent == 3
    assert splitter.end() == [Untagged(b"\0\x03\0\0\0")]


def test_a_body_of_0_bytes_is_still_sent() -> None:
    assert Splitter(StreamKind.BODY).split([EMPTY]) == [Tagged(0, 0, [])]


def test_two_splitters_share_the_frames_of_one() -> None:
    both = Splitter()
    one = Splitter(StreamKind.METADATA)
    other = Splitter(StreamKind.BODY)
    messages = [SCHEMA, BATCH, EMPTY, BATCH]
    frames = both.split(messages) + both.end()
    metadata = one.split(messages) + one.end()
    bodies = other.split(messages) + other.end()
    assert metadata == [frame for frame in frames if isinstance(frame, Untagged)]
    assert bodies == [frame for frame in frames if isinstance(frame, Tagged)]


def test_calls_continue_the_numbering_and_roll_over() -> None:
    splitter = Splitter(first_sequence=LAST)
    frames = splitter.split([BATCH]) + splitter.split([BATCH])
    assert [frame.tag for frame in frames if isinstance(frame, Tagged)] == [LAST, 0]
    assert splitter.end() == [Untagged(metadata_message(MetadataType.END_OF_STREAM, 1))]


def test_the_type_of_the_bodies_is_in_their_tags() -> None:
    frames = Splitter(StreamKind.BODY).split([BATCH], BodyType.OFFSETS)
    assert frames == [Tagged(body_tag(0, BodyType.OFFSETS), 5, [b"ab", b"cde"])]


@pytest.mark.parametrize("kind", [StreamKind.BOTH, StreamKind.METADATA])
def test_a_failure_goes_to_the_metadata_stream(kind: StreamKind) -> None:
    splitter = Splitter(kind)
    splitter.split([SCHEMA])
    (frame,) = splitter.fail("NOT_FOUND", "gone")
    assert isinstance(frame, Untagged)
    assert frame.payload[:5] == b"\x02\x01\0\0\0"
    assert parse_failure(frame.payload[5:]).message == "gone"


def test_a_connection_for_bodies_has_its_own_failure() -> None:
    (frame,) = Splitter(StreamKind.BODY).fail("INTERNAL", "broke")
    assert isinstance(frame, Tagged)
    assert frame.tag == body_tag(0, BodyType.FAILED)
    payload = b"".join(frame.parts)
    assert frame.nbytes == len(payload)
    assert parse_failure(payload).code == "INTERNAL"


@pytest.mark.parametrize("finish", ["end", "fail"])
def test_nothing_follows_the_end(finish: str) -> None:
    splitter = Splitter()
    splitter.end() if finish == "end" else splitter.fail("INTERNAL", "broke")
    with pytest.raises(ProtocolError, match="ended"):
        splitter.split([BATCH])
