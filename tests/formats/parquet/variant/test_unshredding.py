"""Shredded Variants, and the contradictions that the specification names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.variant_encoding import encode_with
from splitarrow import variant
from splitarrow.errors import InvalidDataError
from splitarrow.formats.parquet.variant.metadata import encode_metadata

NAMES = ["a", "b", "event_ts", "event_type", "x"]
METADATA = encode_metadata(NAMES)
IDS = {name: index for index, name in enumerate(NAMES)}


def _field(name: str, typed: pa.DataType) -> pa.Field[Any]:
    return pa.field(
        name, pa.struct([("value", pa.binary()), ("typed_value", typed)]), nullable=False
    )


EVENT = pa.struct([_field("event_type", pa.string()), _field("event_ts", pa.int64())])
MISSING = {"value": None, "typed_value": None}


def _value(value: Any) -> bytes:
    return encode_with(value, IDS)


def _typed(value: Any) -> dict[str, Any]:
    return {"value": None, "typed_value": value}


def _unshred(typed: pa.DataType, rows: list[Any]) -> list[Any]:
    data_type = pa.struct(
        [("value", pa.binary()), ("typed_value", typed), ("metadata", pa.binary())]
    )
    column = pa.array([row and {"metadata": METADATA, **row} for row in rows], data_type)
    return variant.to_python(variant.unshred(column))


def test_objects_are_reconstructed_as_in_the_table_of_the_specification() -> None:
    login = {"event_type": _typed("login"), "event_ts": _typed(5)}
    rows = [
        {"value": None, "typed_value": login},
        {"value": _value({"x": "e"}), "typed_value": login},
        {"value": _value({"a": 1}), "typed_value": {"event_type": MISSING, "event_ts": MISSING}},
        {"value": _value("malformed"), "typed_value": None},
        {
            "value": None,
            "typed_value": {
                "event_type": {"value": _value(None), "typed_value": None},
                "event_ts": {"value": _value("2024"), "typed_value": None},
            },
        },
        {"value": None, "typed_value": {"event_type": MISSING, "event_ts": MISSING}},
        {"value": _value(None), "typed_value": None},
        {"value": None, "typed_value": None},
        None,
    ]
    assert _unshred(EVENT, rows) == [
        {"event_type": "login", "event_ts": 5},
        {"event_type": "login", "event_ts": 5, "x": "e"},
        {"a": 1},
        "malformed",
        {"event_type": None, "event_ts": "2024"},
        {},
        None,
        None,
        None,
    ]


NONE_OF_BOTH = {"event_type": MISSING, "event_ts": MISSING}
ELEMENT = pa.list_(_field("element", pa.string()))


@pytest.mark.parametrize(
    ("typed", "row", "problem"),
    [
        (
            EVENT,
            {
                "value": _value({"event_type": "login"}),
                "typed_value": {"event_type": _typed("login"), "event_ts": _typed(1)},
            },
            "a shredded field is in value",
        ),
        (
            EVENT,
            {"value": _value({"event_type": "login"}), "typed_value": NONE_OF_BOTH},
            "a shredded field is in value",
        ),
        (EVENT, {"value": _value({"x": 1}), "typed_value": None}, "typed_value is null"),
        (EVENT, {"value": _value({}), "typed_value": None}, "typed_value is null"),
        (EVENT, {"value": _value("a"), "typed_value": NONE_OF_BOTH}, "not an object"),
        (
            EVENT,
            {
                "value": None,
                "typed_value": {
                    "event_type": {"value": _value(1), "typed_value": "login"},
                    "event_ts": MISSING,
                },
            },
            "both value and typed_value",
        ),
        (pa.int64(), {"value": _value(1), "typed_value": 1}, "both value and typed_value"),
        (ELEMENT, {"value": _value([]), "typed_value": None}, "an array is in value"),
        (ELEMENT, {"value": _value([]), "typed_value": []}, "both value and typed_value"),
        (
            ELEMENT,
            {"value": None, "typed_value": [{"value": _value(1), "typed_value": "x"}]},
            "both value and typed_value",
        ),
        (
            pa.struct([_field("unnamed", pa.int64())]),
            {"value": None, "typed_value": {"unnamed": _typed(1)}},
            "not in the metadata",
        ),
        (pa.int64(), {"value": b"\xff", "typed_value": None}, "invalid"),
        (pa.int64(), {"value": b"", "typed_value": None}, "empty"),
        (pa.time64("us"), {"value": None, "typed_value": -1}, "not within a day"),
    ],
)
def test_contradictions_are_refused(typed: pa.DataType, row: Any, problem: str) -> None:
    with pytest.raises(InvalidDataError, match=problem):
        _unshred(typed, [row])


@pytest.mark.parametrize(
    "typed",
    [
        pa.uint32(),
        pa.binary(4),
        pa.binary(16),
        pa.float16(),
        pa.timestamp("ms"),
        pa.time32("ms"),
        pa.time64("ns"),
        pa.date64(),
        pa.decimal256(76, 2),
        pa.null(),
        pa.struct([("a", pa.int64())]),
        pa.struct([("a", pa.struct([("other", pa.binary())]))]),
        pa.struct([("a", pa.struct([("value", pa.int8())]))]),
        pa.struct([("a", pa.struct([]))]),
        pa.list_(pa.string()),
        pa.map_(pa.string(), pa.string()),
    ],
    ids=str,
)
def test_other_types_are_refused(typed: pa.DataType) -> None:
    data_type = pa.struct(
        [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", typed)]
    )
    with pytest.raises(InvalidDataError):
        variant.unshred(pa.array([], data_type))


def test_missing_elements_and_elements_without_typed_value_are_read() -> None:
    rows = [{"value": None, "typed_value": [_typed("a"), MISSING, {"value": _value(1)}]}]
    assert _unshred(ELEMENT, rows) == [["a", None, 1]]
    untyped = pa.list_(pa.field("element", pa.struct([("value", pa.binary())]), nullable=False))
    assert _unshred(untyped, [{"value": None, "typed_value": [{"value": _value({"a": []})}]}]) == [
        [{"a": []}]
    ]


def test_slices_and_null_parents_are_reconstructed() -> None:
    data_type = pa.struct(
        [("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", ELEMENT)]
    )
    rows = [
        {"metadata": METADATA, "value": None, "typed_value": [_typed(f"{row}"), _typed("x" * 70)]}
        for row in range(5)
    ]
    column = pa.array([*rows, None], data_type)
    found = variant.unshred(pa.chunked_array([column[3:], column[:0]]))
    assert variant.to_python(found) == [["3", "x" * 70], ["4", "x" * 70], None]
