"""The splitter numbers messages and gives each its frames."""

from __future__ import annotations

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.protocol.frames import TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import MetadataType, pack_metadata, parse_failure
from splitarrow.protocol.payloads import pack_spans
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.tags import MAX_SEQUENCE, BodyType, pack_body_tag
from splitarrow.protocol.uri import Streams

SCHEMA = SourceMessage(b"schema", None)
BATCH = SourceMessage(b"batch", [b"ab", b"cde"], 5)
EMPTY = SourceMessage(b"empty", [], 0)


def test_the_frames_of_a_stream_on_one_connection() -> None:
    splitter = Splitter()
    assert splitter.split([SCHEMA, BATCH, EMPTY]) == [
        UntaggedFrame(b"\x01\0\0\0\0schema"),
        UntaggedFrame(b"\x01\x01\0\0\0batch"),
        TaggedFrame(1, 5, [b"ab", b"cde"]),
        UntaggedFrame(b"\x01\x02\0\0\0empty"),
        TaggedFrame(2, 0, []),
    ]
    assert splitter.next_sequence == 3
    assert splitter.end() == [UntaggedFrame(b"\0\x03\0\0\0")]


def test_a_message_is_sent_with_the_type_of_its_format() -> None:
    message = SourceMessage(b"array", None, message_type=MetadataType.VORTEX)
    assert Splitter().split([SCHEMA, message]) == [
        UntaggedFrame(b"\x01\0\0\0\0schema"),
        UntaggedFrame(b"\x03\x01\0\0\0array"),
    ]


def test_a_body_of_0_bytes_is_still_sent() -> None:
    assert Splitter(Streams.BODY).split([EMPTY]) == [TaggedFrame(0, 0, [])]


def test_two_splitters_share_the_frames_of_one() -> None:
    both = Splitter()
    one = Splitter(Streams.METADATA)
    other = Splitter(Streams.BODY)
    messages = [SCHEMA, BATCH, EMPTY, BATCH]
    frames = [*both.split(messages), *both.end()]
    metadata = [*one.split(messages), *one.end()]
    bodies = [*other.split(messages), *other.end()]
    assert metadata == [frame for frame in frames if isinstance(frame, UntaggedFrame)]
    assert bodies == [frame for frame in frames if isinstance(frame, TaggedFrame)]


def test_calls_continue_the_numbering_and_roll_over() -> None:
    splitter = Splitter(first_sequence=MAX_SEQUENCE)
    frames = [*splitter.split([BATCH]), *splitter.split([BATCH])]
    assert [frame.tag for frame in frames if isinstance(frame, TaggedFrame)] == [MAX_SEQUENCE, 0]
    assert splitter.end() == [UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, 1))]


def test_the_type_of_the_bodies_is_in_their_tags() -> None:
    frames = Splitter(Streams.BODY).split([BATCH], BodyType.OFFSETS)
    assert frames == [TaggedFrame(pack_body_tag(0, BodyType.OFFSETS), 5, [b"ab", b"cde"])]


@pytest.mark.parametrize("kind", [Streams.BOTH, Streams.METADATA])
def test_a_failure_goes_to_the_metadata_stream(kind: Streams) -> None:
    splitter = Splitter(kind)
    splitter.split([SCHEMA])
    (frame,) = splitter.fail("NOT_FOUND", "gone")
    assert isinstance(frame, UntaggedFrame)
    assert frame.payload[:5] == b"\x02\x01\0\0\0"
    assert parse_failure(frame.payload[5:], DEFAULT_LIMITS).message == "gone"


def test_a_connection_for_bodies_has_its_own_failure() -> None:
    (frame,) = Splitter(Streams.BODY).fail("INTERNAL", "broke")
    assert isinstance(frame, TaggedFrame)
    assert frame.tag == pack_body_tag(0, BodyType.FAILURE)
    payload = b"".join(frame.buffers)
    assert frame.nbytes == len(payload)
    assert parse_failure(payload, DEFAULT_LIMITS).code == "INTERNAL"


@pytest.mark.parametrize("finish", ["end", "fail"])
def test_nothing_follows_the_end(finish: str) -> None:
    splitter = Splitter()
    splitter.end() if finish == "end" else splitter.fail("INTERNAL", "broke")
    with pytest.raises(ProtocolError, match="ended"):
        splitter.split([BATCH])


def test_a_message_is_an_arrow_message_without_rows_by_default() -> None:
    assert SCHEMA[2:] == (0, 0, MetadataType.ARROW)


@pytest.mark.parametrize("kind", list(Streams))
def test_the_end_and_the_failure_close_one_stream_each(kind: Streams) -> None:
    assert len(Splitter(kind).end()) == kind.carries_metadata
    assert len(Splitter(kind).fail("INTERNAL", "broke")) == 1


def test_a_remote_message_has_the_places_of_its_buffers_as_its_body() -> None:
    splitter = Splitter(first_sequence=7)
    metadata, body = splitter.split_remote(BATCH, [(64, 3), (0, 0)])
    payload = pack_spans([(64, 3), (0, 0)])
    assert metadata == UntaggedFrame(b"\x01\x07\0\0\0batch")
    assert body == TaggedFrame(pack_body_tag(7, BodyType.OFFSETS), len(payload), (payload,))
    splitter.end()
    with pytest.raises(ProtocolError, match="ended") as caught:
        splitter.split_remote(BATCH, [])
    assert caught.value.sequence == 8
