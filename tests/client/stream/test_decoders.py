"""The decoder: both decoding paths, memory, and data that it refuses before pyarrow sees it."""

from __future__ import annotations

import struct
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa
import pytest

from helpers.crafting import (
    BIG,
    DICTIONARY_BATCH,
    LZ4,
    RECORD_BATCH,
    SPARSE_TENSOR,
    TENSOR,
    V4,
    V5,
    ZSTD,
    Crafter,
    empty_message,
    plain_batch,
    schema_of_ints,
)
from helpers.streams import body_message, ipc_stream, schema_message, small_stream, split_messages
from splitarrow.client.arguments import StreamOptions, Validation
from splitarrow.client.stream.decoders import Decoder, open_decoder
from splitarrow.errors import (
    InvalidDataError,
    InvalidValueWarning,
    LimitError,
    ProtocolError,
    UsageError,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.tags import BodyType

TEXT = pa.schema([("s", pa.string())])
SMALL = Limits(decoded_bytes=1 << 16)


def decoder_of(metadata: bytes, limits: Limits = DEFAULT_LIMITS, **options: Any) -> Decoder:
    return open_decoder(schema_message(metadata), limits, **options)


def refused(decoder: Decoder, message: Message) -> ProtocolError:
    """Return the error for a message; fail if Python or Arrow allocates 1 MiB for it."""
    pool = pa.default_memory_pool()
    before, peak = pa.total_allocated_bytes(), pool.max_memory() or 0
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            decoder.decode(message)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (pool.max_memory() or 0) <= max(peak, before + (1 << 20))
    assert caught.value.sequence == message.sequence
    return caught.value


@pytest.mark.parametrize("headroom", [0, 8, 200, 1000])
def test_a_batch_uses_the_memory_that_its_body_was_received_into(headroom: int) -> None:
    schema, data, *_ = small_stream(rows=1000)
    body = ReceivedBody.copy(b"".join(data.body or ()), headroom)
    batch = decoder_of(bytes(schema.metadata)).decode(
        Message(1, bytes(data.metadata), body, BodyType.PACKED)
    )
    assert batch is not None
    values = batch.column(0).buffers()[1]
    assert values is not None
    assert body.buffer.address <= values.address < body.buffer.address + body.buffer.size
    assert batch.column(0).to_pylist() == list(range(1000))


def test_a_batch_outlives_decoder_and_body() -> None:
    schema, data, *_ = small_stream(rows=1000)
    decoder = decoder_of(bytes(schema.metadata))
    batch = decoder.decode(body_message(bytes(data.metadata), b"".join(data.body or ()), 1, 300))
    del decoder
    assert batch is not None
    assert batch.column(0).to_pylist() == list(range(1000))


def test_a_body_without_headroom_is_not_written_to() -> None:
    schema, data, *_ = small_stream()
    payload = b"".join(data.body or ())
    body = ReceivedBody.wrap(pa.py_buffer(payload))
    message = Message(1, bytes(data.metadata), body, BodyType.PACKED)
    batch = decoder_of(bytes(schema.metadata)).decode(message)
    assert batch is not None
    assert batch.column(0).to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("padding", [1, 3, 7, 8])
def test_metadata_of_any_length_is_decoded(padding: int) -> None:
    schema, data, *_ = small_stream()
    message = body_message(
        bytes(data.metadata) + bytes(padding), b"".join(data.body or ()), 1, headroom=600
    )
    batch = decoder_of(bytes(schema.metadata)).decode(message)
    assert batch is not None
    assert batch.column(0).to_pylist() == [0, 1, 2, 3]


def big_endian_stream(rows: int) -> tuple[bytes, Message]:
    body = struct.pack(f">{rows}i", *range(rows))
    body += bytes(-len(body) % 8)
    metadata = plain_batch(rows, [(0, 0), (0, 4 * rows)], len(body))
    return schema_of_ints(["n"], endianness=BIG), body_message(metadata, body)


def test_foreign_byte_order_is_swapped() -> None:
    schema, message = big_endian_stream(5)
    decoder = decoder_of(schema)
    batch = decoder.decode(message)
    assert batch is not None
    assert batch.column(0).to_pylist() == [0, 1, 2, 3, 4]
    assert decoder.schema == batch.schema == pa.schema([("n", pa.int32())])


def test_copies_for_swapping_bytes_are_bounded() -> None:
    columns, rows = 1000, 1 << 14
    schema = schema_of_ints([str(k) for k in range(columns)], endianness=BIG)
    crafter = Crafter()
    header = crafter.batch(rows, [(rows, 0)] * columns, [(0, 0), (0, 4 * rows)] * columns)
    metadata = crafter.message(RECORD_BATCH, header, 4 * rows)
    decoder = decoder_of(schema, Limits(decoded_bytes=32 << 20))
    error = refused(decoder, body_message(metadata, bytes(4 * rows)))
    assert isinstance(error, LimitError)
    assert f"decodes to {columns * 4 * rows} bytes" in error.message


def bomb(
    codec: int, size: int, *, version: int = V5, old: bool = False, buffers: int = 1
) -> tuple[bytes, bytes]:
    """Return a batch of one int64 column whose values claim to decompress to `size` bytes."""
    name: Any = {LZ4: "lz4", ZSTD: "zstd"}[codec]
    body = struct.pack("<q", size) + pa.compress(bytes(4096), codec=name, asbytes=True)
    crafter = Crafter()
    pairs = 0
    if old:
        key = crafter.text("ARROW:experimental_compression")
        pairs = crafter.vector([crafter.pair(key, crafter.text(name.upper()))])
    spans = [(0, 0), (0, len(body))] * buffers
    header = crafter.batch(512, [(512, 0)] * buffers, spans, None if old else codec)
    body_length = len(body) + -len(body) % 8
    metadata = crafter.message(
        RECORD_BATCH, header, body_length, version=version, custom_metadata=pairs
    )
    return metadata, body + bytes(body_length - len(body))


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("size", [10 << 30, 1 << 62, (1 << 63) - 1, (2 << 30) + 1])
@pytest.mark.parametrize("old", [False, True])
def test_a_decompression_bomb_is_refused_before_memory_is_allocated(
    codec: int, size: int, old: bool
) -> None:
    decoder = decoder_of(schema_of_ints(["n"], bits=64))
    metadata, body = bomb(codec, size, version=V4 if old else V5, old=old)
    error = refused(decoder, body_message(metadata, body))
    assert isinstance(error, LimitError)
    assert f"decodes to {size} bytes" in error.message


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_many_small_bombs_are_added_up(codec: int) -> None:
    decoder = decoder_of(schema_of_ints([str(k) for k in range(100)], bits=64), SMALL)
    metadata, body = bomb(codec, 4096, buffers=100)
    error = refused(decoder, body_message(metadata, body))
    assert isinstance(error, LimitError)
    assert "decodes to 409600 bytes" in error.message


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_the_same_metadata_is_checked_with_each_body(codec: int) -> None:
    decoder = decoder_of(schema_of_ints(["n"], bits=64))
    metadata, body = bomb(codec, 4096)
    batch = decoder.decode(body_message(metadata, body, 1, 500))
    assert batch is not None
    assert batch.column(0).to_pylist() == [0] * 512
    worse = struct.pack("<q", 1 << 40) + body[8:]
    assert isinstance(refused(decoder, body_message(metadata, worse, 2)), LimitError)


@pytest.mark.parametrize("size", [-2, -(1 << 63)])
def test_a_negative_size_is_refused(size: int) -> None:
    metadata, body = bomb(LZ4, size)
    error = refused(decoder_of(schema_of_ints(["n"], bits=64)), body_message(metadata, body))
    assert f"declares {size} bytes" in error.message


@pytest.mark.parametrize("size", [0, 8, 4095, 4097, 100_000])
def test_a_wrong_size_is_refused(size: int) -> None:
    for codec in (LZ4, ZSTD):
        metadata, body = bomb(codec, size)
        refused(decoder_of(schema_of_ints(["n"], bits=64)), body_message(metadata, body))


def test_a_compressed_dictionary_is_checked_as_well() -> None:
    array = pa.array(["x" * 1000] * 3).dictionary_encode()
    batch = pa.record_batch([array], names=["d"])
    schema, dictionary, _ = split_messages(ipc_stream([batch], batch.schema, compression="zstd"))
    decoder = decoder_of(bytes(schema.metadata), Limits(decoded_bytes=1000))
    body = b"".join(dictionary.body or ())
    error = refused(decoder, body_message(bytes(dictionary.metadata), body))
    assert isinstance(error, LimitError)


def test_copies_made_by_merging_dictionaries_are_bounded() -> None:
    array = pa.array(["x" * 1000] * 3).dictionary_encode()
    batch = pa.record_batch([array], names=["d"])
    schema, dictionary, _ = split_messages(ipc_stream([batch], batch.schema))
    decoder = decoder_of(bytes(schema.metadata), Limits(decoded_bytes=1000))
    body = b"".join(dictionary.body or ())
    error = refused(decoder, body_message(bytes(dictionary.metadata), body))
    assert isinstance(error, LimitError)


def test_dictionaries_without_a_record_batch_are_bounded() -> None:
    batch = pa.record_batch([pa.array(["x" * 1000]).dictionary_encode()], names=["d"])
    schema, dictionary, data = split_messages(ipc_stream([batch], batch.schema))
    limits = Limits(body_bytes=10_000)
    body = b"".join(dictionary.body or ())
    again = body_message(bytes(dictionary.metadata), body)
    decoder = decoder_of(bytes(schema.metadata), limits)
    for _ in range(20):
        assert decoder.decode(again) is None
        assert decoder.decode(body_message(bytes(data.metadata), b"".join(data.body or ())))
    taken = 0
    for _ in range(limits.body_bytes // len(body)):
        try:
            decoder.decode(again)
        except LimitError:
            break
        taken += len(again.metadata) + len(body)
    assert 0 < taken <= limits.body_bytes
    with pytest.raises(LimitError, match="without a record batch"):
        decoder.decode(again)


def test_custom_metadata_of_a_batch_is_bounded() -> None:
    crafter = Crafter()
    pair = crafter.pair(crafter.text("k"), crafter.text("x" * (1 << 16)))
    pairs = crafter.vector([pair] * 5000)
    header = crafter.batch(1, [(1, 0)], [(0, 0), (0, 4)])
    metadata = crafter.message(RECORD_BATCH, header, 8, custom_metadata=pairs)
    error = refused(decoder_of(schema_of_ints(["n"])), body_message(metadata, bytes(8)))
    assert isinstance(error, LimitError)


def test_custom_metadata_of_a_batch_is_accepted() -> None:
    crafter = Crafter()
    pairs = crafter.vector([crafter.pair(crafter.text("k"), crafter.text("v"))])
    header = crafter.batch(1, [(1, 0)], [(0, 0), (0, 4)])
    metadata = crafter.message(RECORD_BATCH, header, 8, custom_metadata=pairs)
    batch = decoder_of(schema_of_ints(["n"])).decode(body_message(metadata, b"\5" + bytes(7)))
    assert batch is not None
    assert batch.column(0).to_pylist() == [5]


def test_a_schema_that_expands_beyond_the_limit_is_refused() -> None:
    crafter = Crafter()
    field = crafter.field(crafter.text("x" * (1 << 16)), 2, crafter.int_type())
    metadata = crafter.message(1, crafter.schema([field] * 5000))
    with pytest.raises(LimitError) as caught:
        open_decoder(schema_message(metadata), DEFAULT_LIMITS, stream="flights")
    assert (caught.value.stream, caught.value.sequence) == ("flights", 0)


def nested(levels: int) -> pa.DataType:
    data_type: pa.DataType = pa.int8()
    for _ in range(levels - 1):
        data_type = pa.list_(data_type)
    return data_type


def schema_metadata(data_type: pa.DataType) -> bytes:
    return bytes(split_messages(pa.schema([("n", data_type)]).serialize().to_pybytes())[0].metadata)


@pytest.mark.parametrize("levels", [65, 66, 100, 127])
def test_a_schema_deeper_than_the_limit_is_refused(levels: int) -> None:
    with pytest.raises(LimitError, match="more than 64 levels"):
        decoder_of(schema_metadata(nested(levels)))


@pytest.mark.parametrize("levels", [1, 2, 63, 64])
def test_a_schema_at_the_limit_passes(levels: int) -> None:
    assert decoder_of(schema_metadata(nested(levels))).schema.field(0).type == nested(levels)


def test_encodings_count_as_levels() -> None:
    values: Any = pa.list_(pa.int8(), 2)
    data_type = pa.dictionary(pa.int8(), values)
    metadata = schema_metadata(pa.list_(data_type))
    assert decoder_of(metadata, Limits(nesting=4)).schema.field(0).type == pa.list_(data_type)
    with pytest.raises(LimitError):
        decoder_of(metadata, Limits(nesting=3))


@pytest.mark.parametrize("header_type", [TENSOR, SPARSE_TENSOR])
def test_tensors_are_refused_among_record_batches(header_type: int) -> None:
    decoder = decoder_of(schema_of_ints(["n"]))
    error = refused(decoder, body_message(empty_message(header_type), b""))
    assert "expected a RECORD_BATCH or DICTIONARY_BATCH" in error.message


def test_a_dictionary_batch_without_a_dictionary_field_is_refused() -> None:
    crafter = Crafter()
    header = crafter.dictionary(0, crafter.batch(0, [(0, 0)], [(0, 0), (0, 0)]))
    metadata = crafter.message(DICTIONARY_BATCH, header)
    error = refused(decoder_of(schema_of_ints(["n"])), body_message(metadata, b""))
    assert "the schema has no dictionary" in error.message


def test_a_body_of_offsets_is_refused() -> None:
    _, data, *_ = small_stream()
    message = Message(1, bytes(data.metadata), ReceivedBody.copy(bytes(32)), BodyType.OFFSETS)
    assert "needs a packed body" in refused(decoder_of(schema_of_ints(["n"])), message).message
    message = Message(1, bytes(data.metadata), None, BodyType.PACKED)
    assert "needs a packed body" in refused(decoder_of(schema_of_ints(["n"])), message).message


def test_the_number_of_buffers_is_bounded() -> None:
    limits = replace(DEFAULT_LIMITS, buffers=3)
    metadata, body = bomb(LZ4, 4096, buffers=2)
    decoder = decoder_of(schema_of_ints(["a", "b"], bits=64), limits)
    assert "4 buffers" in refused(decoder, body_message(metadata, body)).message


def text_batch(offsets: list[int], data: bytes) -> tuple[bytes, bytes]:
    rows = len(offsets) - 1
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    start = len(packed) + -len(packed) % 8
    body = packed.ljust(start, b"\0") + data
    crafter = Crafter()
    spans = [(0, 0), (0, len(packed)), (start, len(data))]
    header = crafter.batch(rows, [(rows, 0)], spans)
    body += bytes(-len(body) % 8)
    return crafter.message(RECORD_BATCH, header, len(body)), body


@pytest.mark.parametrize(
    ("offsets", "data"), [([0, 99], b"abc"), ([0, 3, 1, 3], b"abc"), ([0, 1], b"\xff")]
)
def test_full_validation_refuses_what_cheap_validation_lets_pass(
    offsets: list[int], data: bytes
) -> None:
    schema = bytes(split_messages(TEXT.serialize().to_pybytes())[0].metadata)
    metadata, body = text_batch(offsets, data)
    with pytest.raises(InvalidDataError, match="the data is invalid"):
        decoder_of(schema, validate="full").decode(body_message(metadata, body))
    assert decoder_of(schema, validate="off").decode(body_message(metadata, body)) is not None


@pytest.mark.parametrize("validate", get_args(Validation))
def test_good_data_passes_each_validation(validate: Literal["full", "cheap", "off"]) -> None:
    schema = bytes(split_messages(TEXT.serialize().to_pybytes())[0].metadata)
    metadata, body = text_batch([0, 1, 3], b"abc")
    batch = decoder_of(schema, validate=validate).decode(body_message(metadata, body))
    assert batch is not None
    assert batch.column(0).to_pylist() == ["a", "bc"]


def test_an_unknown_validation_is_refused_by_name() -> None:
    thorough: Any = "thorough"
    with pytest.raises(UsageError, match="full, cheap, off"):
        StreamOptions(validate=thorough)


class Raising(pa.ExtensionType):
    """An extension type whose deserialization fails."""

    def __init__(self) -> None:
        super().__init__(pa.int8(), "splitarrow.test.raising")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Raising:
        raise AttributeError("no such thing")


def test_a_failing_extension_type_is_invalid_data() -> None:
    pa.register_extension_type(cast(Any, Raising()))
    try:
        with pytest.raises(InvalidDataError):
            decoder_of(schema_metadata(Raising()))
    finally:
        pa.unregister_extension_type("splitarrow.test.raising")


def invalid_value_streams() -> Iterator[tuple[str, pa.Array]]:
    """Yield arrays with values outside of the ranges of their types, alone and nested."""
    within_a_day = pa.py_buffer(struct.pack("<2q", 5, 86_400_001))
    days = pa.Array.from_buffers(pa.date64(), 2, [None, within_a_day])
    digits = pa.Array.from_buffers(pa.decimal128(3, 0), 2, [None, pa.py_buffer(b"\x7f" * 32)])
    seconds = pa.Array.from_buffers(
        pa.time32("s"), 2, [None, pa.py_buffer(struct.pack("<2i", -5, 86_400))]
    )
    for array in (days, digits, seconds):
        yield str(array.type), array
        yield f"struct of {array.type}", pa.StructArray.from_arrays([array], ["x"])
        yield f"list of {array.type}", pa.ListArray.from_arrays([0, 1, 2], array)
        yield f"dictionary of {array.type}", pa.DictionaryArray.from_arrays([1, 0], array)
        offsets, keys = pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"])
        yield f"map to {array.type}", pa.MapArray.from_arrays(cast(Any, offsets), keys, array)


INVALID_VALUES = dict(invalid_value_streams())


def decode_stream(stream: bytes, validate: Validation) -> list[pa.RecordBatch]:
    schema, *messages = split_messages(stream)
    decoder = decoder_of(bytes(schema.metadata), validate=validate)
    decoded: list[pa.RecordBatch | None] = []
    for sequence, message in enumerate(messages, 1):
        body = b"".join(bytes(part) for part in message.body or ())
        decoded.append(decoder.decode(body_message(bytes(message.metadata), body, sequence)))
    return [batch for batch in decoded if batch is not None]


def decode_all(batch: pa.RecordBatch, validate: Validation) -> list[pa.RecordBatch]:
    return decode_stream(ipc_stream([batch, batch], batch.schema), validate)


@pytest.mark.parametrize("name", INVALID_VALUES)
def test_values_outside_of_their_range_are_a_warning_once(name: str) -> None:
    batch = pa.record_batch({"x": INVALID_VALUES[name]})
    with pytest.warns(InvalidValueWarning, match="message .*validate='strict'") as warned:
        assert decode_all(batch, "full") == [batch, batch]
    assert len(warned) == 1
    with pytest.raises(InvalidDataError, match="the data is invalid"):
        decode_all(batch, "strict")
    assert decode_all(batch, "cheap") == decode_all(batch, "off") == [batch, batch]


@pytest.mark.parametrize("name", INVALID_VALUES)
def test_values_outside_of_their_range_hide_no_unsafe_ones(name: str) -> None:
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 1, 1)), pa.py_buffer(b"\xff")]
    )
    for batch in (
        pa.record_batch({"x": INVALID_VALUES[name], "y": text}),
        pa.record_batch(
            {"x": pa.StructArray.from_arrays([INVALID_VALUES[name], text], ["x", "y"])}
        ),
    ):
        with pytest.raises(InvalidDataError, match="the data is invalid"):
            decode_all(batch, "full")


def test_reference_files_arrive_with_the_default_validation(arrow_test_data: Path) -> None:
    paths = sorted((arrow_test_data / "arrow-ipc-stream" / "integration").glob("*/*.stream"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InvalidValueWarning)
        for path in paths:
            with pa.ipc.open_stream(path.read_bytes()) as reader:
                count = len(list(reader))
            assert len(decode_stream(path.read_bytes(), "full")) == count, path


@pytest.mark.parametrize("validate", get_args(Validation))
def test_names_that_are_not_utf8_are_refused(validate: Validation) -> None:
    field = pa.field("name", pa.int32())
    nested: Any = pa.struct([field])
    for schema in (
        pa.schema([field]),
        pa.schema([("x", nested)]),
        pa.schema([("x", pa.dictionary(pa.int8(), nested))]),
    ):
        metadata = bytes(split_messages(ipc_stream([], schema))[0].metadata)
        assert metadata.count(b"name") == 1
        with pytest.raises(InvalidDataError, match="names that are not UTF-8"):
            decoder_of(metadata.replace(b"name", b"n\xe9\xff\xfe"), validate=validate)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_body_that_decodes_to_the_limit_passes(codec: str) -> None:
    batch = pa.record_batch([pa.array([7] * 1000)], names=["n"])
    schema, data = split_messages(ipc_stream([batch], batch.schema, compression=codec))
    message = body_message(bytes(data.metadata), b"".join(data.body or ()))
    assert decoder_of(bytes(schema.metadata), Limits(decoded_bytes=8000)).decode(message) == batch
    with pytest.raises(LimitError, match="decodes to 8000 bytes; the limit is 7999"):
        decoder_of(bytes(schema.metadata), Limits(decoded_bytes=7999)).decode(message)
