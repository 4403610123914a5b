"""What arrives equals what was sent: every Arrow type, through the whole protocol core."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.arrow_data import draw_batches, make_arrays_of_all_types, make_batches
from helpers.crafting import DICTIONARY_BATCH, RECORD_BATCH, SCHEMA, UTF8, Crafter
from helpers.framing import push
from helpers.streams import (
    decode_messages,
    encode_wire_bytes,
    ipc_stream,
    list_frames,
    reassembled,
    receive_frames,
    split_messages,
)
from splitarrow.protocol.frames import IncomingFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.transport.frame_decoder import FrameDecoder

ARRAYS = make_arrays_of_all_types()
COMPRESSIONS = [None, "lz4", "zstd"]
HEADROOM = [0, 1 << 16]


def through_frames(messages: list[SourceMessage], most: int = 1 << 62) -> list[IncomingFrame]:
    decoder = FrameDecoder(DEFAULT_LIMITS)
    push(decoder, encode_wire_bytes(list_frames(messages)), most)
    assert decoder.at_boundary
    return decoder.take()


def check(schema: pa.Schema, batches: list[pa.RecordBatch], frames: list[IncomingFrame]) -> None:
    got_schema, got = decode_messages(reassembled(frames))
    assert got_schema.equals(schema, check_metadata=True)
    assert len(got) == len(batches)
    for received, sent in zip(got, batches, strict=True):
        assert received.schema.equals(schema, check_metadata=True)
        assert received.equals(sent)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_arrives(name: str, compression: str | None) -> None:
    batches = make_batches(ARRAYS[name])
    schema = batches[0].schema
    messages = split_messages(ipc_stream(batches, schema, compression=compression))
    for headroom in HEADROOM:
        check(schema, batches, receive_frames(list_frames(messages), headroom))
    for most in (1 << 20, 7):
        check(schema, batches, through_frames(messages, most))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_all_types_beside_each_other_arrive(compression: str | None) -> None:
    names = [name for name, array in ARRAYS.items() if len(array) == 5]
    assert len(names) > 40
    batch = pa.record_batch([ARRAYS[name] for name in names], names=names)
    batches = [batch, batch.slice(2, 2), batch.slice(5), batch]
    messages = split_messages(ipc_stream(batches, batch.schema, compression=compression))
    for headroom in HEADROOM:
        check(batch.schema, batches, receive_frames(list_frames(messages), headroom))


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rows", [0, 3])
def test_batches_without_columns_arrive(compression: str | None, rows: int) -> None:
    batch = pa.record_batch([pa.nulls(rows)], names=["x"]).select([])
    messages = split_messages(ipc_stream([batch] * 2, batch.schema, compression=compression))
    _, got = decode_messages(reassembled(receive_frames(list_frames(messages))))
    assert [(received.num_rows, received.num_columns) for received in got] == [(rows, 0)] * 2


@pytest.mark.parametrize("schema", [pa.schema([]), pa.schema([("s", pa.string())], {"k": "v"})])
def test_a_stream_without_batches_arrives(schema: pa.Schema) -> None:
    check(schema, [], through_frames(split_messages(ipc_stream([], schema))))


def test_metadata_of_schema_and_fields_arrives() -> None:
    field = pa.field("n", pa.int8(), nullable=False, metadata={"unit": "µm"})
    schema = pa.schema([field], {"origin": "here", "empty": ""})
    batch = pa.record_batch([pa.array([1], pa.int8())], schema=schema)
    check(schema, [batch], through_frames(split_messages(ipc_stream([batch], schema))))


def encoded(values: list[str | None]) -> pa.RecordBatch:
    array = pa.array(values).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string()))
    return pa.record_batch([array], names=["d"])


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_grow_or_are_replaced_arrive(
    compression: str | None, deltas: bool
) -> None:
    growing = [encoded(["a"]), encoded(["a", "b"]), encoded(["a", "b", "cc", None])]
    batches = [*growing, growing[-1], encoded(["zz", "a"]), encoded([None, None]), *growing]
    stream = ipc_stream(
        batches, batches[0].schema, compression=compression, emit_dictionary_deltas=deltas
    )
    check(batches[0].schema, batches, through_frames(split_messages(stream)))


def test_nested_dictionaries_that_are_replaced_arrive() -> None:
    def nested(texts: list[str]) -> pa.RecordBatch:
        inner = pa.array(texts).dictionary_encode()
        offsets = pa.array(range(len(texts) + 1), pa.int32())
        values = pa.ListArray.from_arrays(offsets, inner)
        indices = pa.array(range(len(texts)), pa.int8())
        return pa.record_batch([pa.DictionaryArray.from_arrays(indices, values)], names=["d"])

    batches = [nested(["a"]), nested(["b", "c"]), nested(["b", "c"]), nested(["d", "a", "e"])]
    stream = ipc_stream(batches, batches[0].schema)
    check(batches[0].schema, batches, through_frames(split_messages(stream)))


def test_a_dictionary_shared_by_two_columns_arrives() -> None:
    crafter = Crafter()
    text = crafter.empty_table()
    fields = [
        crafter.field(crafter.text(name), UTF8, text, dictionary=crafter.encoding(5))
        for name in ("a", "b")
    ]
    schema = crafter.message(SCHEMA, crafter.schema(fields))
    crafter = Crafter()
    values = crafter.batch(2, [(2, 0)], [(0, 0), (0, 12), (16, 3)])
    dictionary = crafter.message(DICTIONARY_BATCH, crafter.dictionary(5, values), 24)
    crafter = Crafter()
    header = crafter.batch(2, [(2, 0), (2, 0)], [(0, 0), (0, 2), (0, 0), (8, 2)])
    batch = crafter.message(RECORD_BATCH, header, 16)
    offsets = b"\0\0\0\0\1\0\0\0\3\0\0\0" + bytes(4)
    messages = [
        SourceMessage(schema, None),
        SourceMessage(dictionary, [offsets, b"xyy" + bytes(5)], 24),
        SourceMessage(batch, [b"\0\1" + bytes(6), b"\1\0" + bytes(6)], 16),
    ]
    _, (got,) = decode_messages(reassembled(through_frames(messages)))
    assert got.to_pydict() == {"a": ["x", "yy"], "b": ["yy", "x"]}


def random_batches_arrive(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]], compression: str | None, headroom: int
) -> None:
    schema, batches = drawn
    messages = split_messages(ipc_stream(batches, schema, compression=compression))
    check(schema, batches, receive_frames(list_frames(messages), headroom))
    check(schema, batches, through_frames(messages))


examples = (draw_batches(), st.sampled_from(COMPRESSIONS), st.sampled_from(HEADROOM))


@given(*examples)
def test_drawn_batches_arrive(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]], compression: str | None, headroom: int
) -> None:
    random_batches_arrive(drawn, compression, headroom)


@pytest.mark.long
@settings(max_examples=5000)
@given(*examples)
def test_5000_drawn_batches_arrive(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]], compression: str | None, headroom: int
) -> None:
    random_batches_arrive(drawn, compression, headroom)
