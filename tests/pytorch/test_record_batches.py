"""Rows are taken of all types, also of those that pyarrow cannot take."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.pytorch.record_batches import join_batches, plain_schema, take_rows

TEXTS = ["a", None, "long enough to be out of line", "d"]
CODES = pa.array([0, None, 1, 0], pa.int8())
ARRAYS: dict[str, Any] = {
    "views": pa.array(TEXTS, pa.string_view()),
    "binary views": pa.array([b"a", None, b"c", b"d"], pa.binary_view()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), pa.array([7, 8])),
    "views in lists": pa.array([[text] for text in TEXTS], pa.list_(pa.string_view())),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        CODES, pa.array(["a", "b"], pa.string_view())
    ),
    "dictionary of binary views": pa.DictionaryArray.from_arrays(
        CODES, pa.array([b"a", b"b"], pa.binary_view())
    ),
    "runs of views": pa.RunEndEncodedArray.from_arrays(
        pa.array([3, 4], pa.int32()), pa.array(TEXTS[1:3], pa.string_view())
    ),
    "numbers": pa.array([1, None, 3, 4]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_rows_are_taken(name: str) -> None:
    batch = pa.record_batch({"x": ARRAYS[name]})
    taken = take_rows(batch, pa.array([3, 0, 1]))
    values = ARRAYS[name].to_pylist()
    assert taken["x"].to_pylist() == [values[3], values[0], values[1]]
    assert taken.schema.names == ["x"]
    assert plain_schema(batch.schema) == taken.schema


def test_record_batches_are_joined_with_one_dictionary() -> None:
    batches = [
        pa.record_batch({"x": pa.array(each).dictionary_encode()})
        for each in (["a", "b"], ["b", "c"])
    ]
    joined = join_batches(batches)
    assert joined["x"].to_pylist() == ["a", "b", "b", "c"]
    assert join_batches(batches[:1]) is batches[0]
