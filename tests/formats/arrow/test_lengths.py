"""Lengths of lists, computed and encoded."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow import lengths as module
from splitarrow.formats.arrow.lengths import (
    decode_lengths,
    encode_lengths,
    has_lengths,
    measure_lengths,
)

ITEM = pa.int8()
LISTS: list[Any] = [
    *(pa.list_(ITEM), pa.large_list(ITEM), pa.list_view(ITEM), pa.large_list_view(ITEM)),
    pa.list_(pa.list_(ITEM)),
]
BYTES = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
OTHERS = [
    *(pa.int32(), pa.null(), pa.string_view(), pa.binary_view(), pa.binary(3)),
    *(pa.struct([("a", pa.list_(ITEM))]), pa.map_(ITEM, ITEM)),
    pa.dictionary(ITEM, pa.string()),
]


@pytest.mark.parametrize("data_type", [*LISTS, *BYTES, pa.list_(ITEM, 2)], ids=str)
def test_lengths_are_those_of_the_values(data_type: Any) -> None:
    values: list[Any] = [b"\xc3\xa4", None, b"", b"b"]
    if data_type in LISTS:
        values = [[None, None], None, [], [None]]
    elif data_type not in BYTES:
        values = [[1, 2], None, [None, None], [3, 4]]
    array: Any = pa.array(values, data_type)
    expected = [None if each is None else len(each) for each in values]
    assert has_lengths(data_type)
    for begin in range(4):
        found = measure_lengths(array.slice(begin))
        assert (found.type, found.to_pylist()) == (pa.int32(), expected[begin:])


@pytest.mark.parametrize("data_type", OTHERS, ids=str)
def test_other_values_have_no_lengths(data_type: Any) -> None:
    assert not has_lengths(data_type)


def test_invalid_offsets_are_refused() -> None:
    offsets: Any = pa.array([0, 2, 1, 2], pa.int32()).buffers()[1]
    items: Any = [pa.nulls(2, ITEM)]
    array: Any = pa.Array.from_buffers(pa.list_(ITEM), 3, [None, offsets], children=items)
    array.validate()
    with pytest.raises(pa.ArrowInvalid, match="the offsets of a list decrease"):
        measure_lengths(array)
    values: Any = pa.LargeListArray.from_arrays(pa.array([0, 1 << 31]), pa.nulls(1 << 31))
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        measure_lengths(values)


@pytest.mark.parametrize(
    ("sizes", "streams"),
    [([], 1), ([0], 1), ([10], 1), ([11], 2), ([3, 0, 25, 4, 4, 4], 5), ([4] * 7, 4)],
)
def test_streams_are_bounded_and_the_last_one_has_the_numbers_of_rows(
    sizes: list[int], streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LENGTHS", 10)
    numbers = [None if n % 3 == 0 else n for n in range(sum(sizes))]
    spans = pairwise([0, *accumulate(sizes)])
    batches = [pa.array(numbers[begin:end], pa.int32()) for begin, end in spans]
    decoded = [decode_lengths(each) for each in encode_lengths({"shard": 3}, batches)]
    assert [header for header, _ in decoded[:-1]] == [{"shard": 3}] * (len(decoded) - 1)
    assert decoded[-1][0] == {"shard": 3, "rows": sizes}
    assert all(len(lengths) <= 10 for _, lengths in decoded)
    assert len(decoded) == streams
    assert pa.concat_arrays([lengths for _, lengths in decoded]).to_pylist() == numbers


STREAM = next(encode_lengths({"shard": 0}, [pa.array(range(300), pa.int32())]))


@given(st.integers(0, len(STREAM) - 1), st.binary(max_size=9))
def test_damaged_streams_are_refused_or_decoded(position: int, data: bytes) -> None:
    rest = STREAM[position + len(data) :] if data else b""
    damaged = STREAM[:position] + data + rest
    try:
        _, lengths = decode_lengths(damaged)
    except ProtocolError:
        return
    lengths.validate(full=True)


def test_a_stream_that_expands_without_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros: Any = pa.nulls(9 << 18, pa.int32()).fill_null(0)
    monkeypatch.setattr(module, "MAX_LENGTHS", len(zeros))
    (stream,) = encode_lengths({}, [zeros])
    assert len(decode_lengths(stream)[1]) == len(zeros)
    monkeypatch.undo()
    with pytest.raises(ProtocolError, match="decodes to 9437184 bytes; the limit is 4194304"):
        decode_lengths(stream)


def test_streams_with_other_contents_are_refused() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"length": [1]}, metadata={"splitarrow:lengths": "{}"})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ProtocolError, match="the lengths have the schema"):
        decode_lengths(sink.getvalue().to_pybytes())
