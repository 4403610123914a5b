"""Damaged inputs for each parser, in a separate process with little memory.

    python -m helpers.mutations PARSER --seed N --count N [--start N] [--place FILE]

Input number i of a seed is always the same, so that a failure, a crash included, can be run again
alone: FILE contains the number of the current input. The exit status is 0 if each input was
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
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from helpers.arrow_data import make_arrays_of_all_types
from helpers.crafting import BIG, RECORD_BATCH, Crafter, plain_batch, schema_of_ints
from helpers.damage import damaged
from helpers.framing import push
from helpers.message_mutations import make_checker_case
from helpers.streams import encode_wire_bytes, ipc_stream, list_frames, split_messages
from helpers.vortex_mutations import KINDS as VORTEX_KINDS
from helpers.vortex_mutations import make_case as make_vortex_case
from splitarrow.client.stream.decoders import FORMATS, Decoder, open_decoder
from splitarrow.errors import (
    InvalidRequestError,
    InvalidValueWarning,
    ProtocolError,
    SplitArrowError,
    UriError,
)
from splitarrow.formats.arrow.decoding import validate_memory
from splitarrow.formats.arrow.message import (
    parse_prefix,
    read_batch_layout,
    read_batch_table,
    read_endianness,
    read_message_info,
)
from splitarrow.formats.arrow.metadata_limits import survey_custom_metadata, survey_schema
from splitarrow.formats.arrow.schema import read_schema
from splitarrow.protocol.frames import MessageRun, OutgoingFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.messages import (
    Message,
    expand_messages,
    pack_failure,
    pack_metadata,
    parse_failure,
    parse_metadata_prefix,
)
from splitarrow.protocol.payloads import pack_offsets, pack_spans, parse_offsets, parse_spans
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.request import Request
from splitarrow.protocol.splitter import SourceMessage
from splitarrow.protocol.tags import parse_body_tag
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.frame_decoder import FrameDecoder

MEMORY = 2 << 30
LARGE = 5
"""How often the sample of large messages counts, which are received as runs."""
SECONDS = 1.0


# What is damaged.


class Sample(NamedTuple):
    """A valid stream: its frames and the batches that they decode to."""

    frames: list[OutgoingFrame]
    batches: list[pa.RecordBatch]


def _batches() -> list[list[pa.RecordBatch]]:
    arrays = make_arrays_of_all_types()
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
    made += LARGE * [
        [pa.record_batch([pa.array(range(k, k + 2200))], names=["n"]) for k in range(7)]
    ]
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
            streams.append(split_messages(stream))
    made: list[Sample] = []
    for messages in streams:
        frames = list_frames(messages)
        finished, batches = receive(encode_wire_bytes(frames), 1 << 30)
        assert finished
        made.append(Sample(frames, batches))
    return made


def receive(data: bytes, most: int) -> tuple[bool, list[pa.RecordBatch]]:
    """Read a stream like a reader and return whether its end is proven."""
    frames, reassembler = FrameDecoder(DEFAULT_LIMITS), Reassembler(FORMATS, stream="s")
    decoder: Decoder | None = None
    batches: list[pa.RecordBatch] = []
    view = memoryview(data)
    for position in range(0, len(data), most):
        push(frames, bytes(view[position : position + most]))
        ready: list[Message | MessageRun] = []
        reassembler.feed(frames.take(), ready)
        for message in ready:
            if isinstance(message, MessageRun):
                assert decoder is not None
                if decoder.decode_run(message, batches):
                    continue
                decoded = map(decoder.decode, expand_messages((message,)))
                batches.extend(batch for batch in decoded if batch is not None)
                continue
            if decoder is None:
                decoder = open_decoder(message, DEFAULT_LIMITS, "full", "s")
                continue
            batch = decoder.decode(message)
            if batch is not None:
                batches.append(batch)
    if reassembler.failure is not None:
        raise reassembler.failure
    return reassembler.finished, batches


def payload_of(frame: OutgoingFrame) -> bytes:
    return (
        frame.payload if isinstance(frame, UntaggedFrame) else b"".join(map(bytes, frame.buffers))
    )


def with_payload(frame: OutgoingFrame, payload: bytes) -> OutgoingFrame:
    if isinstance(frame, UntaggedFrame):
        return UntaggedFrame(payload)
    return TaggedFrame(frame.tag, len(payload), [payload])


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
        data = encode_wire_bytes(frames)
        if how >= 0.75:  # anything
            data = damaged(data, rng)
        most = rng.choice((1 << 30, 1 << 30, 1000, 100))
        finished, batches = receive(data, most)
        for batch in batches:
            validate_memory(batch)
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
        read_endianness(data)

    return run


def all_types_schema() -> bytes:
    arrays = make_arrays_of_all_types()
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    return bytes(split_messages(schema.serialize().to_pybytes())[0].metadata)


def facts_case() -> Case:
    metadata = [
        payload_of(f)[5:] for s in samples() for f in s.frames if isinstance(f, UntaggedFrame)
    ]
    readers: list[Callable[[bytes], object]] = [
        read_message_info,
        read_batch_table,
        read_endianness,
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
        facts = read_batch_layout(data, max_buffers=1000)
        assert len(facts.buffers) <= 1000

    return run


def messages_case() -> Case:
    good = [
        pack_metadata(0, 7),
        pack_metadata(1, 7, b"x" * 20),
        pack_metadata(2, 1, pack_failure("NOT_FOUND", "no such dataset")),
    ]

    def run(rng: random.Random) -> None:
        data = damaged(rng.choice(good), rng)
        with contextlib.suppress(ProtocolError):
            parse_body_tag(int.from_bytes(rng.randbytes(8), "little"))
        with contextlib.suppress(ProtocolError):
            assert isinstance(parse_failure(data[5:], DEFAULT_LIMITS), SplitArrowError)
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
    "checker": (make_checker_case, ProtocolError),
    **{f"vortex {kind}": (partial(make_vortex_case, kind), ProtocolError) for kind in VORTEX_KINDS},
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
    warnings.simplefilter("ignore", InvalidValueWarning)
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
