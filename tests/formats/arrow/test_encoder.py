"""Record batches are encoded as the messages that Arrow's writer would write."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import batch_without_columns
from helpers.streams import ipc_stream, split_messages
from splitarrow.errors import InvalidDataError, UsageError
from splitarrow.formats.arrow.encoder import EncodedMessage, MessageEncoder, _Sink
from splitarrow.formats.arrow.message import (
    HeaderType,
    encapsulate,
    read_batch_layout,
    read_message_info,
)
from splitarrow.formats.arrow.truncation import truncate

ARRAYS = make_arrays_of_all_types()
CODECS = [None, "lz4", "zstd"]


def encoded(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, codec: str | None = None
) -> list[EncodedMessage]:
    encoder = MessageEncoder(schema, codec)
    messages = [encoder.schema_message]
    for batch in batches:
        messages += encoder.encode(batch)
    encoder.close()
    return messages


def joined(messages: Sequence[EncodedMessage]) -> bytes:
    pieces: list[Any] = []
    for metadata, body, body_length, _ in messages:
        facts = read_message_info(metadata)
        assert (body is not None) == facts.header_type.has_body
        assert body_length == facts.body_length == sum(len(part) for part in body or ())
        pieces += [encapsulate(metadata), *(body or ())]
    return b"".join(pieces)


def decoded(messages: Sequence[EncodedMessage]) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(joined(messages)) as reader:
        return list(reader)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_survives_encoding_whole_and_in_slices(name: str, codec: str | None) -> None:
    batch = pa.record_batch({"value": ARRAYS[name]})
    rows = batch.num_rows
    batches = [batch, batch.slice(1, rows - 2), batch.slice(0, 0), batch.slice(rows - 1)]
    messages = encoded(batches, batch.schema, codec)
    assert all(got.equals(sent) for got, sent in zip(decoded(messages), batches, strict=True))
    counted = [
        message.rows
        for message in messages
        if read_message_info(message.metadata).header_type is HeaderType.RECORD_BATCH
    ]
    assert counted == [sent.num_rows for sent in batches]


def test_messages_equal_those_of_pyarrow() -> None:
    batch = pa.record_batch({"a": [1, None, 3], "b": pa.array(["x", "y", "x"]).dictionary_encode()})
    sent = joined(encoded([batch, batch.slice(1)], batch.schema))
    assert sent + b"\xff\xff\xff\xff\0\0\0\0" == ipc_stream([batch, batch.slice(1)], batch.schema)


def test_buffers_are_not_copied() -> None:
    batch = pa.record_batch({"a": list(range(100)), "b": [0.5] * 100})
    _, message = encoded([batch], batch.schema)
    assert message.body is not None
    sent = {part.address for part in message.body if isinstance(part, pa.Buffer)}
    columns: list[Any] = batch.columns
    assert sent == {column.buffers()[1].address for column in columns}


def test_the_schema_is_known_without_a_batch() -> None:
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"})], metadata={"m": "n"})
    (message,) = encoded([], schema)
    assert message.body is None
    assert pa.ipc.read_schema(pa.py_buffer(joined([message]))).equals(schema, check_metadata=True)


def test_a_batch_without_columns_keeps_its_rows() -> None:
    batch = batch_without_columns(7)
    messages = encoded([batch], batch.schema)
    assert [(message.rows, message.body_length) for message in messages] == [(0, 0), (7, 0)]
    assert decoded(messages)[0].num_rows == 7


def test_dictionaries_grow_by_deltas_and_are_replaced() -> None:
    def batch(values: list[str], index: int) -> pa.RecordBatch:
        indices = pa.array([0, index], pa.int8())
        return pa.record_batch({"d": pa.DictionaryArray.from_arrays(indices, pa.array(values))})

    batches = [batch(["a", "b"], 1), batch(["a", "b", "c"], 2), batch(["x", "y"], 1)]
    messages = encoded(batches, batches[0].schema)
    kinds = [read_message_info(message.metadata).header_type.name for message in messages]
    assert kinds == ["SCHEMA", *["DICTIONARY_BATCH", "RECORD_BATCH"] * 3]
    assert [got.to_pydict() for got in decoded(messages)] == [b.to_pydict() for b in batches]
    with pa.ipc.open_stream(joined(messages)) as reader:
        reader.read_all()
        stats = reader.stats
    assert (stats.num_dictionary_deltas, stats.num_replaced_dictionaries) == (1, 1)


def test_an_unchanged_dictionary_is_sent_once() -> None:
    batch = pa.record_batch({"d": pa.array(["x", "y"] * 50).dictionary_encode()})
    messages = encoded([batch.slice(start, 10) for start in range(0, 100, 10)], batch.schema)
    assert len(messages) == 1 + 1 + 10


def test_messages_contain_only_the_slice() -> None:
    batch = pa.record_batch({"n": list(range(100_000)), "t": ["text"] * 100_000})
    _, message = encoded([batch.slice(5000, 10)], batch.schema)
    assert message.body_length < 300


def test_custom_metadata_is_encoded() -> None:
    batch = pa.record_batch({"a": [1]})
    encoder = MessageEncoder(batch.schema)
    messages = [encoder.schema_message, *encoder.encode(batch, {"k": "v"})]
    with pa.ipc.open_stream(joined(messages)) as reader:
        got = reader.read_next_batch_with_custom_metadata()
    assert got.custom_metadata == {b"k": b"v"}


@pytest.mark.parametrize("codec", CODECS)
def test_empty_unions_have_all_buffers(codec: str | None) -> None:
    kind = pa.dense_union([pa.field("a", pa.int32())])
    sparse = pa.sparse_union([pa.field("a", pa.int32())])
    none: Any = pa.array([], pa.int32())
    unions: list[Any] = [
        pa.Array.from_buffers(kind, 0, [None, None, None], children=[none]),
        pa.Array.from_buffers(sparse, 0, [None, None], children=[none]),
    ]
    zeros = pa.py_buffer(bytes(12))
    lists = [
        pa.Array.from_buffers(pa.list_(union.type), 2, [None, zeros], children=[union])
        for union in unions
    ]
    for arrays in (unions, lists):
        batch = pa.RecordBatch.from_arrays(arrays, names=["dense", "sparse"])
        assert decoded(encoded([batch], batch.schema, codec))[0].num_rows == batch.num_rows


def test_a_schema_may_have_thousands_of_columns() -> None:
    names = [f"column {number}" for number in range(2000)]
    batch = pa.RecordBatch.from_arrays([pa.array([number]) for number in range(2000)], names)
    assert decoded(encoded([batch], batch.schema)) == [batch]


def test_unknown_codecs_and_other_schemas_are_refused() -> None:
    schema = pa.schema([("a", pa.int8())])
    with pytest.raises(UsageError, match="known are lz4, zstd"):
        MessageEncoder(schema, "snappy")
    with pytest.raises(InvalidDataError, match="cannot encode a record batch"):
        MessageEncoder(schema).encode(pa.record_batch({"b": ["x"]}))


@given(st.data())
def test_messages_do_not_depend_on_the_pieces_of_the_writer(data: st.DataObject) -> None:
    batch = pa.record_batch({"a": [1, 2], "b": pa.array(["x", "y"]).dictionary_encode()})
    stream = ipc_stream([batch, batch.slice(1)], batch.schema)
    places = st.lists(st.integers(0, len(stream)), max_size=30)
    cuts = [0, *sorted(data.draw(places)), len(stream)]
    sink = _Sink()
    for begin, end in pairwise(cuts):
        piece = stream[begin:end]
        sink.write(pa.py_buffer(piece) if data.draw(st.booleans()) else piece)
    got = sink.take(0)
    assert [(bytes(m.metadata), m.body_length) for m in got] == [
        (m.metadata, m.body_length) for m in split_messages(stream)
    ]
    assert joined(got) == stream[:-8]


@pytest.mark.parametrize("length", [4, 8, 20, 60, -9, -12])
def test_an_incomplete_message_is_refused(length: int) -> None:
    batch = pa.record_batch({"a": [1, 2]})
    sink = _Sink()
    sink.write(ipc_stream([batch], batch.schema)[:length])
    with pytest.raises(InvalidDataError, match="incomplete message"):
        sink.take(0)


def test_truncated_slices_are_small() -> None:
    views = pa.array([f"text number {number}" for number in range(1000)], pa.string_view())
    batch = pa.record_batch({"v": views}).slice(10, 2)
    whole, small = (encoded([b], b.schema)[1].body_length for b in (batch, truncate(batch)))
    assert whole > 10_000
    assert small < 100


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_buffer_that_does_not_shrink_is_stored_as_it_is(compression: str) -> None:
    noise = bytes((n * n * 31 + n * 7) % 251 for n in range(97))
    batch = pa.record_batch({"noise": [noise], "zeros": [bytes(4096)], "none": [None]})
    encoder = MessageEncoder(batch.schema, compression)
    (message,) = encoder.encode(batch)
    encoder.close()
    body = b"".join(message.body or ())
    assert len(body) == message.body_length
    layout = read_batch_layout(message.metadata)
    stored = [
        int.from_bytes(body[at : at + 8], "little", signed=True) for at, n in layout.buffers if n
    ]
    assert -1 in stored
    assert 4096 in stored
    assert (encapsulate(message.metadata) + body).count(noise) == 1
    got = pa.ipc.read_record_batch(pa.py_buffer(encapsulate(message.metadata) + body), batch.schema)
    got.validate(full=True)
    assert got.equals(batch)
