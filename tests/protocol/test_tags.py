"""Tags of bodies and requests."""

from __future__ import annotations

import pytest

from splitarrow.errors import ProtocolError
from splitarrow.protocol.tags import (
    FREE_DATA,
    KEEP_ALIVE,
    MAX_SEQUENCE,
    RESERVED_MASK,
    SEQUENCE_MASK,
    WANT_DATA,
    BodyType,
    is_request_tag,
    pack_body_tag,
    parse_body_tag,
)

KNOWN = {0, 1, 255}


@pytest.mark.parametrize("body_type", list(BodyType))
def test_a_tag_round_trips(body_type: BodyType) -> None:
    for sequence in (0, 1, 7, 1 << 16, MAX_SEQUENCE - 1, MAX_SEQUENCE):
        assert parse_body_tag(pack_body_tag(sequence, body_type)) == (sequence, body_type)


def test_the_body_type_is_the_most_significant_byte() -> None:
    """The text of the specification uses bits 56 to 63; its diagrams shift by 55."""
    assert pack_body_tag(0, BodyType.OFFSETS) == 1 << 56
    assert pack_body_tag(9, BodyType.OFFSETS).to_bytes(8, "little") == b"\x09\0\0\0\0\0\0\x01"
    assert pack_body_tag(9, BodyType.FAILURE).to_bytes(8, "little") == b"\x09\0\0\0\0\0\0\xff"
    with pytest.raises(ProtocolError, match="reserved"):
        parse_body_tag(1 << 55)


def test_a_packed_body_has_its_sequence_number_as_tag() -> None:
    assert pack_body_tag(MAX_SEQUENCE) == MAX_SEQUENCE


@pytest.mark.parametrize("body_type", list(BodyType))
def test_each_reserved_bit_alone_is_refused(body_type: BodyType) -> None:
    for bit in range(32, 56):
        tag = pack_body_tag(5, body_type) | 1 << bit
        assert tag & SEQUENCE_MASK == 5, "the mask of the specification matches such a tag"
        with pytest.raises(ProtocolError, match="reserved") as caught:
            parse_body_tag(tag)
        assert (caught.value.tag, caught.value.sequence) == (tag, 5)


def test_each_unknown_body_type_is_refused() -> None:
    for kind in set(range(256)) - KNOWN:
        with pytest.raises(ProtocolError, match=f"unknown body type {kind}") as caught:
            parse_body_tag(kind << 56 | 3)
        assert (caught.value.tag, caught.value.sequence) == (kind << 56 | 3, 3)


def test_the_masks_and_the_type_cover_each_bit_once() -> None:
    assert SEQUENCE_MASK ^ RESERVED_MASK ^ (0xFF << 56) == (1 << 64) - 1


@pytest.mark.parametrize("body_type", list(BodyType))
def test_no_body_tag_can_be_a_request_value(body_type: BodyType) -> None:
    assert not is_request_tag(pack_body_tag(0x1234_5678, body_type))
    assert is_request_tag(pack_body_tag(0x1234_5678, body_type) | 1 << 40)


def test_a_request_value_fits_in_64_bits() -> None:
    assert not is_request_tag(1 << 64 | 1 << 40)
    assert not is_request_tag(1 << 65 | 1 << 40)
    assert not is_request_tag(-1)


def test_the_tags_of_a_listener_without_a_uri_never_change() -> None:
    """The URIs of readers stay valid when the server restarts or moves."""
    assert (WANT_DATA, FREE_DATA, KEEP_ALIVE) == (0x100_0000_0001, 0x100_0000_0002, 0x100_0000_0003)
    assert all(map(is_request_tag, (WANT_DATA, FREE_DATA, KEEP_ALIVE)))


def test_each_bit_that_no_body_tag_has_makes_a_request_tag() -> None:
    assert [bit for bit in range(66) if is_request_tag(1 << bit)] == list(range(32, 56))
    assert is_request_tag((1 << 64) - 1)
