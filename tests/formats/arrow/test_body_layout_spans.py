"""Spans of the buffers of messages whose packed bodies are in a region."""

from __future__ import annotations

import pytest

from helpers.crafting import plain_batch, schema_of_ints
from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.body_layout import BufferLocator


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
