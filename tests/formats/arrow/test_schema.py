"""Schema messages: facts, features, dictionaries and comparison."""

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
from splitarrow.errors import InvalidDataError, LimitError
from splitarrow.formats.arrow.message import (
    HeaderType,
    encapsulate,
    read_batch_layout,
    read_message_info,
)
from splitarrow.formats.arrow.schema import (
    are_schemas_equal,
    describe_difference,
    encode_empty_dictionary,
    find_schema_facts,
    read_dictionary_types,
    read_schema,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.splitter import SourceMessage


class Celsius(pa.ExtensionType):
    """A type that is registered after its schema was read."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


def message_of(schema: pa.Schema) -> bytes:
    return pa.ipc.read_message(schema.serialize()).metadata.to_pybytes()


def test_a_type_that_is_registered_later_is_found() -> None:
    metadata = message_of(pa.schema([("heat", Celsius())]))
    assert read_schema(metadata).field("heat").type == pa.float64()
    celsius: Any = Celsius()
    pa.register_extension_type(celsius)
    try:
        assert read_schema(metadata).field("heat").type == celsius
    finally:
        pa.unregister_extension_type("test.celsius")
    assert read_schema(metadata).field("heat").type == pa.float64()


def test_a_schema_that_was_read_is_still_held_to_smaller_limits() -> None:
    metadata = message_of(pa.schema([("lists", pa.list_(pa.list_(pa.int8())))]))
    assert read_schema(metadata, max_nesting=3).names == ["lists"]
    with pytest.raises(LimitError, match=r"nests more than 2 levels"):
        read_schema(metadata, max_nesting=2)


def test_facts_are_those_of_each_schema() -> None:
    schemas = [
        pa.schema([(f"column {number}", pa.int8()), ("text", pa.dictionary(pa.int8(), pa.utf8()))])
        for number in range(40)
    ]
    schemas.append(pa.schema([("n", pa.int64())]))
    for schema in [*schemas, *schemas]:
        facts = find_schema_facts(message_of(schema), schema)
        assert facts.is_fixed_width == (len(schema) == 1)
        assert [*facts.dictionary_types.values()] == [pa.utf8()] * (len(schema) - 1)
        assert not facts.swaps_bytes


ONE = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_())])
NESTED = pa.struct([pa.field("x", pa.int8(), metadata={"k": "v"})])


def replaced(index: int, *field: Any, **options: Any) -> pa.Schema:
    return ONE.set(index, pa.field(*field, **options))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (ONE.remove(1).remove(1), "it lacks the column 'b'"),
        (ONE.append(pa.field("d", pa.int8())).append(pa.field("e", pa.int8())), "column 'd'"),
        (replaced(0, "z", pa.int32()), "it lacks the column 'a'"),
        (ONE.append(pa.field("d", pa.int8())), "it has the additional column 'd'"),
        (pa.schema([ONE.field(i) for i in (0, 2, 1)]), "its columns are in a different order"),
        (ONE.append(ONE.field(0)), "its columns are in a different order"),
        (replaced(1, "b", pa.large_string()), "its column 'b' is large_string, not string"),
        (replaced(1, "b", pa.string(), False), "its column 'b' is not nullable"),
        (
            replaced(2, "c", pa.bool_(), metadata={"k": "v"}),
            "its column 'c' has different custom metadata",
        ),
    ],
    ids=str,
)
def test_the_first_difference_is_described(other: pa.Schema, difference: str) -> None:
    found = describe_difference(ONE, other)
    assert found is not None
    assert found.endswith(difference)
    assert not are_schemas_equal(ONE, other)
    assert not are_schemas_equal(other, ONE)


def test_a_column_that_may_have_nulls_differs_from_one_that_may_not() -> None:
    strict = replaced(0, "a", pa.int32(), False)
    assert describe_difference(strict, ONE) == "its column 'a' is nullable"


def test_nested_custom_metadata_is_part_of_a_type() -> None:
    plain = pa.schema([("n", pa.struct([("x", pa.int8())]))])
    found = describe_difference(plain, pa.schema([("n", NESTED)]))
    assert found is not None
    assert found.startswith("its column 'n' is struct<x: int8")


def test_custom_metadata_of_the_schema_is_no_difference_but_schemas_are_not_equal() -> None:
    other = ONE.with_metadata({"rows": "7"})
    assert describe_difference(ONE, other) is None
    assert not are_schemas_equal(ONE, other)
    assert not are_schemas_equal(other, ONE)
    assert are_schemas_equal(other, ONE.with_metadata({"rows": "7"}))
    assert are_schemas_equal(ONE, ONE.with_metadata({}))
    assert are_schemas_equal(ONE, ONE)


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
