"""Columns as arrays of NumPy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.errors import MissingExtraError, UsageError
from splitarrow.formats.arrow.numpy_arrays import column_to_numpy, columns_to_numpy

ARRAYS = make_arrays_of_all_types()
MATRICES: Any = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]])
MATRIX_TYPE: Any = pa.list_(pa.list_(pa.int16(), 2), 3)


NOT_CONVERTED = {
    "time64[ns]",
    "sparse_union",
    "dense_union",
    "dense_union of dictionary",
    "dictionary of struct",
    "dictionary of list of dictionary",
}
CONVERTED = [name for name in ARRAYS if name not in NOT_CONVERTED]


@pytest.mark.parametrize("name", CONVERTED)
def test_types_become_arrays_with_all_rows(name: str) -> None:
    array = ARRAYS[name]
    chunked = pa.chunked_array([array, array.slice(1)])
    assert len(column_to_numpy(array)) == len(array)
    assert len(column_to_numpy(chunked)) == len(chunked)


@pytest.mark.parametrize("name", sorted(NOT_CONVERTED))
def test_a_type_that_pyarrow_cannot_convert_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=r"a column of the type .* has no form in NumPy"):
        column_to_numpy(ARRAYS[name])


def test_numbers_of_a_batch_are_not_copied() -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "c"], "b": [True, False, True]})
    arrays = columns_to_numpy(batch)
    data = batch["n"].buffers()[1]
    assert data is not None
    assert arrays["n"].ctypes.data == data.address
    assert arrays["n"].tolist() == [1, 2, 3]
    assert arrays["s"].tolist() == ["a", None, "c"]
    assert arrays["b"].dtype == np.bool_


def test_lists_of_a_fixed_size_have_more_dimensions() -> None:
    column = MATRICES.cast(MATRIX_TYPE)
    expected = np.array(MATRICES.to_pylist(), np.int16)
    for array in (column, pa.chunked_array([column])):
        made = column_to_numpy(array)
        assert made.dtype == np.int16
        assert np.array_equal(made, expected)
    assert np.array_equal(column_to_numpy(column.slice(1)), expected[1:])
    twice = column_to_numpy(pa.chunked_array([column, column]))
    assert np.array_equal(twice, np.concatenate([expected, expected]))
    assert column_to_numpy(pa.chunked_array([], MATRIX_TYPE)).shape == (0, 3, 2)


def test_tensors_keep_their_shape() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array: Any = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    assert np.array_equal(column_to_numpy(array), values)
    assert np.array_equal(column_to_numpy(pa.chunked_array([array])), values)


@pytest.mark.parametrize("rows", [[[1, 2], None], [[1, None], [3, 4]]])
def test_lists_with_nulls_stay_lists(rows: list[Any]) -> None:
    made = column_to_numpy(pa.array(rows, pa.list_(pa.int32(), 2)))
    assert made.dtype == object
    assert made.shape == (2,)


def test_columns_of_one_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(UsageError, match="several columns are called 'a'"):
        columns_to_numpy(batch)


def test_a_missing_numpy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match="pip install numpy"):
        columns_to_numpy(pa.record_batch({"n": [1]}))
