"""Ranges of record batches: every dataset sends exactly the record batches in them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog import read_dataset
from helpers.files import write_file, write_stream
from helpers.sources import DATASET_TYPES, encode_filter, make_dataset, make_table
from splitarrow.errors import InvalidRequestError
from splitarrow.protocol.request import Request
from splitarrow.server.catalog.batch_ranges import BatchRanges
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.catalog.messages.message_index import REGION_BYTES
from splitarrow.server.catalog.messages.passthrough import Readahead

ITEMS = range(20)
drawn = st.none() | st.lists(st.integers(0, 20), max_size=9).map(
    lambda bounds: tuple(list(pairwise(sorted(bounds)))[::2])
)


@given(drawn, st.integers(0, 25), st.integers(0, 20))
def test_ranges_select_the_items_with_their_numbers(
    ranges: tuple[tuple[int, int], ...] | None, count: int, begin: int
) -> None:
    batches = BatchRanges(ranges)
    expected = [
        item
        for item in ITEMS
        if ranges is None or any(first <= item < end for first, end in ranges)
    ]
    assert list(batches.select(ITEMS)) == expected
    assert list(batches.iterate(iter(ITEMS))) == expected
    assert list(batches.skip(count, len(ITEMS)).select(ITEMS)) == expected[count:]
    part = ITEMS[begin : begin + 6]
    assert list(batches.within(begin, len(part)).select(part)) == [n for n in expected if n in part]


def test_items_after_the_last_range_are_not_taken() -> None:
    items = iter(ITEMS)
    assert list(BatchRanges(((1, 2), (4, 5))).iterate(items)) == [1, 4]
    assert next(items) == 5


RANGES = ((0, 1), (2, 2), (3, 4))


@pytest.mark.parametrize("dataset_type", DATASET_TYPES)
def test_a_dataset_sends_the_record_batches_of_all_ranges(
    tmp_path: Path, dataset_type: str
) -> None:
    source, data = make_dataset(dataset_type, tmp_path), make_table()
    counts = source.count_rows(Request("name"), Encoding())
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    chosen = [data.slice(ends[number] - counts[number], counts[number]) for number in (0, 3)]
    expected = pa.concat_tables(chosen)
    assert read_dataset(source, batches=RANGES).table.equals(expected)
    some = read_dataset(source, batches=RANGES, columns=("t", "n"), offset=3, limit=200).table
    assert some.equals(expected.select(["t", "n"]).slice(3, 200))
    after = read_dataset(source, batches=RANGES, offset=counts[0]).table
    assert after.equals(chosen[1])
    assert read_dataset(source, batches=RANGES, offset=2000).rows == 0
    row_filter = encode_filter(pc.field("b"), data.schema)
    found = read_dataset(source, batches=RANGES, filter=row_filter, offset=2).table
    assert found.equals(expected.filter(pc.field("b")).slice(2))
    with pytest.raises(InvalidRequestError, match="no record batches 3:99; there are"):
        read_dataset(source, batches=((0, 1), (3, 99)))


def test_record_batches_are_sent_as_they_are_stored(tmp_path: Path) -> None:
    for kind in ("file", "arrow directory"):
        source = make_dataset(kind, tmp_path)
        assert not read_dataset(source, batches=RANGES).blocking


def test_a_range_gets_the_dictionaries_of_the_messages_before_it(tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"w": pa.array([f"{n}a", f"{n}b"]).dictionary_encode()}) for n in range(5)
    ]
    source = open_dataset(write_stream(tmp_path / "x.arrows", batches))
    result = read_dataset(source, batches=((1, 2), (4, 5)))
    assert result.table["w"].to_pylist() == ["1a", "1b", "4a", "4b"]
    assert not result.blocking


def test_a_file_is_not_read_ahead_between_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[int] = []
    monkeypatch.setattr(Readahead, "advance", lambda self, position: positions.append(position))
    batches = [pa.record_batch({"n": pa.array(range(REGION_BYTES // 8))})] * 4
    source = open_dataset(write_file(tmp_path / "x.arrow", batches))
    assert read_dataset(source, batches=((0, 1), (3, 4))).table.num_rows == REGION_BYTES // 4
    assert not positions
    read_dataset(source, batches=((0, 2),))
    assert positions
