"""Tags: what they hold, and what is refused."""

from __future__ import annotations

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.protocol.sequence import LAST
from splitarrow.protocol.tags import (
    RESERVED_MASK,
    SEQUENCE_MASK,
    BodyType,
    body_tag,
    is_request_value,
    parse_body_tag,
)

KNOWN = {0, 1, 255}


@pytest.mark.parametrize("body_type", list(BodyType))
@pytest.mark.parametrize("sequence", [0, 1, 7, 1 << 16, LAST - 1, LAST])
def test_a_tag_gives_back_what_it_was_made_of(body_type: BodyType, sequence: int) -> None:
    assert parse_body_tag(body_tag(sequence, body_type)) == (sequence, body_type)


def test_the_body_type_is_the_most_significant_byte() -> None:
    """The specification says bits 56 to 63; its diagrams and a reference shift by 55."""
    assert body_tag(0, BodyType.OFFSETS) == 1 << 56
    assert body_tag(9, BodyType.OFFSETS).to_bytes(8, "little") == b"\x09\0\0\0\0\0\0\x01"
    assert body_tag(9, BodyType.FAILED).to_bytes(8, "little") == b"\x09\0\0\0\0\0\0\xff"
    with pytest.raises(ProtocolError, match="reserved"):
        parse_body_tag(1 << 55)


def test_a_packed_body_has_its_sequence_number_as_tag() -> None:
    assert body_tag(LAST) == LAST


@pytest.mark.parametrize("bit", range(32, 56))
@pytest.mark.parametrize("body_type", list(BodyType))
def test_each_reserved_bit_alone_is_refused(bit: int, body_type: BodyType) -> None:
    tag = body_tag(5, body_type) | 1 << bit
    assert tag & SEQUENCE_MASK == 5, "the mask of the specification matches such a tag"
    with pytest.raises(ProtocolError, match="reserved") as caught:
        parse_body_tag(tag)
    assert (caught.value.tag, caught.value.sequence) == (tag, 5)


@pytest.mark.parametrize("kind", sorted(set(range(256)) - KNOWN))
def test_each_unknown_body_type_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown body type {kind}") as caught:
        parse_body_tag(kind << 56 | 3)
    assert (caught.value.tag, caught.value.sequence) == (kind << 56 | 3, 3)


def test_the_masks_and_the_type_cover_each_bit_once() -> None:
    assert SEQUENCE_MASK ^ RESERVED_MASK ^ (0xFF << 56) == (1 << 64) - 1


@pytest.mark.parametrize("body_type", list(BodyType))
def test_no_body_tag_can_be_a_request_value(body_type: BodyType) -> None:
    assert not is_request_value(body_tag(0x1234_5678, body_type))
    assert is_request_value(body_tag(0x1234_5678, body_type) | 1 << 40)


def test_a_request_value_fits_in_64_bits() -> None:
    assert not is_request_value(1 << 64 | 1 << 40)
    assert not is_request_value(-1)
