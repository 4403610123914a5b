"""Messages that repeat the previous one are received in their final places, and checked alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.framing import plain, push
from splitarrow.errors import ProtocolError
from splitarrow.protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.memory import HostAllocator
from splitarrow.protocol.messages import MetadataType, expand_frames, pack_metadata
from splitarrow.protocol.tags import MAX_SEQUENCE
from splitarrow.transport.frame_decoder import RUN_BYTES, FrameDecoder, Repetitions
from splitarrow.transport.framing import HEADER, PREFACE, encode_frames

LARGE = 17_000
METADATA = b"metadata of one message!"
HEAD_BYTES = 2 * HEADER.size + 5 + len(METADATA)
LARGEST = RUN_BYTES // 2 - 128
"""The largest body of which two share an allocation. Their headers take 128 bytes with padding."""


def message(
    number: int, nbytes: int = LARGE, metadata: bytes = METADATA, kind: int = MetadataType.ARROW
) -> list[OutgoingFrame]:
    body = bytes([number % 251]) * nbytes
    return [
        UntaggedFrame(pack_metadata(kind, number, metadata)),
        TaggedFrame(number, nbytes, [body]),
    ]


def messages(count: int, nbytes: int = LARGE, first: int = 1) -> list[OutgoingFrame]:
    return [frame for k in range(count) for frame in message(first + k, nbytes)]


def encode(frames: Sequence[OutgoingFrame]) -> bytes:
    return b"".join(bytes(part) for part in encode_frames(frames))


def opened(data: bytes = b"", **options: Any) -> FrameDecoder:
    decoder = FrameDecoder(DEFAULT_LIMITS, **options)
    push(decoder, PREFACE + data)
    return decoder


def runs_of(frames: list[IncomingFrame]) -> list[MessageRun]:
    return [frame for frame in frames if isinstance(frame, MessageRun)]


@pytest.mark.parametrize("nbytes", [LARGE, 64 << 10, 100_000, 256 << 10])
def test_messages_land_in_their_final_places_with_one_read(nbytes: int) -> None:
    decoder = opened(encode(messages(2, nbytes)))
    decoder.take()
    targets = decoder.targets()
    assert len(targets) == RUN_BYTES // MessageRun.stride_of(nbytes, HEAD_BYTES) >= 2
    assert {target.nbytes for target in targets} == {HEAD_BYTES + nbytes}
    addresses = [pa.py_buffer(target).address + HEAD_BYTES for target in targets]
    push(decoder, encode(messages(len(targets), nbytes, first=3)))
    (run,) = decoder.take()
    assert isinstance(run, MessageRun)
    assert (run.sequence, run.count) == (3, len(targets))
    assert [run.body(k).payload().address for k in range(run.count)] == addresses
    assert all(address % 64 == 0 for address in addresses)


@pytest.mark.parametrize(("nbytes", "is_expected"), [(LARGEST, True), (LARGEST + 1, False)])
def test_only_bodies_of_which_two_share_an_allocation_are_expected(
    nbytes: int, is_expected: bool
) -> None:
    frames = opened(encode(messages(4, nbytes))).take()
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [(3, 2)] * is_expected


def test_large_metadata_counts_as_memory_of_a_run() -> None:
    def received(nbytes: int) -> list[MessageRun]:
        parts = [message(number, metadata=bytes(nbytes)) for number in range(1, 40)]
        return runs_of(opened(encode([frame for part in parts for frame in part])).take())

    assert max(run.count for run in received(100_000)) == 4
    assert received(RUN_BYTES // 2 - LARGE) == []


def test_a_run_is_bounded_in_memory() -> None:
    frames = opened(encode(messages(200))).take()
    runs = runs_of(frames)
    assert sum(run.count for run in runs) == 198
    stride = MessageRun.stride_of(LARGE, HEAD_BYTES)
    assert max(run.count for run in runs) == RUN_BYTES // stride
    assert all(run.buffer.size == run.count * stride for run in runs)


def test_no_memory_is_allocated_until_it_is_received_into() -> None:
    decoder = opened(encode(messages(2)))
    before = pa.total_allocated_bytes()
    push(decoder, encode(messages(30, first=3)))
    assert pa.total_allocated_bytes() - before < RUN_BYTES + (64 << 10)


def test_complete_messages_are_taken_while_the_next_is_incomplete() -> None:
    data = encode(messages(7))
    decoder = opened(data[: -LARGE - HEAD_BYTES + 100])
    assert (decoder.has_frames, decoder.at_boundary, decoder.missing_body_bytes) == (
        *(True, False),
        LARGE + HEAD_BYTES - 100,
    )
    assert [(run.sequence, run.count) for run in runs_of(decoder.take())] == [(3, 4)]
    assert not decoder.has_frames
    assert decoder.take() == []
    push(decoder, data[-LARGE - HEAD_BYTES + 100 :])
    assert (decoder.has_frames, decoder.at_boundary, decoder.missing_body_bytes) == (True, True, 0)
    assert [(run.sequence, run.count) for run in runs_of(decoder.take())] == [(7, 1)]


def test_an_incomplete_header_has_no_missing_body() -> None:
    data = encode(messages(4))
    decoder = opened(data[: len(data) - LARGE - 1])
    assert (decoder.missing_body_bytes, decoder.at_boundary) == (0, False)
    push(decoder, data[len(data) - LARGE - 1 : len(data) - LARGE])
    assert decoder.missing_body_bytes == LARGE


END = UntaggedFrame(pack_metadata(MetadataType.END_OF_STREAM, 5))


@pytest.mark.parametrize(
    "last",
    [
        [END],
        [TaggedFrame(1 << 40, 0, [])],
        message(5, LARGE - 1),
        message(5, 100),
        message(5, metadata=METADATA[:-1]),
        message(5, metadata=METADATA[:-1] + b"?"),
        message(5, kind=MetadataType.VORTEX),
        message(6),
        [UntaggedFrame(pack_metadata(1, 5, METADATA)), TaggedFrame(6, LARGE, [bytes(LARGE)])],
        [UntaggedFrame(pack_metadata(1, 5, METADATA)), TaggedFrame(1 << 56 | 5, 16, [bytes(16)])],
        [TaggedFrame(5, LARGE, [bytes(LARGE)])],
    ],
    ids=str,
)
def test_what_differs_is_received_at_once_and_unchanged(last: list[OutgoingFrame]) -> None:
    frames = [*messages(4), *last]
    decoder = opened(encode(frames))
    assert decoder.at_boundary
    assert plain(decoder.take()) == [
        (None, frame.payload)
        if isinstance(frame, UntaggedFrame)
        else (frame.tag, b"".join(frame.buffers))
        for frame in frames
    ]


def test_what_follows_a_difference_in_the_same_read_is_received_in_order() -> None:
    frames = [*messages(4), *message(5, 100), *messages(9, first=6), *message(15, 100)]
    data = encode(frames)
    decoder = opened(data[: 2 * (LARGE + HEAD_BYTES)])
    push(decoder, data[2 * (LARGE + HEAD_BYTES) :])
    received = decoder.take()
    expected = opened(data, expects_runs=False).take()
    assert plain(received) == plain(expected)
    assert [(run.sequence, run.count) for run in runs_of(received)] == [(3, 2)]
    assert decoder.at_boundary


def test_a_difference_after_a_run_does_not_make_cautious() -> None:
    decoder = opened()
    for number in range(1, 41):
        push(decoder, encode(message(number, LARGE if number % 5 else 100)))
    runs = runs_of(decoder.take())
    assert [(run.sequence, run.count) for run in runs] == [(k, 2) for k in range(3, 40, 5)]


def test_a_run_ends_before_the_numbers_roll_over() -> None:
    numbers = [MAX_SEQUENCE - 4 + k for k in range(5)] + list(range(6))
    data = encode([frame for number in numbers for frame in message(number)])
    decoder = opened(data)
    frames = decoder.take()
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [
        (MAX_SEQUENCE - 2, 3),
        (2, 4),
    ]
    assert [frame.tag for frame in expand_frames(frames) if isinstance(frame, ReceivedFrame)] == (
        numbers
    )
    assert decoder.at_boundary


def test_nothing_is_expected_of_a_client_or_in_memory_that_others_supply() -> None:
    class Supply(HostAllocator):
        pass

    data = encode(messages(10))
    for options in ({"expects_runs": False}, {"allocator": Supply()}):
        assert runs_of(opened(data, **options).take()) == []


def test_an_incomplete_message_is_decoded_when_the_connection_ends() -> None:
    data = encode(messages(5))
    decoder = opened(data[: 1 - LARGE - HEADER.size])
    assert plain(decoder.take()) == plain(opened(encode(messages(4))).take())
    decoder.end_expectations()
    assert decoder.take() == [UntaggedFrame(pack_metadata(1, 5, METADATA))]
    assert not decoder.at_boundary
    decoder.end_expectations()
    assert decoder.take() == []


def test_wrong_expectations_make_cautious_and_right_ones_do_not() -> None:
    repetitions = Repetitions()
    payload = [pack_metadata(1, number, METADATA) for number in range(10)]

    def first_expected() -> int:
        repetitions.record(b"", LARGE, 5)
        return [repetitions.record(payload[k], LARGE, k) for k in range(10)].index(True)

    assert first_expected() == 1
    repetitions.adjust(0)
    assert first_expected() == 2
    repetitions.adjust(0)
    assert first_expected() == 4
    repetitions.adjust(1)
    assert first_expected() == 1


def test_caution_has_a_limit() -> None:
    repetitions = Repetitions()
    for _ in range(20):
        repetitions.adjust(0)
    found = [repetitions.record(pack_metadata(1, k, METADATA), LARGE, k) for k in range(100)]
    assert found.index(True) == 64


def test_pairs_of_messages_cost_no_more_and_more_expectations() -> None:
    """Each pair raises an expectation that the next pair disappoints."""
    pairs = [frame for k in range(100) for frame in message(k, LARGE + k // 2 % 2, METADATA)]
    assert runs_of(opened(encode(pairs)).take()) == []


def outcome(
    data: bytes, chunks: list[int], staging: int, expects: bool
) -> tuple[list[tuple[int | None, bytes]], str]:
    """Return the frames of a connection that breaks after `data`, and how it ended."""
    decoder = FrameDecoder(DEFAULT_LIMITS, staging=staging, expects_runs=expects)
    frames: list[IncomingFrame] = []
    position = index = 0
    try:
        while position < len(data):
            size = chunks[index % len(chunks)]
            push(decoder, data[position : position + size])
            position += size
            index += 1
            if index % 3:
                frames += decoder.take()
        decoder.end_expectations()
    except ProtocolError as error:
        ending = f"{type(error).__name__}: {error.message} {error.tag}"
    else:
        ending = f"at boundary: {decoder.at_boundary} {decoder.missing_body_bytes}"
    return plain(frames + decoder.take()), ending


kinds = st.sampled_from(["same"] * 12 + ["short", "long", "other", "gap", "end", "alive", "huge"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(kinds, max_size=40),
    st.lists(st.sampled_from([1000, LARGE]) | st.integers(50, 600_000), min_size=1),
    st.sampled_from([300, 20_000, 256 << 10]),
    st.none() | st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)),
    st.integers(0, 1000),
)
def test_expecting_runs_changes_neither_frames_nor_errors(
    kinds: list[str],
    chunks: list[int],
    staging: int,
    damage: tuple[int, int] | None,
    cut: int,
) -> None:
    heads: list[int] = []
    number = 0
    data = bytearray(PREFACE)
    for kind in kinds:
        number += 2 if kind == "gap" else 1
        heads.append(len(data))
        if kind == "end":
            frames = [END]
        elif kind == "alive":
            frames = [TaggedFrame(1 << 40, 0, [])]
        elif kind == "other":
            frames = message(number, metadata=b"x" * len(METADATA))
        else:
            sizes = {"short": 500, "long": LARGE + 1, "huge": 300_000}
            frames = message(number, sizes.get(kind, LARGE))
        data += encode(frames)
    if damage is not None and heads:
        at, flip = damage
        place = heads[at % len(heads)] + at // len(heads) % HEAD_BYTES
        data[place % len(data)] ^= flip
    whole = bytes(data[: len(data) - cut])
    expected = outcome(whole, chunks, staging, False)
    assert outcome(whole, chunks, staging, True) == expected
