"""Sets of row numbers: every kind of container, and malformed bytes."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.deletion_vectors import encode_rows
from splitarrow.errors import InvalidDataError
from splitarrow.formats.roaring import RowSet

SETS = {
    "empty": [],
    "one": [0],
    "last of a container": [65535],
    "array": [3, 4, 7, 11, 18, 29],
    "bitmap": list(range(0, 20_000, 3)),
    "full container": list(range(65536)),
    "sparse containers": [5, 70_000, 400_000, 1_000_000, 1_000_001],
    "two buckets": [1, (1 << 32) + 7, (1 << 33) - 1],
}


@pytest.mark.parametrize("rows", SETS.values(), ids=SETS)
@pytest.mark.parametrize("runs", [False, True])
def test_a_set_has_the_rows_that_were_written(rows: list[int], runs: bool) -> None:
    found = RowSet.parse(encode_rows(rows, runs=runs))
    assert (len(found), found.end) == (len(rows), rows[-1] + 1 if rows else 0)
    for row in rows[:50]:
        assert found.mask(row, row + 1).all()
    if found.end < 1 << 32:
        assert np.flatnonzero(found.mask(0, found.end + 5)).tolist() == rows


@given(st.sets(st.integers(0, 200_000), max_size=300), st.booleans(), st.data())
def test_masks_and_counts_agree_with_a_python_set(
    rows: set[int], runs: bool, data: st.DataObject
) -> None:
    found = RowSet.parse(encode_rows(rows, runs=runs))
    begin = data.draw(st.integers(0, 200_000))
    end = data.draw(st.integers(begin, 300_000))
    expected = sorted(row - begin for row in rows if begin <= row < end)
    assert np.flatnonzero(found.mask(begin, end)).tolist() == expected
    assert found.count(begin, end) == len(expected)


VALID = [encode_rows(SETS["bitmap"]), encode_rows(SETS["sparse containers"], runs=True)]


@given(st.sampled_from(VALID), st.data())
def test_a_truncated_set_is_refused(encoded: bytes, data: st.DataObject) -> None:
    with pytest.raises(InvalidDataError):
        RowSet.parse(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@given(st.binary(max_size=60))
def test_garbage_raises_one_kind_of_error(garbage: bytes) -> None:
    with suppress(InvalidDataError):
        RowSet.parse(struct.pack("<I", 1681511377) + garbage)


def bitmap(*containers: tuple[int, int], body: bytes) -> bytes:
    """Return a set with one bitmap, of containers with these keys and numbers of rows."""
    head = struct.pack("<IQIII", 1681511377, 1, 0, 12346, len(containers))
    for key, rows in containers:
        head += struct.pack("<HH", key, rows - 1)
    return head + bytes(4 * len(containers)) + body


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (struct.pack("<I", 1681511378), "begins with the number 1681511378"),
        (struct.pack("<IQII", 1681511377, 1, 0, 12345), "unknown cookie 12345"),
        (encode_rows([1]) + b"\0", "1 bytes follow"),
        (bitmap((0, 2), body=b"\1\0\1\0"), "has 1 rows; its header states 2"),
        (bitmap((1, 1), (0, 1), body=b"\1\0\1\0"), "not in order"),
        (bitmap((1, 1), (1, 1), body=b"\1\0\1\0"), "not in order"),
        (bitmap((0, 5000), body=bytes(8192)), "has 0 rows; its header states 5000"),
        (bitmap((0, 5000), body=bytes(8191)), "within a part of 8192 bytes"),
    ],
)
def test_an_invalid_set_is_refused(encoded: bytes, reason: str) -> None:
    with pytest.raises(InvalidDataError, match=reason):
        RowSet.parse(encoded)
