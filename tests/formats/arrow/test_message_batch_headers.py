"""The metadata of batches that a server sends unchanged."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.crafting import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    TENSOR,
    Crafter,
    empty_message,
    plain_batch,
)
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError, ProtocolError
from splitarrow.formats.arrow.message import (
    BatchHeader,
    HeaderType,
    RowCountReader,
    encapsulate,
    read_batch_header,
)


def batches() -> list[pa.RecordBatch]:
    def batch(values: list[str], rows: int) -> pa.RecordBatch:
        indices = pa.array([0] * rows, pa.int8())
        array = pa.DictionaryArray.from_arrays(indices, pa.array(values))
        return pa.record_batch({"d": array, "n": pa.array(range(rows), pa.int64())})

    sizes = [3, 5, 0, 3, 3, 0, 0, 9]
    return [batch(["a"] * (1 + number // 3), rows) for number, rows in enumerate(sizes)]


def with_prefix(metadata: bytes, *, legacy: bool) -> bytes:
    message = encapsulate(metadata)
    return message[4:] if legacy else message


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_headers_describe_the_batches(codec: str | None) -> None:
    sent = batches()
    messages = split_messages(ipc_stream(sent, sent[0].schema, compression=codec))
    headers = [read_batch_header(message.metadata) for message in messages]
    rows = [header.rows for header in headers if header.header_type is HeaderType.RECORD_BATCH]
    assert rows == [batch.num_rows for batch in sent]
    assert {header.codec for header in headers[1:]} == {codec}
    assert headers[0][:6] == (HeaderType.SCHEMA, 0, 0, None, None, False)
    ids = [
        header.dictionary_id
        for header in headers
        if header.header_type is HeaderType.DICTIONARY_BATCH
    ]
    assert ids == [0, 0, 0]
    assert [header.body_length for header in headers] == [m.body_length for m in messages]


def test_deltas_are_recognized() -> None:
    sent = batches()
    options = {"emit_dictionary_deltas": True}
    headers = [
        read_batch_header(m.metadata)
        for m in split_messages(ipc_stream(sent, sent[0].schema, **options))
    ]
    deltas = [h.is_delta for h in headers if h.header_type is HeaderType.DICTIONARY_BATCH]
    assert deltas == [False, True, True]


@pytest.mark.parametrize("legacy", [False, True])
def test_row_counts_equal_those_of_the_headers(legacy: bool) -> None:
    sent = batches() * 3
    probe = RowCountReader()
    data = b""
    for message in split_messages(ipc_stream(sent, sent[0].schema)):
        at = len(data)
        prefixed = with_prefix(bytes(message.metadata), legacy=legacy)
        data += prefixed
        expected = read_batch_header(message.metadata).rows
        assert probe.read(data, at, len(prefixed), message.body_length) == expected


def test_row_counts_are_correct_for_other_messages_with_equal_bodies() -> None:
    probe = RowCountReader()
    batch = plain_batch(5, [(0, 0), (0, 64)], 64)
    crafter = Crafter()
    inner = crafter.batch(7, [(7, 0)], [(0, 0), (0, 64)])
    dictionary = crafter.message(DICTIONARY_BATCH, crafter.dictionary(3, inner), 64)
    empty = plain_batch(0, [(0, 0), (0, 64)], 64)
    for _ in range(3):
        for metadata, rows in ((batch, 5), (batch, 5), (dictionary, 0), (batch, 5), (empty, 0)):
            message = encapsulate(metadata)
            assert probe.read(message, 0, len(message), 64) == rows


def test_only_a_batch_with_rows_and_a_body_has_offsets_of_both() -> None:
    metadata = plain_batch(5, [(0, 0), (0, 64)], 64)
    offsets = read_batch_header(metadata).field_offsets
    assert offsets is not None
    assert struct.unpack_from("<q", metadata, offsets.body_length) == (64,)
    assert struct.unpack_from("<q", metadata, offsets.rows) == (5,)
    for rows, body_length in ((0, 64), (5, 0), (0, 0)):
        other = plain_batch(rows, [(0, 0), (0, body_length)], body_length)
        assert read_batch_header(other).field_offsets is None


@pytest.mark.parametrize("times", [1, 2])
def test_a_body_of_another_length_than_expected_is_refused(times: int) -> None:
    message = encapsulate(plain_batch(5, [(0, 0), (0, 64)], 64))
    probe = RowCountReader()
    for _ in range(times):
        assert probe.read(message, 0, len(message), 64) == 5
    with pytest.raises(InvalidDataError, match="64 bytes; expected 72"):
        probe.read(message, 0, len(message), 72)


def test_messages_without_rows_count_as_0_rows() -> None:
    assert read_batch_header(empty_message(TENSOR, 64)).rows == 0
    assert read_batch_header(empty_message(RECORD_BATCH)).rows == 0


def test_invalid_batch_metadata_is_refused() -> None:
    with pytest.raises(InvalidDataError, match="declares -3 rows"):
        read_batch_header(plain_batch(-3, [], 0))
    crafter = Crafter()
    unknown = crafter.message(RECORD_BATCH, crafter.batch(1, [], [], codec=7))
    with pytest.raises(InvalidDataError, match="unknown codec 7"):
        read_batch_header(unknown)
    with pytest.raises(InvalidDataError, match="no data"):
        read_batch_header(empty_message(DICTIONARY_BATCH))


def test_the_compression_of_arrow_0_17_is_recognized() -> None:
    crafter = Crafter()
    pair = crafter.pair(crafter.text("ARROW:experimental_compression"), crafter.text("LZ4"))
    custom_metadata = crafter.vector([pair])
    batch = crafter.batch(1, [(1, 0)], [(0, 0), (0, 8)])
    metadata = crafter.message(RECORD_BATCH, batch, 8, custom_metadata=custom_metadata)
    assert read_batch_header(metadata).codec == "lz4"


def lay_out(
    rows: int = 5,
    *,
    vtable: int = 4,
    body_length_at: int = 32,
    inner_vtable: int = 40,
    inner: int = 48,
    rows_at: int = 56,
    size: int = 96,
) -> bytes:
    """Return a record batch with a body of 64 bytes, whose parts are at the given offsets."""
    data = bytearray(size)
    outer = 16
    struct.pack_into("<6H", data, vtable, 12, 0, 0, 4, 8, body_length_at - outer)
    struct.pack_into("<3H", data, inner_vtable, 6, 0, rows_at - inner)
    struct.pack_into("<i", data, inner, inner - inner_vtable)
    struct.pack_into("<q", data, rows_at, rows)
    struct.pack_into("<q", data, body_length_at, 64)
    struct.pack_into("<I", data, 0, outer)
    struct.pack_into("<iB3xI", data, outer, outer - vtable, RECORD_BATCH, inner - (outer + 8))
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "is_before", "is_behind"),
    [
        ("body_length_at", 56, 57),
        ("vtable", 52, 53),
        ("inner_vtable", 58, 59),
        ("inner", 60, 61),
    ],
)
def test_the_row_count_has_an_offset_only_if_all_that_determines_it_is_before(
    offset: str, is_before: int, is_behind: int
) -> None:
    """The rows are a multiple of 256, because parts that overlap share a byte, which is zero."""
    for place in (is_before, is_behind):
        metadata = lay_out(5 << 8, rows_at=64, **{offset: place})
        header = read_batch_header(metadata)
        assert (header.rows, header.body_length) == (5 << 8, 64)
        assert (header.field_offsets is None) is (place == is_behind)
        message = encapsulate(metadata)
        reader = RowCountReader()
        for _ in range(2):
            assert reader.read(message, 0, len(message), 64) == 5 << 8


def test_a_vtable_before_the_start_is_not_looked_up_from_the_end() -> None:
    metadata = bytearray(lay_out(inner_vtable=90))
    struct.pack_into("<i", metadata, 48, 48 + 6)
    with pytest.raises(InvalidDataError, match="not an Arrow IPC batch"):
        read_batch_header(bytes(metadata))


def test_a_vtable_may_be_at_the_very_start() -> None:
    """The reference to the outer table, 16, and the size of its vtable, 12, belong to it too."""
    metadata = bytearray(lay_out(rows_at=60))
    struct.pack_into("<i", metadata, 48, 48)
    assert read_batch_header(bytes(metadata)).rows == 5
    assert read_batch_header(bytes(metadata)).field_offsets == (32, 60)


def test_messages_of_one_layout_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = RowCountReader()
    message = encapsulate(lay_out(5))
    assert reader.read(message, 0, len(message), 64) == 5
    refused = InvalidDataError("parsed")

    def refuse(metadata: bytes) -> None:
        raise refused

    monkeypatch.setattr("splitarrow.formats.arrow.message.read_batch_header", refuse)
    for rows in (0, 1, 77):
        message = bytes(24) + encapsulate(lay_out(rows)) + bytes(8)
        assert reader.read(message, 24, len(message) - 32, 64) == rows
    for metadata in (lay_out(-1), lay_out(5, body_length_at=28), lay_out(5, rows_at=60)):
        message = encapsulate(metadata)
        with pytest.raises(InvalidDataError, match="parsed"):
            reader.read(message, 0, len(message), 64)


@pytest.mark.parametrize("at", [4, 28, 44])
def test_a_change_of_the_layout_is_noticed_in_every_part(at: int) -> None:
    reader = RowCountReader()
    message = bytearray(encapsulate(lay_out(5)))
    assert reader.read(bytes(message), 0, len(message), 64) == 5
    message[8 + at] = 0xFF  # in the vtable, the reference to the batch and the batch's vtable
    with pytest.raises(ProtocolError):
        reader.read(bytes(message), 0, len(message), 65)


def test_a_message_without_its_marker_is_not_taken_for_one_of_the_same_layout() -> None:
    reader = RowCountReader()
    message = encapsulate(lay_out(5))
    assert reader.read(message, 0, len(message), 64) == 5
    with pytest.raises(ProtocolError):
        reader.read(b"\x10\0\0\0" + message[4:], 0, len(message), 64)


def test_every_prefix_of_a_batch_is_read_or_refused() -> None:
    reasons: set[str] = set()
    crafter = Crafter()
    inner = crafter.batch(7, [(7, 0)], [(0, 64)], codec=1)
    dictionary = crafter.message(DICTIONARY_BATCH, crafter.dictionary(3, inner), 64)
    for metadata in (plain_batch(5, [(0, 64)], 64), dictionary, lay_out(5)):
        for length in range(len(metadata)):
            try:
                assert isinstance(read_batch_header(metadata[:length]), BatchHeader)
            except ProtocolError as error:
                reasons.add(str(error))
    assert "the metadata is not an Arrow IPC batch" in reasons


@given(st.binary(max_size=150), st.integers(0, 3))
def test_garbage_raises_protocol_errors_only(data: bytes, changes: int) -> None:
    metadata = bytearray(plain_batch(5, [(0, 0), (0, 64)], 64))
    for place, byte in zip(data[:changes], data[changes:], strict=False):
        metadata[place % len(metadata)] = byte
    probe = RowCountReader()
    probe.read(encapsulate(plain_batch(5, [(0, 0), (0, 64)], 64)), 0, 8 + len(metadata), 64)
    for garbage in (data, bytes(metadata)):
        for read in (
            lambda found=garbage: read_batch_header(found),
            lambda found=garbage: probe.read(found, 0, len(found), 64),
        ):
            try:
                read()
            except ProtocolError:
                pass
