"""Vortex arrays are checked, and made readable, before anything decodes them."""

from __future__ import annotations

import struct
from typing import Any

import lz4.block
import lz4.frame
import pyarrow as pa
import pytest

from helpers.vortex_messages import (
    compress_buffers,
    decode_with_library,
    encode_arrow,
    make_columns,
    make_messages,
    put_table_first,
    with_body,
)
from splitarrow.errors import InvalidDataError, LimitError, ProtocolError
from splitarrow.formats.vortex.array_body import (
    BUFFER,
    build_array_body,
    decode_body,
    read_array_body,
)
from splitarrow.formats.vortex.checker import check_array
from splitarrow.formats.vortex.decoder import ArrayDecoder
from splitarrow.formats.vortex.dtype import read_dtype
from splitarrow.formats.vortex.message import Message, VortexLimits

MESSAGES = make_messages()
COLUMNS = make_columns()


def check(pair: tuple[Message, Message], **limits: int) -> Any:
    dtype = read_dtype(pair[0].join_body())
    return check_array(pair[1].header, pair[1].join_body(), dtype, VortexLimits(**limits))


@pytest.mark.parametrize("name", MESSAGES)
def test_valid_arrays_pass(name: str) -> None:
    dtype, message = MESSAGES[name]
    checked = check((dtype, message))
    column = COLUMNS[name.partition(",")[0]]
    assert checked.rows == len(column)
    assert not checked.has_compressed_buffers
    assert decode_body(checked.body, 1 << 20) == [message.join_body()]


@pytest.mark.parametrize("name", MESSAGES)
def test_both_orders_of_a_body_are_read(name: str) -> None:
    dtype, message = MESSAGES[name]
    turned = put_table_first(message)
    checked = check((dtype, turned))
    usual = with_body(message, decode_body(checked.body, 1 << 20))
    expected = decode_with_library(dtype, message)
    assert decode_with_library(dtype, usual).equals(expected)


@pytest.mark.parametrize(
    "compress",
    [
        lz4.frame.compress,
        lambda data: lz4.frame.compress(data, store_size=False, block_linked=False),
        lambda data: lz4.block.compress(data, store_size=False),
    ],
    ids=["frame", "frame without its size", "block"],
)
@pytest.mark.parametrize("name", ["int", "low", "nested, compressed", "empty", "struct"])
def test_buffers_in_lz4_are_decompressed(name: str, compress: Any) -> None:
    dtype, message = MESSAGES[name]
    for every in (1, 2):
        packed = compress_buffers(message, compress, every=every)
        checked = check((dtype, packed))
        plain = with_body(packed, decode_body(checked.body, 1 << 20))
        expected = decode_with_library(dtype, message)
        assert decode_with_library(dtype, plain).equals(expected)


@pytest.mark.parametrize(
    "compress",
    [lz4.frame.compress, lambda data: lz4.block.compress(data, store_size=False)],
    ids=["frame", "block"],
)
def test_decompression_is_bounded(compress: Any) -> None:
    dtype, message = encode_arrow(pa.array([0] * 100_000), compress=False)
    packed = compress_buffers(message, compress)
    checked = check((dtype, packed))
    assert checked.has_compressed_buffers
    with pytest.raises(ProtocolError, match=r"buffer|bytes after decompression"):
        decode_body(checked.body, 799_999)
    assert len(b"".join(decode_body(checked.body, 800_000))) > 800_000


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: lz4.frame.compress(data)[:-9], r"buffer 0 is truncated LZ4"),
        (lambda data: lz4.frame.compress(data) + b"x", r"buffer 0 has 1 bytes after its LZ4"),
        (lambda data: b"\xff" * 50, r"buffer 0 cannot be decompressed"),
        (lambda data: b"\x04\x22\x4d\x18" + b"\xff" * 50, r"buffer 0 cannot be decompressed"),
    ],
    ids=["cut", "more", "no block", "no frame"],
)
def test_damaged_lz4_is_refused(change: Any, match: str) -> None:
    dtype, message = MESSAGES["int"]
    checked = check((dtype, compress_buffers(message, change)))
    with pytest.raises(InvalidDataError, match=match):
        decode_body(checked.body, 1 << 20)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_buffer_with_a_wrong_flag_never_gives_other_values(name: str) -> None:
    """vortex-data ignores the flag, and decodes the compressed bytes as values."""
    dtype, message = MESSAGES[name]
    decoder = ArrayDecoder(dtype)
    expected = decoder.decode_arrow(message)
    buffers, table, at = table_of(message)
    for number in range(len(buffers)):
        flagged = bytearray(table)
        flagged[at + 8 * number + 3] = 1
        body = [*buffers, bytes(flagged), struct.pack("<I", len(flagged))]
        try:
            found = decoder.decode_arrow(with_body(message, body))
        except InvalidDataError:
            continue
        assert found.equals(expected), f"buffer {number}"


def table_of(message: Message) -> tuple[list[bytes], bytearray, int]:
    found = read_array_body(message.join_body(), len(message.header.encodings))
    buffers = [bytes(found.find_buffer(n)) for n in range(len(found.table.buffers))]
    return buffers, bytearray(found.table_data), found.table.entries_offset


def with_entry(message: Message, *entry: int) -> Message:
    buffers, table, at = table_of(message)
    BUFFER.pack_into(table, at, *entry)
    return with_body(message, [*buffers, bytes(table), struct.pack("<I", len(table))])


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ((0, 16, 0, 12000), r"alignment_exponent of buffer 0 is 16"),
        ((64, 3, 0, 12000), r"padding of buffer 0 is 64; expected less than 64"),
        ((0, 3, 2, 12000), r"compression of buffer 0 is 2"),
        ((0, 3, 0, 12001), r"have 12001 bytes with their padding; the body has 12000"),
        ((0, 3, 0, 11000), r"have 11000 bytes with their padding; the body has 12000"),
        ((0, 3, 0, 0xFFFFFFFF), r"have 4294967295 bytes"),
    ],
)
def test_bad_entries_of_buffers_are_refused(entry: tuple[int, ...], match: str) -> None:
    dtype, message = MESSAGES["int"]
    with pytest.raises(InvalidDataError, match=match):
        check((dtype, with_entry(message, *entry)))


def test_the_size_of_the_body_is_compared_with_the_header() -> None:
    dtype, message = MESSAGES["int"]
    with pytest.raises(InvalidDataError, match=r"body_size of the header is \d+; the body has 5"):
        check((dtype, message._replace(body=[b"12345"])))
    with pytest.raises(InvalidDataError, match=r"the message is a DTYPE; expected an ARRAY"):
        check((dtype, dtype))


def test_encodings_are_compared_with_the_header() -> None:
    dtype, message = MESSAGES["low, compressed"]
    header = message.header._replace(encodings=message.header.encodings[:1])
    with pytest.raises(InvalidDataError, match=r"encoding of node root.* has 1 encodings"):
        check((dtype, message._replace(header=header)))


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        ({"decoded_bytes": 11_999}, r"row_count of the header is 1500; the rows of i64 have"),
        ({"metadata_bytes": 50}, r"limit is 50"),
    ],
)
def test_declared_sizes_are_bounded(limits: dict[str, int], match: str) -> None:
    dtype, message = MESSAGES["int"]
    with pytest.raises(LimitError, match=match):
        check((dtype, message), **limits)
    assert check((dtype, message), decoded_bytes=12_000).rows == 1500


@pytest.mark.parametrize("limits", [{"nodes": 3}, {"buffers": 1}])
def test_counts_are_bounded(limits: dict[str, int]) -> None:
    dtype, message = MESSAGES["nested"]
    body = message.join_body()
    with pytest.raises(LimitError, match=r"nodes|buffers"):
        check_array(message.header, body, read_dtype(dtype.join_body()), VortexLimits(**limits))


def test_a_dtype_is_bounded() -> None:
    column = pa.array([[[[1]]]])
    body = encode_arrow(column)[0].join_body()
    assert str(read_dtype(body)) == "list(list(list(i64?)?)?)"
    with pytest.raises(LimitError, match=r"nests more than 3 levels"):
        read_dtype(body, VortexLimits(nesting=3))
    with pytest.raises(LimitError, match=r"more than 2 types"):
        read_dtype(body, VortexLimits(nodes=2))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_dtype_is_described_as_the_library_does(name: str) -> None:
    import vortex

    expected = str(vortex.array(COLUMNS[name]).dtype)
    body = MESSAGES[name][0].join_body()
    if "vortex." not in expected:  # extensions have names of their own
        assert str(read_dtype(body)) == expected


@pytest.mark.parametrize("alignment", [1, 64])
def test_buffers_can_be_aligned_in_the_body(alignment: int) -> None:
    dtype, message = MESSAGES["struct"]
    buffers, table, at = table_of(message)
    found = read_array_body(message.join_body(), len(message.header.encodings))
    exponents = [entry.alignment_exponent for entry in found.table.buffers]
    aligned = with_body(message, build_array_body(bytes(table), at, exponents, buffers, alignment))
    checked = check((dtype, aligned))
    for entry in checked.body.table.buffers:
        if entry.length:
            assert entry.offset % max(alignment, 1 << entry.alignment_exponent) == 0
    expected = decode_with_library(dtype, message)
    assert decode_with_library(dtype, aligned).equals(expected)
