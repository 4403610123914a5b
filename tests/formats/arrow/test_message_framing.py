"""Encapsulation of Arrow IPC messages."""

from __future__ import annotations

import struct

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.message import END_OF_STREAM, align, encapsulate, parse_prefix


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 100])
def test_the_prefix_of_an_encapsulated_message_is_read(length: int) -> None:
    message = encapsulate(bytes(length))
    assert len(message) == 8 + align(length)
    assert len(message) % 8 == 0
    assert parse_prefix(message[:8]) == (8, align(length))


def test_the_framing_before_arrow_0_15_is_read() -> None:
    assert parse_prefix(struct.pack("<I", 200)) == (4, 200)
    assert parse_prefix(struct.pack("<I", 0) + b"more") == (4, 0)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\xff" * 4, b"\xff" * 7, b"\xff" * 8, b"\0\0\0\x80"]
)
def test_a_short_or_negative_prefix_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_prefix(data)


@pytest.mark.parametrize("length", [4, 5, 7])
def test_a_marker_without_a_length_is_too_short(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"has only {length} bytes"):
        parse_prefix(b"\xff" * length)


def test_the_metadata_is_padded_with_zeros() -> None:
    assert encapsulate(b"x" * 9) == b"\xff" * 4 + b"\x10\0\0\0" + b"x" * 9 + bytes(7)
    assert encapsulate(memoryview(b"x" * 8)) == b"\xff" * 4 + b"\x08\0\0\0" + b"x" * 8


def test_a_stream_ends_with_a_message_of_no_bytes() -> None:
    assert END_OF_STREAM.hex() == "ffffffff00000000"
    assert parse_prefix(END_OF_STREAM) == (8, 0)
