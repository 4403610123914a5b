"""Functions over columns of Variants."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitarrow import variant
from splitarrow.errors import InvalidDataError, UsageError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.floats(allow_nan=False),
    st.decimals(-(10**20), 10**20, places=7),
    TEXTS,
    st.binary(max_size=80),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.times(),
    st.uuids(),
    st.builds(
        variant.Timestamp,
        st.integers(-(2**63), 2**63 - 1),
        st.just("ns"),
        st.booleans(),
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("abcé") | TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.lists(VALUES, max_size=6))
def test_python_values_survive_and_are_valid(values: list[Any]) -> None:
    column = variant.from_python(values)
    column.validate(full=True)
    assert variant.to_python(column) == values
    assert variant.is_valid(column).to_pylist() == [True] * len(values)
    for text in variant.to_json(column).to_pylist():
        json.loads(text)


@settings(max_examples=40)
@given(st.lists(JSON_VALUES, max_size=6))
def test_json_survives(values: list[Any]) -> None:
    texts = [json.dumps(value, ensure_ascii=index % 2 == 0) for index, value in enumerate(values)]
    column = variant.from_json(pa.array(texts, pa.string()))
    found = variant.to_json(column).to_pylist()
    assert [json.loads(text) for text in found] == values
    ordered = [json.dumps(value, sort_keys=True) for value in values]
    assert [json.dumps(json.loads(text)) for text in found] == ordered or any(
        not key.isascii() for key in _names(values)
    )


def _names(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for item in value.values() for name in _names(item))]
    return [name for item in value for name in _names(item)] if isinstance(value, list) else []


SHREDDED_TYPES = st.recursive(
    st.sampled_from(
        [
            pa.bool_(),
            pa.int8(),
            pa.int64(),
            pa.float64(),
            pa.decimal128(9, 7),
            pa.decimal128(38, 7),
            pa.decimal128(38, 0),
            pa.string(),
            pa.binary(),
            pa.date32(),
            pa.time64("us"),
            pa.timestamp("us"),
            pa.timestamp("us", "UTC"),
            pa.timestamp("ns", "UTC"),
            pa.uuid(),
            pa.null(),
        ]
    ),
    lambda inner: (
        st.builds(pa.list_, inner)
        | st.dictionaries(st.sampled_from("abcé"), inner, min_size=1).map(
            lambda fields: pa.struct(list(fields.items()))
        )
    ),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.lists(VALUES, max_size=6), SHREDDED_TYPES)
def test_shredding_and_its_reverse_give_equal_values(
    values: list[Any], data_type: pa.DataType
) -> None:
    column = variant.from_python(values)
    shredded = variant.shred(column, data_type)
    shredded.validate(full=True)
    assert variant.to_python(variant.unshred(shredded)) == values
    if values:
        tail = variant.unshred(shredded.slice(1))
        assert variant.to_python(tail) == values[1:]


def test_an_inferred_type_holds_what_most_rows_have() -> None:
    rows = [
        {
            "id": row,
            "name": f"n{row}",
            "price": Decimal(row) / 4 + Decimal("0.00"),
            "tags": ["x"] * (row % 3),
            "at": {"day": date(2024, 1, 1 + row % 28), "ok": row % 2 == 0},
            "mixed": row if row % 2 else str(row),
            "nothing": None,
            **({"rare": 1} if row == 7 else {}),
        }
        for row in range(100)
    ]
    column = variant.from_python([*rows, "not an object"])
    found = variant.infer_type(column)
    assert found == pa.struct(
        [
            ("at", pa.struct([("day", pa.date32()), ("ok", pa.bool_())])),
            ("id", pa.int64()),
            ("mixed", pa.null()),
            ("name", pa.string()),
            ("nothing", pa.null()),
            ("price", pa.decimal128(9, 2)),
            ("tags", pa.list_(pa.string())),
        ]
    )
    shredded = variant.shred(column)
    typed = shredded.field("typed_value")
    assert typed.field("id").field("typed_value").null_count == 1
    assert typed.field("name").field("value").null_count == 101
    assert variant.to_python(variant.unshred(shredded)) == [*rows, "not an object"]


EXAMPLES: list[tuple[Any, str]] = [
    (1.0, "1.0"),
    (1e300, "1.0e+300"),
    (-0.0, "-0.0"),
    (float("nan"), '"NaN"'),
    (float("-inf"), '"-Infinity"'),
    (np.float32(0.1), "0.1"),
    (Decimal("0.00000001"), "0.00000001"),
    (Decimal("-1.50"), "-1.50"),
    (10**37, str(10**37)),
    ('\\ "\n\u0001', '"\\\\ \\"\\n\\u0001"'),
    (b"ab", '"YWI="'),
    (b"abc", '"YWJj"'),
    (b"", '""'),
    (date(1, 2, 3), '"0001-02-03"'),
    (np.datetime64(2**31 - 1, "D"), '"+5881580-07-11"'),
    (np.datetime64(-(10**6), "D"), '"-0768-02-04"'),
    (time(1, 2, 3), '"01:02:03.000000"'),
    (datetime(2024, 1, 2, 3, 4, 5, 6), '"2024-01-02T03:04:05.000006"'),
    (datetime(2024, 1, 2, tzinfo=UTC), '"2024-01-02T00:00:00.000000+00:00"'),
    (variant.Timestamp(1, "ns", True), '"1970-01-01T00:00:00.000000001+00:00"'),
    (variant.Timestamp(2**62, "us", False), '"+148108-07-06T14:00:27.387904"'),
    (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ([], "[]"),
    ({}, "{}"),
    ([{}, "a", "b", 1, "c"], '[{},"a","b",1,"c"]'),
    ({"b": "x", "a": {"c": "y"}}, '{"a":{"c":"y"},"b":"x"}'),
    ({'q"': "x"}, '{"q\\"":"x"}'),
]


@pytest.mark.parametrize(("value", "text"), EXAMPLES, ids=[text for _, text in EXAMPLES])
def test_values_have_json_texts(value: Any, text: str) -> None:
    column = variant.from_python([value, [value]])
    assert variant.to_json(column).to_pylist() == [text, f"[{text}]"]


def test_paths_select_fields_and_elements() -> None:
    column = variant.from_json(
        pa.array(
            [
                '{"a": [1, {"b c": "x"}], "d": {"": {"é": 2}}}',
                '{"a": {"b c": 1}}',
                None,
                "[[5]]",
                "null",
            ]
        )
    )
    for path, expected in {
        "$.a[0]": [1, None, None, None, None],
        "$.a[1]['b c']": ["x", None, None, None, None],
        '$["d"][""].é': [2, None, None, None, None],
        "$[0][0]": [None, None, None, 5, None],
        "$.a[99999999999999]": [None] * 5,
        "$.missing.x": [None] * 5,
    }.items():
        assert variant.to_python(variant.get(column, path)) == expected, path
    assert (
        variant.to_json(variant.get(column, "$")).to_pylist() == variant.to_json(column).to_pylist()
    )
    for path in ("a", "$a", "$.", "$[", "$[-1]", "$['a", "$.a b"):
        with pytest.raises(UsageError, match=r"path"):
            variant.get(column, path)


def test_a_path_does_not_read_what_it_does_not_visit() -> None:
    column = variant.from_python([{"a": 1, "b": {"c": "xyz"}}])
    metadata, value = column[0]["metadata"].as_py(), column[0]["value"].as_py()
    broken = value.replace(b"xyz", b"x\xffz")
    damaged = pa.array([{"metadata": metadata, "value": broken}], column.type)
    assert variant.get(damaged, "$.a", pa.int8()).to_pylist() == [1]
    assert variant.is_valid(damaged).to_pylist() == [False]
    with pytest.raises(InvalidDataError, match="not UTF-8"):
        variant.get(damaged, "$.b.c", pa.string())


NUMBERS = [1, 300, Decimal("2.0"), Decimal("2.5"), 1.5, "3", None]


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        (pa.int8(), [1, None, 2, None, None, None, None]),
        (pa.uint16(), [1, 300, 2, None, None, None, None]),
        (pa.float64(), [1.0, 300.0, 2.0, 2.5, 1.5, None, None]),
        (
            pa.decimal128(5, 1),
            [Decimal("1.0"), Decimal("300.0"), Decimal("2.0"), Decimal("2.5"), None, None, None],
        ),
        (pa.string(), [None, None, None, None, None, "3", None]),
    ],
    ids=str,
)
def test_numbers_are_cast_without_loss(data_type: pa.DataType, expected: list[Any]) -> None:
    column = variant.from_python(NUMBERS)
    assert variant.cast(column, data_type, errors="null").to_pylist() == expected
    with pytest.raises(InvalidDataError, match="is not a value of the type"):
        variant.cast(column, data_type)


def test_objects_and_arrays_are_cast_to_structs_and_lists() -> None:
    column = variant.from_python(
        [
            {"id": 1, "at": datetime(2024, 1, 2, tzinfo=UTC), "parts": [{"n": 1}, {"n": None}, {}]},
            None,
            {"parts": []},
        ]
    )
    data_type = pa.struct(
        [
            ("id", pa.int32()),
            ("at", pa.timestamp("us", "UTC")),
            ("parts", pa.list_(pa.struct([("n", pa.int64())]))),
        ]
    )
    found = variant.cast(pa.chunked_array([column, column[:1]]), data_type)
    found.validate(full=True)
    first = {
        "id": 1,
        "at": datetime(2024, 1, 2, tzinfo=UTC),
        "parts": [{"n": 1}, {"n": None}, {"n": None}],
    }
    assert found.to_pylist() == [first, None, {"id": None, "at": None, "parts": []}, first]
    uuids = variant.from_python([UUID(int=5), None])
    assert variant.cast(uuids, pa.uuid()).to_pylist() == [UUID(int=5), None]


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "NaN", '{"a":1,"a":2}', '"\\ud800"', "[" * 100_000, "1e"]
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises((InvalidDataError, UsageError)):
        variant.from_json(pa.array([text]))


def test_deep_values_are_read_and_deeper_ones_are_refused() -> None:
    value: Any = 1
    for _ in range(200):
        value = [value]
    column = variant.from_python([value])
    assert variant.to_json(column).to_pylist() == ["[" * 200 + "1" + "]" * 200]
    with pytest.raises(UsageError, match="nested"):
        variant.from_python([[value]])
    deeper = pa.array(
        [{"metadata": b"\1\0\0", "value": _wrap(column[0]["value"].as_py())}], column.type
    )
    assert variant.is_valid(deeper).to_pylist() == [False]
    with pytest.raises(InvalidDataError, match="nested"):
        variant.to_json(deeper)
    with pytest.raises(InvalidDataError, match="nested"):
        variant.to_python(deeper)


def _wrap(value: bytes) -> bytes:
    """Return an array with one element."""
    return b"\x0f\1" + bytes(4) + len(value).to_bytes(4, "little") + value


def test_unordered_fields_are_refused_unless_they_are_allowed() -> None:
    unordered = {"metadata": b"\x01\x02\x00\x01\x02ba", "value": b"\x02\x02\0\1\0\2\4\x0c\1\x0c\2"}
    repeated = {"metadata": b"\x01\x01\x00\x01a", "value": b"\x02\x02\0\0\0\2\4\x0c\1\x0c\2"}
    column = pa.array([unordered], variant.field("v").type)
    with pytest.raises(InvalidDataError, match="not in the order"):
        variant.to_json(column)
    assert variant.to_json(column, ordered=False).to_pylist() == ['{"a":2,"b":1}']
    assert variant.get(column, "$.b", pa.int64(), ordered=False).to_pylist() == [1]
    column = pa.array([repeated], column.type)
    for ordered in (True, False):
        with pytest.raises(InvalidDataError, match="two fields of one name"):
            variant.to_json(column, ordered=ordered)


def test_wrong_arguments_are_refused() -> None:
    column = variant.from_python([1])
    with pytest.raises(UsageError, match='expected "raise" or "null"'):
        variant.cast(column, pa.int64(), errors="ignore")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="no values of the type"):
        variant.cast(column, pa.duration("s"))
    with pytest.raises(UsageError, match="no Variant type"):
        variant.from_python([object()])
    with pytest.raises(UsageError, match="cannot be shredded"):
        variant.shred(column, pa.uint8())
    with pytest.raises(UsageError, match=r"pyarrow\.Array"):
        variant.to_json([1])
    with pytest.raises(InvalidDataError, match="not an unshredded Variant"):
        variant.to_json(pa.array([1]))
