"""Damaged inputs for each parser, in a process of its own with little memory.

    python -m tests.property.mutations PARSER --seed N --count N [--start N] [--place FILE]

Input number i of a seed is always the same, so that a failure, a crash included, can be run again
by itself: FILE holds the number of the input at hand. The exit status is 0 if each input was
either read or refused by the parser's own kind of error, within a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import random
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from splitarrow.client.decoder import BatchDecoder
from splitarrow.errors import (
    InvalidRequestError,
    ProtocolError,
    SplitArrowError,
    UriError,
)
from splitarrow.formats.arrow.bounds import survey_custom_metadata, survey_schema
from splitarrow.formats.arrow.message import (
    batch_facts,
    batch_traits,
    decoded_bytes,
    message_facts,
    parse_prefix,
    schema_endianness,
)
from splitarrow.formats.arrow.schema import read_schema
from splitarrow.protocol.bodies import pack_offsets, pack_spans, parse_offsets, parse_spans
from splitarrow.protocol.frames import Outgoing, Run, Tagged, Untagged
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import (
    Message,
    failure_payload,
    metadata_message,
    parse_failure,
    parse_metadata_prefix,
)
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.protocol.tags import parse_body_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.framing import FrameDecoder

from ..protocol.crafting import BIG, RECORD_BATCH, Crafter, plain_batch, schema_of_ints
from ..protocol.streams import cut, frames_of, ipc_stream, on_the_wire
from ..protocol.test_framing import push
from .arrow_data import arrays_of_all_types

MEMORY = 2 << 30
SECONDS = 1.0
_NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 24),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 1, (1 << 64) - 8),
]


# Damage.


def overwrite(data: bytearray, rng: random.Random) -> None:
    """Change some bytes in place."""
    width = rng.choice((1, 1, 1, 2, 4, 8))
    if len(data) < width:
        return
    at = rng.randrange(len(data) - width + 1)
    if rng.random() < 0.5:
        at -= at % width
    old = int.from_bytes(data[at : at + width], "little")
    new = rng.choice(
        (old ^ 1 << rng.randrange(8 * width), rng.choice(_NUMBERS), old + rng.randint(-9, 9))
    )
    data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")


def rearrange(data: bytearray, rng: random.Random) -> None:
    """Cut, delete, insert or repeat a stretch."""
    at = rng.randrange(len(data) + 1)
    length = rng.choice((1, 2, 4, 8, 16, rng.randrange(200)))
    match rng.randrange(4):
        case 0:
            del data[at:]
        case 1:
            del data[at : at + length]
        case 2:
            data[at:at] = rng.randbytes(length)
        case _:
            data[at:at] = data[at : at + length]


def damaged(data: bytes, rng: random.Random, *, keep_length: bool = False) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if keep_length or rng.random() < 0.7:
            overwrite(changed, rng)
        else:
            rearrange(changed, rng)
    return bytes(changed)


# What is damaged.


class Sample(NamedTuple):
    """A valid stream: its frames, and what they decode to."""

    frames: list[Outgoing]
    batches: list[pa.RecordBatch]


def _batches() -> list[list[pa.RecordBatch]]:
    arrays = arrays_of_all_types()
    groups = [
        ["int32", "double", "bool"],
        ["string", "large_binary", "fixed_size_binary"],
        ["list", "struct", "map"],
        ["fixed_size_list", "list of struct"],
        ["string_view", "binary_view"],
        ["list_view", "large_list_view"],
        ["sparse_union", "dense_union", "null"],
        ["run_end_encoded by int32", "decimal128(20, 2)"],
        ["dictionary by int8", "dictionary of list of dictionary"],
        ["dense_union of dictionary", "dictionary of struct", "struct of nothing"],
        ["extension uuid", "extension json"],
        ["timestamp[us, tz=Europe/Zurich]", "month_day_nano_interval", "time64[ns]"],
    ]
    made: list[list[pa.RecordBatch]] = []
    for names in groups:
        batch = pa.record_batch([arrays[name] for name in names], names=names)
        made.append([batch, batch.slice(1, 2), batch])
    texts = [["a"], ["a", "b"], ["a", "b", "c", None]]
    made.append([pa.record_batch([pa.array(t).dictionary_encode()], names=["d"]) for t in texts])
    made.append([pa.record_batch([pa.array(["x" * 50, None] * 40)], names=["long"])] * 2)
    return made


def _crafted() -> list[list[SourceMessage]]:
    swapped = [SourceMessage(schema_of_ints(["n"], endianness=BIG), None)]
    body = struct.pack(">6i", *range(6))
    swapped.append(SourceMessage(plain_batch(6, [(0, 0), (0, 24)], 24), [body], 24))
    crafter = Crafter()
    pairs = crafter.vector([crafter.pair(crafter.text("key"), crafter.text("value"))])
    header = crafter.batch(2, [(2, 0)], [(0, 0), (0, 8)])
    annotated = crafter.message(RECORD_BATCH, header, 8, custom_metadata=pairs)
    schema = SourceMessage(schema_of_ints(["n"]), None)
    return [swapped, [schema, SourceMessage(annotated, [b"\1\0\0\0\2\0\0\0"], 8)]]


def samples() -> list[Sample]:
    """Return valid streams of many types, compressed or not."""
    streams = list(_crafted())
    for index, batches in enumerate(_batches()):
        for compression in (None, "lz4", "zstd") if index % 3 == 0 else (None,):
            stream = ipc_stream(
                batches,
                batches[0].schema,
                compression=compression,
                emit_dictionary_deltas=index % 2 == 0,
            )
            streams.append(cut(stream))
    made: list[Sample] = []
    for messages in streams:
        frames = frames_of(messages)
        finished, batches = receive(on_the_wire(frames), 1 << 30)
        assert finished
        made.append(Sample(frames, batches))
    return made


def receive(data: bytes, most: int) -> tuple[bool, list[pa.RecordBatch]]:
    """Read a stream as a reader does; tell whether its end is proven."""
    frames, reassembler = FrameDecoder(DEFAULT_LIMITS), Reassembler(stream="s")
    decoder: BatchDecoder | None = None
    batches: list[pa.RecordBatch] = []
    view = memoryview(data)
    for position in range(0, len(data), most):
        push(frames, bytes(view[position : position + most]))
        ready: list[Message | Run] = []
        reassembler.feed(frames.take(), ready)
        for message in ready:
            if isinstance(message, Run):
                assert decoder is not None
                decoder.decode_run(message, batches)
                continue
            if decoder is None:
                decoder = BatchDecoder(message, DEFAULT_LIMITS, "full", "s")
                continue
            batch = decoder.decode(message)
            if batch is not None:
                batches.append(batch)
    if reassembler.failure is not None:
        raise reassembler.failure
    return reassembler.finished, batches


def payload_of(frame: Outgoing) -> bytes:
    return frame.payload if isinstance(frame, Untagged) else b"".join(map(bytes, frame.parts))


def with_payload(frame: Outgoing, payload: bytes) -> Outgoing:
    if isinstance(frame, Untagged):
        return Untagged(payload)
    return Tagged(frame.tag, len(payload), [payload])


# The parsers.

Case = Callable[[random.Random], None]
"""Damages an input, reads it, and asserts what has to hold if it could be read."""


def stream_case() -> Case:
    chosen = samples()

    def run(rng: random.Random) -> None:
        sample = rng.choice(chosen)
        frames = list(sample.frames)
        how = rng.random()
        same = False
        if how < 0.6:  # a message is changed and keeps its size
            at = rng.randrange(len(frames))
            changed = damaged(payload_of(frames[at]), rng, keep_length=rng.random() < 0.8)
            frames[at] = with_payload(frames[at], changed)
        elif how < 0.75:  # whole frames go missing, come twice, or move
            same = True
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(frames))
                frame = frames.pop(at) if rng.random() < 0.6 else frames[at]
                if rng.random() < 0.7:
                    frames.insert(rng.randrange(len(frames) + 1), frame)
        data = on_the_wire(frames)
        if how >= 0.75:  # anything
            data = damaged(data, rng)
        most = rng.choice((1 << 30, 1 << 30, 1000, 100))
        finished, batches = receive(data, most)
        for batch in batches:
            batch.validate(full=True)
            batch.serialize()
        if same and finished:
            assert len(batches) == len(sample.batches), "a short result reported as success"
            pairs = zip(batches, sample.batches, strict=True)
            assert all(batch.equals(other) for batch, other in pairs), "another result"

    return run


def schema_case() -> Case:
    metadata = [payload_of(sample.frames[0])[5:] for sample in samples()]
    metadata.append(all_types_schema())

    def run(rng: random.Random) -> None:
        data = damaged(rng.choice(metadata), rng)
        schema = read_schema(data)
        str(schema)
        survey_schema(data)
        schema_endianness(data)

    return run


def all_types_schema() -> bytes:
    arrays = arrays_of_all_types()
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    return bytes(cut(schema.serialize().to_pybytes())[0].metadata)


def facts_case() -> Case:
    metadata = [payload_of(f)[5:] for s in samples() for f in s.frames if isinstance(f, Untagged)]
    bodies = [payload_of(f) for s in samples() for f in s.frames if isinstance(f, Tagged)]
    readers: list[Callable[[bytes], object]] = [
        message_facts,
        batch_traits,
        schema_endianness,
        survey_schema,
        survey_custom_metadata,
        parse_prefix,
    ]

    def run(rng: random.Random) -> None:
        data = damaged(rng.choice(metadata), rng)
        if rng.random() < 0.05:
            data = rng.randbytes(rng.randrange(300))
        for read in readers:
            with contextlib.suppress(ProtocolError):
                read(data)
        facts = batch_facts(data, max_buffers=1000)
        assert len(facts.buffers) <= 1000
        decoded_bytes(facts, memoryview(rng.choice(bodies)))

    return run


def messages_case() -> Case:
    good = [
        metadata_message(0, 7),
        metadata_message(1, 7, b"x" * 20),
        metadata_message(2, 1, failure_payload("NOT_FOUND", "no such dataset")),
    ]

    def run(rng: random.Random) -> None:
        data = damaged(rng.choice(good), rng)
        with contextlib.suppress(ProtocolError):
            parse_body_tag(int.from_bytes(rng.randbytes(8), "little"))
        with contextlib.suppress(ProtocolError):
            assert isinstance(parse_failure(data[5:]), SplitArrowError)
        parse_metadata_prefix(data)

    return run


def bodies_case() -> Case:
    spans = pack_spans([(0, 0), (0, 64), (64, 100), (4000, 96)])
    offsets = pack_offsets(range(20))

    def run(rng: random.Random) -> None:
        with contextlib.suppress(ProtocolError):
            parse_offsets(damaged(offsets, rng), limit=20)
        found = parse_spans(damaged(spans, rng), region_size=4096, expected=4)
        assert len(found) == 4
        assert all(0 <= at <= at + length <= 4096 for at, length in found)

    return run


def uri_case() -> Case:
    good = [
        "tcp://host:8816?want_data=0x10000000001&free_data=7&ticket=flights",
        "shm:///run/a%20socket?want_data=1&remote_handle=AAECAw&stream=body&x=y",
        "tcp://[::1]:5?want_data=18446744073709551615&stream=metadata",
    ]

    def run(rng: random.Random) -> None:
        text = damaged(rng.choice(good).encode(), rng).decode(errors="surrogateescape")
        uri = DataUri.parse(text)
        assert DataUri.parse(str(uri)) == uri
        assert "sesame" not in uri.redacted()

    return run


def ticket_case() -> Case:
    good = [
        b"flights",
        b'{"dataset": "flights", "columns": ["a", "b"], "limit": 10, "batch_rows": 5}',
        b'{"dataset": "x", "compression": "zstd", "format": "arrow", "limit": null}',
    ]

    def run(rng: random.Random) -> None:
        request = Request.parse(damaged(rng.choice(good), rng))
        assert Request.parse(request.ticket()) == request

    return run


PARSERS: dict[str, tuple[Callable[[], Case], type[SplitArrowError]]] = {
    "stream": (stream_case, SplitArrowError),
    "schema": (schema_case, ProtocolError),
    "facts": (facts_case, ProtocolError),
    "messages": (messages_case, ProtocolError),
    "bodies": (bodies_case, ProtocolError),
    "uri": (uri_case, UriError),
    "ticket": (ticket_case, InvalidRequestError),
}


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("parser", choices=PARSERS)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--start", type=int, default=0)
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument("--place")
    options = arguments.parse_args()
    make, refusal = PARSERS[options.parser]
    place = bytearray(8)
    if options.place:
        with open(options.place, "r+b") as file:
            place = mmap.mmap(file.fileno(), 8)
    case = make()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for number in range(options.start, options.start + options.count):
        place[:8] = number.to_bytes(8, "little")
        rng = random.Random(f"{options.seed} {number}")
        begin = time.thread_time()
        try:
            case(rng)
        except refusal as error:
            outcomes[type(error).__name__] += 1
        except BaseException:
            traceback.print_exc()
            print(
                f"input {number} of seed {options.seed}: not an error of its kind", file=sys.stderr
            )
            return 1
        else:
            outcomes["read"] += 1
        taken = time.thread_time() - begin
        slowest = max(slowest, taken)
        if taken > SECONDS:
            print(f"input {number} of seed {options.seed}: {taken:.1f} s", file=sys.stderr)
            return 1
    print(json.dumps({"slowest": slowest, "outcomes": outcomes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
