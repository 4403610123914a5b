"""Decoding with pyarrow: the file of buffers, and the validation of arrays."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any, cast

import pyarrow as pa
import pytest

from helpers.streams import ipc_stream, split_messages
from splitarrow.formats.arrow.decoding import BufferFile, validate_memory
from splitarrow.formats.arrow.message import encapsulate

METADATA = bytes(range(16))
BODY = pa.py_buffer(b"0123456789")


def test_reads_never_cross_the_end_of_a_buffer_and_are_not_copies() -> None:
    file = BufferFile()
    file.add(METADATA, BODY)
    file.add(METADATA, None)
    file.add(METADATA, pa.py_buffer(b""))
    file.add(METADATA, BODY)
    prefixed = encapsulate(METADATA)
    read: list[bytes] = []
    for nbytes in (8, 16, 4, 100, 24, 24, 25, 10):
        before = file.tell()
        piece = file.read(nbytes)
        assert file.tell() == before + piece.size
        read.append(piece.to_pybytes())
        if read[-1] in (b"0123", b"0123456789"):
            assert piece.address == BODY.address
    whole = [prefixed[:8], METADATA, b"0123", b"456789"]
    assert read == [*whole, prefixed, prefixed, prefixed, b"0123456789"]
    assert file.read(1).size == 0
    assert file.tell() == 24 + 10 + 3 * 24 + 10


def test_a_file_may_only_be_read_in_order() -> None:
    file = BufferFile()
    assert (file.closed, file.readable(), file.seekable(), file.writable(), file.tell()) == (
        *(False, True, False, False),
        0,
    )


def test_pyarrow_reads_messages_that_arrive_one_by_one_in_place() -> None:
    batch = pa.record_batch({"n": list(range(100))})
    schema, message = split_messages(ipc_stream([batch], batch.schema))
    file = BufferFile()
    file.add(bytes(schema.metadata), None)
    with pa.ipc.open_stream(pa.PythonFile(cast(Any, file), mode="r")) as reader:
        for _ in range(2):
            body = pa.py_buffer(b"".join(bytes(part) for part in message.body or ()))
            file.add(bytes(message.metadata), body)
            received = reader.read_next_batch()
            assert received == batch
            column: Any = received.column(0)
            assert column.buffers()[1].address == body.address


def test_a_closed_file_releases_its_buffers() -> None:
    file = BufferFile()
    file.add(METADATA, BODY)
    file.close()
    assert file.read(100).size == 0


def test_values_within_their_ranges_are_reported() -> None:
    assert validate_memory(pa.array([1, None, 3]))


def test_a_decimal_with_too_many_digits_is_safe() -> None:
    wide = pa.array([12345], pa.decimal128(10, 0))
    narrow = pa.Array.from_buffers(pa.decimal128(3, 0), 1, wide.buffers())
    assert not validate_memory(narrow)


def test_a_time_of_more_than_a_day_is_safe() -> None:
    seconds = pa.array([100_000], pa.int32())
    time = pa.Array.from_buffers(pa.time32("s"), 1, seconds.buffers())
    assert not validate_memory(pa.record_batch([time], ["t"]))
    assert validate_memory(pa.array([datetime.time(1)], pa.time32("s")))


def test_a_negative_number_of_rows_is_refused() -> None:
    batch = pa.record_batch([pa.array([decimal.Decimal(1)] * 1009)], ["d"])
    message = batch.serialize().to_pybytes()
    damaged = message.replace(struct.pack("<q", 1009), struct.pack("<q", -(1 << 56)))
    read = pa.ipc.read_record_batch(pa.py_buffer(damaged), batch.schema)
    with pytest.raises(pa.ArrowInvalid, match="length is negative"):
        validate_memory(read)


def test_indices_outside_of_a_dictionary_are_refused() -> None:
    indices = pa.array([7], pa.int8())
    with pytest.raises(pa.ArrowInvalid):
        validate_memory(pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False))


OFFSETS = pa.py_buffer(struct.pack("<3i", 0, 1, 2))
LARGE_OFFSETS = pa.py_buffer(struct.pack("<3q", 0, 1, 2))
LENGTHS = pa.py_buffer(struct.pack("<2i", 1, 1))
LARGE_LENGTHS = pa.py_buffer(struct.pack("<2q", 1, 1))
CODES = pa.array([0, 1], pa.int8())


def nest(leaf: Any) -> dict[str, Any]:
    """Return arrays that contain two values, one for each way to nest them."""
    value, build, keys = leaf.type, cast(Any, pa.Array).from_buffers, pa.array(["a", "b"])
    item: Any = pa.field("item", value)
    entries = pa.StructArray.from_arrays(
        [keys, leaf], fields=[pa.field("key", pa.string(), False), pa.field("value", value)]
    )
    return {
        "plain": leaf,
        "list": build(pa.list_(item), 2, [None, OFFSETS], children=[leaf]),
        "large list": build(pa.large_list(item), 2, [None, LARGE_OFFSETS], children=[leaf]),
        "fixed-size list": build(pa.list_(item, 1), 2, [None], children=[leaf]),
        "list view": build(pa.list_view(item), 2, [None, OFFSETS, LENGTHS], children=[leaf]),
        "large list view": build(
            pa.large_list_view(item), 2, [None, LARGE_OFFSETS, LARGE_LENGTHS], children=[leaf]
        ),
        "struct": pa.StructArray.from_arrays([keys, leaf], ["a", "b"]),
        "map": build(pa.map_(pa.string(), value), 2, [None, OFFSETS], children=[entries]),
        "sparse union": pa.UnionArray.from_sparse(CODES, [leaf, leaf]),
        "dense union": pa.UnionArray.from_dense(CODES, pa.array([0, 1], pa.int32()), [leaf, leaf]),
        "runs": build(
            pa.run_end_encoded(pa.int32(), value),
            2,
            [None],
            children=[pa.array([1, 2], pa.int32()), leaf],
        ),
        "dictionary": pa.DictionaryArray.from_arrays(CODES, leaf),
        "list of lists": build(
            pa.list_(pa.list_(item)),
            1,
            [None, pa.py_buffer(struct.pack("<2i", 0, 2))],
            children=[build(pa.list_(item), 2, [None, OFFSETS], children=[leaf])],
        ),
    }


def times(*seconds: int) -> Any:
    numbers = pa.array(seconds, pa.int32())
    return pa.Array.from_buffers(pa.time32("s"), len(seconds), numbers.buffers())


@pytest.mark.parametrize("name", nest(times(1, 2)))
def test_nested_values_out_of_range_are_safe(name: str) -> None:
    assert validate_memory(nest(times(1, 86_399))[name])
    assert not validate_memory(nest(times(1, 86_400))[name])
    assert not validate_memory(pa.record_batch([nest(times(1, -1))[name]], ["n"]))


@pytest.mark.parametrize(
    ("make", "code", "has_sizes"),
    [
        (pa.list_, "i", False),
        (pa.large_list, "q", False),
        (pa.list_view, "i", True),
        (pa.large_list_view, "q", True),
    ],
)
@pytest.mark.parametrize("offset", [1, 7, -1])
def test_bad_offsets_are_refused_beside_values_out_of_range(
    make: Any, code: str, has_sizes: bool, offset: int
) -> None:
    """The second check, of an array without ranges, reads the offsets as the first one does."""
    offsets = (0, offset) if has_sizes else (0, offset, 2)
    parts = [offsets, (1, 1)] if has_sizes else [offsets]
    buffers = [None, *(pa.py_buffer(struct.pack(f"<{len(p)}{code}", *p)) for p in parts)]
    build = cast(Any, pa.Array).from_buffers
    array = build(make(pa.time32("s")), 2, buffers, children=[times(1, 86_400)])
    if offset == 1:
        assert not validate_memory(array)
    else:
        with pytest.raises(pa.ArrowInvalid):
            validate_memory(array)


@pytest.mark.parametrize(
    ("data_type", "storage", "good", "bad"),
    [
        (pa.date64(), pa.int64(), 86_400_000, 1),
        (pa.time32("ms"), pa.int32(), 0, -1),
        (pa.time64("us"), pa.int64(), 0, 86_400_000_000),
        (pa.time64("ns"), pa.int64(), 1, -1),
    ],
)
def test_each_type_with_a_range(data_type: Any, storage: Any, good: int, bad: int) -> None:
    for value, is_valid in ((good, True), (bad, False)):
        buffers = pa.array([value], storage).buffers()
        assert validate_memory(pa.Array.from_buffers(data_type, 1, buffers)) is is_valid
