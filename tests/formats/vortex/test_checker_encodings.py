"""The rules for the nodes of arrays refuse what the library cannot decode, and nothing else."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings

from helpers.arrow_data import draw_batches
from helpers.damage import damaged
from helpers.vortex_arrays import draw_messages
from helpers.vortex_messages import (
    decode_with_library,
    encode_arrow,
    make_messages,
    read_stream,
    write_stream,
)
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.vortex.array_body import read_array_body
from splitarrow.formats.vortex.checker import RULES, check_array, read_parameters
from splitarrow.formats.vortex.decoder import ArrayDecoder, read_dtype_message
from splitarrow.formats.vortex.dtype import encode_dtype, read_dtype
from splitarrow.formats.vortex.encoder import ArrayEncoder
from splitarrow.formats.vortex.message import Message, MessageKind, VortexLimits, build_message
from splitarrow.isolation.array_decoder import DecoderProcess, ProcessLimits

LIMITS = VortexLimits()
MESSAGES = make_messages()


def check(dtype: Message, message: Message, limits: VortexLimits = LIMITS) -> None:
    check_array(message.header, message.join_body(), read_dtype(dtype.join_body()), limits)


def with_rows(message: Message, rows: int) -> Message:
    return build_message(
        MessageKind.ARRAY, message.body, row_count=rows, encodings=message.header.encodings
    )


def with_encodings(message: Message, encodings: list[str]) -> Message:
    rows = message.header.row_count
    return build_message(MessageKind.ARRAY, message.body, row_count=rows, encodings=encodings)


def check_drawn(count: int, seed: int) -> set[str]:
    seen: set[str] = set()
    for number in range(count):
        found = draw_messages(random.Random(f"{seed} {number}"))
        if found is not None:
            check(*found)
            seen.update(found[1].header.encodings)
    return seen


def test_drawn_arrays_pass() -> None:
    seen = check_drawn(150, 1)
    assert seen <= RULES.keys(), "the library writes an encoding without a rule"
    assert len(seen) > 12


@pytest.mark.long
def test_10000_drawn_arrays_pass() -> None:
    seen = check_drawn(10_000, 2)
    never_written = {"vortex.bytebool", "vortex.chunked", "vortex.listview", "vortex.null"}
    assert RULES.keys() - seen <= never_written


def check_batches(drawn: tuple[pa.Schema, list[pa.RecordBatch]]) -> None:
    """Encode batches, write a stream, read it, and decode it with our functions."""
    schema, batches = drawn
    encoder = ArrayEncoder(schema)
    messages = [encoder.encode(batch) for batch in batches]
    stream = write_stream(encoder.dtype_message, *messages)
    found = [message for _, message in read_stream(stream)]
    decoder = ArrayDecoder(found[0])
    assert read_dtype(encode_dtype(decoder.dtype)) == decoder.dtype
    for message, batch in zip(found[1:], batches, strict=True):
        array = decode_with_library(found[0], message)
        assert decoder.decode_arrow(message).equals(array)
        assert len(array) == batch.num_rows


@given(draw_batches())
@settings(max_examples=25)
def test_drawn_batches_of_nested_types_pass(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]],
) -> None:
    check_batches(drawn)


@pytest.mark.long
@given(draw_batches())
@settings(max_examples=5000)
def test_5000_drawn_batches_of_nested_types_pass(
    drawn: tuple[pa.Schema, list[pa.RecordBatch]],
) -> None:
    check_batches(drawn)


@pytest.fixture(scope="module")
def process() -> Iterator[DecoderProcess]:
    process = DecoderProcess(ProcessLimits(1 << 28, 1 << 27))
    yield process
    process.close()


def compare_with_library(process: DecoderProcess, count: int, seed: int) -> tuple[int, int]:
    """Change arrays; return how many the rules refuse, and how many of these the library reads."""
    pairs = list(MESSAGES.values())
    refused = decoded = 0
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        dtype, message = rng.choice(pairs)
        rows, body = message.header.row_count, message.join_body()
        if rng.random() < 0.4:
            rows = max(0, rows + rng.choice([-1, 1, -100, 1000]))
        else:
            body = body[:-600] + damaged(body[-600:], rng, keep_length=True)
        encodings = message.header.encodings
        changed = build_message(MessageKind.ARRAY, [body], row_count=rows, encodings=encodings)
        try:
            read_array_body(body, len(encodings))
        except ProtocolError:
            continue
        try:
            check(dtype, changed)
        except ProtocolError:
            refused += 1
            with contextlib.suppress(ProtocolError):
                process.decode(read_dtype_message(dtype, LIMITS)[1], changed, 1 << 20)
                decoded += 1
    return refused, decoded


def test_the_library_decodes_nothing_that_the_rules_refuse(process: DecoderProcess) -> None:
    refused, decoded = compare_with_library(process, 700, 1)
    assert refused > 100
    assert decoded == 0


@pytest.mark.long
def test_the_library_decodes_next_to_nothing_of_100000_that_the_rules_refuse() -> None:
    """It ignores buffers that a struct does not need, for example."""
    refused = decoded = 0
    for seed in range(100):
        process = DecoderProcess(ProcessLimits(1 << 28, 1 << 27))
        counts = compare_with_library(process, 1000, seed + 2)
        process.close()
        refused, decoded = refused + counts[0], decoded + counts[1]
    assert refused > 10_000
    assert decoded < refused / 1000


@pytest.mark.parametrize(
    ("name", "rows", "problem"),
    [
        ("int", 1501, "node root (vortex.primitive) has 12000 bytes in buffer 0; expected 12008"),
        ("bool", 1505, "node root (vortex.bool) has 188 bytes in buffer 0; expected at least 189"),
        ("small int, compressed", 2049, "node root.0 (fastlanes.bitpacked) has 1024 bytes in"),
        ("low", 1501, "node root.0 (vortex.primitive) has 6004 bytes in buffer 1; expected 6008"),
        ("list", 1501, "node root.1 (vortex.primitive) has 6004 bytes in buffer 1"),
        ("fixed list", 1501, "node root.0 (vortex.primitive) has 12000 bytes in buffer 0"),
        ("struct", 1505, "node root.0 (vortex.bool) has 188 bytes in buffer 0; expected at least"),
        ("decimal", 1501, "node root (vortex.decimal) has 6000 bytes in buffer 0; expected 6004"),
        ("timestamp", 1501, "node root.0 (vortex.primitive) has 12000 bytes in buffer 0"),
    ],
)
def test_rows_are_compared_with_the_buffers(name: str, rows: int, problem: str) -> None:
    dtype, message = MESSAGES[name]
    with pytest.raises(InvalidDataError, match=re.escape(problem)):
        check(dtype, with_rows(message, rows))


@pytest.mark.parametrize(
    ("name", "encoding", "problem"),
    [
        ("int", "vortex.bool", "has the type i64, which its encoding cannot have"),
        ("int", "vortex.null", "has the type i64, which its encoding cannot have"),
        ("int", "vortex.constant", None),
        ("int", "vortex.sequence", "has 1 buffers; expected 0"),
        ("int", "vortex.dict", "has 1 buffers; expected 0"),
        ("int", "vortex.sparse", "has no parameters of its patches"),
        ("int, compressed", "fastlanes.for", "has 0 children; expected 1"),
        ("int, compressed", "vortex.chunked", "has 0 children; expected 1 to"),
        ("int, compressed", "vortex.runend", "has 0 children; expected 2"),
        ("int", "fastlanes.bitpacked", "has 12000 bytes in buffer 0; expected 0 for 1500 rows"),
    ],
)
def test_nodes_are_compared_with_their_encodings(
    name: str, encoding: str, problem: str | None
) -> None:
    dtype, message = MESSAGES[name]
    changed = with_encodings(message, [encoding])
    if problem is None:
        check(dtype, changed)
        return
    with pytest.raises(InvalidDataError, match=re.escape(f"node root ({encoding}) {problem}")):
        check(dtype, changed)


def test_other_encodings_are_left_to_the_library() -> None:
    dtype, message = MESSAGES["int"]
    check(dtype, with_encodings(message, ["company.encoding"]))


def test_the_declared_elements_of_lists_are_bounded() -> None:
    dtype, message = encode_arrow(pa.array([[1] * 1000] * 100))
    check(dtype, message, VortexLimits(decoded_bytes=800_000))
    with pytest.raises(LimitError, match=r"lists of the array have at least 800000 bytes"):
        check(dtype, message, VortexLimits(decoded_bytes=799_999))


def test_a_validity_needs_a_nullable_type() -> None:
    _, message = MESSAGES["nullable int"]
    whole = pa.array(range(1500), pa.uint16())
    dtype, _ = encode_arrow(whole)
    with pytest.raises(InvalidDataError, match=r"has a validity, but its type u16 is not nullable"):
        check(dtype, message)


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0a\x05ab", b"\x0b", b"\x09\x01", b"\x08" + b"\xff" * 12]
)
def test_malformed_parameters_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="malformed protobuf message"):
        read_parameters(data)
