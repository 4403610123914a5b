"""How the bytes of a connection are cut by the network does not matter."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.framing import plain, push
from helpers.streams import encode_wire_bytes, feed_frames, list_frames, small_stream
from splitarrow.client.stream.decoders import FORMATS
from splitarrow.errors import ProtocolError
from splitarrow.protocol.frames import IncomingFrame, OutgoingFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.messages import Message
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.transport.frame_decoder import DIRECT_BYTES, FrameDecoder
from splitarrow.transport.framing import HEADER, PREFACE

STAGING = st.sampled_from([32, 300, 5000, 256 << 10])
SIZES = st.integers(0, 400) | st.sampled_from([DIRECT_BYTES - 1, DIRECT_BYTES, 40_000, 300_000])
Kind = tuple[bool, int, int]
kinds = st.tuples(st.booleans(), SIZES, st.integers(0, (1 << 64) - 1))


def frame_of(kind: Kind) -> OutgoingFrame:
    tagged, size, tag = kind
    payload = random.Random(size).randbytes(size)
    return (
        TaggedFrame(tag, size, [payload[: size // 2], payload[size // 2 :]])
        if tagged
        else UntaggedFrame(payload)
    )


def sent(frames: Sequence[OutgoingFrame]) -> list[tuple[int | None, bytes]]:
    return [
        (None, frame.payload)
        if isinstance(frame, UntaggedFrame)
        else (frame.tag, b"".join(frame.buffers))
        for frame in frames
    ]


def receive(data: bytes, chunks: Sequence[int], staging: int) -> list[IncomingFrame]:
    """Receive bytes in chunks of the given sizes, over and over; frames are taken at any time."""
    decoder = FrameDecoder(DEFAULT_LIMITS, staging=staging)
    frames: list[IncomingFrame] = []
    position = index = 0
    while position < len(data):
        size = chunks[index % len(chunks)]
        push(decoder, data[position : position + size])
        position += size
        index += 1
        if index % 3:
            frames += decoder.take()
    assert decoder.at_boundary
    return frames + decoder.take()


@settings(max_examples=150)
@given(
    st.lists(kinds, max_size=8),
    st.lists(st.sampled_from([1, 2, 7, 24, 25, 1000]) | st.integers(1, 500_000), min_size=1),
    STAGING,
)
@example([(True, 300_000, 5), (False, 300_000, 0), (True, 0, 1)], [250_000], 256 << 10)
@example([(False, 300, 0), (True, DIRECT_BYTES, 5)] * 4, [DIRECT_BYTES + 324], 300)
def test_any_chunks_give_the_same_frames(
    kinds: list[Kind], chunks: list[int], staging: int
) -> None:
    if sum(size for _, size, _ in kinds) // sum(chunks) * len(chunks) > 20_000:
        chunks = [*chunks, 100_000]
    frames = [frame_of(kind) for kind in kinds]
    assert plain(receive(encode_wire_bytes(frames), chunks, staging)) == sent(frames)


@pytest.mark.parametrize("staging", [32, 300, 256 << 10])
def test_a_byte_at_a_time_gives_the_same_frames(staging: int) -> None:
    edge = min(staging, 300) - HEADER.size
    sizes = [
        *range(edge - 2, edge + 12),
        0,
        1,
        23,
        24,
        25,
        4000,
        DIRECT_BYTES - 1,
        DIRECT_BYTES + 1,
    ]
    frames = [frame_of((tagged, size, size)) for size in sizes for tagged in (False, True)]
    assert plain(receive(encode_wire_bytes(frames), [1], staging)) == sent(frames)


def test_a_byte_at_a_time_through_bodies_larger_than_the_staging_area() -> None:
    frames = [frame_of((True, (256 << 10) + 1, 1)), frame_of((False, 10, 0))]
    assert plain(receive(encode_wire_bytes(frames), [1], 256 << 10)) == sent(frames)


def test_a_stream_is_proven_by_its_last_byte_and_not_before() -> None:
    """Cut after any byte, it is not finished: neither too early nor too late."""
    messages = small_stream(batches=4)
    data = encode_wire_bytes(list_frames(messages))
    decoder, reassembler = FrameDecoder(DEFAULT_LIMITS), Reassembler(FORMATS)
    ready: list[Message] = []
    for position in range(len(data)):
        assert not reassembler.finished
        assert reassembler.missing() != "nothing"
        push(decoder, data[position : position + 1])
        feed_frames(reassembler, decoder.take(), ready)
    assert reassembler.finished
    assert decoder.at_boundary
    assert len(ready) == len(messages)


headers = st.builds(
    HEADER.pack,
    st.sampled_from([0, 0, 0, 1, 1, 1, 2, 255, 256, 1 << 63]),
    st.integers(0, 60) | st.sampled_from([101, 1 << 20, 1 << 40, (1 << 64) - 1]),
    st.sampled_from([0, 0, 1, 1 << 40]),
)
garbage = st.lists(headers | st.binary(max_size=60), max_size=12).map(b"".join)


def outcome(data: bytes, most: int, staging: int) -> tuple[list[tuple[int | None, bytes]], str]:
    decoder = FrameDecoder(Limits(metadata_bytes=100, body_bytes=100), staging=staging)
    try:
        push(decoder, data, most)
    except ProtocolError as error:
        return plain(decoder.take()), f"{type(error).__name__}: {error.message}"
    return plain(decoder.take()), f"at boundary: {decoder.at_boundary}"


@settings(max_examples=300)
@given(garbage, st.booleans(), st.sampled_from([1, 3, 24, 25, 100]), st.sampled_from([32, 4096]))
def test_any_bytes_are_frames_or_refused_alike_however_they_are_cut(
    data: bytes, with_preface: bool, most: int, staging: int
) -> None:
    if with_preface:
        data = PREFACE + data
    whole = outcome(data, 1 << 62, 1 << 16)
    cut = outcome(data, most, staging)
    assert whole == cut
