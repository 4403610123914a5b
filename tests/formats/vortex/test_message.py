"""Vortex messages: headers, the mark of streams, and streams that are read by their headers."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
import vortex
from hypothesis import given
from hypothesis import strategies as st

from helpers.vortex_messages import decode_with_library, encode_arrow, read_stream, write_stream
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.arrow.custom_metadata import add_footer_metadata, find_footer_metadata
from splitarrow.formats.arrow.encoder import MessageEncoder
from splitarrow.formats.arrow.message import read_custom_metadata
from splitarrow.formats.arrow.schema import read_schema
from splitarrow.formats.vortex.message import (
    HeaderReader,
    MessageHeader,
    MessageKind,
    VortexLimits,
    build_header,
    build_message,
    encode_message,
    is_marked,
    mark_schema,
    read_header,
    read_parts,
    summarize_header,
    unmark_schema,
)

DTYPE, ARRAY = encode_arrow(pa.array([1, 2, 3]))
BUFFER = build_message(MessageKind.BUFFER, [b"abc", b"de"], alignment_exponent=6)
STREAM = write_stream(DTYPE, ARRAY, BUFFER, ARRAY)


def read_whole(data: bytes) -> list[Any]:
    return [(place, message.join_body()) for place, message in read_stream(data)]


def test_a_stream_has_the_messages_that_were_written() -> None:
    whole = read_whole(STREAM)
    assert [place.header for place, _ in whole] == [
        DTYPE.header,
        ARRAY.header,
        MessageHeader(MessageKind.BUFFER, 5, alignment_exponent=6),
        ARRAY.header,
    ]
    assert [body for _, body in whole] == [m.join_body() for m in (DTYPE, ARRAY, BUFFER, ARRAY)]


def test_bodies_in_a_file_are_aligned() -> None:
    assert all(place.body_offset % 64 == 0 for place, _ in read_stream(STREAM))


def test_headers_are_read_without_their_bodies() -> None:
    seen: list[tuple[int, int]] = []

    def read(offset: int, nbytes: int) -> bytes:
        seen.append((offset, nbytes))
        return STREAM[offset : offset + nbytes]

    reader = HeaderReader(read, len(STREAM))
    found = []
    while (place := reader.next_header()) is not None:
        found.append(place)
    assert found == [place for place, _ in read_whole(STREAM)]
    bodies = {byte for place in found for byte in range(place.body_offset, place.end)}
    assert bodies.isdisjoint(byte for at, nbytes in seen for byte in range(at, at + nbytes))


def test_other_writers_pad_headers_to_8_bytes_and_so_do_streams_without_a_position() -> None:
    (head, *_) = encode_message(ARRAY)
    assert struct.unpack_from("<I", head)[0] % 8 == 0
    assert read_whole(b"".join([*encode_message(DTYPE), *encode_message(ARRAY)]))[1][1] == (
        ARRAY.join_body()
    )


def test_pieces_of_a_body_are_not_copied() -> None:
    piece = bytearray(1000)
    assert encode_message(build_message(MessageKind.BUFFER, [piece]))[1] is piece


@given(
    kind=st.sampled_from(MessageKind),
    size=st.integers(0, 2**33),
    rows=st.integers(0, 2**32 - 1),
    encodings=st.lists(st.text(max_size=9), max_size=4),
    exponent=st.integers(0, 15),
)
def test_headers_round_trip(
    kind: MessageKind, size: int, rows: int, encodings: list[str], exponent: int
) -> None:
    header = MessageHeader(kind, size if kind is not MessageKind.DTYPE else size % 1000)
    if kind is MessageKind.ARRAY:
        header = header._replace(row_count=rows, encodings=tuple(encodings))
    if kind is MessageKind.BUFFER:
        header = header._replace(alignment_exponent=exponent)
    data = build_header(header)
    assert len(data) % 8 == 0
    assert read_header(data) == header


def test_the_summary_on_the_wire() -> None:
    summary = summarize_header(ARRAY.metadata)
    assert (summary.name, summary.is_schema, summary.has_body) == ("ARRAY", False, True)
    assert summary.body_length == ARRAY.header.body_size


def header_with(**fields: int) -> bytes:
    """Return the header of a buffer in which the scalar fields are replaced."""
    from splitarrow.formats.flatbuffer import find_field, read_root

    data = bytearray(build_header(MessageHeader(MessageKind.BUFFER, 5, alignment_exponent=6)))
    table = read_root(bytes(data))
    for name, value in fields.items():
        slot = {"header_type": 6, "body_size": 10}[name]
        at = find_field(bytes(data), table, slot)
        width = 8 if name == "body_size" else 1
        data[at : at + width] = value.to_bytes(width, "little")
    return bytes(data)


def header_of_version(version: int) -> bytes:
    import flatbuffers

    from splitarrow.fbs import vortex_generated as fbs

    builder: Any = flatbuffers.Builder(64)
    fbs.DTypeMessageStart(builder)
    table = fbs.DTypeMessageEnd(builder)
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, version)
    fbs.MessageAddHeaderType(builder, 3)
    fbs.MessageAddHeader(builder, table)
    builder.Finish(fbs.MessageEnd(builder))
    return bytes(builder.Output())


def framed(metadata: bytes) -> bytes:
    return struct.pack("<I", len(metadata)) + metadata


FIRST = b"".join(encode_message(DTYPE))


@pytest.mark.parametrize(
    ("stream", "error", "match"),
    [
        (b"".join(encode_message(ARRAY)), ProtocolError, r"byte 0 is of the type ARRAY; expected"),
        (FIRST * 2, ProtocolError, rf"byte {len(FIRST)} is a second DTYPE"),
        (FIRST + b"\0\0", InvalidDataError, rf"begins at byte {len(FIRST)} and its length ends"),
        (FIRST[:20], InvalidDataError, r"begins at byte 0 and its header ends at byte 52"),
        (FIRST[:-1], InvalidDataError, r"begins at byte 0 and its body ends at byte"),
        (FIRST + framed(b"1234"), ProtocolError, rf"byte {len(FIRST)} declares a header of 4 "),
        (framed(bytes(16)), ProtocolError, r"byte 0: the field header_type of the header is 0"),
        (framed(b"\xff" * 16), ProtocolError, r"byte 0: the header is malformed"),
        (framed(header_of_version(7)), ProtocolError, r"byte 0: the field version .* is 7"),
        (framed(header_with(header_type=9)), ProtocolError, r"byte 0: the field header_type .* 9"),
        (b"\xff\xff\xff\x7f" + bytes(20), LimitError, r"byte 0 declares a header of 2147483647"),
        (
            FIRST + framed(header_with(body_size=2**63)),
            LimitError,
            rf"byte {len(FIRST)}: the field body_size of the header is {2**63}",
        ),
        (
            FIRST
            + framed(build_header(MessageHeader(MessageKind.BUFFER, 0, alignment_exponent=16))),
            ProtocolError,
            r"the field alignment_exponent of the header is 16",
        ),
    ],
    ids=[
        *("no dtype", "two dtypes", "length cut", "header cut", "body cut"),
        *("short header", "no type", "garbage", "version", "type", "long header"),
        *("long body", "alignment"),
    ],
)
def test_a_bad_stream_is_refused_with_the_offset_and_the_field(
    stream: bytes, error: type[ProtocolError], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        read_whole(stream)
    assert type(caught.value) is error


def test_limits_are_checked_before_the_bytes_arrive() -> None:
    limits = VortexLimits(body_bytes=ARRAY.header.body_size - 1)
    with pytest.raises(LimitError, match=r"body_size"):
        read_stream(FIRST + encode_message(ARRAY)[0], limits)


@pytest.mark.parametrize("parts", [[], [b"1234"], [b"12", b"3"], [b"\x08\0\0\0", bytes(8), b"x"]])
def test_parts_that_are_no_message_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        read_parts(parts)


def test_parts_that_disagree_with_their_header_are_refused() -> None:
    parts = [struct.pack("<I", len(ARRAY.metadata)), ARRAY.metadata, b"x"]
    with pytest.raises(ProtocolError, match=r"a body of 1; it declares"):
        read_parts(parts)


def test_the_library_reads_what_we_write() -> None:
    column = pa.array([f"value {i % 10}" for i in range(1000)])
    dtype, message = encode_arrow(column)
    ours = [
        build_message(MessageKind.DTYPE, dtype.body),
        build_message(
            MessageKind.ARRAY, message.body, row_count=1000, encodings=message.header.encodings
        ),
    ]
    assert decode_with_library(*ours).to_pylist() == column.to_pylist()
    places = [message for _, message in read_stream(write_stream(*ours))]
    assert decode_with_library(*places).to_pylist() == column.to_pylist()
    assert isinstance(vortex.array(column), vortex.Array)


def test_a_mark_is_added_and_removed() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), metadata={"a": "b"})], {"k": "v"})
    plain = bytes(MessageEncoder(schema).schema_message.metadata)
    plain = add_footer_metadata(plain, {b"f": b"g"})
    marked = mark_schema(plain)
    assert not is_marked(plain)
    assert is_marked(marked)
    unmarked = unmark_schema(marked)
    assert not is_marked(unmarked)
    assert unmark_schema(plain) is plain
    for metadata in (marked, unmarked):
        assert read_schema(metadata).equals(schema, check_metadata=True)
        assert find_footer_metadata(metadata) == {b"f": b"g"}
    assert read_custom_metadata(unmarked) == read_custom_metadata(plain)
