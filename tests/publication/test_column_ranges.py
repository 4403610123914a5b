"""Column ranges are exact or unknown, and never too narrow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow import variant
from splitarrow.publication.column_ranges import RangeTracker, decode_bound, encode_bound
from splitarrow.publication.manifest import ColumnRange


def compute_range(*arrays: Any) -> ColumnRange:
    schema = pa.schema([("x", arrays[0].type)])
    tracker = RangeTracker(schema)
    for array in arrays:
        tracker.add(pa.RecordBatch.from_arrays([array], schema=schema))
    return tracker.ranges()["x"]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3, None, -1], pa.int8()), (-1, 3, 1)),
        (pa.array([2**63, 7], pa.uint64()), (7, str(2**63), 0)),
        (pa.array([1.5, -2.5]), (-2.5, 1.5, 0)),
        (pa.array([1.5, float("nan")]), (None, None, 0)),
        (pa.array([1.5, float("inf")]), (1.5, None, 0)),
        (pa.array(["b", "a", None]), ("a", "b", 1)),
        (pa.array(["b", "z" * 65], pa.large_string()), ("b", None, 0)),
        (pa.array([None, None], pa.int32()), (None, None, 2)),
        (pa.array([], pa.int32()), (None, None, 0)),
        (pa.array([dt.date(2024, 2, 29)]), ("2024-02-29", "2024-02-29", 0)),
        (
            pa.array([1, 2], pa.timestamp("ns", "Europe/Berlin")),
            ("1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000000002", 0),
        ),
        (pa.array([10**12], pa.timestamp("s")), (None, None, 0)),
        (pa.array([Decimal("9.5"), Decimal("-1.25")]), ("-1.25", "9.50", 0)),
        (pa.array([True, False]), (None, None, 0)),
        (pa.array([[1], None]), (None, None, 1)),
        (pa.array([b"x"]), (None, None, 0)),
    ],
)
def test_the_range_of_each_type(array: Any, expected: tuple[Any, Any, int]) -> None:
    assert compute_range(array) == ColumnRange(*expected)


def test_unused_dictionary_values_do_not_count() -> None:
    indices: Any = pa.array([1, None, 1], pa.int8())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "m", "z"]))
    assert compute_range(array) == ColumnRange("m", "m", 1)
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None, "z"]))
    assert compute_range(array) == ColumnRange(None, None, 3)


def test_the_range_covers_all_batches() -> None:
    numbers = pa.array([5], pa.timestamp("ns")), pa.array([None, 9], pa.timestamp("ns"))
    column_range = compute_range(*numbers, pa.array([7], pa.timestamp("ns")))
    assert column_range == ColumnRange(
        "1970-01-01 00:00:00.000000005", "1970-01-01 00:00:00.000000009", 1
    )
    nan = pa.array([float("nan")])
    assert compute_range(nan, pa.array([1.0])) == ColumnRange(None, None, 0)
    assert compute_range(pa.array([1.0]), nan) == ColumnRange(None, None, 0)


def test_columns_with_the_same_name_have_no_range() -> None:
    schema = pa.schema([("x", pa.int8()), ("x", pa.int8()), ("y", pa.int8())])
    assert list(RangeTracker(schema).ranges()) == ["y"]


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        ("x", pa.int64()),
        (1.5, pa.int64()),
        (300, pa.int8()),
        ("1", pa.float64()),
        (1, pa.string()),
        ("yesterday", pa.date32()),
        ("2024", pa.binary()),
        (None, pa.int64()),
        (1, pa.bool_()),
    ],
)
def test_a_bound_of_another_type_is_unknown(value: Any, data_type: pa.DataType) -> None:
    assert decode_bound(value, data_type) is None


TYPES = [
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.float32(),
    pa.string(),
    pa.date32(),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("s"),
]


@given(st.sampled_from(TYPES).flatmap(lambda t: st.tuples(st.just(t), _draw_values(t))))
def test_a_range_contains_every_value_and_survives_decoding(drawn: tuple[Any, list[Any]]) -> None:
    data_type, values = drawn
    array = _make_array(data_type, values)
    column_range = compute_range(array)
    valid = [value for value in array if value.is_valid]
    assert column_range.nulls == len(values) - len(valid)
    for bound, comparison in ((column_range.minimum, "less"), (column_range.maximum, "greater")):
        if bound is not None:
            scalar = decode_bound(bound, data_type)
            assert scalar is not None
            assert encode_bound(scalar) == bound
            assert not pc.any(getattr(pc, comparison)(array, scalar)).as_py()
            assert pc.any(pc.equal(array, scalar)).as_py()


def _draw_values(data_type: Any) -> Any:
    if pa.types.is_string(data_type):
        one = st.text(max_size=70)
    elif pa.types.is_floating(data_type):
        one = st.floats(width=32 if data_type.bit_width == 32 else 64)
    elif pa.types.is_uint64(data_type):
        one = st.integers(0, 2**64 - 1)
    elif pa.types.is_date(data_type):
        one = st.dates()
    else:
        one = st.integers(-(2**63), 2**63 - 1)
    return st.lists(st.none() | one, max_size=6)


def _make_array(data_type: Any, values: list[Any]) -> Any:
    if pa.types.is_timestamp(data_type):
        return pa.array(values, pa.int64()).cast(data_type)
    return pa.array(values, data_type)


def test_a_described_field_without_a_type_has_no_range() -> None:
    documents = variant.from_python([{"n": 1, "any": 2}, {"n": 5}])
    schema = pa.schema([variant.field("v", fields={"n": pa.int64(), "any": None})])
    tracker = RangeTracker(schema)
    tracker.add(pa.record_batch([documents], schema=schema))
    ranges = tracker.ranges()
    assert list(ranges) == ["v", "v.n"]
    assert (ranges["v.n"].minimum, ranges["v.n"].maximum) == (1, 5)
