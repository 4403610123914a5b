"""What is read of an Arrow message before it is decoded, from bytes that nobody has verified."""

from __future__ import annotations

import struct

import pytest

from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.message import (
    BatchFacts,
    BufferSpan,
    HeaderType,
    MessageFacts,
    batch_facts,
    batch_traits,
    decoded_bytes,
    encapsulate,
    message_facts,
    padded,
    parse_prefix,
    schema_endianness,
)
from splitarrow.formats.arrow.schema import is_native_endian, read_schema

from .crafting import (
    BIG,
    DICTIONARY_BATCH,
    LITTLE,
    RECORD_BATCH,
    SCHEMA,
    ZSTD,
    Crafter,
    empty_message,
    plain_batch,
    schema_of_ints,
)


def dictionary_message(dictionary_id: int, *, is_delta: bool, codec: int | None = None) -> bytes:
    crafter = Crafter()
    batch = crafter.batch(3, [(3, 0)], [(0, 0), (0, 12)], codec)
    header = crafter.dictionary(dictionary_id, batch, is_delta=is_delta)
    return crafter.message(DICTIONARY_BATCH, header, 16)


@pytest.mark.parametrize("header_type", list(HeaderType)[1:])
@pytest.mark.parametrize("body_length", [0, 1, (1 << 63) - 1])
def test_type_and_body_length_are_read(header_type: HeaderType, body_length: int) -> None:
    metadata = empty_message(header_type, body_length)
    assert message_facts(metadata) == MessageFacts(header_type, body_length)
    assert message_facts(memoryview(metadata)) == MessageFacts(header_type, body_length)


def test_only_a_schema_has_no_body() -> None:
    assert [kind.name for kind in HeaderType if not kind.has_body] == ["NONE", "SCHEMA"]


@pytest.mark.parametrize("header_type", [0, 6, 7, 255])
def test_another_header_type_is_refused(header_type: int) -> None:
    with pytest.raises(ProtocolError):
        message_facts(empty_message(header_type))


def test_a_batch_is_read() -> None:
    metadata = plain_batch(5, [(0, 0), (0, 20)], 24)
    facts = BatchFacts(5, [BufferSpan(0, 0), BufferSpan(0, 20)], False, None, False)
    assert batch_facts(metadata) == facts
    assert batch_traits(metadata) == (HeaderType.RECORD_BATCH, False, False)


@pytest.mark.parametrize("dictionary_id", [0, 7, -1, 1 << 62])
@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("codec", [None, ZSTD])
def test_a_dictionary_is_read(dictionary_id: int, is_delta: bool, codec: int | None) -> None:
    metadata = dictionary_message(dictionary_id, is_delta=is_delta, codec=codec)
    facts = batch_facts(metadata)
    assert (facts.dictionary_id, facts.is_delta, facts.rows) == (dictionary_id, is_delta, 3)
    assert facts.compressed is (codec is not None)
    assert batch_traits(metadata)[:2] == (HeaderType.DICTIONARY_BATCH, codec is not None)


def test_a_schema_has_no_buffers() -> None:
    with pytest.raises(ProtocolError, match="SCHEMA message has no buffers"):
        batch_facts(schema_of_ints(["n"]))


def test_the_number_of_buffers_is_bounded() -> None:
    metadata = plain_batch(5, [(0, 0)] * 11, 0)
    assert len(batch_facts(metadata, max_buffers=11).buffers) == 11
    with pytest.raises(ProtocolError, match="11 buffers"):
        batch_facts(metadata, max_buffers=10)


def test_a_vector_longer_than_the_message_is_refused() -> None:
    metadata = bytearray(plain_batch(5, [(1, 2), (3, 4)], 0))
    at = metadata.index(struct.pack("<qqqq", 1, 2, 3, 4)) - 4
    for count in (1 << 10, 1 << 20, (1 << 32) - 1):
        metadata[at : at + 4] = struct.pack("<I", count)
        with pytest.raises(ProtocolError):
            batch_facts(bytes(metadata), max_buffers=1 << 32)


@pytest.mark.parametrize(
    "metadata",
    [
        empty_message(RECORD_BATCH),
        plain_batch(2, [(0, 0), (0, 8)], 8),
        dictionary_message(3, is_delta=True, codec=ZSTD),
        schema_of_ints(["a", "b"]),
    ],
)
def test_every_prefix_of_a_message_is_read_or_refused(metadata: bytes) -> None:
    for length in range(len(metadata)):
        for read in (message_facts, batch_facts, batch_traits, schema_endianness, read_schema):
            try:
                read(metadata[:length])
            except ProtocolError:
                continue


@pytest.mark.parametrize(("endianness", "name"), [(LITTLE, "little"), (BIG, "big")])
def test_the_byte_order_is_read(endianness: int, name: str) -> None:
    assert schema_endianness(schema_of_ints(["n"], endianness=endianness)) == name


@pytest.mark.parametrize("endianness", [2, -1, -2, 300])
def test_another_byte_order_is_refused(endianness: int) -> None:
    with pytest.raises(ProtocolError):
        schema_endianness(schema_of_ints(["n"], endianness=endianness))


def test_the_native_byte_order_is_one_of_the_two() -> None:
    native = [is_native_endian(schema_of_ints(["n"], endianness=e)) for e in (LITTLE, BIG)]
    assert sorted(native) == [False, True]


def test_reading_a_schema_from_a_batch_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="RECORD_BATCH message where a schema"):
        read_schema(plain_batch(0, [], 0))


def test_a_type_of_the_future_is_refused() -> None:
    crafter = Crafter()
    field = crafter.field(crafter.text("n"), 99, crafter.empty_table())
    with pytest.raises(InvalidDataError, match="cannot be decoded"):
        read_schema(crafter.message(SCHEMA, crafter.schema([field])))


def facts_of(*spans: tuple[int, int]) -> BatchFacts:
    return BatchFacts(1, [BufferSpan(*span) for span in spans], True, None, False)


def test_the_size_after_decompression_is_the_sum_of_what_is_declared() -> None:
    body = struct.pack("<q", 1000) + b"x" * 8 + struct.pack("<q", -1) + b"y" * 5
    assert decoded_bytes(facts_of((0, 16), (16, 13), (0, 0), (0, 16)), memoryview(body)) == 2005


@pytest.mark.parametrize(
    ("span", "why"),
    [
        ((-1, 8), "outside"),
        ((0, -1), "outside"),
        ((0, 17), "outside"),
        ((16, 1), "outside"),
        ((1 << 62, 1 << 62), "outside"),
        ((0, 7), "only 7 bytes"),
        ((8, 8), "declares -2 bytes"),
    ],
)
def test_a_compressed_buffer_that_cannot_be_is_refused(span: tuple[int, int], why: str) -> None:
    body = struct.pack("<qq", 1, -2)
    with pytest.raises(ProtocolError, match=why):
        decoded_bytes(facts_of(span), memoryview(body))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 100])
def test_the_encapsulation_is_read_back(length: int) -> None:
    message = encapsulate(bytes(length))
    assert len(message) == 8 + padded(length)
    assert len(message) % 8 == 0
    assert parse_prefix(message[:8]) == (8, padded(length))


def test_the_framing_before_arrow_0_15_is_read() -> None:
    assert parse_prefix(struct.pack("<I", 200)) == (4, 200)
    assert parse_prefix(struct.pack("<I", 0) + b"more") == (4, 0)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\xff" * 4, b"\xff" * 7, b"\xff" * 8, b"\0\0\0\x80"]
)
def test_a_prefix_cut_short_or_negative_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_prefix(data)


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        crafter = Crafter()
        field = crafter.field(crafter.text("n"), 2, crafter.int_type())
        for _ in range(levels - 1):
            field = crafter.field(crafter.text("s"), 13, crafter.empty_table(), [field])
        return crafter.message(SCHEMA, crafter.schema([field]))

    assert len(read_schema(nested(8), max_nesting=8)) == 1
    for levels in (9, 65, 1000, 20_000):
        with pytest.raises(LimitError, match="deeper than 8"):
            read_schema(nested(levels), max_nesting=8)
