"""Buffers at any offsets of a region: in place, copied, and located in packed bodies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.crafting import RECORD_BATCH, empty_message, plain_batch, schema_of_ints
from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.body_layout import (
    BodyLocation,
    BufferLocator,
    check_buffer_lengths,
    locate_body,
    plan_packed_body,
)
from splitarrow.formats.arrow.message import BufferSpan, read_batch_layout, read_message_info

Spans = Sequence[tuple[int, int]]
PACKED = [(0, 0), (0, 20), (24, 8)]
METADATA = plain_batch(5, PACKED, 32)
LAYOUT = read_batch_layout(METADATA)


def located(spans: Spans, region_size: int = 1 << 20) -> BodyLocation | None:
    return locate_body(METADATA, LAYOUT, spans, region_size)


def buffers_of(location: BodyLocation) -> list[BufferSpan]:
    """Return the buffers of a location, which has to declare its own size."""
    assert read_message_info(location.metadata).body_length == location.nbytes
    return list(read_batch_layout(location.metadata).buffers)


@pytest.mark.parametrize("begin", [0, 8, 64, 1000])
def test_a_packed_body_keeps_its_metadata(begin: int) -> None:
    location = located([(0, 0), (begin, 20), (begin + 24, 8)], begin + 32)
    assert location == (METADATA, begin, 32)
    assert location is not None
    assert location.metadata is METADATA


def test_a_body_whose_padding_is_outside_the_region_is_described_anew() -> None:
    location = located([(0, 0), (8, 20), (32, 8)], 39)
    assert location is not None
    assert (location.begin, location.nbytes) == (8, 32)
    assert buffers_of(location) == [(0, 0), (0, 20), (24, 8)]
    assert location.metadata is not METADATA


@pytest.mark.parametrize("spans", [[(0, 0), (64, 20), (8, 8)], [(0, 0), (16, 20), (200, 8)]])
def test_scattered_buffers_stay_in_place(spans: Spans) -> None:
    location = located(spans)
    assert location is not None
    assert location.begin == min(offset for offset, length in spans if length)
    assert location.begin + location.nbytes == max(offset + length for offset, length in spans)
    moved = [(offset + location.begin, length) for offset, length in buffers_of(location)[1:]]
    assert moved == list(spans[1:])
    assert buffers_of(location)[0] == (0, 0)


@pytest.mark.parametrize("spans", [[(0, 0), (64, 20), (68, 8)], [(0, 0), (8, 20), (33, 8)]])
def test_buffers_that_are_not_aligned_to_each_other_need_a_copy(spans: Spans) -> None:
    assert located(spans) is None


def test_a_body_that_begins_anywhere_is_described_from_there() -> None:
    location = located([(0, 0), (3, 20), (27, 8)])
    assert location is not None
    assert (location.begin, buffers_of(location)[1]) == (3, (0, 20))


@pytest.mark.parametrize("body_length", [0, 64])
def test_a_body_of_empty_buffers_needs_no_memory(body_length: int) -> None:
    metadata = plain_batch(0, [(0, 0), (8, 0)], body_length)
    location = locate_body(metadata, read_batch_layout(metadata), [(0, 0), (0, 0)], 0)
    assert location is not None
    assert (location.begin, location.nbytes) == (0, 0)
    assert read_message_info(location.metadata).body_length == 0


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 300)), min_size=1, max_size=9))
def test_a_copy_is_aligned_to_64_bytes(spans: list[tuple[int, int]]) -> None:
    metadata = plain_batch(1, [(0, length) for _, length in spans], 8)
    location, packed = plan_packed_body(metadata, spans)
    assert buffers_of(location) == packed
    assert [length for _, length in packed] == [length for _, length in spans]
    end = 0
    for offset, length in packed:
        assert offset == (end if length else 0)
        end += (length + 63) // 64 * 64
    assert (location.begin, location.nbytes) == (0, end)


def test_other_lengths_than_the_metadata_lists_are_refused() -> None:
    check_buffer_lengths(LAYOUT.buffers, [(0, 0), (7, 20), (9, 8)])
    with pytest.raises(ProtocolError, match=r"buffer 2 .* has 9 bytes; its metadata lists 8"):
        check_buffer_lengths(LAYOUT.buffers, [(0, 0), (7, 20), (9, 9)])


def test_metadata_without_buffers_or_length_is_refused() -> None:
    for metadata in (empty_message(RECORD_BATCH), empty_message(RECORD_BATCH, 8)):
        with pytest.raises(ProtocolError):
            plan_packed_body(metadata, [(0, 8)])


def test_spans_are_those_of_the_metadata_moved_to_the_body() -> None:
    locator = BufferLocator()
    metadata = plain_batch(5, [(0, 0), (0, 20), (24, 8), (32, 0)], 32)
    for view in (metadata, memoryview(metadata)):
        for offset in (0, 1000):
            spans = locator.locate(view, 32, offset)
            assert spans == [(0, 0), (offset, 20), (offset + 24, 8), (0, 0)]


def test_each_message_is_located_by_its_own_metadata() -> None:
    locator = BufferLocator()
    one, other = plain_batch(1, [(0, 8)], 8), plain_batch(1, [(8, 1)], 16)
    for _ in range(2):
        assert locator.locate(one, 8, 64) == [(64, 8)]
        assert locator.locate(other, 16, 64) == [(72, 1)]


def test_equal_metadata_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    locator = BufferLocator()
    metadata = plain_batch(1, [(0, 8)], 8)
    assert locator.locate(metadata, 8, 0) == [(0, 8)]
    monkeypatch.setattr("splitarrow.formats.arrow.body_layout.read_batch_layout", None)
    assert locator.locate(metadata, 8, 8) == [(8, 8)]


@pytest.mark.parametrize("span", [(-1, 8), (0, -1), (25, 8), (33, 0), (1 << 62, 1 << 62)])
def test_a_buffer_outside_its_body_is_refused(span: tuple[int, int]) -> None:
    metadata = plain_batch(1, [(24, 8), (32, 0), span], 32)
    locator = BufferLocator()
    for _ in range(2):  # refused metadata is not kept
        with pytest.raises(ProtocolError, match=r"buffer 2 .* is outside the body of 32 bytes"):
            locator.locate(metadata, 32, 64)


def test_a_schema_has_no_spans() -> None:
    with pytest.raises(ProtocolError, match="received a SCHEMA message"):
        BufferLocator().locate(schema_of_ints(["a"]), 0, 0)
