"""Frames on byte streams: layout, sizes and preface."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from helpers.framing import plain, push
from splitarrow.errors import LimitError, ProtocolError, UsageError
from splitarrow.protocol.frames import ReceivedFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.transport.frame_decoder import DIRECT_BYTES, FrameDecoder, PrefaceError
from splitarrow.transport.framing import (
    HEADER,
    PREFACE,
    check_body_size,
    check_metadata_size,
    encode_frames,
)


def framed(kind: int, length: int, tag: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, length, tag) + payload


def opened(limits: Limits = DEFAULT_LIMITS, staging: int = 256 << 10) -> FrameDecoder:
    decoder = FrameDecoder(limits, staging=staging)
    push(decoder, PREFACE)
    return decoder


def test_the_layout_of_frames() -> None:
    frames = [
        UntaggedFrame(b"ab"),
        TaggedFrame(0x0102, 3, [b"c", b"de"]),
        TaggedFrame(7, 0, []),
        UntaggedFrame(b""),
    ]
    data = b"".join(encode_frames(frames))
    assert data == (
        b"\0\0\0\0\0\0\0\0" + b"\2\0\0\0\0\0\0\0" + bytes(8) + b"ab"
        b"\1\0\0\0\0\0\0\0" + b"\3\0\0\0\0\0\0\0" + b"\2\1\0\0\0\0\0\0" + b"cde"
        b"\1\0\0\0\0\0\0\0" + bytes(8) + b"\7\0\0\0\0\0\0\0" + bytes(24)
    )
    decoder = opened()
    push(decoder, data)
    assert plain(decoder.take()) == [(None, b"ab"), (0x0102, b"cde"), (7, b""), (None, b"")]
    assert decoder.at_boundary


def test_the_buffers_of_a_body_are_not_copied() -> None:
    buffer = pa.py_buffer(b"x" * 100)
    parts = encode_frames([UntaggedFrame(b"m"), TaggedFrame(1, 100, [buffer]), UntaggedFrame(b"n")])
    assert len(parts) == 3
    assert parts[1] is buffer


@pytest.mark.parametrize(
    ("nbytes", "buffers"), [(0, 1), (1, 1), (1 << 10, 1), ((1 << 10) + 1, 2), (1 << 20, 2)]
)
def test_short_bodies_follow_their_header_in_the_same_buffer(nbytes: int, buffers: int) -> None:
    parts = encode_frames([TaggedFrame(1, nbytes, [bytes(nbytes)])])
    assert len(parts) == buffers
    assert sum(map(len, parts)) == HEADER.size + nbytes


def test_the_preface_is_8_bytes() -> None:
    assert PREFACE == b"SPLTARW\x01"
    decoder = FrameDecoder(DEFAULT_LIMITS)
    for index in range(8):
        assert not decoder.preface_received
        push(decoder, PREFACE[index : index + 1])
    assert decoder.preface_received
    assert decoder.at_boundary
    assert decoder.take() == []


@pytest.mark.parametrize("index", range(8))
def test_a_preface_that_differs_in_one_byte_is_refused_with_that_byte(index: int) -> None:
    data = bytearray(PREFACE)
    data[index] ^= 1
    decoder = FrameDecoder(DEFAULT_LIMITS)
    push(decoder, bytes(data[:index]))
    with pytest.raises(PrefaceError) as caught:
        push(decoder, bytes(data[index : index + 1]))
    assert caught.value.received == bytes(data[: index + 1])


def test_another_protocol_is_recognized() -> None:
    with pytest.raises(PrefaceError) as caught:
        push(FrameDecoder(DEFAULT_LIMITS), b"HTTP/1.1 400 Bad Request\r\n")
    assert caught.value.received.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("kind", [2, 3, 255, 1 << 8, 1 << 16, 1 | 1 << 8, 1 << 32, 1 << 63])
def test_an_unknown_kind_or_a_reserved_byte_is_refused(kind: int) -> None:
    with pytest.raises(
        ProtocolError, match=f"begins with {kind:#018x}; expected 0 .untagged. or 1 .tagged."
    ):
        push(opened(), framed(kind, 0, 0))


def test_an_untagged_frame_with_a_tag_is_refused() -> None:
    with pytest.raises(ProtocolError, match="has a tag other than 0") as caught:
        push(opened(), framed(0, 0, 5))
    assert caught.value.tag == 5


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_frame_beyond_the_limit_is_refused_before_memory_is_allocated(
    kind: int, length: int
) -> None:
    decoder = opened(Limits(metadata_bytes=(1 << 20) - 1, body_bytes=(1 << 20) - 1))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(
            LimitError, match=f"frame has {length} bytes; the limit is {(1 << 20) - 1} bytes"
        ):
            push(decoder, framed(kind, length, 0))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_frame_at_the_limit_passes() -> None:
    decoder = opened(Limits(metadata_bytes=10, body_bytes=11))
    push(decoder, framed(0, 10, 0, b"m" * 10) + framed(1, 11, 3, b"b" * 11))
    assert plain(decoder.take()) == [(None, b"m" * 10), (3, b"b" * 11)]


def test_a_size_at_the_limit_passes_and_the_next_is_refused() -> None:
    limits = Limits(metadata_bytes=10, body_bytes=11)
    check_metadata_size(10, limits)
    check_body_size(11, limits, 3)
    with pytest.raises(LimitError, match="untagged frame has 11 bytes; the limit is 10 bytes"):
        check_metadata_size(11, limits)
    with pytest.raises(LimitError, match="tagged frame has 12 bytes; the limit is 11") as caught:
        check_body_size(12, limits, 3)
    assert caught.value.tag == 3


def test_a_body_without_free_memory_is_a_limit_error() -> None:
    decoder = opened(Limits(body_bytes=1 << 63))
    with pytest.raises(LimitError, match="cannot allocate"):
        push(decoder, framed(1, 1 << 62, 3))


def test_frames_before_an_error_can_be_taken() -> None:
    decoder = opened()
    with pytest.raises(ProtocolError):
        push(decoder, framed(0, 1, 0, b"a") + framed(1, 1, 9, b"b") + framed(7, 0, 0))
    assert plain(decoder.take()) == [(None, b"a"), (9, b"b")]


@pytest.mark.parametrize(
    "nbytes", [0, 1, DIRECT_BYTES - 1, DIRECT_BYTES, DIRECT_BYTES + 1, 300 << 10, 1 << 20]
)
def test_a_boundary_is_only_between_frames(nbytes: int) -> None:
    decoder = opened()
    payload = bytes(nbytes)
    data = framed(0, nbytes, 0, payload) + framed(1, nbytes, 4, payload)
    for position in (1, 23, 24, 25, 24 + nbytes // 2, 24 + nbytes + 5, 2 * 24 + nbytes + 1):
        if position in (24 + nbytes, len(data)) or position > len(data):
            continue
        decoder = opened()
        push(decoder, data[:position])
        assert not decoder.at_boundary, position
    decoder = opened()
    push(decoder, data)
    assert decoder.at_boundary
    assert plain(decoder.take()) == [(None, payload), (4, payload)]


def test_a_large_body_is_received_into_its_own_memory() -> None:
    decoder = opened()
    push(decoder, framed(1, 1 << 20, 4))
    target = decoder.targets()[0]
    assert target.nbytes == 1 << 20
    address = pa.py_buffer(target).address
    push(decoder, bytes(1 << 20))
    (frame,) = decoder.take()
    assert isinstance(frame, ReceivedFrame)
    assert frame.body.payload().address == address


def test_the_read_of_a_large_body_includes_the_next_header_but_not_the_next_body() -> None:
    decoder = opened()
    message = framed(0, 200, 0, bytes(200)) + framed(1, 1 << 20, 4)
    push(decoder, message)
    assert [target.nbytes for target in decoder.targets()] == [1 << 20, len(message)]
    push(decoder, bytes(1 << 20))
    push(decoder, message)
    rest, after = decoder.targets()
    assert rest.nbytes == 1 << 20
    assert after.nbytes == len(message)


def test_a_body_has_headroom_for_its_metadata() -> None:
    for nbytes in (5, 261, 9999):
        decoder = opened()
        push(decoder, framed(0, nbytes, 0, bytes(nbytes)) + framed(1, 4, 4, b"body"))
        frame = decoder.take()[1]
        assert isinstance(frame, ReceivedFrame)
        assert frame.body.start >= 8 + nbytes - 5


def test_a_huge_metadata_message_does_not_enlarge_small_bodies() -> None:
    decoder = opened()
    nbytes = 8 << 20
    push(decoder, framed(0, nbytes, 0, bytes(nbytes)))
    decoder.take()
    before = pa.total_allocated_bytes()
    push(decoder, framed(1, 8, 4, bytes(8)) * 100)
    bodies = decoder.take()
    assert len(bodies) == 100
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_only_single_small_bytes_are_copied() -> None:
    many = [b"a", b"b"]
    view = memoryview(b"ab")
    parts = encode_frames([TaggedFrame(1, 2, many), TaggedFrame(2, 2, [view]), UntaggedFrame(b"m")])
    header = [HEADER.pack(1, 2, tag) for tag in (1, 2)]
    assert parts == [header[0], b"a", b"b", header[1], view, HEADER.pack(0, 1, 0) + b"m"]
    assert parts[4] is view


@pytest.mark.parametrize("body", [[], [b""], [memoryview(b"")]])
def test_an_empty_body_has_no_buffers(body: list[bytes | memoryview]) -> None:
    assert encode_frames([TaggedFrame(1, 0, body)]) == [HEADER.pack(1, 0, 1)]
    assert encode_frames([]) == []


def test_device_memory_is_refused() -> None:
    allocator: Any = SimpleNamespace(is_host=False)
    with pytest.raises(UsageError, match="is received into host memory; use a host allocator"):
        FrameDecoder(DEFAULT_LIMITS, allocator=allocator)


def test_the_first_body_has_headroom_before_any_metadata() -> None:
    decoder = opened()
    push(decoder, framed(1, 4, 4, b"body"))
    (frame,) = decoder.take()
    assert isinstance(frame, ReceivedFrame)
    assert frame.body.start == 1024


@pytest.mark.parametrize(
    ("nbytes", "start"), [(0, 64), (61, 64), (62, 128), (125, 128), (126, 192), (1000, 1024)]
)
def test_the_headroom_takes_the_prefix_of_arrow_and_no_more(nbytes: int, start: int) -> None:
    """Arrow's prefix has 8 bytes where that of a metadata message has 5."""
    for staging in (64, 256 << 10):
        decoder = opened(staging=staging)
        push(decoder, framed(0, nbytes, 0, bytes(nbytes)) + framed(1, 4, 4, b"body"))
        frame = decoder.take()[1]
        assert isinstance(frame, ReceivedFrame)
        assert frame.body.start == start


def test_the_read_of_a_large_body_includes_64_bytes_at_least() -> None:
    decoder = opened()
    push(decoder, framed(1, 1 << 20, 4))
    assert [target.nbytes for target in decoder.targets()] == [1 << 20, 64]
    push(decoder, bytes(1 << 20) + framed(0, 17, 0, bytes(17)) + framed(1, 1 << 20, 4))
    assert [target.nbytes for target in decoder.targets()] == [1 << 20, 24 + 17 + 24]


@pytest.mark.parametrize("nbytes", [DIRECT_BYTES - 1, DIRECT_BYTES])
def test_the_read_of_a_smaller_body_fills_the_staging_area(nbytes: int) -> None:
    decoder = opened(staging=4096)
    push(decoder, framed(1, nbytes, 4))
    after = 4096 if nbytes < DIRECT_BYTES else 64
    assert [target.nbytes for target in decoder.targets()] == [nbytes, after]


def test_the_missing_bytes_of_a_body_are_counted() -> None:
    decoder = opened()
    assert decoder.missing_body_bytes == 0
    push(decoder, framed(1, 1000, 4))
    assert decoder.missing_body_bytes == 1000
    push(decoder, bytes(999))
    assert (decoder.missing_body_bytes, decoder.has_frames) == (1, False)
    push(decoder, bytes(1))
    assert (decoder.missing_body_bytes, decoder.has_frames) == (0, True)
    push(decoder, framed(0, 1 << 20, 0))
    assert decoder.missing_body_bytes == 0  # metadata is no body


@pytest.mark.parametrize("nbytes", [4096 - 24, 4096 - 23, 10_000])
def test_incomplete_metadata_is_received_alone(nbytes: int) -> None:
    decoder = opened(staging=4096)
    push(decoder, framed(0, nbytes, 0))
    (target,) = decoder.targets()
    assert target.nbytes == nbytes
    assert not decoder.at_boundary
    push(decoder, bytes(100))
    assert [target.nbytes for target in decoder.targets()] == [nbytes - 100]
    push(decoder, bytes(nbytes - 100))
    assert plain(decoder.take()) == [(None, bytes(nbytes))]
    after = [target.nbytes for target in decoder.targets()]
    assert after == [4096]
    assert decoder.at_boundary


def test_the_first_64_bytes_of_another_protocol_are_kept() -> None:
    data = bytes(range(100, 200))
    with pytest.raises(PrefaceError) as caught:
        push(FrameDecoder(DEFAULT_LIMITS), data)
    assert caught.value.received == data[:64]


@pytest.mark.parametrize(("nbytes", "is_staged"), [(4096 - 24, True), (4096 - 23, False)])
def test_metadata_that_fits_is_completed_in_the_staging_area(nbytes: int, is_staged: bool) -> None:
    decoder = opened(staging=4096)
    staging = pa.py_buffer(decoder.targets()[0]).address
    push(decoder, framed(0, nbytes, 0, b"x"))
    target = pa.py_buffer(decoder.targets()[0]).address
    assert (target == staging + 25) == is_staged


def test_metadata_larger_than_the_staging_area_counts_as_expected_bytes() -> None:
    decoder = opened(staging=4096)
    for _ in range(2):
        push(decoder, framed(0, 10_000, 0, bytes(10_000)) + framed(1, DIRECT_BYTES, 4))
        assert [target.nbytes for target in decoder.targets()] == [DIRECT_BYTES, 4096]
        push(decoder, bytes(DIRECT_BYTES))
