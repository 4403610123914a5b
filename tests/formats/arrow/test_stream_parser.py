"""A stream in any pieces has the same messages; a wrong one is refused before it arrives."""

from __future__ import annotations

import struct
from itertools import chain

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.stream_parser import StreamParser

TABLE = pa.table({"n": range(50), "text": pa.array(["x", "yy"] * 25).dictionary_encode()})
LARGE = 1 << 30


def write_stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, 20)
    return sink.getvalue().to_pybytes()


STREAM = write_stream()


def expected() -> list[tuple[bytes, bytes]]:
    reader = pa.ipc.MessageReader.open_stream(STREAM)
    return [
        (message.metadata.to_pybytes(), b"" if message.body is None else message.body.to_pybytes())
        for message in reader
    ]


@given(st.lists(st.integers(1, 700), min_size=1))
def test_pieces_of_any_sizes_have_the_messages_of_pyarrow(sizes: list[int]) -> None:
    parser, found, position = StreamParser(LARGE, LARGE), [], 0
    while position < len(STREAM):
        size = sizes[position % len(sizes)]
        found += parser.feed(STREAM[position : position + size])
        position += size
        assert parser.has_ended == (position >= len(STREAM))
    assert [(metadata, bytes(body)) for metadata, body in found] == expected()


@pytest.mark.parametrize("end", range(0, len(STREAM), 97))
def test_a_part_of_a_stream_has_not_ended(end: int) -> None:
    parser = StreamParser(LARGE, LARGE)
    list(parser.feed(STREAM[:end]))
    assert not parser.has_ended


def test_sizes_beyond_the_limits_are_refused_before_they_arrive() -> None:
    head = struct.pack("<Ii", 0xFFFFFFFF, 1 << 20)
    with pytest.raises(LimitError, match=r"1048576 bytes; the limit is 1000"):
        list(StreamParser(1000, LARGE).feed(head))
    with pytest.raises(LimitError, match="the body of a message has"):
        list(StreamParser(LARGE, 100).feed(STREAM))


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (STREAM + b"x", InvalidDataError, f"at byte {len(STREAM)}, but bytes follow its end"),
        (STREAM + STREAM, InvalidDataError, "bytes follow its end marker"),
        (STREAM + bytes(65), InvalidDataError, "bytes follow its end marker"),
        (b"PK\3\4 not Arrow", InvalidDataError, "not an Arrow IPC stream"),
        (struct.pack("<Ii", 0xFFFFFFFF, -8), ProtocolError, "declares -8 bytes"),
        (struct.pack("<Ii", 0xFFFFFFFF, 8) + b"\xff" * 8, ProtocolError, "not an Arrow IPC"),
    ],
)
def test_malformed_streams_are_refused(data: bytes, error: type[Exception], reason: str) -> None:
    for step in (1, len(data)):
        parser = StreamParser(LARGE, LARGE)
        pieces = (data[begin : begin + step] for begin in range(0, len(data), step))
        with pytest.raises(error, match=reason):
            list(chain.from_iterable(map(parser.feed, pieces)))


def test_padding_may_follow_the_end() -> None:
    parser = StreamParser(LARGE, LARGE)
    messages = [m for byte in STREAM + bytes(64) for m in parser.feed(bytes([byte]))]
    assert messages == list(StreamParser(LARGE, LARGE).feed(STREAM))
    assert parser.has_ended
