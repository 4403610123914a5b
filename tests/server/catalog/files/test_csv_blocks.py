"""Blocks of CSV are whole rows, wherever they end and whatever is in quotes."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.server.catalog.files.csv_blocks import Block, BlockReader, parse_block

VALUES = st.text(st.sampled_from('a,"\n\r 1'), max_size=5)


@given(
    rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.integers(1, 40),
)
def test_blocks_of_any_size_have_the_same_rows(
    rows: list[tuple[str, str]], end: str, size: int
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([("x", "y"), *rows])
    reader = BlockReader(io.BytesIO(text.getvalue().encode()), size)
    assert reader.names == ["x", "y"]
    found: list[tuple[Any, ...]] = []
    for block in reader:
        columns = parse_block(block, [pa.string(), pa.string()])
        found += zip(*(column.to_pylist() for column in columns), strict=True)
        assert [*block.find_quoted_columns(2)] == [0, 1]
    assert found == rows


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"1,2,3\n", []),
        (b'1,"2",3\n4,5,"6"\n', [1, 2]),
        (b'"a,b\nc",2,3\n4,5,6\r\n', [0]),
        (b'1,5\'10",3\n4,"a""b",6\n', [1]),
        (b'1,"",3\n', [1]),
    ],
)
def test_columns_with_quotes_are_found(data: bytes, columns: list[int]) -> None:
    assert [*Block(data, 2).find_quoted_columns(3)] == columns
