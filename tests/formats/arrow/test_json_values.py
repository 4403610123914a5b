"""Values of any nesting are written as JSON, and read back as the same values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.formats.arrow.json_values import from_json_values, to_json_values

INNER = pa.struct(
    [pa.field("x", pa.float64()), pa.field("y", pa.map_(pa.string(), pa.list_(pa.date32())))]
)
VALUES: list[Any] = [{"x": float("inf"), "y": [("k", [None]), ("", None)]}, None]


def test_nested_values_return() -> None:
    array: Any = pa.array([VALUES, None, []], pa.list_view(INNER))
    written = to_json_values(array)
    pairs = [{"key": "k", "value": [None]}, {"key": "", "value": None}]
    assert written == [[{"x": "Infinity", "y": pairs}, None], None, []]
    assert from_json_values(written, array.type).equals(array)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], "a value is not an object"),
        ({"z": 1}, "the schema has no field 'z'"),
        ({"y": {}}, "a value is not an array"),
        ({"y": [{"key": None, "value": []}]}, "the field 'key' is null"),
    ],
)
def test_a_value_of_another_form_is_refused(value: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        from_json_values([value], INNER)
