"""The fast paths of the decoder: messages and runs whose metadata was checked before."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import pyarrow as pa
import pytest

from helpers.streams import ipc_stream, schema_message, split_messages
from splitarrow.client.arguments import Validation
from splitarrow.client.stream.batch_decoder import BatchDecoder
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.client.stream.remote_bodies import EncapsulatedBody
from splitarrow.errors import InvalidDataError, InvalidValueWarning, LimitError, ProtocolError
from splitarrow.formats.arrow.message import encapsulate
from splitarrow.protocol.frames import MessageRun
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.tags import BodyType

NUMBERS = pa.record_batch({"n": pa.array([1, 2, 3], pa.int32())})
TEXT = pa.record_batch({"s": ["ab", "cd"]})
TIMES = pa.record_batch({"t": pa.array([1, 2], pa.time32("s"))})


class Sent:
    """The messages of a stream whose batches have one metadata."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        schema, message = split_messages(ipc_stream([batch], batch.schema))
        metadata = bytes(message.metadata)
        # The head of a message is as long as the headroom of a body can be.
        self.metadata = metadata + bytes(-len(encapsulate(metadata)) % 64)
        self.head = encapsulate(self.metadata)
        assert len(self.head) % 64 == 0
        self.schema = bytes(schema.metadata)
        self.body = b"".join(bytes(part) for part in message.body or ())

    def decoder(
        self, validate: Validation = "full", limits: Limits = DEFAULT_LIMITS, **options: Any
    ) -> BatchDecoder:
        decoder = open_decoder(schema_message(self.schema), limits, validate, "d", **options)
        assert isinstance(decoder, BatchDecoder)
        return decoder

    def message(
        self, sequence: int, body: bytes | ReceivedBody, headroom: int | None = None
    ) -> Message:
        """Return a message with the same metadata object as all others."""
        if isinstance(body, bytes):
            body = ReceivedBody.copy(body, len(self.head) if headroom is None else headroom)
        return Message(sequence, self.metadata, body, BodyType.PACKED)

    def run(self, *bodies: bytes, headroom: int | None = None) -> MessageRun:
        """Return a run whose first message has the sequence number 2."""
        headroom = len(self.head) if headroom is None else headroom
        nbytes = len(self.body)
        memory = pa.allocate_buffer(len(bodies) * MessageRun.stride_of(nbytes, headroom))
        run = MessageRun(2, bytes(bytearray(self.metadata)), nbytes, headroom, len(bodies), memory)
        for number, body in enumerate(bodies):
            begin = number * run.stride + run.start
            run.view[begin : begin + nbytes] = body
        return run


def numbers(*values: int) -> bytes:
    """Return the body of a batch of `NUMBERS`."""
    data = struct.pack(f"<{len(values)}i", *values)
    return data.ljust(len(Sent(NUMBERS).body), b"\0")


def values_of(batch: pa.RecordBatch | None) -> list[Any]:
    assert batch is not None
    return batch.column(0).to_pylist()


@pytest.mark.parametrize("validate", ["strict", "full", "cheap", "off"])
@pytest.mark.parametrize("headroom", [None, 1000])
def test_the_metadata_is_written_in_front_of_each_body(
    validate: Validation, headroom: int | None
) -> None:
    sent = Sent(NUMBERS)
    decoder = sent.decoder(validate)
    for sequence in range(1, 4):
        message = sent.message(sequence, numbers(sequence, 5, 6), headroom)
        batch = decoder.decode(message)
        assert values_of(batch) == [sequence, 5, 6]
        assert batch is not None
        body, memory = message.body, batch.column(0).buffers()[1]
        assert body is not None
        assert memory is not None
        assert memory.address == body.buffer.address + body.start
        assert body.view[body.start - len(sent.head) : body.start] == sent.head


@pytest.mark.parametrize("headroom", [0, 64])
def test_a_body_with_too_little_headroom_is_decoded_where_it_is(headroom: int) -> None:
    sent = Sent(NUMBERS)
    assert headroom < len(sent.head)
    decoder = sent.decoder()
    decoder.decode(sent.message(1, numbers(1, 2, 3)))
    for sequence in (2, 3):
        message = sent.message(sequence, numbers(sequence, 5, 6), headroom)
        assert values_of(decoder.decode(message)) == [sequence, 5, 6]
        body = message.body
        assert body is not None
        assert bytes(body) == numbers(sequence, 5, 6)


def test_a_body_behind_its_metadata_is_not_written_to() -> None:
    sent = Sent(NUMBERS)
    decoder = sent.decoder()
    for sequence in (1, 2, 3):
        data = sent.head + numbers(sequence, 5, 6)
        body = EncapsulatedBody(pa.py_buffer(data), len(sent.head))
        assert values_of(decoder.decode(sent.message(sequence, body))) == [sequence, 5, 6]


@pytest.mark.parametrize("known", [False, True])
def test_a_body_of_offsets_is_refused_without_its_region(known: bool) -> None:
    sent = Sent(NUMBERS)
    decoder = sent.decoder()
    if known:
        decoder.decode(sent.message(1, numbers(1, 2, 3)))
    message = sent.message(2, numbers(4, 5, 6))._replace(body_type=BodyType.OFFSETS)
    with pytest.raises(ProtocolError, match="a record batch needs a packed body") as caught:
        decoder.decode(message)
    assert (caught.value.stream, caught.value.sequence) == ("d", 2)


def test_a_region_that_refuses_a_body_is_an_error_of_its_message() -> None:
    class Refusing:
        """Resolves no body."""

        def resolve(self, message: Message) -> Message:
            raise ProtocolError("outside of the region")

    sent = Sent(NUMBERS)
    remote: Any = Refusing()
    decoder = sent.decoder(remote_bodies=remote)
    message = sent.message(1, numbers(1, 2, 3))
    assert values_of(decoder.decode(message)) == [1, 2, 3]
    with pytest.raises(ProtocolError, match="outside of the region") as caught:
        decoder.decode(message._replace(sequence=2, body_type=BodyType.OFFSETS))
    assert (caught.value.stream, caught.value.sequence) == ("d", 2)


def test_only_what_is_decompressed_is_limited() -> None:
    sent = Sent(NUMBERS)
    decoder = sent.decoder(limits=Limits(decoded_bytes=1))
    for sequence in (1, 2):
        assert values_of(decoder.decode(sent.message(sequence, numbers(1, 2, 3)))) == [1, 2, 3]
    schema, message = split_messages(
        ipc_stream(
            [pa.record_batch({"n": [0] * 1000})], pa.schema([("n", pa.int64())]), compression="lz4"
        )
    )
    body = ReceivedBody.copy(b"".join(map(bytes, message.body or ())), 0)
    compressed = open_decoder(schema_message(bytes(schema.metadata)), Limits(decoded_bytes=1))
    with pytest.raises(LimitError, match="decodes to 8000 bytes; the limit is 1"):
        compressed.decode(Message(1, bytes(message.metadata), body, BodyType.PACKED))


# Invalid values.

BROKEN = Sent(TEXT).body.replace(b"abcd", b"\xff\xff\xff\xff")
"""Text that is not UTF-8, which a full check finds."""
OUTSIDE = Sent(TEXT).body.replace(struct.pack("<3i", 0, 2, 4), struct.pack("<3i", 0, 2, 99))
"""Offsets that lead out of the text, which a cheap check finds."""
LATE = struct.pack("<2i", 90_000, 1).ljust(len(Sent(TIMES).body), b"\0")
"""A time of the day after its end, which only a strict check refuses."""

CHECKS: list[tuple[Validation, bytes, bool]] = [
    ("strict", BROKEN, True),
    ("full", BROKEN, True),
    ("cheap", BROKEN, False),
    ("off", BROKEN, False),
    ("full", OUTSIDE, True),
    ("cheap", OUTSIDE, True),
    ("off", OUTSIDE, False),
]


@pytest.mark.parametrize(("validate", "body", "is_found"), CHECKS)
def test_each_message_is_checked(validate: Validation, body: bytes, is_found: bool) -> None:
    sent = Sent(TEXT)
    for before in (0, 1, 2):
        decoder = sent.decoder(validate)
        for sequence in range(before):
            assert values_of(decoder.decode(sent.message(sequence, sent.body))) == ["ab", "cd"]
        if is_found:
            with pytest.raises(InvalidDataError, match="the data is invalid: ") as caught:
                decoder.decode(sent.message(before, body))
            assert (caught.value.stream, caught.value.sequence) == ("d", before)
        else:
            batch = decoder.decode(sent.message(before, body))
            assert batch is not None
            assert batch.num_rows == 2


@pytest.mark.parametrize(("validate", "body", "is_found"), CHECKS)
def test_each_message_of_a_run_is_checked(
    validate: Validation, body: bytes, is_found: bool
) -> None:
    sent = Sent(TEXT)
    decoder = sent.decoder(validate)
    decoder.decode(sent.message(1, sent.body))
    run, batches = sent.run(sent.body, sent.body, body, sent.body), list[pa.RecordBatch]()
    if is_found:
        with pytest.raises(InvalidDataError, match="the data is invalid: ") as caught:
            decoder.decode_run(run, batches)
        assert (caught.value.stream, caught.value.sequence) == ("d", 4)
        assert [values_of(batch) for batch in batches] == [["ab", "cd"]] * 2
    else:
        assert decoder.decode_run(run, batches) is True
        assert [batch.num_rows for batch in batches] == [2] * 4


@pytest.mark.parametrize("in_run", [False, True])
@pytest.mark.parametrize("validate", ["strict", "full", "cheap", "off"])
def test_values_outside_of_their_range_are_told_once(validate: Validation, in_run: bool) -> None:
    sent = Sent(TIMES)
    decoder = sent.decoder(validate)
    decoder.decode(sent.message(1, sent.body))

    def decode() -> None:
        if in_run:
            decoder.decode_run(sent.run(LATE, LATE), [])
        else:
            for sequence in (2, 3):
                decoder.decode(sent.message(sequence, LATE))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if validate == "strict":
            with pytest.raises(InvalidDataError, match="90000"):
                decode()
        else:
            decode()
    assert [each.category for each in told] == [InvalidValueWarning] * (validate == "full")
    for each in told:
        text = str(each.message)
        assert text.startswith("d: message 2 has values outside of the ranges of their types (")
        assert "90000" in text
        assert "\n" not in text


# Runs.


def test_a_run_is_decoded_in_its_memory() -> None:
    sent = Sent(NUMBERS)
    decoder = sent.decoder()
    decoder.decode(sent.message(1, numbers(1, 2, 3)))
    for headroom in (len(sent.head), len(sent.head) + 64):
        run = sent.run(numbers(1, 5, 6), numbers(2, 5, 6), numbers(3, 5, 6), headroom=headroom)
        batches = [NUMBERS]
        assert decoder.decode_run(run, batches) is True
        assert batches[0] is NUMBERS
        assert [values_of(batch) for batch in batches[1:]] == [[n, 5, 6] for n in (1, 2, 3)]
        for number, batch in enumerate(batches[1:]):
            memory = batch.column(0).buffers()[1]
            assert memory is not None
            assert memory.address == run.buffer.address + number * run.stride + run.start


def test_a_run_that_needs_memory_is_not_decoded() -> None:
    sent, other = Sent(NUMBERS), Sent(pa.record_batch({"n": pa.array([1, 2], pa.int32())}))
    decoder, batches = sent.decoder(), list[pa.RecordBatch]()
    run = sent.run(numbers(1, 2, 3))
    before = bytes(run.view)
    assert decoder.decode_run(run, batches) is False  # Nothing was checked yet.
    decoder.decode(sent.message(1, numbers(1, 2, 3)))
    assert decoder.decode_run(sent.run(numbers(1, 2, 3), headroom=64), batches) is False
    assert decoder.decode_run(other.run(other.body), batches) is False
    assert (batches, bytes(run.view)) == ([], before)
    assert decoder.decode_run(run, batches) is True
    assert len(batches) == 1
