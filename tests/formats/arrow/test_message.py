"""Arrow IPC messages: encapsulation, metadata and limits."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from helpers.crafting import (
    BIG,
    DICTIONARY_BATCH,
    LITTLE,
    RECORD_BATCH,
    SCHEMA,
    V5,
    ZSTD,
    Crafter,
    empty_message,
    plain_batch,
    schema_of_ints,
)
from helpers.tensors import encode, make_tensor
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.message import (
    END_OF_STREAM,
    BatchLayout,
    BatchTable,
    BufferSpan,
    HeaderType,
    MessageInfo,
    align,
    encapsulate,
    find_body_length,
    find_buffers,
    parse_prefix,
    read_batch_layout,
    read_batch_table,
    read_custom_metadata,
    read_endianness,
    read_message_info,
    summarize_message,
)
from splitarrow.formats.arrow.metadata_limits import survey_custom_metadata
from splitarrow.formats.arrow.schema import is_native_endian, read_schema
from splitarrow.protocol.limits import DEFAULT_LIMITS


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


def dictionary_message(dictionary_id: int, *, is_delta: bool, codec: int | None = None) -> bytes:
    crafter = Crafter()
    batch = crafter.batch(3, [(3, 0)], [(0, 0), (0, 12)], codec)
    header = crafter.dictionary(dictionary_id, batch, is_delta=is_delta)
    return crafter.message(DICTIONARY_BATCH, header, 16)


@pytest.mark.parametrize("header_type", list(HeaderType)[1:])
@pytest.mark.parametrize("body_length", [0, 1, (1 << 63) - 1])
def test_type_and_body_length_are_read(header_type: HeaderType, body_length: int) -> None:
    metadata = empty_message(header_type, body_length)
    assert read_message_info(metadata) == MessageInfo(header_type, body_length)
    assert read_message_info(memoryview(metadata)) == MessageInfo(header_type, body_length)


def test_only_a_schema_has_no_body() -> None:
    assert [kind.name for kind in HeaderType if not kind.has_body] == ["NONE", "SCHEMA"]


@pytest.mark.parametrize("header_type", [0, 6, 7, 255])
def test_an_unknown_header_type_is_refused(header_type: int) -> None:
    with pytest.raises(ProtocolError):
        read_message_info(empty_message(header_type))


def test_a_batch_is_read() -> None:
    metadata = plain_batch(5, [(0, 0), (0, 20)], 24)
    facts = BatchLayout(5, [BufferSpan(0, 0), BufferSpan(0, 20)], False, None, False)
    assert read_batch_layout(metadata) == facts
    assert read_batch_table(metadata) == BatchTable(
        *(HeaderType.RECORD_BATCH, V5, 24, False, 5, (5, 0), (0, 0, 0, 20), (), None, None, False)
    )


@pytest.mark.parametrize("dictionary_id", [0, 7, -1, 1 << 62])
@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("codec", [None, ZSTD])
def test_a_dictionary_is_read(dictionary_id: int, is_delta: bool, codec: int | None) -> None:
    metadata = dictionary_message(dictionary_id, is_delta=is_delta, codec=codec)
    facts = read_batch_layout(metadata)
    assert (facts.dictionary_id, facts.is_delta, facts.rows) == (dictionary_id, is_delta, 3)
    assert facts.compressed is (codec is not None)
    table = read_batch_table(metadata)
    assert (table.header_type, table.codec) == (HeaderType.DICTIONARY_BATCH, codec)


def test_a_vtable_may_be_anywhere_before_its_table_but_not_outside_the_message() -> None:
    """The bytes of the reference to the table, 14, are the size of this vtable too."""
    slots = struct.pack("<IHHHHH", 14, 0, 4, 8, 12, 0)
    header = struct.pack("<B3xIq", RECORD_BATCH, 8, 77)
    metadata = slots + struct.pack("<i", 14) + header
    assert read_message_info(metadata) == MessageInfo(HeaderType.RECORD_BATCH, 77)
    assert survey_custom_metadata(metadata) is False
    outside = slots + struct.pack("<i", 15) + header
    for read in (read_message_info, survey_custom_metadata):
        with pytest.raises(ProtocolError):
            read(outside)


def test_a_vtable_before_the_message_is_not_looked_up_from_its_end() -> None:
    table = struct.pack("<IiB3xIq", 4, 4 + 12, RECORD_BATCH, 8, 77)
    metadata = table + struct.pack("<6H", 12, 0, 0, 4, 8, 12)
    for read in (read_message_info, read_batch_table, find_body_length, survey_custom_metadata):
        with pytest.raises(ProtocolError):
            read(metadata)


def test_positions_are_those_of_the_values() -> None:
    metadata = plain_batch(5, [(1, 2), (3, 4)], 77)
    assert struct.unpack_from("<I4q", metadata, find_buffers(metadata) - 4) == (2, 1, 2, 3, 4)
    assert struct.unpack_from("<q", metadata, find_body_length(metadata)) == (77,)
    batch = dictionary_message(3, is_delta=True)
    assert struct.unpack_from("<I4q", batch, find_buffers(batch) - 4) == (2, 0, 0, 0, 12)


@pytest.mark.parametrize("metadata", [b"", bytes(4), bytes(64), plain_batch(5, [(0, 0)], 0)])
def test_a_message_without_a_body_length_has_no_position_of_it(metadata: bytes) -> None:
    with pytest.raises(ProtocolError, match="has no body length"):
        find_body_length(metadata)


def test_custom_metadata_compression_and_counts_are_read() -> None:
    crafter = Crafter()
    pairs = crafter.vector([crafter.pair(crafter.text("k"), crafter.text("v"))])
    batch = crafter.batch(1, [(1, 0)], [(0, 0)], ZSTD)
    table = read_batch_table(crafter.message(RECORD_BATCH, batch, custom_metadata=pairs))
    assert (table.has_custom_metadata, table.codec) == (True, ZSTD)
    crafter = Crafter()
    batch = crafter.batch(1, [(1, 0)], [(0, 0)], ZSTD, method=1)
    with pytest.raises(ProtocolError, match="unknown method of compression 1"):
        read_batch_table(crafter.message(RECORD_BATCH, batch))
    with pytest.raises(ProtocolError, match="received a SCHEMA message"):
        read_batch_table(schema_of_ints(["n"]))
    with pytest.raises(ProtocolError, match="declares a body of -1 bytes"):
        read_batch_table(empty_message(RECORD_BATCH, -1))


def test_of_several_values_of_a_key_the_last_counts_and_absent_texts_are_empty() -> None:
    crafter = Crafter()
    pairs = [("k", "1"), ("k", "2"), ("", "v"), ("w", "")]
    places = [crafter.pair(*(crafter.text(text) if text else 0 for text in pair)) for pair in pairs]
    metadata = crafter.message(SCHEMA, crafter.schema([]), custom_metadata=crafter.vector(places))
    assert read_custom_metadata(metadata) == {b"k": b"2", b"": b"v", b"w": b""}
    assert read_custom_metadata(schema_of_ints([])) == {}


def test_a_batch_of_views_is_not_compressed() -> None:
    """The slot of the compression is empty, and that of the data buffers follows."""
    batch = pa.record_batch({"v": pa.array(["a text that is not inlined"], pa.string_view())})
    metadata = batch.serialize().to_pybytes()[8:]
    assert read_batch_layout(metadata).compressed is False
    assert read_batch_table(metadata).variadic_counts == (1,)


def test_a_batch_may_omit_its_rows_but_not_have_a_negative_body() -> None:
    assert read_batch_layout(empty_message(RECORD_BATCH)).rows == 0
    with pytest.raises(ProtocolError, match="declares a body of -1 bytes"):
        read_message_info(empty_message(RECORD_BATCH, -1))


def test_summaries_have_what_the_protocol_needs() -> None:
    assert summarize_message(schema_of_ints(["n"])) == ("SCHEMA", True, False, 0, False)
    assert summarize_message(plain_batch(5, [], 8)) == ("RECORD_BATCH", False, True, 8, False)
    assert summarize_message(encode(make_tensor(np.arange(3)))[0])[3:] == (24, True)


def test_a_schema_has_no_buffers() -> None:
    with pytest.raises(ProtocolError, match="received a SCHEMA message"):
        read_batch_layout(schema_of_ints(["n"]))


def test_the_number_of_buffers_is_bounded() -> None:
    metadata = plain_batch(5, [(0, 0)] * 11, 0)
    assert len(read_batch_layout(metadata, max_buffers=11).buffers) == 11
    with pytest.raises(ProtocolError, match="11 buffers"):
        read_batch_layout(metadata, max_buffers=10)


def test_the_default_limit_of_buffers_is_that_of_streams() -> None:
    metadata = bytearray(plain_batch(5, [(1, 2), (3, 4)], 0))
    at = metadata.index(struct.pack("<qqqq", 1, 2, 3, 4)) - 4
    limit = DEFAULT_LIMITS.buffers
    for count, reason in ((limit, "not an Arrow IPC batch"), (limit + 1, f"limit is {limit}")):
        metadata[at : at + 4] = struct.pack("<I", count)
        with pytest.raises(ProtocolError, match=reason):
            read_batch_layout(bytes(metadata))


def test_a_vector_longer_than_the_message_is_refused() -> None:
    metadata = bytearray(plain_batch(5, [(1, 2), (3, 4)], 0))
    at = metadata.index(struct.pack("<qqqq", 1, 2, 3, 4)) - 4
    for count in (1 << 10, 1 << 20, (1 << 32) - 1):
        metadata[at : at + 4] = struct.pack("<I", count)
        with pytest.raises(ProtocolError):
            read_batch_layout(bytes(metadata), max_buffers=1 << 32)


@pytest.mark.parametrize("padding", range(17))
def test_a_vector_that_ends_behind_the_message_is_refused(padding: int) -> None:
    metadata = bytearray(plain_batch(5, [(1, 2), (3, 4)], 0) + bytes(padding))
    at = metadata.index(struct.pack("<qqqq", 1, 2, 3, 4))
    count = (len(metadata) - at) // 16
    metadata[at - 4 : at] = struct.pack("<I", count)
    assert len(read_batch_layout(bytes(metadata)).buffers) == count
    metadata[at - 4 : at] = struct.pack("<I", count + 1)
    with pytest.raises(ProtocolError, match="not an Arrow IPC batch"):
        read_batch_layout(bytes(metadata))


def batch_without_header(header_type: int) -> bytes:
    return Crafter().message(header_type, 0)


def dictionary_without_data() -> bytes:
    crafter = Crafter()
    return crafter.message(DICTIONARY_BATCH, crafter.dictionary(7, 0))


@pytest.mark.parametrize(
    "metadata",
    [
        batch_without_header(RECORD_BATCH),
        batch_without_header(DICTIONARY_BATCH),
        dictionary_without_data(),
    ],
)
@pytest.mark.parametrize("padding", [0, 4096])
def test_a_batch_without_header_or_data_is_refused(metadata: bytes, padding: int) -> None:
    metadata += bytes(padding)  # A wrong offset then stays inside the message.
    for read in (read_batch_layout, read_batch_table, find_buffers):
        with pytest.raises(ProtocolError, match="not an Arrow IPC"):
            read(metadata)


def test_a_batch_without_buffers_has_no_position_of_them() -> None:
    with pytest.raises(ProtocolError, match="with buffers"):
        find_buffers(empty_message(RECORD_BATCH))
    assert read_batch_layout(empty_message(RECORD_BATCH)).buffers == []


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
        for read in (
            read_message_info,
            read_batch_layout,
            read_batch_table,
            read_endianness,
            read_schema,
        ):
            try:
                read(metadata[:length])
            except ProtocolError:
                continue


@pytest.mark.parametrize(("endianness", "name"), [(LITTLE, "little"), (BIG, "big")])
def test_the_byte_order_is_read(endianness: int, name: str) -> None:
    assert read_endianness(schema_of_ints(["n"], endianness=endianness)) == name


@pytest.mark.parametrize("endianness", [2, -1, -2, 300])
def test_an_unknown_byte_order_is_refused(endianness: int) -> None:
    with pytest.raises(ProtocolError):
        read_endianness(schema_of_ints(["n"], endianness=endianness))


def test_the_native_byte_order_is_one_of_the_two() -> None:
    native = [is_native_endian(schema_of_ints(["n"], endianness=e)) for e in (LITTLE, BIG)]
    assert sorted(native) == [False, True]


def test_reading_a_schema_from_a_batch_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="received a RECORD_BATCH message"):
        read_schema(plain_batch(0, [], 0))


def test_an_unknown_type_is_refused() -> None:
    crafter = Crafter()
    field = crafter.field(crafter.text("n"), 99, crafter.empty_table())
    with pytest.raises(InvalidDataError, match="cannot be decoded"):
        read_schema(crafter.message(SCHEMA, crafter.schema([field])))


def test_nesting_is_bounded() -> None:
    def nested(levels: int) -> bytes:
        crafter = Crafter()
        field = crafter.field(crafter.text("n"), 2, crafter.int_type())
        for _ in range(levels - 1):
            field = crafter.field(crafter.text("s"), 13, crafter.empty_table(), [field])
        return crafter.message(SCHEMA, crafter.schema([field]))

    assert len(read_schema(nested(8), max_nesting=8)) == 1
    for levels in (9, 65, 1000, 20_000):
        with pytest.raises(LimitError, match="more than 8 levels"):
            read_schema(nested(levels), max_nesting=8)
