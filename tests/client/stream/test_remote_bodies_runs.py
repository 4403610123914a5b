"""Runs whose bodies are in a region: read at once, or refused as their single messages are."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.regions import MemoryRegion
from helpers.streams import ipc_stream, split_messages
from splitarrow.client.stream.batch_decoder import BatchDecoder
from splitarrow.client.stream.remote_bodies import RemoteBodies
from splitarrow.errors import DatasetError, SplitArrowError
from splitarrow.formats.arrow.message import encapsulate, read_batch_layout
from splitarrow.protocol.frames import MessageRun
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import Message, expand_messages
from splitarrow.protocol.payloads import pack_spans
from splitarrow.protocol.tags import BodyType

BATCHES = [
    pa.record_batch({"n": pa.array([k, k + 1, k + 2]), "empty": pa.array(["", "", ""])})
    for k in range(20)
]
SCHEMA = BATCHES[0].schema
FIRST, *MESSAGES = split_messages(ipc_stream(BATCHES, SCHEMA))
METADATA = bytes(MESSAGES[0].metadata)
HEAD = encapsulate(METADATA)
BODIES = [b"".join(bytes(part) for part in message.body or ()) for message in MESSAGES]
LAYOUT = read_batch_layout(METADATA).buffers
PERIOD = len(HEAD) + len(BODIES[0])
FILE = bytes(64) + b"".join(HEAD + body for body in BODIES)
PAYLOADS = [
    pack_spans(
        [
            (64 + len(HEAD) + PERIOD * number + offset, length) if length else (0, 0)
            for offset, length in LAYOUT
        ]
    )
    for number in range(len(BATCHES))
]
NUMBERS = len(PAYLOADS[0]) // 8


class Returns:
    """The offsets that were leased."""

    def __init__(self) -> None:
        self.granted: list[int] = []

    def lease(self, offsets: tuple[int, ...]) -> Any:
        self.granted += offsets
        return object()


def make_run(payloads: list[bytes], region: Any) -> MessageRun:
    """Return a run of bodies of offsets, with numbers from 2."""
    nbytes = len(payloads[0])
    memory = pa.allocate_buffer(len(payloads) * MessageRun.stride_of(nbytes, 0))
    run = MessageRun(2, METADATA, nbytes, 0, len(payloads), memory, BodyType.OFFSETS)
    for number, payload in enumerate(payloads):
        begin = run.start + number * run.stride
        run.view[begin : begin + nbytes] = payload
    run.region = region
    return run


def make_decoder(region: Any) -> tuple[BatchDecoder, Returns]:
    """Return a decoder that has decoded one message of the region."""
    returns: Any = Returns()
    first = Message(0, bytes(FIRST.metadata), None, BodyType.PACKED)
    bodies = RemoteBodies(returns, DEFAULT_LIMITS)
    decoder = BatchDecoder(SCHEMA, first, DEFAULT_LIMITS, "full", "x", bodies)
    (message,) = expand_messages([make_run(PAYLOADS[:1], region)])
    assert decoder.decode(message) == BATCHES[0]
    returns.granted.clear()
    return decoder, returns


def decode_one_by_one(run: MessageRun, decoder: BatchDecoder) -> list[pa.RecordBatch | None]:
    return [decoder.decode(message) for message in expand_messages([run])]


def test_a_run_is_read_and_leased_as_a_whole() -> None:
    region = MemoryRegion(FILE)
    decoder, returns = make_decoder(region)
    run = make_run(PAYLOADS[1:], region)
    batches: list[pa.RecordBatch] = []
    assert decoder.decode_run(run, batches)
    assert batches == BATCHES[1:]
    leased, returns.granted = sorted(returns.granted), []
    assert decode_one_by_one(run, decoder) == BATCHES[1:]
    assert leased == sorted(returns.granted)
    for batch in batches:
        values = batch["n"].buffers()[1]
        assert values is not None
        assert 0 <= values.address - region.data.address < region.size


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(PAYLOADS) - 2),
            st.integers(0, NUMBERS - 1),
            st.sampled_from([0, 1, 8, 64, PERIOD, 1 << 32, 1 << 63, (1 << 64) - 8]),
        ),
        max_size=3,
    )
)
@example([(number, 2 + 2 * 1, 8) for number in range(19)])
def test_a_run_with_any_numbers_is_read_as_its_messages_are(
    changes: list[tuple[int, int, int]],
) -> None:
    payloads = [bytearray(payload) for payload in PAYLOADS[1:]]
    for row, column, value in changes:
        (number,) = struct.unpack_from("<Q", payloads[row], 8 * column)
        struct.pack_into("<Q", payloads[row], 8 * column, (number + value) % (1 << 64))
    region = MemoryRegion(FILE)
    decoder, returns = make_decoder(region)
    run = make_run([bytes(payload) for payload in payloads], region)
    batches: list[pa.RecordBatch] = []
    if decoder.decode_run(run, batches):
        assert batches == BATCHES[1:]
        assert decode_one_by_one(run, decoder) == batches
    else:
        assert (batches, returns.granted) == ([], [])


def test_messages_at_other_distances_are_read_one_by_one() -> None:
    forward = list(range(1, 20))
    for order in ([2, 1, *forward[2:]], [*forward, 1], [1] * 19, forward[::-1], forward[:15]):
        region = MemoryRegion(FILE)
        decoder, returns = make_decoder(region)
        run = make_run([PAYLOADS[number] for number in order], region)
        assert not decoder.decode_run(run, [])
        assert returns.granted == []
        assert decode_one_by_one(run, decoder) == [BATCHES[number] for number in order]


@pytest.mark.parametrize("number", [1, 10, 19])
def test_messages_without_their_metadata_in_front_are_read_one_by_one(number: int) -> None:
    data = bytearray(FILE)
    data[64 + PERIOD * number + 12] ^= 1
    region = MemoryRegion(bytes(data))
    decoder, returns = make_decoder(region)
    run = make_run(PAYLOADS[1:], region)
    assert not decoder.decode_run(run, [])
    assert returns.granted == []
    assert decode_one_by_one(run, decoder) == BATCHES[1:]


@pytest.mark.parametrize("missing", [1, 8, PERIOD])
def test_a_run_beyond_its_region_is_refused(missing: int) -> None:
    region = MemoryRegion(FILE[:-missing])
    decoder, returns = make_decoder(region)
    run = make_run(PAYLOADS[1:], region)
    assert not decoder.decode_run(run, [])
    assert returns.granted == []
    with pytest.raises(SplitArrowError, match="outside the region"):
        decode_one_by_one(run, decoder)


def test_a_run_of_a_changed_region_names_its_first_message() -> None:
    region = MemoryRegion(FILE)
    decoder, _ = make_decoder(region)
    region.has_changed = True
    with pytest.raises(DatasetError, match="changed") as caught:
        decoder.decode_run(make_run(PAYLOADS[1:], region), [])
    assert (caught.value.stream, caught.value.sequence) == ("x", 2)


def test_offsets_without_a_region_are_no_run() -> None:
    decoder, _ = make_decoder(MemoryRegion(FILE))
    assert not decoder.decode_run(make_run(PAYLOADS[1:], None), [])
