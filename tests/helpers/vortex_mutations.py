"""Damaged Vortex messages for the readers, the checker, and the decoder behind it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import lz4.block
import lz4.frame

from helpers.damage import damaged
from helpers.vortex_messages import (
    compress_buffers,
    make_columns,
    make_file,
    make_messages,
    put_table_first,
    read_stream,
    write_stream,
)
from splitarrow.formats.vortex.array_body import decode_body
from splitarrow.formats.vortex.checker import check_array
from splitarrow.formats.vortex.dtype import DType, read_dtype
from splitarrow.formats.vortex.file import read_file_footer
from splitarrow.formats.vortex.message import (
    Message,
    MessageKind,
    VortexLimits,
    build_message,
    read_header,
)
from splitarrow.isolation.array_decoder import IsolatedDecoder, ProcessLimits

Case = Callable[[random.Random], None]

KINDS = ("header", "dtype", "array", "lz4", "stream", "file")
LIMITS = VortexLimits(decoded_bytes=1 << 24, body_bytes=1 << 26, metadata_bytes=1 << 20)
_PROCESS_LIMITS = ProcessLimits(1 << 28, 1 << 26)
_DECODED = 10
"""One of as many messages that pass the checks is decoded, in a child process."""


class Sample(NamedTuple):
    """A valid array, its type, and the decoder of its stream."""

    message: Message
    body: bytes
    dtype: DType
    decoder: IsolatedDecoder


def _make_samples(kind: str) -> list[Sample]:
    made: list[Sample] = []
    for number, (dtype, message) in enumerate(make_messages().values()):
        found = message
        if kind == "lz4":
            codec = lz4.frame if number % 2 else lz4.block
            arguments = {} if number % 2 else {"store_size": False}
            found = compress_buffers(message, lambda data: codec.compress(data, **arguments))  # noqa: B023
        elif number % 4 == 0:
            found = put_table_first(message)
        decoder = IsolatedDecoder(dtype, LIMITS, process_limits=_PROCESS_LIMITS)
        made.append(Sample(found, found.join_body(), decoder.dtype, decoder))
    return made


def make_case(kind: str) -> Case:
    """Return a function that damages one message, checks it, and decodes some of what passes."""
    if kind == "dtype":
        bodies = [dtype.join_body() for dtype, _ in make_messages().values()]
        return lambda rng: _read_dtype(damaged(rng.choice(bodies), rng))
    if kind == "header":
        headers = [m.metadata for pair in make_messages().values() for m in pair]
        headers.append(build_message(MessageKind.BUFFER, [b"abc"], alignment_exponent=6).metadata)
        return lambda rng: _read_header(damaged(rng.choice(headers), rng))
    if kind == "file":
        files = [make_file(column) for column in make_columns().values()]
        return lambda rng: _read_file(rng.choice(files), rng)
    if kind == "stream":
        pairs = list(make_messages().values())[:8]
        streams = [write_stream(dtype, message, message) for dtype, message in pairs]
        return lambda rng: _read_stream(damaged(rng.choice(streams), rng))
    samples = _make_samples(kind)
    return lambda rng: _check(rng.choice(samples), rng)


def _read_dtype(body: bytes) -> None:
    dtype = read_dtype(body, LIMITS)
    assert str(dtype)
    assert dtype.count_row_bits() >= 0


def _read_header(metadata: bytes) -> None:
    header = read_header(metadata, LIMITS)
    assert header.body_size <= LIMITS.body_bytes


def _read_file(data: bytes, rng: random.Random) -> None:
    size = rng.choice((300, 3000, len(data)))
    data = data[:-size] + damaged(data[-size:], rng, keep_length=rng.random() < 0.8)
    footer = read_file_footer(lambda at, nbytes: data[at : at + nbytes], len(data), LIMITS)
    for layout in footer.root.walk():
        assert all(0 <= number < len(footer.segments) for number in layout.segments)
    assert all(0 <= part.offset + part.length <= len(data) for part in footer.segments)


def _read_stream(data: bytes) -> None:
    end = 0
    for place, message in read_stream(data, LIMITS):
        assert (place.offset, place.end) == (end, place.body_offset + len(message.join_body()))
        end = place.end
    assert end == len(data)


def _check(sample: Sample, rng: random.Random) -> None:
    header, body = sample.message.header, sample.body
    metadata = sample.message.metadata
    if rng.random() < 0.2:
        metadata = damaged(metadata, rng, keep_length=True)
        header = read_header(metadata, LIMITS)
    else:
        # The end of the body has the table and its length; its begin, if the table is first.
        size = rng.choice((len(body), 600, 600, 200))
        cut = len(body) - size if rng.random() < 0.7 else 0
        part = damaged(body[cut : cut + size], rng, keep_length=rng.random() < 0.9)
        body = body[: max(cut, 0)] + part + body[max(cut, 0) + size :]
    checked = check_array(header, body, sample.dtype, LIMITS)
    if rng.randrange(_DECODED):
        if checked.has_compressed_buffers:
            decode_body(checked.body, LIMITS.decoded_bytes)
        return
    try:
        found = sample.decoder.decode_arrow(Message(metadata, header, [body]))
    finally:
        sample.decoder.close()
    assert len(found) == header.row_count
    found.validate()
