"""Scans find every defect of the structure of a file, and none in a sound one."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.file import BLOCK, find_footer
from splitarrow.formats.arrow.file_scan import FileScan, check_file
from splitarrow.formats.arrow.file_writer import AlignedFileWriter

NAMES = ["int32", "string", "list", "dictionary by int8", "string_view", "dense_union"]
ROWS = 5


def encode(new: Callable[..., Any], compression: Any = None, batches: int = 3) -> bytes:
    arrays = make_arrays_of_all_types()
    batch = pa.record_batch([arrays[name] for name in NAMES], names=NAMES)
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(sink, batch.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return sink.getvalue()


def make_scan(data: bytes, **options: Any) -> FileScan:
    return FileScan(lambda offset, nbytes: data[offset : offset + nbytes], len(data), **options)


def scan(data: bytes, **options: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the places of the sound messages, and the places and problems of the defects."""
    scanned = make_scan(data, **options)
    places = [found.place for found in scanned.messages()]
    return places, [(defect.place, defect.problem) for defect in scanned.defects]


FILE, STREAM = encode(pa.ipc.new_file), encode(pa.ipc.new_stream)
FILE_PLACES = ["dictionary batch 0", "record batch 0", "record batch 1", "record batch 2"]
STREAM_PLACES = ["message 1", "message 2", "message 3", "message 4"]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("batches", [0, 3])
def test_sound_files_and_streams_have_no_defects(compression: str | None, batches: int) -> None:
    places = FILE_PLACES if batches else []
    assert scan(encode(pa.ipc.new_file, compression, batches)) == (places, [])
    places = STREAM_PLACES if batches else []
    assert scan(encode(pa.ipc.new_stream, compression, batches)) == (places, [])


def test_aligned_files_have_no_defects() -> None:
    batch = pa.record_batch({"n": list(range(100)), "w": ["a", "b"] * 50})
    file = AlignedFileWriter(batch.schema)
    pieces = [*file.begin(), *file.add(batch), *file.add(batch), *file.end()]
    assert scan(b"".join(map(bytes, pieces)))[1] == []


def test_the_streams_of_other_implementations_have_no_defects(arrow_test_data: Path) -> None:
    paths = sorted(arrow_test_data.glob("arrow-ipc-stream/integration/*/*.stream"))
    assert paths
    for path in paths:
        if "tensor" not in path.name:
            assert scan(path.read_bytes())[1] == [], path


def change(data: bytes, old: bytes, new: bytes, count: int = 1) -> bytes:
    assert data.count(old) == count
    return data.replace(old, new)


def find_blocks(data: bytes) -> list[tuple[int, int, int]]:
    """Return the blocks of the dictionary and of the record batches."""
    scanned = make_scan(data)
    list(scanned.messages())
    assert scanned.footer is not None
    return [*scanned.footer.dictionaries, *scanned.footer.record_batches]


@pytest.mark.parametrize(
    ("index", "delta", "place", "problem"),
    [
        (1, (0, 8, -8), "record batch 0", "bytes of metadata; the footer lists"),
        (1, (0, 0, -8), "record batch 0", "it declares a body of"),
        (2, (-8, 0, 0), "record batch 1", "it overlaps record batch 0"),
        (3, (1 << 40, 0, 0), "footer", "places record batch 2 at byte"),
        (3, (-(1 << 40), 0, 0), "footer", "places record batch 2 at byte -"),
        (3, (0, 0, 1 << 50), "footer", "places record batch 2 at byte"),
        (3, (0, -(1 << 20), 0), "footer", "places record batch 2 at byte"),
    ],
)
def test_blocks_must_fit_the_messages_and_the_file(
    index: int, delta: tuple[int, int, int], place: str, problem: str
) -> None:
    block = find_blocks(FILE)[index]
    moved = [number + more for number, more in zip(block, delta, strict=True)]
    data = change(FILE, BLOCK.pack(*block), BLOCK.pack(*moved))
    assert any(at == place and problem in text for at, text in scan(data)[1])


def test_a_block_of_another_type_is_a_defect() -> None:
    dictionary, batch, *_ = find_blocks(FILE)
    data = change(FILE, BLOCK.pack(*batch), BLOCK.pack(*dictionary))
    problems = scan(data)[1]
    assert ("record batch 0", "it is a DICTIONARY_BATCH message") in problems
    assert any("does not list the record batch at byte" in text for _, text in problems)


def test_two_blocks_of_one_batch_overlap() -> None:
    blocks = find_blocks(FILE)
    data = change(FILE, BLOCK.pack(*blocks[3]), BLOCK.pack(*blocks[2]))
    assert any("it overlaps record batch 1" in text for _, text in scan(data)[1])


def test_a_message_with_a_defect_is_named_and_the_others_are_sound() -> None:
    offset, metadata, body = find_blocks(FILE)[2]
    head = FILE[offset : offset + metadata]
    node = struct.pack("<qq", ROWS, 1)
    broken = head.replace(node, struct.pack("<qq", ROWS, 6), 1)
    data = FILE[:offset] + broken + FILE[offset + metadata :]
    scanned = make_scan(data)
    places = [found.place for found in scanned.messages()]
    assert places == [place for place in FILE_PLACES if place != "record batch 1"]
    (defect,) = scanned.defects
    assert defect[:3] == ("record batch 1", offset, "int32 has 5 values and 6 nulls")
    assert defect[3:] == (metadata + body, ROWS)


@pytest.mark.parametrize("data", [FILE, STREAM], ids=["file", "stream"])
def test_every_truncation_is_a_defect(data: bytes) -> None:
    for length in range(6, len(data) - 8, 41):
        places, defects = scan(data[:length])
        at_boundary = data is STREAM and not defects
        assert defects or at_boundary, length
        assert len(places) <= 4


def test_a_stream_may_end_after_any_message_without_an_end_marker() -> None:
    assert scan(STREAM[:-8]) == (STREAM_PLACES, [])


def test_data_after_the_end_is_a_defect() -> None:
    places, defects = scan(STREAM + STREAM)
    assert places == STREAM_PLACES
    assert "bytes follow its end marker" in defects[0][1]


@pytest.mark.parametrize(
    "data",
    [
        FILE + FILE,
        FILE + FILE + FILE,
        FILE + bytes(64) + FILE,
        FILE + encode(pa.ipc.new_file, batches=2),
        FILE + encode(pa.ipc.new_file, batches=0),
    ],
)
def test_files_behind_one_another_are_a_defect(data: bytes) -> None:
    _, defects = scan(data)
    assert any(
        "another Arrow IPC file begins at byte" in text or "the footer does not list" in text
        for _, text in defects
    )
    with pytest.raises(InvalidDataError, match=r"another Arrow IPC file|does not list the"):
        check_file(lambda offset, nbytes: data[offset : offset + nbytes], len(data))


@pytest.mark.parametrize("space", [0, 8, 56, 200])
def test_unlisted_space_may_have_anything_but_messages(space: int) -> None:
    begin = find_footer(FILE, len(FILE)).offset
    data = FILE[:begin] + (b"ARROW1\1" + bytes(193))[:space] + FILE[begin:]
    assert scan(data)[1] == []
    check_file(lambda offset, nbytes: data[offset : offset + nbytes], len(data))


def test_the_footers_of_other_implementations_list_all_data(arrow_test_data: Path) -> None:
    paths = sorted(arrow_test_data.glob("arrow-ipc-stream/integration/*/*.arrow_file"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert "footer" not in dict(scan(data)[1]), path
        check_file(lambda offset, nbytes, data=data: data[offset : offset + nbytes], len(data))


@pytest.mark.parametrize("garbage", [b"", bytes(32), b"\xff" * 4096, b"\xfe" * 100])
def test_a_search_finds_the_messages_after_garbage(garbage: bytes) -> None:
    scanned = make_scan(STREAM)
    first = next(scanned.messages())
    begin = first.message.offset
    garbage += bytes(-len(garbage) % 8)
    data = STREAM[:begin] + garbage + STREAM[begin:]
    places, defects = scan(data, searches=True)
    assert len(places) == 4
    assert len(defects) == (1 if garbage else 0)


def test_a_search_reads_garbage_only_once() -> None:
    size = 4 << 20
    data = STREAM[: len(STREAM) // 2] + b"\xff\xff\xff\xff\0\1\0\0" * (size // 8)
    reads: list[int] = []

    def read(offset: int, nbytes: int) -> bytes:
        reads.append(nbytes)
        return data[offset : offset + nbytes]

    list(FileScan(read, len(data), searches=True, max_metadata_bytes=1024).messages())
    assert sum(reads) < 4 * len(data)


def test_deltas_follow_their_dictionary() -> None:
    texts = [["a"], ["a", "b"], ["a", "b", "c"]]
    batches = [pa.record_batch([pa.array(t).dictionary_encode()], names=["d"]) for t in texts]
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        with new(sink, batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        data = sink.getvalue()
        places, defects = scan(data)
        assert (len(places), defects) == (6, [])
        scanned = make_scan(data)
        base = next(scanned.messages()).message
        head = struct.pack("<4sI", b"\xff" * 4, len(base.metadata)) + base.metadata
        assert data[base.offset : base.offset + len(head)] == head
        if new is pa.ipc.new_stream:
            data = data[: base.offset] + data[base.end :]
            assert "extends the dictionary 0" in scan(data)[1][0][1]


@pytest.mark.parametrize("data", [b"ARROW1", b"ARROW1\0\0", b"\xff" * 8, b"\xff\xff\xff\xff", b"x"])
def test_garbage_is_a_defect(data: bytes) -> None:
    places, defects = scan(data)
    assert places == []
    assert defects


def test_limits_hold() -> None:
    assert "the limit is 100" in scan(STREAM, max_metadata_bytes=100)[1][0][1]
    data = encode(pa.ipc.new_stream, "zstd")
    assert "the limit is 10" in scan(data, max_decoded_bytes=10)[1][0][1]
