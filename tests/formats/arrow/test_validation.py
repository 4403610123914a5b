"""Validating the memory of arrays apart from the ranges of values."""

from __future__ import annotations

import datetime
import decimal
import struct

import pyarrow as pa
import pytest

from splitarrow.formats.arrow.validation import validate_memory


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
