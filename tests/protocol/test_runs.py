"""Runs: small messages alike that came back to back, taken as one."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from splitarrow.client.decoder import BatchDecoder
from splitarrow.errors import InvalidDataError, ProtocolError
from splitarrow.protocol.frames import SHARED_BYTES, Incoming, Run
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import PREFIX, Message, single_frames, single_messages
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.sequence import LAST
from splitarrow.protocol.splitter import Splitter
from splitarrow.transport.framing import HEADER, PREFACE, FrameDecoder, encode

from .streams import cut, frames_of, ipc_stream, on_the_wire
from .test_framing import plain, push

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
    frames = splitter.split(cut(ipc_stream(batches(count), SCHEMA)))
    return PREFACE + b"".join(bytes(part) for part in encode([*frames, *splitter.end()]))


def received(data: bytes, most: int = 1 << 30) -> list[Incoming]:
    decoder = FrameDecoder(DEFAULT_LIMITS)
    push(decoder, data, most)
    return decoder.take()


def runs_of(frames: list[Incoming]) -> list[Run]:
    return [frame for frame in frames if isinstance(frame, Run)]


def test_messages_alike_become_a_run() -> None:
    (run,) = runs_of(received(wire(20)))
    assert run.sequence == 2
    assert run.count == 19
    assert run.buffer.address % 64 == 0
    assert run.start % 64 == run.stride % 64 == 0


@pytest.mark.parametrize("most", [1, 7, 100, 1000, 5000])
def test_a_run_says_what_its_frames_say(most: int) -> None:
    data = wire(40)
    assert plain(received(data, most)) == plain(received(data, 1))


def test_a_run_shares_no_more_memory_than_small_bodies_do() -> None:
    runs = runs_of(received(wire(1000)))
    assert sum(run.count for run in runs) >= 990
    assert len(runs) > 1
    assert all(run.buffer.size <= SHARED_BYTES for run in runs)


def test_metadata_that_differs_ends_a_run() -> None:
    some = batches(10)
    some[5] = pa.record_batch([pa.array([1, None, 3]), some[5]["text"]], schema=SCHEMA)
    frames = received(on_the_wire(frames_of(cut(ipc_stream(some, SCHEMA)))))
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [(2, 4), (8, 3)]


def test_a_run_ends_where_the_numbers_roll_over() -> None:
    frames = received(wire(20, first=LAST - 9))
    assert [(run.sequence, run.count) for run in runs_of(frames)] == [(LAST - 7, 8), (1, 10)]
    reassembler = Reassembler(first_sequence=LAST - 9)
    ready: list[Message | Run] = []
    reassembler.feed(frames, ready)
    assert reassembler.finished
    assert [message.sequence for message in single_messages(ready)][-10:] == list(range(1, 11))


def place_of(data: bytes, sequence: int) -> int:
    """Return where the frame with the metadata of a message begins."""
    at = len(PREFACE)
    while True:
        kind, length, _ = HEADER.unpack_from(data, at)
        if kind == 0 and PREFIX.unpack_from(data, at + HEADER.size) == (1, sequence):
            return at
        at += HEADER.size + length


@pytest.mark.parametrize("what", ["tag", "kind"])
def test_what_breaks_a_run_is_refused_with_its_number(what: str) -> None:
    data = bytearray(wire(20))
    at = place_of(bytes(data), 9)
    length = HEADER.unpack_from(data, at)[1]
    if what == "tag":
        struct.pack_into("<Q", data, at + HEADER.size + length + 16, 1 << 40 | 9)
    else:
        data[at + HEADER.size] = 77
    reassembler = Reassembler()
    ready: list[Message | Run] = []
    with pytest.raises(ProtocolError) as caught:
        reassembler.feed(received(bytes(data)), ready)
    assert len(list(single_messages(ready))) == 9
    assert caught.value.sequence == 9


def test_a_number_missing_within_a_run_is_missed() -> None:
    data = bytearray(wire(20))
    at = place_of(bytes(data), 9)
    struct.pack_into("<I", data, at + HEADER.size + 1, 3)  # as one that came
    reassembler = Reassembler()
    ready: list[Message | Run] = []
    reassembler.feed(received(bytes(data)), ready)
    assert len(list(single_messages(ready))) == 9
    assert reassembler.duplicates == 1
    assert not reassembler.finished
    assert reassembler.missing() == "the metadata of message 9"


@pytest.mark.parametrize("arrangement", ["early", "twice", "swapped"])
def test_runs_need_no_order(arrangement: str) -> None:
    frames = received(wire(60))
    at = next(k for k, frame in enumerate(frames) if isinstance(frame, Run))
    run = frames[at]
    if arrangement == "early":
        frames.insert(1, frames.pop(at))
    elif arrangement == "twice":
        frames.insert(at, run)
    else:
        singles = list(single_frames([run]))
        frames[at : at + 1] = singles[::-1]
    reassembler = Reassembler()
    ready: list[Message | Run] = []
    reassembler.feed(frames, ready)
    assert reassembler.finished
    messages = list(single_messages(ready))
    assert [message.sequence for message in messages] == list(range(61))
    decoder = BatchDecoder(messages[0], DEFAULT_LIMITS)
    assert [decoder.decode(message) for message in messages[1:]] == batches(60)
    assert reassembler.duplicates == (118 if arrangement == "twice" else 0)


@pytest.mark.parametrize("validate", ["full", "cheap", "off"])
def test_a_run_decodes_to_its_batches(validate: str) -> None:
    frames = received(wire(500))
    reassembler = Reassembler()
    ready: list[Message | Run] = []
    reassembler.feed(frames, ready)
    first = ready[0]
    assert isinstance(first, Message)
    decoder = BatchDecoder(first, DEFAULT_LIMITS, validate)  # pyright: ignore[reportArgumentType]
    got: list[pa.RecordBatch] = []
    for item in ready[1:]:
        if isinstance(item, Run):
            decoder.decode_run(item, got)
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
    reassembler = Reassembler()
    ready: list[Message | Run] = []
    reassembler.feed(frames, ready)
    first, second = ready[0], ready[1]
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    decoder = BatchDecoder(first, DEFAULT_LIMITS, "full")
    decoder.decode(second)
    got: list[pa.RecordBatch] = []
    with pytest.raises(InvalidDataError) as caught:
        decoder.decode_run(run, got)
    assert got == batches(30)[1:11]
    assert caught.value.sequence == run.sequence + 10
