"""Streams with dictionaries: their limits, and dictionaries that are missing."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from helpers.streams import body_message, ipc_stream, schema_message, split_messages
from splitarrow.client.stream.batch_decoder import BatchDecoder
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.errors import InvalidDataError, LimitError
from splitarrow.formats.arrow.message import read_batch_layout
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import Message

WORDS = [pa.array(words).dictionary_encode() for words in (["a", "b"], ["a", "b", "c"])]
BATCHES = [pa.record_batch({"w": words}) for words in WORDS]


def messages(deltas: bool = True, count: int = 2) -> list[Message]:
    """Return the schema, and a dictionary and a record batch for each batch."""
    stream = ipc_stream(BATCHES[:count], BATCHES[0].schema, emit_dictionary_deltas=deltas)
    schema, *rest = split_messages(stream)
    bodies = [b"".join(bytes(part) for part in each.body or ()) for each in rest]
    return [
        schema_message(bytes(schema.metadata)),
        *(
            body_message(bytes(each.metadata), body, number)
            for number, (each, body) in enumerate(zip(rest, bodies, strict=True), 1)
        ),
    ]


def open_stream(schema: Message, **limits: int) -> BatchDecoder:
    decoder = open_decoder(schema, replace(DEFAULT_LIMITS, **limits), "full", "d")
    assert isinstance(decoder, BatchDecoder)
    return decoder


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_arrive_before_their_batches(deltas: bool) -> None:
    schema, *rest = messages(deltas)
    decoder = open_stream(schema)
    found = [decoder.decode(message) for message in rest]
    assert [batch for batch in found if batch is not None] == BATCHES


def size(message: Message) -> int:
    """Return what a dictionary counts while it waits for a batch, in bytes."""
    assert message.body is not None
    return 1024 + len(message.metadata) + message.body.nbytes


def test_dictionaries_without_a_batch_are_bounded() -> None:
    schema, dictionary, batch, delta, last = messages()
    limit = size(dictionary) + size(delta)
    decoder = open_stream(schema, body_bytes=limit)
    for message in (dictionary, delta, batch, dictionary, delta, last):
        decoder.decode(message)
    decoder = open_stream(schema, body_bytes=limit - 1)
    decoder.decode(dictionary)
    with pytest.raises(LimitError, match=f"{limit} bytes of dictionaries arrived without a record"):
        decoder.decode(delta)


def test_dictionaries_that_wait_may_exceed_their_decoded_size_by_1_mib() -> None:
    """Each replaces the one before, so that the decoded size stays the same."""
    schema, dictionary, batch, *_ = messages(deltas=False)
    decoded_bytes = 10_000
    count = (decoded_bytes + (1 << 20)) // size(dictionary)
    decoder = open_stream(schema, decoded_bytes=decoded_bytes)
    for _ in range(2):
        for _ in range(count):
            decoder.decode(dictionary)
        decoder.decode(batch)
    for _ in range(count):
        decoder.decode(dictionary)
    with pytest.raises(LimitError, match="arrived without a record batch; the limit is 1058576"):
        decoder.decode(dictionary)


def decoded_size(message: Message) -> int:
    """Return the size of the buffers of a dictionary of strings, in bytes."""
    return sum(length for _, length in read_batch_layout(message.metadata).buffers)


@pytest.mark.parametrize("deltas", [False, True])
def test_a_delta_adds_to_the_size_of_its_dictionary_and_another_replaces_it(deltas: bool) -> None:
    schema, first, batch, second, last = messages(deltas)
    sizes = [decoded_size(first), decoded_size(second)]
    limit = sum(sizes) if deltas else max(sizes)
    decoder = open_stream(schema, decoded_bytes=limit)
    for message in (first, batch, second, last):
        decoder.decode(message)
    decoder = open_stream(schema, decoded_bytes=limit - 1)
    decoder.decode(first)
    decoder.decode(batch)
    with pytest.raises(LimitError, match=f"to {limit} bytes; the limit is {limit - 1}"):
        decoder.decode(second)


def test_a_column_without_values_needs_no_dictionary() -> None:
    empty = pa.record_batch({"w": pa.nulls(2, BATCHES[0].schema.field("w").type)})
    schema, _, _, *_ = messages()
    null_batch = split_messages(ipc_stream([empty], empty.schema))[-1]
    body = b"".join(bytes(part) for part in null_batch.body or ())
    decoder = open_stream(schema)
    assert decoder.decode(body_message(bytes(null_batch.metadata), body)) == empty


def test_a_value_without_its_dictionary_is_an_error() -> None:
    schema, _, batch, *_ = messages()
    decoder = open_stream(schema)
    with pytest.raises(InvalidDataError, match="the stream has no dictionary with the id 0"):
        decoder.decode(batch)
