"""The reassembler: order, halves, ends, duplicates, limits and violations of the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.crafting import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    SCHEMA,
    SPARSE_TENSOR,
    TENSOR,
    empty_message,
    plain_batch,
    schema_of_ints,
)
from helpers.streams import feed_frames, list_frames, receive_frames, small_stream
from splitarrow.client.stream.decoders import FORMATS
from splitarrow.errors import LimitError, NotFoundError, ProtocolError, SplitArrowError
from splitarrow.formats.summary import MessageSummary
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import (
    Message,
    MetadataType,
    pack_failure,
    pack_metadata,
)
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.splitter import Splitter
from splitarrow.protocol.tags import MAX_SEQUENCE, BodyType, pack_body_tag
from splitarrow.protocol.uri import Streams

SCHEMA_METADATA = schema_of_ints(["n"])
BATCH_METADATA = plain_batch(2, [(0, 0), (0, 8)], 8)
BODY = b"\1\0\0\0\2\0\0\0"


def metadata(sequence: int, payload: bytes = BATCH_METADATA) -> UntaggedFrame:
    return UntaggedFrame(pack_metadata(MetadataType.ARROW, sequence, payload))


def schema(sequence: int = 0) -> UntaggedFrame:
    return metadata(sequence, SCHEMA_METADATA)


def body(
    sequence: int, payload: bytes = BODY, kind: int = BodyType.PACKED, reserved: int = 0
) -> ReceivedFrame:
    tag = pack_body_tag(sequence, kind) | reserved
    return ReceivedFrame(tag, ReceivedBody.copy(payload))


def end(count: int) -> UntaggedFrame:
    return UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, count))


def failed(code: str = "NOT_FOUND", message: str = "gone") -> UntaggedFrame:
    payload = pack_failure(code, message)
    return UntaggedFrame(pack_metadata(MetadataType.FAILURE, 0, payload))


def run(
    *frames: IncomingFrame, limits: Limits = DEFAULT_LIMITS, first: int = 0
) -> tuple[Reassembler, list[Message]]:
    reassembler, ready = (
        Reassembler(FORMATS, limits, stream="s", first_sequence=first),
        list[Message](),
    )
    feed_frames(reassembler, frames, ready)
    return reassembler, ready


def refused(*frames: IncomingFrame, limits: Limits = DEFAULT_LIMITS) -> ProtocolError:
    """Return the error that the last frame raises. The frames before it must be accepted."""
    reassembler = Reassembler(FORMATS, limits, stream="s")
    feed_frames(reassembler, frames[:-1], [])
    with pytest.raises(ProtocolError) as caught:
        feed_frames(reassembler, frames[-1:], [])
    assert caught.value.stream == "s"
    return caught.value


def test_a_stream_in_order() -> None:
    reassembler, ready = run(schema(), metadata(1), body(1), metadata(2), body(2), end(3))
    assert reassembler.finished
    assert reassembler.missing() == "nothing"
    assert (reassembler.delivered, reassembler.duplicates, reassembler.pending_bytes) == (3, 0, 0)
    assert [message.sequence for message in ready] == [0, 1, 2]
    assert ready[0] == Message(0, SCHEMA_METADATA, None, BodyType.PACKED)
    assert ready[1].metadata == BATCH_METADATA
    assert ready[1].body is not None
    assert bytes(ready[1].body) == BODY


def test_frames_in_order_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the end."""
    slow: list[IncomingFrame] = []
    original = Reassembler._feed_out_of_order

    def feed(self: Reassembler, frame: IncomingFrame, *others: Any) -> None:
        slow.append(frame)
        original(self, frame, *others)

    monkeypatch.setattr(Reassembler, "_feed_out_of_order", feed)
    reassembler, ready = Reassembler(FORMATS), list[Message]()
    other = plain_batch(1, [(0, 0), (0, 8)], 8)
    frames = [schema(), metadata(1), body(1)]
    frames += [frame for n in range(2, 5) for frame in (metadata(n), body(n))]
    frames += [metadata(5, other), body(5), metadata(6), body(6, b"x" * 32, BodyType.OFFSETS)]
    feed_frames(reassembler, [*frames, end(7)], ready)
    assert reassembler.finished
    assert [message.sequence for message in ready] == list(range(7))
    assert slow == [end(7)]


def test_a_schema_alone_is_a_stream() -> None:
    reassembler, ready = run(schema(), end(1))
    assert reassembler.finished
    assert len(ready) == 1


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [schema()],
        [schema(), metadata(1), end(2)],
        [schema(), body(1), end(2)],
        [schema(), end(2)],
        [schema(), metadata(1), body(1)],
        [metadata(1), body(1), end(2)],
        [schema(), metadata(2), body(2), end(3)],
        [end(1)],
    ],
)
def test_a_stream_without_an_end_is_not_finished(frames: list[IncomingFrame]) -> None:
    reassembler, _ = run(*frames)
    assert not reassembler.finished
    assert reassembler.missing() != "nothing"


@pytest.mark.parametrize(
    ("frames", "missing", "needs_body"),
    [
        ([], "message 0 or the end of the stream", False),
        ([schema()], "message 1 or the end of the stream", False),
        ([schema(), metadata(1)], "the body of message 1", True),
        ([schema(), metadata(1), metadata(2)], "the body of message 1", True),
        ([schema(), body(1)], "the metadata of message 1", False),
        ([schema(), end(3)], "message 1; the end of the stream counts 3 messages", False),
    ],
)
def test_the_missing_frame_is_named(
    frames: list[IncomingFrame], missing: str, needs_body: bool
) -> None:
    reassembler, _ = run(*frames)
    assert reassembler.missing() == missing
    assert reassembler.needs_body is needs_body


def test_sequence_numbers_roll_over() -> None:
    first = MAX_SEQUENCE - 2
    reassembler, ready = run(
        schema(first),
        metadata(MAX_SEQUENCE - 1),
        body(MAX_SEQUENCE - 1),
        body(0),
        body(MAX_SEQUENCE),
        end(1),
        metadata(0),
        metadata(MAX_SEQUENCE),
        first=first,
    )
    assert reassembler.finished
    assert [message.sequence for message in ready] == [first, MAX_SEQUENCE - 1, MAX_SEQUENCE, 0]


def test_duplicates_are_counted_and_ignored() -> None:
    frames = [
        *(schema(), schema()),
        *(metadata(2), metadata(2), body(2), body(2)),
        *(metadata(1), metadata(1), body(1), body(1), metadata(2), body(2)),
        *(end(3), end(3), schema(), metadata(1), body(1)),
    ]
    reassembler, ready = run(*frames)
    assert reassembler.finished
    assert [message.sequence for message in ready] == [0, 1, 2]
    assert reassembler.duplicates == len(frames) - 6


@pytest.mark.parametrize("again", [schema(), metadata(1), body(2), end(4)])
def test_duplicates_in_succession_are_bounded(again: IncomingFrame) -> None:
    limits = Limits(duplicates=3)
    before = [schema(), metadata(1), body(2), end(4)]
    reassembler, _ = run(*before, *[again] * 3, metadata(2), *[again] * 3, limits=limits)
    assert reassembler.duplicates == 6
    with pytest.raises(LimitError, match="4 duplicates arrived in succession; the limit is 3"):
        reassembler.feed([again], [])


def test_each_new_frame_begins_another_succession_of_duplicates() -> None:
    limits = Limits(duplicates=1)
    again = metadata(2)
    new = [metadata(3), body(4), metadata(4), body(3), body(2), end(9), metadata(1)]
    frames = [frame for each in new for frame in (again, each)]
    reassembler, _ = run(schema(), again, *frames, limits=limits)
    assert reassembler.duplicates == len(new)
    pairs = [schema(), again, again, metadata(3), body(3), again]
    assert run(*pairs, limits=limits)[0].duplicates == 2


def test_messages_before_an_error_are_delivered() -> None:
    reassembler, ready = Reassembler(FORMATS), list[Message]()
    with pytest.raises(ProtocolError):
        feed_frames(reassembler, [schema(), metadata(1), body(1), metadata(2), end(1)], ready)
    assert [message.sequence for message in ready] == [0, 1]


@pytest.mark.parametrize("header_type", [RECORD_BATCH, DICTIONARY_BATCH, TENSOR, SPARSE_TENSOR])
def test_a_first_message_that_is_not_a_schema_is_refused(header_type: int) -> None:
    error = refused(metadata(0, empty_message(header_type)))
    assert "not a schema" in error.message
    assert error.sequence == 0


def test_a_second_schema_is_refused() -> None:
    assert "second schema" in refused(schema(), schema(1)).message
    assert "second schema" in refused(schema(1)).message
    assert "second schema" in refused(schema(), metadata(1), schema(2)).message


@pytest.mark.parametrize("kind", [2, 3, 128, 254])
def test_an_unknown_body_type_is_refused(kind: int) -> None:
    error = refused(schema(), metadata(1), body(1, kind=kind))
    assert f"unknown body type {kind}" in error.message
    assert error.tag == kind << 56 | 1


def test_a_reserved_bit_is_refused_after_the_match() -> None:
    for bit in range(32, 56):
        error = refused(schema(), metadata(1), body(1, reserved=1 << bit))
        assert "reserved" in error.message
        assert error.tag == 1 | 1 << bit


def test_an_unknown_metadata_type_is_refused() -> None:
    for kind in range(4, 256):
        payload = pack_metadata(kind, 1, BATCH_METADATA)
        assert f"unknown metadata type {kind}" in refused(schema(), UntaggedFrame(payload)).message


def test_a_message_of_a_format_that_the_reader_does_not_accept_is_refused() -> None:
    payload = pack_metadata(MetadataType.VORTEX, 1, b"x")
    formats = {MetadataType.ARROW: FORMATS[MetadataType.ARROW]}
    reassembler = Reassembler(formats, DEFAULT_LIMITS, stream="s")
    feed_frames(reassembler, [schema()], [])
    with pytest.raises(
        ProtocolError, match=r"the stream carries a VORTEX message; this reader accepts ARROW"
    ):
        feed_frames(reassembler, [UntaggedFrame(payload)], [])


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1\0\0", b"\0\1\0\0\0\0", b"\1\1\0\0"])
def test_an_end_of_another_length_is_refused(payload: bytes) -> None:
    refused(schema(), UntaggedFrame(payload))


@pytest.mark.parametrize("payload", [b"", b"\0" * 4, b"\xff" * 64, SCHEMA_METADATA[:20]])
def test_metadata_that_is_not_an_arrow_message_is_refused(payload: bytes) -> None:
    error = refused(schema(), metadata(1, payload))
    assert error.sequence == 1


def test_an_unknown_header_type_is_refused() -> None:
    assert "type 6" in refused(schema(), metadata(1, empty_message(6))).message


def test_a_negative_body_length_is_refused() -> None:
    error = refused(schema(), metadata(1, empty_message(RECORD_BATCH, -1)))
    assert "-1 bytes" in error.message


@pytest.mark.parametrize(
    "frames",
    [
        (metadata(1), body(1, BODY[:-1])),
        (metadata(1), body(1, BODY + b"\0")),
        (body(1, b""), metadata(1)),
    ],
)
def test_a_body_of_another_size_than_declared_is_refused(frames: tuple[IncomingFrame, ...]) -> None:
    assert "the metadata declares 8" in refused(schema(), *frames).message


def test_a_body_of_offsets_may_have_any_size() -> None:
    _, ready = run(schema(), metadata(1), body(1, b"x" * 32, BodyType.OFFSETS))
    assert ready[1].body_type is BodyType.OFFSETS


def test_a_body_of_0_bytes_is_waited_for() -> None:
    empty = plain_batch(0, [(0, 0), (0, 0)], 0)
    reassembler, ready = run(schema(), metadata(1, empty), end(2))
    assert not reassembler.finished
    feed_frames(reassembler, [body(1, b"")], ready)
    assert reassembler.finished
    assert len(ready) == 2


@pytest.mark.parametrize(
    "frames",
    [
        (body(0), schema()),
        (schema(), body(0)),
        (schema(), metadata(1), body(1), body(0)),
        (body(0),),
    ],
)
def test_a_body_for_the_schema_is_refused(frames: tuple[IncomingFrame, ...]) -> None:
    reassembler = Reassembler(FORMATS)
    with pytest.raises(ProtocolError, match=r"(?i)schema message, which has none"):
        feed_frames(reassembler, frames, [])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_end_that_counts_too_few_is_refused(count: int) -> None:
    refused(schema(), metadata(1), body(1), metadata(2), end(count))
    refused(schema(), metadata(1), body(1), metadata(2), body(2), end(count))


def test_an_end_before_the_schema_is_refused() -> None:
    assert "before its schema" in refused(end(0)).message


@pytest.mark.parametrize("frame", [metadata(2), body(2), metadata(3), body(3)])
def test_a_message_beyond_the_end_is_refused(frame: IncomingFrame) -> None:
    error = refused(schema(), end(2), frame)
    assert "beyond the end" in error.message


def test_a_message_after_a_finished_stream_is_refused() -> None:
    assert "beyond the end" in refused(schema(), end(1), metadata(1)).message


def test_two_ends_that_disagree_are_refused() -> None:
    error = refused(schema(), end(2), end(3))
    assert error.message == "received two ends of the stream, with 2 and 3 messages"


def test_an_end_far_ahead_is_refused() -> None:
    error = refused(schema(), end(2 + DEFAULT_LIMITS.pending_messages))
    assert "4097 messages outstanding" in error.message


def test_two_different_metadata_of_one_number_are_refused() -> None:
    other = plain_batch(1, [(0, 0), (0, 8)], 8)
    assert (
        "received different metadata" in refused(schema(), metadata(1), metadata(1, other)).message
    )
    assert (
        "received different metadata" in refused(schema(), metadata(2), metadata(2, other)).message
    )


def test_two_bodies_of_different_size_of_one_number_are_refused() -> None:
    assert "bodies of different sizes" in refused(schema(), body(1), body(1, b"")).message


def test_a_number_before_the_first_is_refused() -> None:
    assert "precedes the first" in refused(schema(), metadata(MAX_SEQUENCE)).message
    assert "precedes the first" in refused(schema(), body(MAX_SEQUENCE)).message


def test_the_connections_of_a_pair_keep_to_their_streams() -> None:
    for frame, origin in [
        (metadata(1), Streams.BODY),
        (end(1), Streams.BODY),
        (failed(), Streams.BODY),
        (body(1), Streams.METADATA),
    ]:
        reassembler = Reassembler(FORMATS, stream="s")
        feed_frames(reassembler, [schema(), metadata(1)][: 1 if frame == metadata(1) else 2], [])
        with pytest.raises(ProtocolError, match="on the connection of"):
            feed_frames(reassembler, [frame], [], origin)


def test_a_pair_of_connections_makes_one_stream() -> None:
    reassembler, ready = Reassembler(FORMATS), list[Message]()
    feed_frames(reassembler, [schema(), metadata(1), metadata(2)], ready, Streams.METADATA)
    assert reassembler.needs_body
    feed_frames(reassembler, [body(1)], ready, Streams.BODY)
    assert [message.sequence for message in ready] == [0, 1]
    feed_frames(reassembler, [body(2)], ready, Streams.BODY)
    feed_frames(reassembler, [end(3)], ready, Streams.METADATA)
    assert reassembler.finished
    assert [message.sequence for message in ready] == [0, 1, 2]


def test_a_failure_is_kept_and_does_not_finish_the_stream() -> None:
    reassembler, ready = run(schema(), metadata(1), body(1), failed())
    assert isinstance(reassembler.failure, NotFoundError)
    assert reassembler.failure.stream == "s"
    assert not reassembler.finished
    assert len(ready) == 2


def test_a_stream_that_fails_after_its_end_is_not_finished() -> None:
    for failure in (failed(), body(1, pack_failure("DATA_LOSS", "torn"), BodyType.FAILURE)):
        reassembler, _ = run(schema(), end(1), failure)
        assert reassembler.failure is not None
        assert not reassembler.finished


def test_a_failure_in_place_of_the_schema_is_kept() -> None:
    reassembler, ready = run(failed())
    assert isinstance(reassembler.failure, NotFoundError)
    assert ready == []


def test_a_body_stream_fails_on_its_own() -> None:
    payload = pack_failure("DATA_LOSS", "torn")
    reassembler, _ = run(schema(), metadata(1), body(1, payload, BodyType.FAILURE))
    assert reassembler.failure is not None
    assert (reassembler.failure.code, reassembler.failure.message) == ("DATA_LOSS", "torn")


@pytest.mark.parametrize("frame", [schema(), metadata(1), body(1), end(1), failed()])
def test_nothing_follows_a_failure(frame: IncomingFrame) -> None:
    assert "after the stream failed" in refused(schema(), failed(), frame).message


def test_a_failure_that_is_too_large_or_malformed_is_refused() -> None:
    huge = b" " * (DEFAULT_LIMITS.failure_bytes + 1)
    for kind in (UntaggedFrame(b"\2\0\0\0\0" + huge), body(1, huge, BodyType.FAILURE)):
        with pytest.raises(LimitError):
            run(schema(), kind)
    with pytest.raises(ProtocolError):
        run(UntaggedFrame(b"\2\0\0\0\0[]"))


def test_no_more_messages_wait_than_the_limit() -> None:
    limits = Limits(pending_messages=4)
    waiting = [metadata(2), body(2), metadata(3), metadata(4)]
    reassembler, _ = run(schema(), *waiting, limits=limits)
    assert reassembler.pending_bytes == 3 * len(BATCH_METADATA) + len(BODY)
    for frame in (metadata(5), body(5), body(900)):
        with pytest.raises(LimitError, match="message 1 is missing") as caught:
            feed_frames(reassembler, [frame], [])
        assert caught.value.stream == "s"
    ready: list[Message] = []
    feed_frames(reassembler, [metadata(1), body(1), body(3), body(4), metadata(5), body(5)], ready)
    assert [message.sequence for message in ready] == [1, 2, 3, 4, 5]
    assert reassembler.pending_bytes == 0


def test_no_more_bytes_wait_than_the_limit() -> None:
    limits = Limits(pending_bytes=2 * len(BATCH_METADATA) + 1)
    error = refused(schema(), metadata(2), metadata(3), body(3), limits=limits)
    assert isinstance(error, LimitError)
    assert "bytes wait for message 1" in error.message
    error = refused(schema(), *(body(n) for n in range(2, 199)), limits=Limits(pending_bytes=1575))
    assert isinstance(error, LimitError)


def test_as_many_bytes_may_wait_as_the_limit() -> None:
    frames = [schema(), metadata(2), body(2), metadata(3)]
    nbytes = 2 * len(BATCH_METADATA) + len(BODY)
    reassembler, _ = run(*frames, limits=Limits(pending_bytes=nbytes))
    assert reassembler.pending_bytes == nbytes
    assert isinstance(refused(*frames, limits=Limits(pending_bytes=nbytes - 1)), LimitError)


def test_one_message_may_exceed_the_limit_of_pending_bytes() -> None:
    limits = Limits(pending_bytes=1)
    for halves in ([metadata(1), body(1)], [body(1), metadata(1)]):
        _, ready = run(schema(), *halves, limits=limits)
        assert len(ready) == 2


def test_a_message_that_declares_too_large_a_body_is_refused_at_once() -> None:
    error = refused(schema(), metadata(1), limits=Limits(body_bytes=7))
    assert isinstance(error, LimitError)
    assert (error.sequence, "8 bytes" in error.message) == (1, True)


def test_a_body_of_the_largest_size_is_accepted() -> None:
    _, ready = run(schema(), metadata(1), body(1), limits=Limits(body_bytes=8))
    assert len(ready) == 2


def test_an_end_may_count_as_many_outstanding_messages_as_may_wait() -> None:
    limits = Limits(pending_messages=4)
    reassembler, _ = run(schema(), end(5), limits=limits)
    assert reassembler.missing() == "message 1; the end of the stream counts 5 messages"
    error = refused(schema(), end(6), limits=limits)
    assert error.message == "the stream ended with 5 messages outstanding; the limit is 4"


@pytest.mark.parametrize("order", ["in order", "bodies first"])
def test_metadata_that_repeats_is_parsed_once(order: str) -> None:
    parsed: list[bytes] = []

    def parse(payload: bytes) -> MessageSummary:
        parsed.append(payload)
        return FORMATS[MetadataType.ARROW](payload)

    other = plain_batch(1, [(0, 0), (0, 8)], 8)
    reassembler = Reassembler({MetadataType.ARROW: parse})
    pairs = [(metadata(n, other if n == 5 else BATCH_METADATA), body(n)) for n in range(1, 7)]
    frames = [frame for pair in pairs for frame in (pair if order == "in order" else pair[::-1])]
    ready: list[Message] = []
    feed_frames(reassembler, [schema(), *frames], ready)
    assert len(ready) == 7
    assert parsed == [SCHEMA_METADATA, BATCH_METADATA, other, BATCH_METADATA]


def test_an_error_has_its_position() -> None:
    error = refused(schema(), metadata(1), body(1, kind=9))
    assert isinstance(error, SplitArrowError)
    assert (error.stream, error.sequence, error.tag) == ("s", 1, 9 << 56 | 1)


def test_each_message_of_a_real_stream_is_delivered_once_it_is_complete() -> None:
    reassembler, ready = Reassembler(FORMATS), list[Message]()
    frames = receive_frames(list_frames(small_stream(), Splitter()))
    counts: list[int] = []
    for frame in frames:
        feed_frames(reassembler, [frame], ready)
        counts.append(len(ready))
    assert counts == [1, 1, 2, 2, 3, 3, 4, 4]
    assert reassembler.finished


def test_the_header_type_identifies_a_schema() -> None:
    _, ready = run(metadata(0, empty_message(SCHEMA)))
    assert len(ready) == 1
