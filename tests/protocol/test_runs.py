"""Runs: consecutive small messages that differ only in sequence number and data."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from helpers.framing import plain, push
from helpers.streams import encode_wire_bytes, ipc_stream, list_frames, split_messages
from splitarrow.client.stream.decoders import FORMATS, open_decoder
from splitarrow.errors import InvalidDataError, InvalidValueWarning, ProtocolError
from splitarrow.protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    TaggedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.memory import ARENA_BYTES, SMALL_BODY_BYTES
from splitarrow.protocol.messages import (
    PREFIX,
    Message,
    MetadataType,
    expand_frames,
    expand_messages,
    pack_metadata,
)
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.splitter import Splitter
from splitarrow.protocol.tags import MAX_SEQUENCE
from splitarrow.transport.frame_decoder import FrameDecoder
from splitarrow.transport.framing import HEADER, PREFACE, encode_frames

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def batches(count: int) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = []
    for k in range(count):
        columns = [pa.array([k, k + 1, k + 2]), pa.array([f"{k % 10}", "bb", "ccc"])]
        made.append(pa.record_batch(columns, schema=SCHEMA))
    return made


def wire(count: int, first: int = 0) -> bytes:
    """Return the bytes of a stream of `count` batches whose metadata is the same."""
    splitter = Splitter(first_sequence=first)
    frames = splitter.split(split_messages(ipc_stream(batches(count), SCHEMA)))
    return PREFACE + b"".join(bytes(part) for part in encode_frames([*frames, *splitter.end()]))


def received(data: bytes, most: int = 1 << 30) -> list[IncomingFrame]:
    decoder = FrameDecoder(DEFAULT_LIMITS)
    push(decoder, data, most)
    return decoder.take()


def runs_of(frames: list[IncomingFrame]) -> list[MessageRun]:
    return [frame for frame in frames if isinstance(frame, MessageRun)]


def test_similar_messages_form_a_run() -> None:
    (run,) = runs_of(received(wire(20)))
    assert run.sequence == 2
    assert run.count == 19
    assert run.buffer.address % 64 == 0
    assert run.start % 64 == run.stride % 64 == 0


@pytest.mark.parametrize(("messages", "runs"), [(1, []), (2, []), (3, [(2, 2)]), (4, [(2, 3)])])
def test_a_run_has_two_messages_or_more(messages: int, runs: list[tuple[int, int]]) -> None:
    assert [(run.sequence, run.count) for run in runs_of(received(wire(messages)))] == runs


@pytest.mark.parametrize("missing", [2, 3])
def test_a_single_message_before_a_gap_is_no_run(missing: int) -> None:
    data = wire(4)
    gap = slice(place_of(data, missing), place_of(data, missing + 1))
    assert runs_of(received(data[: gap.start] + data[gap.stop :])) == []


@pytest.mark.parametrize("most", [1, 7, 100, 1000, 5000])
def test_a_run_equals_its_frames(most: int) -> None:
    data = wire(40)
    assert plain(received(data, most)) == plain(received(data, 1))


def test_a_run_shares_no_more_memory_than_small_bodies_do() -> None:
    runs = runs_of(received(wire(1000)))
    assert sum(run.count for run in runs) >= 990
    assert len(runs) > 1
    assert all(run.buffer.size <= ARENA_BYTES for run in runs)


def test_metadata_that_differs_ends_a_run() -> None:
    some = batches(10)
    some[5] = pa.record_batch([pa.array([1, None, 3]), some[5]["text"]], schema=SCHEMA)
    frames = received(encode_wire_bytes(list_frames(split_messages(ipc_stream(some, SCHEMA)))))
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [(2, 4), (8, 3)]


def test_a_run_ends_where_the_numbers_roll_over() -> None:
    frames = received(wire(20, first=MAX_SEQUENCE - 9))
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [
        (MAX_SEQUENCE - 7, 8),
        (1, 10),
    ]
    reassembler = Reassembler(FORMATS, first_sequence=MAX_SEQUENCE - 9)
    ready: list[Message | MessageRun] = []
    reassembler.feed(frames, ready)
    assert reassembler.finished
    assert [message.sequence for message in expand_messages(ready)][-10:] == list(range(1, 11))


def place_of(data: bytes, sequence: int) -> int:
    """Return the offset of the frame with the metadata of a message."""
    at = len(PREFACE)
    while True:
        kind, length, _ = HEADER.unpack_from(data, at)
        if kind == 0 and PREFIX.unpack_from(data, at + HEADER.size) == (1, sequence):
            return at
        at += HEADER.size + length


@pytest.mark.parametrize("what", ["tag", "kind"])
def test_an_invalid_message_after_a_run_is_refused_with_its_number(what: str) -> None:
    data = bytearray(wire(20))
    at = place_of(bytes(data), 9)
    length = HEADER.unpack_from(data, at)[1]
    if what == "tag":
        struct.pack_into("<Q", data, at + HEADER.size + length + 16, 1 << 40 | 9)
    else:
        data[at + HEADER.size] = 77
    reassembler = Reassembler(FORMATS)
    ready: list[Message | MessageRun] = []
    with pytest.raises(ProtocolError) as caught:
        reassembler.feed(received(bytes(data)), ready)
    assert len(list(expand_messages(ready))) == 9
    assert caught.value.sequence == 9


def test_a_gap_within_a_run_is_detected() -> None:
    data = bytearray(wire(20))
    at = place_of(bytes(data), 9)
    struct.pack_into("<I", data, at + HEADER.size + 1, 3)  # as one that came
    reassembler = Reassembler(FORMATS)
    ready: list[Message | MessageRun] = []
    reassembler.feed(received(bytes(data)), ready)
    assert len(list(expand_messages(ready))) == 9
    assert reassembler.duplicates == 1
    assert not reassembler.finished
    assert reassembler.missing() == "the metadata of message 9"


@pytest.mark.parametrize("arrangement", ["early", "twice", "swapped"])
def test_runs_may_arrive_in_any_order(arrangement: str) -> None:
    frames = received(wire(60))
    at = next(k for k, frame in enumerate(frames) if isinstance(frame, MessageRun))
    run = frames[at]
    if arrangement == "early":
        frames.insert(1, frames.pop(at))
    elif arrangement == "twice":
        frames.insert(at, run)
    else:
        singles = list(expand_frames([run]))
        frames[at : at + 1] = singles[::-1]
    reassembler = Reassembler(FORMATS)
    ready: list[Message | MessageRun] = []
    reassembler.feed(frames, ready)
    assert reassembler.finished
    messages = list(expand_messages(ready))
    assert [message.sequence for message in messages] == list(range(61))
    decoder = open_decoder(messages[0], DEFAULT_LIMITS)
    assert [decoder.decode(message) for message in messages[1:]] == batches(60)
    assert reassembler.duplicates == (118 if arrangement == "twice" else 0)


def test_a_run_that_is_due_is_delivered_whole() -> None:
    frames = received(wire(60))
    ready: list[Message | MessageRun] = []
    Reassembler(FORMATS).feed(frames, ready)
    assert [item for item in ready if isinstance(item, MessageRun)] == runs_of(frames) != []


@pytest.mark.parametrize("validate", ["full", "cheap", "off"])
def test_a_run_decodes_to_its_batches(validate: str) -> None:
    frames = received(wire(500))
    reassembler = Reassembler(FORMATS)
    ready: list[Message | MessageRun] = []
    reassembler.feed(frames, ready)
    first = ready[0]
    assert isinstance(first, Message)
    decoder = open_decoder(first, DEFAULT_LIMITS, validate)  # pyright: ignore[reportArgumentType]
    got: list[pa.RecordBatch] = []
    for item in ready[1:]:
        if isinstance(item, MessageRun):
            assert decoder.decode_run(item, got)
        else:
            batch = decoder.decode(item)
            assert batch is not None
            got.append(batch)
    assert got == batches(500)
    assert all(
        buffer.address % 64 == 0
        for batch in got
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size % 64 == 0
    )


def test_bad_data_within_a_run_is_refused_with_its_number() -> None:
    frames = received(wire(30))
    run = runs_of(frames)[0]
    body = run.body(10)
    offsets = body.view[body.start + 24 :]  # those of the column text
    struct.pack_into("<4i", offsets, 0, 0, 1, 99_999, 6)
    reassembler = Reassembler(FORMATS)
    ready: list[Message | MessageRun] = []
    reassembler.feed(frames, ready)
    first, second = ready[0], ready[1]
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    decoder = open_decoder(first, DEFAULT_LIMITS, "full")
    decoder.decode(second)
    got: list[pa.RecordBatch] = []
    with pytest.raises(InvalidDataError) as caught:
        decoder.decode_run(run, got)
    assert got == batches(30)[1:11]
    assert caught.value.sequence == run.sequence + 10


@pytest.mark.parametrize(("validate", "is_refused"), [("strict", True), ("full", False)])
def test_values_within_a_run_are_checked(validate: Any, is_refused: bool) -> None:
    """A date64 is a whole day, in milliseconds."""
    days = [pa.record_batch({"d": pa.array([day, day], pa.date32())}) for day in range(30)]
    days = [batch.cast(pa.schema([("d", pa.date64())])) for batch in days]
    data = encode_wire_bytes(list_frames(split_messages(ipc_stream(days, days[0].schema))))
    frames = received(data)
    run = runs_of(frames)[0]
    body = run.body(10)
    struct.pack_into("<q", body.view[body.start :], 0, 1)
    ready: list[Message | MessageRun] = []
    Reassembler(FORMATS).feed(frames, ready)
    first, second = ready[0], ready[1]
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    decoder = open_decoder(first, DEFAULT_LIMITS, validate)
    decoder.decode(second)
    got: list[pa.RecordBatch] = []
    if is_refused:
        with pytest.raises(InvalidDataError) as caught:
            decoder.decode_run(run, got)
        assert caught.value.sequence == run.sequence + 10
    else:
        with pytest.warns(InvalidValueWarning, match=f"message {run.sequence + 10} has values"):
            decoder.decode_run(run, got)
    assert len(got) == (10 if is_refused else run.count)


def crafted(kind: int, metadata: bytes, nbytes: int, count: int = 4) -> list[IncomingFrame]:
    """Return what is received of equal messages, with numbers from 1."""
    frames: list[OutgoingFrame] = []
    for number in range(1, count + 1):
        frames.append(UntaggedFrame(pack_metadata(kind, number, metadata)))
        frames.append(TaggedFrame(number, nbytes, [bytes(nbytes)]))
    return received(PREFACE + b"".join(bytes(part) for part in encode_frames(frames)))


@pytest.mark.parametrize("headroom", [0, 1])
def test_bodies_form_a_run_if_they_are_small_with_their_headroom(headroom: int) -> None:
    metadata = bytes(61 + headroom)  # its prefix has 3 bytes more in Arrow IPC
    nbytes = SMALL_BODY_BYTES - 3 - 5 - len(metadata)
    (run,) = runs_of(crafted(MetadataType.ARROW, metadata, nbytes))
    assert (run.sequence, run.count, run.nbytes, run.metadata) == (2, 3, nbytes, metadata)
    assert run.start == 128
    (run,) = runs_of(crafted(MetadataType.ARROW, metadata, nbytes + 1))
    assert (run.sequence, run.count) == (3, 2)  # Larger ones are expected after two of them.


def test_only_messages_of_arrow_with_metadata_form_runs() -> None:
    assert len(runs_of(crafted(MetadataType.ARROW, b"m", 8))) == 1
    assert runs_of(crafted(MetadataType.VORTEX, b"m", 8)) == []
    assert runs_of(crafted(MetadataType.ARROW, b"", 8)) == []


def test_a_run_holds_no_more_than_small_bodies_share() -> None:
    stride = MessageRun.stride_of(4000, 1 + 5 + 3)
    runs = runs_of(crafted(MetadataType.ARROW, b"m", 4000, 60))
    assert max(run.count for run in runs) == ARENA_BYTES // stride
    assert all(run.buffer.size == run.count * stride for run in runs)
