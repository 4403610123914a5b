"""Valid footers of Arrow IPC files are read; all others raise one kind of error."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.footers import BlockTuple, footer
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.file import (
    BLOCK,
    MAGIC,
    Block,
    Blocks,
    Footer,
    blank_blocks,
    find_footer,
    read_footer,
    wrap_footer,
)
from splitarrow.formats.arrow.message import HeaderType, parse_prefix, read_message_info

END = 4096


def arrow_file(batches: list[pa.RecordBatch], **options: object) -> bytes:
    sink = io.BytesIO()
    write_options = pa.ipc.IpcWriteOptions(**options)  # pyright: ignore[reportArgumentType]
    with pa.ipc.new_file(sink, batches[0].schema, options=write_options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def footer_of(data: bytes) -> Footer:
    offset, length = find_footer(data[-10:], len(data))
    return read_footer(data[offset : offset + length], offset)


@pytest.mark.parametrize("legacy", [False, True])
def test_blocks_locate_the_messages(legacy: bool) -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "b": pa.array(list("xyx")).dictionary_encode()})
    data = arrow_file([batch, batch.slice(1)], use_legacy_format=legacy)
    found = footer_of(data)
    assert (found.version, found.is_big_endian) == (4, False)
    for blocks, count, kind in (
        (found.dictionaries, 1, HeaderType.DICTIONARY_BATCH),
        (found.record_batches, 2, HeaderType.RECORD_BATCH),
    ):
        assert len(blocks) == count
        for block in blocks:
            metadata = data[block.offset : block.offset + block.metadata_length]
            prefix = parse_prefix(metadata[:8])
            assert prefix.nbytes == (4 if legacy else 8)
            assert read_message_info(metadata[prefix.nbytes :]) == (kind, block.body_length)


def test_blocks_are_a_sequence() -> None:
    one, two = (8, 256, 1024), (1288, 256, 0)
    blocks = Blocks(BLOCK.pack(*one)) + Blocks(BLOCK.pack(*two))
    assert list(blocks) == [one, two]
    assert blocks[1] == Block(*two)
    assert [list(blocks.iter_tuples(*range_)) for range_ in ((0, 2), (1, 2), (1, 1))] == [
        [one, two],
        [two],
        [],
    ]
    for index in (-1, 2):
        with pytest.raises(IndexError):
            blocks[index]


def test_a_handmade_footer_is_read() -> None:
    found = read_footer(footer([(8, 8, 0), (16, 80, END - 96)], [(8, 16, 16)], endianness=1), END)
    assert found.is_big_endian
    assert list(found.record_batches) == [(8, 8, 0), (16, 80, END - 96)]
    assert list(found.dictionaries) == [(8, 16, 16)]


def test_pyarrow_reads_a_handmade_footer() -> None:
    data = footer(columns=["a", "b"])
    file = MAGIC + b"\0\0" + data + len(data).to_bytes(4, "little") + MAGIC
    assert pa.ipc.open_file(file).schema.names == ["a", "b"]


@pytest.mark.parametrize("kind", ["record batch", "dictionary batch"])
@pytest.mark.parametrize(
    "block",
    [
        (0, 8, 8),
        (-8, 8, 8),
        (9, 8, 8),
        (8, 12, 8),
        (8, 8, 12),
        (8, 0, 8),
        (8, -8, 8),
        (8, 8, -8),
        (8, 8, END),
        (END, 8, 0),
        (8, 8, (1 << 63) - 8),
        ((1 << 63) - 8, 8, 8),
    ],
)
def test_a_block_outside_the_messages_is_refused(block: BlockTuple, kind: str) -> None:
    good = (8, 8, 8)
    of_kind = [good, block]
    data = footer(of_kind, [good]) if kind == "record batch" else footer([good], of_kind)
    with pytest.raises(InvalidDataError, match=f"places {kind} 1 at byte {block[0]},"):
        read_footer(data, END)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (footer(columns=None), "no schema"),
        (footer(version=9), "unknown metadata version 9"),
        (footer(version=-1), "unknown metadata version -1"),
        (footer(endianness=7), "byte order 7"),
        (b"", "malformed"),
        (b"\xff" * 64, "malformed"),
    ],
)
def test_a_malformed_footer_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidDataError, match=why):
        read_footer(data, END)


@pytest.mark.parametrize(
    ("tail", "size", "why"),
    [
        (b"", 0, "only 0 bytes"),
        (b"\0" * 10, 17, "only 17 bytes"),
        (b"\x10\0\0\0ARROW2", 100, "truncated.* at byte 94"),
        (b"\0\0\0\0" + MAGIC, 100, "a footer of 0 bytes"),
        (b"\xff\xff\xff\xff" + MAGIC, 100, "a footer of -1 bytes at byte 90"),
        (b"\x53\0\0\0" + MAGIC, 100, "a footer of 83 bytes"),
    ],
)
def test_a_malformed_tail_is_refused(tail: bytes, size: int, why: str) -> None:
    with pytest.raises(InvalidDataError, match=why):
        find_footer(tail, size)
    assert find_footer(b"\x52\0\0\0" + MAGIC, 100) == (8, 82)


def is_sound(found: Footer, end: int) -> bool:
    return all(
        block.offset >= 8 and sum(block) <= end and min(block) >= 0
        for block in (*found.dictionaries, *found.record_batches)
    )


@given(st.binary(max_size=200))
def test_garbage_is_a_footer_or_one_kind_of_error(data: bytes) -> None:
    try:
        found = read_footer(data, END)
    except InvalidDataError:
        return
    assert is_sound(found, END)


@given(st.data())
def test_a_footer_with_changed_bytes_is_sound_or_refused(data: st.DataObject) -> None:
    changed = bytearray(footer([(8, 8, 8), (24, 16, 64)], [(8, 8, 0)], columns=["a"]))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(changed)) | st.just(len(changed)))
    try:
        found = read_footer(bytes(changed[:length]), END)
    except InvalidDataError:
        return
    assert is_sound(found, END)


def test_footers_that_differ_in_their_blocks_alone_are_equal_without_them() -> None:
    batches = [pa.record_batch({"n": range(rows)}) for rows in (1, 100)]
    found = set[bytes]()
    for batch in batches:
        data = arrow_file([batch, batch])
        offset, length = find_footer(data[-10:], len(data))
        found.add(blank_blocks(data[offset : offset + length]))
    (blank,) = found
    with pa.ipc.open_file(wrap_footer(blank)) as reader:
        assert reader.schema == batches[0].schema
        assert reader.num_record_batches == 2


@pytest.mark.parametrize("data", [b"", b"\xff" * 64])
def test_the_blocks_of_a_malformed_footer_stay(data: bytes) -> None:
    assert blank_blocks(data) == data
