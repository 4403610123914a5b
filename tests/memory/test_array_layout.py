"""The structure of arrays, apart from their memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from splitarrow.memory.array_layout import ArrayLayout, without_offsets

ARRAYS = make_arrays_of_all_types()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_the_same_in_other_buffers(name: str) -> None:
    batch = without_offsets(pa.record_batch({"c": ARRAYS[name]}))
    layout = ArrayLayout.of(batch.column(0))
    copies: list[pa.Buffer] = []

    def copy(buffer: pa.Buffer) -> pa.Buffer:
        copies.append(pa.py_buffer(buffer.to_pybytes()))
        return copies[-1]

    moved = layout.move(copy)
    assert list(moved.list_buffers()) == copies
    array = moved.to_array()
    array.validate(full=True)
    assert array.type == ARRAYS[name].type
    assert pa.record_batch({"c": array}).equals(batch)


@pytest.mark.parametrize("name", ARRAYS)
def test_offsets_are_removed(name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]}).slice(1)
    moved = without_offsets(batch)
    assert moved.equals(batch)
    assert ArrayLayout.of(moved.column(0)).to_array().equals(batch.column(0))


def test_a_batch_without_offsets_is_not_copied() -> None:
    batch = pa.record_batch({"c": pa.array([1, 2, 3])})
    data, moved = batch.column(0).buffers()[1], without_offsets(batch).column(0).buffers()[1]
    assert data is not None
    assert moved is not None
    assert moved.address == data.address
