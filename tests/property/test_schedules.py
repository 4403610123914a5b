"""Order, duplicates and the way of travel do not matter; missing pieces always do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.crafting import RECORD_BATCH, empty_message, schema_of_ints
from helpers.streams import (
    body_message,
    decode_messages,
    feed_frames,
    receive_frames,
    send_through_protocol,
    small_stream,
)
from splitarrow.client.stream.decoders import FORMATS
from splitarrow.errors import LimitError, ProtocolError
from splitarrow.protocol.frames import IncomingFrame, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.messages import Message, MetadataType, pack_metadata
from splitarrow.protocol.reassembler import Reassembler, advance
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.tags import MAX_SEQUENCE, BodyType
from splitarrow.protocol.uri import Streams

SCHEMA_METADATA = schema_of_ints(["n"])
FIRST = st.sampled_from([0, 1, 1 << 31, MAX_SEQUENCE - 3, MAX_SEQUENCE])
Arrival = tuple[Streams, IncomingFrame]


def stream_of(sizes: Sequence[int]) -> list[SourceMessage]:
    """Return a schema and messages with bodies of the given sizes, each of another content."""
    messages = [SourceMessage(SCHEMA_METADATA, None)]
    for number, size in enumerate(sizes):
        body = bytes([number % 251]) * size
        messages.append(SourceMessage(empty_message(RECORD_BATCH, size), [body], size))
    return messages


def frames_with_end(messages: Sequence[SourceMessage], first: int) -> list[IncomingFrame]:
    splitter = Splitter(first_sequence=first)
    return receive_frames([*splitter.split(messages), *splitter.end()])


def plain(messages: Sequence[Message]) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (message.sequence, message.metadata, None if message.body is None else bytes(message.body))
        for message in messages
    ]


def expected(
    messages: Sequence[SourceMessage], first: int
) -> list[tuple[int, bytes, bytes | None]]:
    return [
        (
            advance(first, index),
            bytes(message.metadata),
            None if message.body is None else b"".join(message.body),
        )
        for index, message in enumerate(messages)
    ]


def shuffled(
    frames: Sequence[IncomingFrame], rng: random.Random, window: int, duplicates: float, pair: bool
) -> list[Arrival]:
    """Move each frame by less than `window` places, repeat some; over one or two connections."""
    arrivals: list[tuple[float, Arrival]] = []
    for place, frame in enumerate(frames):
        kind = Streams.BOTH
        if pair:
            kind = Streams.METADATA if isinstance(frame, UntaggedFrame) else Streams.BODY
        arrivals.append((place + rng.random() * window, (kind, frame)))
        while rng.random() < duplicates:
            arrivals.append((place + rng.random() * 2 * window, (kind, frame)))
    arrivals.sort(key=lambda arrival: arrival[0])
    return [arrival for _, arrival in arrivals]


def feed(
    reassembler: Reassembler, arrivals: Sequence[Arrival], rng: random.Random
) -> list[Message]:
    """Feed frames in groups, as they would come out of reads."""
    ready: list[Message] = []
    position = 0
    while position < len(arrivals):
        kind = arrivals[position][0]
        count = rng.choice((1, 1, 2, 5, 100))
        group: list[IncomingFrame] = []
        while position < len(arrivals) and arrivals[position][0] is kind and len(group) < count:
            group.append(arrivals[position][1])
            position += 1
        feed_frames(reassembler, group, ready, kind)
    return ready


def check_schedule(
    sizes: list[int], first: int, window: int, duplicates: float, pair: bool, seed: int
) -> None:
    rng = random.Random(seed)
    messages = stream_of(sizes)
    arrivals = shuffled(frames_with_end(messages, first), rng, window, duplicates, pair)
    reassembler = Reassembler(FORMATS, first_sequence=first)
    ready = feed(reassembler, arrivals, rng)
    assert reassembler.finished
    assert plain(ready) == expected(messages, first)
    assert reassembler.pending_bytes == 0
    assert reassembler.duplicates == len(arrivals) - (2 * len(sizes) + 2)


schedule = {
    "sizes": st.lists(st.integers(0, 40), max_size=30),
    "first": FIRST,
    "window": st.sampled_from([1, 2, 5, 30, 1024]),
    "duplicates": st.sampled_from([0.0, 0.1, 0.5]),
    "pair": st.booleans(),
    "seed": st.integers(0, 1 << 32),
}


@settings(max_examples=200)
@given(**schedule)
def test_split_then_reassemble_is_the_identity_under_any_schedule(
    sizes: list[int], first: int, window: int, duplicates: float, pair: bool, seed: int
) -> None:
    check_schedule(sizes, first, window, duplicates, pair, seed)


@pytest.mark.long
@settings(max_examples=10_000)
@given(**schedule)
def test_10_000_schedules(
    sizes: list[int], first: int, window: int, duplicates: float, pair: bool, seed: int
) -> None:
    check_schedule(sizes, first, window, duplicates, pair, seed)


@pytest.mark.long
@given(st.integers(0, 1 << 32), st.booleans())
def test_long_streams_in_wide_windows(seed: int, pair: bool) -> None:
    check_schedule([8] * 3000, MAX_SEQUENCE - 1000, 1024, 0.2, pair, seed)


@given(st.permutations(range(12)), FIRST)
def test_any_permutation_of_a_short_stream(order: list[int], first: int) -> None:
    messages = stream_of([3, 0, 8, 1, 5])
    frames = frames_with_end(messages, first)
    reassembler, ready = Reassembler(FORMATS, first_sequence=first), list[Message]()
    for place in order:
        assert not reassembler.finished
        feed_frames(reassembler, [frames[place]], ready)
    assert reassembler.finished
    assert plain(ready) == expected(messages, first)


def test_ten_messages_across_the_roll_over_decode_to_the_same_batches() -> None:
    messages = small_stream(batches=9)
    assert len(messages) == 10
    first = (1 << 32) - 3
    ready: list[Message] = []
    reassembler = Reassembler(FORMATS, first_sequence=first)
    frames = frames_with_end(messages, first)
    assert frames[-1] == UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, 7))
    feed_frames(reassembler, frames, ready)
    assert reassembler.finished
    assert [message.sequence for message in ready[:5]] == [
        MAX_SEQUENCE - 2,
        MAX_SEQUENCE - 1,
        MAX_SEQUENCE,
        0,
        1,
    ]
    assert decode_messages(ready) == send_through_protocol(messages)


# What is missing, or too much.


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 40), max_size=8),
    st.data(),
    st.sampled_from([1, 5, 1024]),
    st.integers(0, 1 << 32),
)
def test_without_any_one_frame_a_stream_is_never_finished(
    sizes: list[int], data: st.DataObject, window: int, seed: int
) -> None:
    rng = random.Random(seed)
    messages = stream_of(sizes)
    frames = frames_with_end(messages, 0)
    del frames[data.draw(st.integers(0, len(frames) - 1))]
    reassembler = Reassembler(FORMATS)
    ready = feed(reassembler, shuffled(frames, rng, window, 0.2, False), rng)
    assert not reassembler.finished
    assert reassembler.missing() != "nothing"
    assert plain(ready) == expected(messages, 0)[: len(ready)]
    assert len(ready) < len(messages) or not any(f.payload[0] == 0 for f in untagged(frames))


def untagged(frames: Sequence[IncomingFrame]) -> list[UntaggedFrame]:
    return [frame for frame in frames if isinstance(frame, UntaggedFrame)]


@settings(max_examples=100)
@given(
    st.integers(0, 6),
    st.integers(0, 12) | st.sampled_from([MAX_SEQUENCE, 1 << 31, (1 << 31) - 1]),
    st.integers(0, 1 << 32),
    st.sampled_from([1, 50]),
)
def test_an_end_with_a_wrong_count_never_finishes(
    batches: int, count: int, seed: int, window: int
) -> None:
    if count == batches + 1:
        count += 1
    rng = random.Random(seed)
    frames = frames_with_end(stream_of([4] * batches), 0)[:-1]
    frames.append(UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, count)))
    reassembler = Reassembler(FORMATS)
    try:
        feed(reassembler, shuffled(frames, rng, window, 0.0, False), rng)
    except ProtocolError:
        return
    assert not reassembler.finished


# Garbage and memory.

messages_of_any_kind = st.one_of(
    st.builds(
        lambda kind, number, payload: UntaggedFrame(pack_metadata(kind, number, payload)),
        st.sampled_from([0, 1, 1, 1, 2, 3, 4, 255]),
        st.integers(0, 12) | st.integers(0, MAX_SEQUENCE),
        st.sampled_from([b"", SCHEMA_METADATA, *(empty_message(3, n) for n in (0, 3, 9))])
        | st.binary(max_size=80),
    ),
    st.binary(max_size=8).map(UntaggedFrame),
    st.builds(
        lambda number, high, payload: arrived_body(number | high << 32, payload),
        st.integers(0, 12) | st.integers(0, MAX_SEQUENCE),
        st.sampled_from([0] * 8 + [1 << 24, 255 << 24, 2 << 24, 1, 1 << 23]),
        st.sampled_from([b"", b"123", b"123456789"]),
    ),
)


def refusal_of(
    reassembler: Reassembler, frame: IncomingFrame, ready: list[Message], origin: Streams
) -> ProtocolError | None:
    try:
        feed_frames(reassembler, [frame], ready, origin)
    except ProtocolError as error:
        return error
    return None


def arrived_body(tag: int, payload: bytes) -> IncomingFrame:
    message = body_message(b"", payload)
    assert message.body is not None
    return ReceivedFrame(tag, message.body)


@settings(max_examples=300)
@given(
    st.lists(messages_of_any_kind, max_size=40),
    st.sampled_from(Streams),
    st.booleans(),
    FIRST,
    st.sampled_from([DEFAULT_LIMITS, Limits(pending_messages=4, pending_bytes=300)]),
)
def test_any_frames_are_a_stream_or_refused_and_memory_is_bounded(
    frames: list[IncomingFrame], origin: Streams, with_schema: bool, first: int, limits: Limits
) -> None:
    reassembler, ready = (
        Reassembler(FORMATS, limits, stream="s", first_sequence=first),
        list[Message](),
    )
    if with_schema:
        opening = pack_metadata(MetadataType.ARROW, first, SCHEMA_METADATA)
        feed_frames(reassembler, [UntaggedFrame(opening)], ready)
    for frame in frames:
        refusal = refusal_of(reassembler, frame, ready, origin)
        if refusal is not None:
            assert refusal.stream == "s"
            break
        waiting = reassembler._pending.sequences
        assert len(waiting) <= limits.pending_messages
        assert len(waiting) <= 1 or reassembler.pending_bytes <= limits.pending_bytes
    assert [m.sequence for m in ready] == [advance(first, n) for n in range(len(ready))]
    for message in ready:
        has_body = message.metadata != SCHEMA_METADATA
        assert (message.body is not None) is has_body or message.body_type is BodyType.OFFSETS


@given(st.integers(1, 50), st.integers(1, 2000), st.booleans(), st.integers(0, 1 << 32))
def test_what_waits_stays_within_the_limits_however_late_the_rest_comes(
    most: int, nbytes: int, bodies: bool, seed: int
) -> None:
    """Message 1 never comes; whatever else comes, the reader stops at its limits."""
    rng = random.Random(seed)
    limits = Limits(pending_messages=most, pending_bytes=nbytes)
    frames = frames_with_end(stream_of([rng.randrange(40) for _ in range(100)]), 0)
    rest = [frame for frame in frames[3:-1] if bodies or isinstance(frame, UntaggedFrame)]
    rng.shuffle(rest)
    reassembler = Reassembler(FORMATS, limits)
    feed_frames(reassembler, frames[:1], [])
    for frame in rest:
        refusal = refusal_of(reassembler, frame, [], Streams.BOTH)
        if refusal is not None:
            assert isinstance(refusal, LimitError)
            return
        assert reassembler.pending_bytes <= nbytes
        assert len(reassembler._pending.sequences) <= most
    pytest.fail("everything was kept")
