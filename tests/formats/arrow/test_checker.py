"""Messages that do not fit their schema, their body or the limits are refused before decoding."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.crafting import (
    DICTIONARY_BATCH,
    LZ4,
    RECORD_BATCH,
    TENSOR,
    ZSTD,
    Crafter,
    empty_message,
)
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.checker import MessageChecker
from splitarrow.formats.arrow.message import HeaderType
from splitarrow.formats.arrow.schema import read_dictionary_types, read_schema

INTS = pa.schema([("n", pa.int32())])
Spans = list[tuple[int, int]]


def craft(
    rows: int,
    nodes: Spans,
    buffers: Spans,
    body_length: int,
    codec: int | None = None,
    **more: Any,
) -> bytes:
    crafter = Crafter()
    batch = crafter.batch(rows, nodes, buffers, codec, **more)
    return crafter.message(RECORD_BATCH, batch, body_length)


def check(schema: pa.Schema, metadata: bytes, body: bytes = b"", **limits: Any) -> Any:
    return MessageChecker(schema, {}, **limits).check(metadata, memoryview(body))


def refusal(schema: pa.Schema, metadata: bytes, body: bytes = b"", **limits: Any) -> str:
    with pytest.raises(InvalidDataError) as caught:
        check(schema, metadata, body, **limits)
    return caught.value.message


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("name", sorted(make_arrays_of_all_types()))
def test_valid_batches_of_every_type_pass(name: str, compression: str | None) -> None:
    array = make_arrays_of_all_types()[name]
    batch = pa.record_batch([array], names=[name])
    batches = [batch, batch.slice(1, 2), batch.slice(0, 0)]
    messages = split_messages(ipc_stream(batches, batch.schema, compression=compression))
    metadata = bytes(messages[0].metadata)
    schema = read_schema(metadata)
    checker = MessageChecker(schema, read_dictionary_types(metadata, schema))
    rows: list[int] = []
    for message in messages[1:]:
        body = b"".join(bytes(part) for part in message.body or [])
        checked = checker.check(bytes(message.metadata), memoryview(body))
        assert checked.compressed == (compression is not None)
        if checked.header_type is HeaderType.RECORD_BATCH:
            rows.append(checked.rows)
    assert rows == [each.num_rows for each in batches]


@pytest.mark.parametrize(
    ("nodes", "buffers", "reason"),
    [
        ([(4, 0)], [(0, 0), (0, 16)], None),
        ([(4, 2)], [(0, 1), (8, 16)], None),
        ([(4, -1)], [(0, 0), (0, 16)], None),
        ([(4, 0)], [(0, 0), (0, 15)], "buffer 1 (n, values) has 15 bytes; expected at least 16"),
        ([(4, 0)], [(0, 0), (24, 16)], "buffer 1 (n, values) has 16 bytes at offset 24, outside"),
        ([(4, 0)], [(0, 0), (1 << 62, 1 << 62)], "outside the body of 32 bytes"),
        ([(4, 0)], [(0, 0), (-8, 16)], "at offset -8, outside"),
        ([(4, 0)], [(0, -1), (0, 16)], "buffer 0 (n, validity) has -1 bytes"),
        ([(4, 0)], [(0, 0), (4, 16)], "offset 4; expected an offset that is a multiple of 8"),
        ([(4, 1)], [(0, 0), (0, 16)], "buffer 0 (n, validity) has 0 bytes; expected at least 1"),
        ([(4, 5)], [(0, 1), (8, 16)], "n has 4 values and 5 nulls"),
        ([(4, 1 << 62)], [(0, 1), (8, 16)], "nulls"),
        ([(4, -2)], [(0, 1), (8, 16)], "n has 4 values and -2 nulls"),
        ([(-4, 0)], [(0, 0), (0, 16)], "n has -4 values"),
        ([(3, 0)], [(0, 0), (0, 16)], "n has 3 values; the message declares 4 rows"),
        ([(4, 0)] * 2, [(0, 0), (0, 16)], "2 field nodes; the schema has 1 fields"),
        ([], [(0, 0), (0, 16)], "0 field nodes; the schema has 1 fields"),
        ([(4, 0)], [(0, 0)], "the message has 1 buffers; its schema needs 2"),
        ([(4, 0)], [(0, 0), (0, 16), (0, 0)], "the message has 3 buffers; its schema needs 2"),
    ],
)
def test_numbers_must_fit_the_schema_and_the_body(
    nodes: Spans, buffers: Spans, reason: str | None
) -> None:
    metadata = craft(4, nodes, buffers, 32)
    if reason is None:
        assert check(INTS, metadata, bytes(32)).rows == 4
    else:
        assert reason in refusal(INTS, metadata, bytes(32))


def test_a_body_of_another_size_is_refused() -> None:
    metadata = craft(4, [(4, 0)], [(0, 0), (0, 16)], 32)
    assert "declares a body of 32 bytes, but it has 24" in refusal(INTS, metadata, bytes(24))


def test_2_to_the_31_values_without_bytes_are_refused() -> None:
    count = 1 << 31
    metadata = craft(count, [(count, 0)], [(0, 0), (0, 0)], 0)
    assert f"expected at least {4 * count} for {count} values" in refusal(INTS, metadata)


def test_children_need_the_slots_of_their_parent() -> None:
    fields = pa.struct([("a", pa.int8()), ("b", pa.int8())])
    schema = pa.schema([("s", fields)])
    nodes, buffers = [(4, 0), (4, 0), (3, 0)], [(0, 0)] * 2 + [(0, 4), (0, 0), (0, 4)]
    assert "s.b has 3 values; s needs 4" in refusal(schema, craft(4, nodes, buffers, 8), bytes(8))
    schema = pa.schema([("f", pa.list_(pa.int8(), 3))])
    nodes, buffers = [(4, 0), (11, 0)], [(0, 0), (0, 0), (0, 16)]
    reason = refusal(schema, craft(4, nodes, buffers, 16), bytes(16))
    assert "f.item has 11 values; f needs 12" in reason
    schema = pa.schema([("u", pa.sparse_union([pa.field("a", pa.int8())]))])
    nodes, buffers = [(4, 0), (3, 0)], [(0, 4), (0, 0), (0, 4)]
    assert "u.a has 3 values; u needs 4" in refusal(schema, craft(4, nodes, buffers, 8), bytes(8))


def test_offsets_need_one_more_entry() -> None:
    schema = pa.schema([("l", pa.list_(pa.int8()))])
    metadata = craft(2, [(2, 0), (0, 0)], [(0, 0), (0, 8), (0, 0), (0, 0)], 8)
    reason = refusal(schema, metadata, bytes(8))
    assert "buffer 1 (l, offsets) has 8 bytes; expected at least 12 for 2 values" in reason


@pytest.mark.parametrize(
    ("runs", "values", "nulls", "reason"),
    [
        (2, 2, 0, None),
        (3, 2, 0, "x.run_ends has 3 values for 4 rows and 2 values of runs"),
        (0, 2, 0, "x.run_ends has 0 values for 4 rows"),
        (2, 2, 1, "x.run_ends has 1 nulls; expected none"),
    ],
)
def test_run_ends_match_their_values(
    runs: int, values: int, nulls: int, reason: str | None
) -> None:
    schema = pa.schema([("x", pa.run_end_encoded(pa.int32(), pa.int8()))])
    nodes = [(4, 0), (runs, nulls), (values, 0)]
    metadata = craft(4, nodes, [(0, 0), (0, 12), (0, 0), (16, 2)], 24)
    if reason is None:
        assert check(schema, metadata, bytes(24)).rows == 4
    else:
        assert reason in refusal(schema, metadata, bytes(24))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ((1,), (-1,), "x has -1 data buffers"),
        ((1,), (2,), "the message has 3 buffers; its schema needs 4"),
        ((1,), (1 << 31,), "the message has 3 buffers; its schema needs 2147483650"),
    ],
)
def test_counts_of_variadic_buffers_fit(
    old: tuple[int, ...], new: tuple[int, ...], reason: str
) -> None:
    batch = pa.record_batch([make_arrays_of_all_types()["string_view"]], names=["x"])
    message: Any = pa.ipc.read_message(batch.serialize())
    metadata, body = message.metadata.to_pybytes(), message.body.to_pybytes()
    vector = struct.pack("<Iq", 1, *old)
    assert metadata.count(vector) == 1
    metadata = metadata.replace(vector, struct.pack("<Iq", 1, *new))
    assert reason in refusal(batch.schema, metadata, body)


def compressed(codec: int, size: int, packed: int, rows: int = 4) -> tuple[bytes, bytes]:
    body = struct.pack("<q", size) + bytes(packed)
    body += bytes(-len(body) % 8)
    return craft(rows, [(rows, 0)], [(0, 0), (0, 8 + packed)], len(body), codec), body


def test_each_buffer_may_be_stored_without_compression() -> None:
    checked = check(INTS, *compressed(ZSTD, -1, 16))
    assert (checked.compressed, checked.decoded_bytes) == (True, 16)
    reason = refusal(INTS, *compressed(ZSTD, -1, 15))
    assert "buffer 1 (n, values) has 15 bytes; expected at least 16" in reason


@pytest.mark.parametrize(
    ("codec", "size", "packed", "reason"),
    [
        (LZ4, -2, 16, "declares -2 bytes after decompression"),
        (LZ4, 15, 16, "has 15 bytes; expected at least 16 for 4 values"),
        (LZ4, 256 * 16, 16, "its 16 compressed bytes cannot contain more than 4080"),
        (ZSTD, (512 << 10) + 1, 16, "its 16 compressed bytes cannot contain more than 524288"),
        (7, 16, 16, "unknown codec 7"),
    ],
)
def test_impossible_sizes_are_refused(codec: int, size: int, packed: int, reason: str) -> None:
    assert reason in refusal(INTS, *compressed(codec, size, packed))


def test_a_compressed_buffer_needs_a_size() -> None:
    metadata = craft(1, [(1, 0)], [(0, 0), (0, 7)], 8, LZ4)
    assert "compressed and has 7 bytes; expected at least 8" in refusal(INTS, metadata, bytes(8))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_the_best_compression_passes(codec: str) -> None:
    batch = pa.record_batch({"n": pa.Array.from_buffers(pa.int64(), 1 << 17, [None, ZEROS])})
    name: Any = codec
    options = pa.ipc.IpcWriteOptions(compression=name)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    message: Any = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1]
    body = message.body.to_pybytes()
    checked = check(batch.schema, message.metadata.to_pybytes(), body)
    assert checked.decoded_bytes == 1 << 20
    with pytest.raises(LimitError, match="decodes to 1048576 bytes; the limit is 1048575"):
        check(batch.schema, message.metadata.to_pybytes(), body, max_decoded_bytes=(1 << 20) - 1)


ZEROS = pa.py_buffer(bytes(1 << 20))


def test_overlapping_compressed_buffers_count_separately() -> None:
    body = struct.pack("<q", 4096) + bytes(56)
    schema = pa.schema([(str(number), pa.int32()) for number in range(100)])
    metadata = craft(4, [(4, 0)] * 100, [(0, 0), (0, 64)] * 100, 64, ZSTD)
    assert check(schema, metadata, body).decoded_bytes == 409600
    with pytest.raises(LimitError, match="decodes to 409600 bytes"):
        check(schema, metadata, body, max_decoded_bytes=400_000)


def test_dictionaries_are_checked_by_their_values() -> None:
    def dictionary(dictionary_id: int, values: int) -> bytes:
        crafter = Crafter()
        batch = crafter.batch(values, [(values, 0)], [(0, 0), (0, 16)])
        return crafter.message(DICTIONARY_BATCH, crafter.dictionary(dictionary_id, batch), 16)

    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.int32()))])
    checker = MessageChecker(schema, {3: pa.int32()})
    body = memoryview(bytes(16))
    assert checker.check(dictionary(3, 4), body).dictionary_id == 3
    with pytest.raises(InvalidDataError, match=r"\(dictionary 3, values\) has 16 bytes; expected"):
        checker.check(dictionary(3, 5), body)
    with pytest.raises(InvalidDataError, match="no dictionary with the id 4"):
        checker.check(dictionary(4, 4), body)
    with pytest.raises(ProtocolError, match="the schema has no dictionary"):
        MessageChecker(INTS, {}).check(dictionary(3, 4), body)


def test_other_messages_are_refused() -> None:
    with pytest.raises(ProtocolError, match="received a TENSOR message"):
        check(INTS, empty_message(TENSOR))


def test_the_number_of_buffers_is_limited() -> None:
    metadata = craft(4, [(4, 0)], [(0, 0), (0, 16)], 16)
    with pytest.raises(ProtocolError, match="declares 2 buffers; the limit is 1"):
        check(INTS, metadata, bytes(16), max_buffers=1)
