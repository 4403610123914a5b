"""Each value has one text, which is read back as the same value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.formats.arrow.text_values import (
    ValueTextError,
    convert_column,
    format_values,
    parse_values,
)

LAST = (1 << 63) - 1
TEXTS: list[tuple[Any, int, str]] = [
    (pa.date32(), 2_932_896, "9999-12-31"),
    (pa.date32(), 2_932_897, "10000-01-01"),
    (pa.date32(), -719_163, "0000-12-31"),
    (pa.date32(), (1 << 31) - 1, "5881580-07-11"),
    (pa.date32(), -(1 << 31), "-5877641-06-23"),
    (pa.timestamp("us"), LAST, "294247-01-10 04:00:54.775807"),
    (pa.timestamp("s", "Asia/Tokyo"), LAST, "292277026596-12-04 15:30:07Z"),
    (pa.timestamp("ns"), 1 - LAST, "1677-09-21 00:12:43.145224194"),
    (pa.duration("s"), -LAST - 1, f"PT-{1 << 63}S"),
    (pa.duration("ns"), -1_500_000_000, "PT-1.5S"),
    (pa.uint64(), -1, str(2**64 - 1)),
]


@pytest.mark.parametrize(("data_type", "number", "text"), TEXTS)
def test_extreme_values_have_a_text(data_type: Any, number: int, text: str) -> None:
    width: Any = pa.int32() if data_type.bit_width == 32 else pa.int64()
    array: Any = pa.array([number, None], width).view(data_type)
    texts = format_values(array)
    assert texts.to_pylist() == [text, None]
    assert parse_values(texts.cast(pa.string()), data_type).equals(array)


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        (pa.int8(), "128"),
        (pa.float64(), "1e999"),
        (pa.date32(), "5881580-07-12"),
        (pa.timestamp("s"), "2020-01-01 00:00:00.5"),
        (pa.duration("s"), "PT0.5S"),
        (pa.binary(), "a"),
        (pa.null(), "a"),
        (pa.uuid(), "a"),
        (pa.time32("s"), "24:00:00"),
    ],
)
def test_a_text_that_is_not_a_value_is_found(data_type: Any, text: str) -> None:
    texts = pa.array([None] * 5 + [text, None])
    with pytest.raises(ValueTextError) as caught:
        convert_column(lambda values: parse_values(values, data_type), texts)
    assert caught.value.index == 5
