"""Bytes that nobody made on purpose: each parser has one kind of error for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.message import (
    parse_prefix,
    read_batch_layout,
    read_batch_table,
    read_endianness,
    read_message_info,
)
from splitarrow.formats.arrow.metadata_limits import survey_custom_metadata, survey_schema
from splitarrow.formats.arrow.schema import read_schema
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import parse_failure, parse_metadata_prefix
from splitarrow.protocol.payloads import parse_offsets, parse_spans
from splitarrow.protocol.tags import parse_body_tag

PARSERS: list[Callable[[bytes], Any]] = [
    read_message_info,
    read_batch_layout,
    read_batch_table,
    read_endianness,
    survey_schema,
    survey_custom_metadata,
    read_schema,
    parse_prefix,
    lambda data: parse_failure(data, DEFAULT_LIMITS),
    parse_metadata_prefix,
    lambda data: parse_spans(data, region_size=1 << 63, expected=len(data) // 16),
    lambda data: parse_offsets(data, limit=5),
    lambda data: parse_body_tag(int.from_bytes(data[:8], "little")),
]
small_words = st.lists(
    st.integers(0, 40) | st.sampled_from([0xFFFF_FFFF, 0x7FFF_FFFF, 0x8000_0000]), max_size=40
).map(lambda words: b"".join(word.to_bytes(4, "little") for word in words))


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.binary(max_size=300) | small_words)
def test_garbage_is_read_or_a_protocol_error(parse: Callable[[bytes], Any], data: bytes) -> None:
    try:
        parse(data)
    except ProtocolError:
        return


@pytest.mark.parametrize("parse", PARSERS[:7])
@given(data=st.binary(max_size=300) | small_words)
def test_a_view_is_read_as_bytes_are(parse: Callable[[Any], Any], data: bytes) -> None:
    def outcome(given: bytes | memoryview) -> object:
        try:
            return parse(given)
        except ProtocolError as error:
            return type(error), error.message

    assert outcome(data) == outcome(memoryview(data))
