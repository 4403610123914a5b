"""Dictionaries that arrive late or never, and the empty ones that replace them."""

from __future__ import annotations

from typing import Any, Literal, cast

import pyarrow as pa
import pytest

from helpers.crafting import INT, SCHEMA, UTF8, Crafter
from helpers.streams import (
    body_message,
    ipc_stream,
    schema_message,
    send_through_protocol,
    split_messages,
)
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.message import (
    HeaderType,
    encapsulate,
    read_batch_layout,
    read_message_info,
)
from splitarrow.formats.arrow.schema import (
    encode_empty_dictionary,
    read_dictionary_types,
    read_schema,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.splitter import SourceMessage

INNER = pa.dictionary(pa.int8(), pa.string())
VALUES: list[Any] = [
    pa.string(),
    pa.int64(),
    pa.null(),
    pa.bool_(),
    pa.binary(0),
    pa.string_view(),
    pa.map_(pa.string(), pa.decimal128(5, 2)),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.dense_union([pa.field("a", pa.int8()), pa.field("b", INNER)]),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.list_view(pa.int8()),
    pa.list_(pa.struct([("a", INNER), ("b", pa.int64())])),
]
TYPES: list[Any] = [
    *(pa.dictionary(pa.int16(), values, ordered=True) for values in VALUES),
    pa.list_(pa.struct([("a", INNER), ("b", pa.map_(pa.string(), INNER))])),
    pa.list_(INNER, 2),
    pa.list_view(INNER),
    pa.large_list_view(INNER),
    pa.run_end_encoded(pa.int16(), cast(Any, INNER)),
    pa.sparse_union([pa.field("a", INNER), pa.field("b", pa.dictionary(pa.int8(), pa.int64()))]),
    pa.opaque(INNER, "type", "vendor"),
    pa.struct([("a", pa.opaque(pa.list_(INNER), "type", "vendor")), ("b", INNER)]),
]


def is_dictionary(message: SourceMessage) -> bool:
    return read_message_info(message.metadata).header_type is HeaderType.DICTIONARY_BATCH


def body_of(message: SourceMessage) -> bytes:
    return b"".join(message.body or ())


def without_dictionaries(messages: list[SourceMessage]) -> list[SourceMessage]:
    return [message for message in messages if not is_dictionary(message)]


def nulls(data_type: pa.DataType, rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(rows, cast(Any, data_type))], names=["c"])


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_an_empty_dictionary_is_read_by_pyarrow(data_type: pa.DataType) -> None:
    batch = nulls(data_type)
    schema, *rest = split_messages(ipc_stream([batch], batch.schema))
    types = read_dictionary_types(schema.metadata, batch.schema)
    assert len(types) == len(rest) - 1
    stream = encapsulate(schema.metadata)
    for dictionary_id, value_type in types.items():
        metadata, body = encode_empty_dictionary(dictionary_id, value_type)
        facts = read_batch_layout(metadata)
        assert (facts.dictionary_id, facts.is_delta, facts.rows) == (dictionary_id, False, 0)
        assert read_message_info(metadata).body_length == body.size
        stream += encapsulate(metadata) + body.to_pybytes()
    stream += encapsulate(rest[-1].metadata) + body_of(rest[-1])
    received = pa.ipc.open_stream(stream).read_next_batch()
    received.validate(full=True)
    assert received.equals(batch)


@pytest.mark.parametrize("dictionary_id", [0, 1, -1, (1 << 63) - 1])
def test_an_empty_dictionary_has_any_id(dictionary_id: int) -> None:
    metadata, _ = encode_empty_dictionary(dictionary_id, pa.string())
    assert read_batch_layout(metadata).dictionary_id == dictionary_id


def test_dictionaries_have_the_ids_of_the_schema_which_may_be_shared() -> None:
    crafter = Crafter()
    text = crafter.empty_table()
    fields = [
        crafter.field(crafter.text(name), UTF8, text, dictionary=crafter.encoding(number))
        for name, number in [("a", 77), ("b", -3), ("c", 77), ("d", 0)]
    ]
    metadata = crafter.message(SCHEMA, crafter.schema(fields))
    types = read_dictionary_types(metadata, read_schema(metadata))
    assert types == {77: pa.string(), -3: pa.string(), 0: pa.string()}


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_a_batch_of_nulls_needs_no_dictionary(data_type: pa.DataType) -> None:
    batch = nulls(data_type)
    messages = without_dictionaries(
        split_messages(ipc_stream([batch, nulls(data_type, 0)], batch.schema))
    )
    schema, batches = send_through_protocol(messages)
    assert schema == batch.schema
    assert batches == [batch, nulls(data_type, 0)]


def two_columns(first: list[str | None], second: list[str | None]) -> pa.RecordBatch:
    arrays = [pa.array(values).dictionary_encode() for values in (first, second)]
    return pa.record_batch([array.cast(INNER) for array in arrays], names=["a", "b"])


def test_a_dictionary_may_arrive_after_batches_without_its_values() -> None:
    early = two_columns(["x", "y", None], [None] * 3)
    late = two_columns(["x", "y", "x"], ["p", None, "q"])
    schema = early.schema
    _, first_a, _, batch = split_messages(ipc_stream([early], schema))
    head, again_a, first_b, other = split_messages(ipc_stream([late], schema))
    _, batches = send_through_protocol([head, first_a, batch, again_a, first_b, other, other])
    assert [b.to_pydict() for b in batches] == [b.to_pydict() for b in (early, late, late)]
    _, batches = send_through_protocol([head, first_a, batch, batch, first_b, other])
    assert [b.to_pydict() for b in batches] == [b.to_pydict() for b in (early, early, late)]


def test_a_delta_may_be_the_first_dictionary_after_a_batch_of_nulls() -> None:
    schema = pa.schema([("c", INNER)])
    one = pa.record_batch([pa.array(["a"]).dictionary_encode().cast(INNER)], schema=schema)
    two = pa.record_batch([pa.array(["a", "b"]).dictionary_encode().cast(INNER)], schema=schema)
    stream = split_messages(ipc_stream([one, two], schema, emit_dictionary_deltas=True))
    deltas = [
        is_dictionary(message) and read_batch_layout(message.metadata).is_delta
        for message in stream
    ]
    assert sum(deltas) == 1
    *_, empty = split_messages(ipc_stream([nulls(INNER)], schema))
    _, batches = send_through_protocol([stream[0], empty, *stream[1:]])
    assert [b.column(0).to_pylist() for b in batches] == [[None] * 3, ["a"], ["a", "b"]]


@pytest.mark.parametrize("validate", ["full", "cheap", "off"])
def test_a_value_without_its_dictionary_is_refused_at_every_validation_level(
    validate: Literal["full", "cheap", "off"],
) -> None:
    batch = two_columns(["x", "y", None], ["p", None, None])
    schema, first, second, data = split_messages(ipc_stream([batch], batch.schema))
    for dictionary, missing in [(second, 0), (first, 1)]:
        decoder = open_decoder(schema_message(bytes(schema.metadata)), DEFAULT_LIMITS, validate)
        metadata = bytes(dictionary.metadata)
        assert decoder.decode(body_message(metadata, body_of(dictionary))) is None
        with pytest.raises(InvalidDataError, match=f"no dictionary with the id {missing}"):
            decoder.decode(body_message(bytes(data.metadata), body_of(data), 2))


def test_a_stream_that_ends_before_its_dictionaries_has_a_schema_and_no_batches() -> None:
    batch = two_columns(["x"], ["y"])
    schema, first, *_ = split_messages(ipc_stream([batch], batch.schema))
    assert send_through_protocol([schema]) == (batch.schema, [])
    assert send_through_protocol([schema, first]) == (batch.schema, [])


def test_a_dictionary_below_a_type_without_children_is_refused() -> None:
    """pyarrow ignores the children of such a type, and so their dictionaries."""
    crafter = Crafter()
    text = crafter.field(
        crafter.text("w"), UTF8, crafter.empty_table(), dictionary=crafter.encoding(3)
    )
    field = crafter.field(crafter.text("n"), INT, crafter.int_type(), [text])
    metadata = crafter.message(SCHEMA, crafter.schema([field]))
    with pytest.raises(InvalidDataError, match="declares 1 dictionaries; its types have 0"):
        read_dictionary_types(metadata, read_schema(metadata))
