"""Bodies of type 1 and the payload of free_data."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import LimitError, ProtocolError
from splitarrow.protocol.payloads import pack_offsets, pack_spans, parse_offsets, parse_spans

LARGEST = (1 << 64) - 1


def body(total: int, count: int, *spans: tuple[int, int]) -> bytes:
    return struct.pack(f"<QQ{2 * len(spans)}Q", total, count, *(n for span in spans for n in span))


def test_the_layout_of_a_body() -> None:
    assert pack_spans([(8, 3), (0, 0)]) == body(3, 2, (8, 3), (0, 0))


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [(0, 0)],
        [(0, 100)],
        [(0, 0), (64, 36), (0, 64)],
        [(8, 8), (8, 8), (0, 0)],
        [(100, 0)],
    ],
    ids=str,
)
def test_valid_spans_round_trip(spans: list[tuple[int, int]]) -> None:
    payload = pack_spans(spans)
    assert parse_spans(payload, region_size=100, expected=len(spans)) == spans
    view = memoryview(payload)
    assert parse_spans(view, region_size=100, expected=len(spans)) == spans


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "it has 0 bytes"),
        (bytes(15), "it has 15 bytes"),
        (body(3, 0), "lists 0 buffers"),
        (body(3, 2, (0, 3), (0, 0)), "lists 2 buffers"),
        (body(3, LARGEST, (0, 3)), f"lists {LARGEST} buffers"),
        (body(3, 1), "has 16 bytes"),
        (body(3, 1, (0, 3)) + b"\0", "has 33 bytes"),
        (body(3, 1, (0, 3))[:-1], "has 31 bytes"),
        (body(3, 1, (0, 3), (3, 3)), "has 48 bytes"),
        (body(4, 1, (0, 3)), "declares 4 bytes"),
        (body(2, 1, (0, 3)), "declares 2 bytes"),
        (body(LARGEST, 1, (0, 3)), "declares"),
        (body(101, 1, (0, 101)), "outside the region"),
        (body(1, 1, (100, 1)), "outside the region"),
        (body(0, 1, (101, 0)), "outside the region"),
        (body(LARGEST, 1, (0, LARGEST)), "outside the region"),
        (body(1, 1, (LARGEST, 1)), "outside the region"),
        (body(2, 1, (LARGEST - 1, 2)), "outside the region"),
    ],
)
def test_a_malformed_body_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        parse_spans(payload, region_size=100, expected=1, sequence=5)
    assert caught.value.sequence == 5


def test_an_end_beyond_64_bits_is_refused_in_a_region_of_any_size() -> None:
    payload = body(2, 1, (LARGEST - 1, 2))
    with pytest.raises(ProtocolError, match="outside the region"):
        parse_spans(payload, region_size=1 << 80, expected=1)


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 10), (9, 10)],
        [(9, 10), (0, 10)],
        [(0, 30), (10, 5)],
        [(0, 10), (0, 11)],
        [(0, 10), (20, 10), (15, 6)],
    ],
    ids=str,
)
def test_buffers_that_overlap_in_part_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ProtocolError, match="overlap"):
        parse_spans(pack_spans(spans), region_size=100, expected=len(spans))


def test_a_huge_count_is_refused_before_memory_is_allocated() -> None:
    payload = body(0, LARGEST)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            parse_spans(payload, region_size=1 << 40, expected=1)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(
    st.binary(max_size=80)
    | st.builds(pack_spans, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)))),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_parsed_spans_are_inside_the_region(payload: bytes, size: int, expected: int) -> None:
    try:
        spans = parse_spans(payload, region_size=size, expected=expected)
    except ProtocolError:
        return
    assert len(spans) == expected
    assert pack_spans(spans) == payload
    assert all(0 <= offset <= offset + length <= size for offset, length in spans)


@given(st.lists(st.integers(0, LARGEST), min_size=1, max_size=50))
def test_offsets_round_trip(offsets: list[int]) -> None:
    assert parse_offsets(pack_offsets(offsets), limit=len(offsets)) == offsets


def test_offsets_are_packed_as_u64() -> None:
    assert pack_offsets(iter([1, LARGEST])) == b"\x01" + bytes(7) + b"\xff" * 8


@pytest.mark.parametrize("length", [0, 1, 7, 9, 23])
def test_an_incomplete_offset_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes"):
        parse_offsets(bytes(length), limit=100)


def test_too_many_offsets_are_refused() -> None:
    assert len(parse_offsets(bytes(80), limit=10)) == 10
    with pytest.raises(LimitError, match="limit is 10"):
        parse_offsets(bytes(88), limit=10)
