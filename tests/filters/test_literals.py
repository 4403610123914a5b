"""What texts and numbers denote beside the values of a type."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.filters.literals import (
    find_limits,
    find_place,
    kind_of,
    make_bytes,
    make_float,
    make_scalar,
    make_uuid,
    parse_time,
    parse_timestamp,
)
from splitarrow.filters.tree import Instant, make_literal

SECOND = 10**9
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-02", (DAY, False)),
        ("0001-01-01", (-719162 * DAY, False)),
        ("9999-12-31", (2932896 * DAY, False)),
        ("1970-1-2", (DAY, False)),
        ("1970-01-01 00:00:01.5", (SECOND * 3 // 2, False)),
        ("1970-01-01T00:00:00.000000001", (1, False)),
        ("1970-01-01T02:00+02", (0, True)),
        ("1970-01-01 00:00-01:30", (5400 * SECOND, True)),
        ("1970-01-01 00:00:00 UTC", (0, True)),
        ("1970-01-01T00:00Z", (0, True)),
        ("1970-02-30", (None, False)),
        ("1970-01-01 24:00", (None, False)),
        ("1970-01-01 00:60", (None, False)),
        ("1970-01-01x", (None, False)),
        ("19700101", (None, False)),
        ("", (None, False)),
    ],
)
def test_timestamps_are_read_exactly(text: str, expected: Any) -> None:
    assert parse_timestamp(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1:02", 3720 * SECOND), ("23:59:59.999999999", DAY - 1), ("24:00", None), ("noon", None)],
)
def test_times_are_read_exactly(text: str, expected: int | None) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (5, pa.int8(), 5),
        (Decimal("4.999"), pa.decimal128(9, 2), Fraction(4999, 10)),
        (0.1, pa.decimal128(9, 2), 10),
        (" 12.5 ", pa.int32(), Fraction(25, 2)),
        ("1e2", pa.int32(), 100),
        ("twelve", pa.int32(), None),
        (True, pa.int32(), None),
        (float("nan"), pa.int32(), None),
        (b"1", pa.int32(), None),
        ("1970-01-02", pa.date32(), 1),
        ("1970-01-01 12:00", pa.date32(), Fraction(1, 2)),
        (Instant("date", DAY), pa.timestamp("ms"), 86_400_000),
        (Instant("timestamptz", 1), pa.timestamp("us", "UTC"), Fraction(1, 1000)),
        (Instant("time", 1), pa.timestamp("us"), None),
        (5, pa.timestamp("us"), None),
        ("12:00", pa.time32("s"), 43_200),
        (Instant("duration", 5), pa.duration("ns"), 5),
        ("1 hour", pa.duration("ns"), None),
    ],
    ids=str,
)
def test_a_literal_is_a_number_of_units(value: Any, data_type: Any, expected: Any) -> None:
    assert find_place(value, data_type) == expected


@pytest.mark.parametrize("text", ["inf", "1E+500000000"])
@pytest.mark.parametrize("make", [float, Decimal])
def test_infinite_literals_are_beyond_all_values(text: str, make: Any) -> None:
    for data_type in (pa.uint64(), pa.decimal256(76, 0)):
        values = [make_literal(make(sign + text)).value for sign in ("", "-")]
        place, opposite = (find_place(each, data_type) for each in values)
        assert place is not None
        assert opposite is not None
        low, high = find_limits(data_type)
        assert opposite < low < high < place


def test_floats_keep_their_precision() -> None:
    assert make_float(Decimal("0.1"), pa.float32()) == pa.scalar(0.1, pa.float32())
    assert make_float(0.1, pa.float32()) == pa.scalar(0.1, pa.float64())
    assert make_float(0.5, pa.float32()) == pa.scalar(0.5, pa.float32())
    assert make_float(10**400, pa.float64()).as_py() == float("inf")
    assert make_float(-(10**400), pa.float64()).as_py() == float("-inf")
    assert make_float("1.5", pa.float64()).as_py() == 1.5
    assert make_float("much", pa.float64()) is None
    assert make_float(True, pa.float64()) is None


def test_bytes_and_uuids() -> None:
    assert make_bytes(r"a\xFF\x00é") == b"a\xff\x00" + "é".encode()
    assert make_bytes(b"\\x41") == b"\\x41"
    assert make_bytes(5) is None
    assert make_uuid("00000000-0000-0000-0000-000000000001") == bytes(15) + b"\1"
    assert make_uuid(bytes(16)) == bytes(16)
    assert make_uuid(bytes(15)) is None
    assert make_uuid("1") is None


def test_scalars_have_the_units_of_their_types() -> None:
    assert make_scalar(-(10**37), pa.decimal128(38, 2)).as_py() == Decimal(-(10**35))
    assert make_scalar(7, pa.timestamp("ns", "UTC")).value == 7
    assert make_scalar(-1, pa.date32()).value == -1
    assert make_scalar(1, pa.time32("ms")).value == 1


def test_kinds_look_through_encodings() -> None:
    assert kind_of(pa.dictionary(pa.int8(), pa.decimal128(5, 2))) == "decimal"
    assert kind_of(pa.run_end_encoded(pa.int32(), pa.float16())) == "float"
    assert kind_of(pa.json_()) == "text"
    assert kind_of(pa.uuid()) == "UUID"
    assert kind_of(pa.month_day_nano_interval()) == "interval"
