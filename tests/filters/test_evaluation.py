"""Evaluation of encoded columns, special patterns, and the estimate of its memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.filters.binding import bind
from splitarrow.filters.evaluation import Cost, compute, evaluate
from splitarrow.filters.sql import parse_sql
from splitarrow.filters.tree import Call, Column, Literal

WORDS = ["a", None, "b", "a", "", "B"]


def run(condition: str, **arrays: Any) -> list[bool | None]:
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    bound = bind(parse_sql(condition), schema)
    columns = dict(enumerate(arrays.values()))
    found = compute(bound, columns).to_pylist()
    selected = evaluate(bound, columns, len(found))
    assert selected.to_pylist() == [value is True for value in found]
    assert selected.null_count == 0
    return found


def with_nulls_in_the_dictionary() -> Any:
    return pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, 0, 3, None], pa.int8()), pa.array(["a", None, "b", ""])
    )


ENCODINGS: dict[str, Any] = {
    "plain": pa.array(WORDS),
    "large": pa.array(WORDS, pa.large_string()),
    "view": pa.array(WORDS, pa.string_view()),
    "dictionary": pa.array(WORDS).dictionary_encode(),
    "sparse dictionary": pa.DictionaryArray.from_arrays(
        pa.array([700, None, 3, 700, 5, 9], pa.int16()),
        pa.array([{700: "a", 3: "b", 5: "", 9: "B"}.get(n, str(n)) for n in range(1000)]),
    ),
    "view dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0, None, 1, 0, 2, 3]), pa.array(["a", "b", "", "B"], pa.string_view())
    ),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6]), pa.array(WORDS)),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("w = 'a'", [True, None, False, True, False, False]),
        ("w >= 'a'", [True, None, True, True, False, False]),
        ("w IN ('a', '')", [True, None, False, True, True, False]),
        ("w IN ('a', '1', '2', '3', '4', '5')", [True, None, False, True, False, False]),
        ("w NOT IN ('a', NULL)", [False, None, None, False, None, None]),
        ("w LIKE '_'", [True, None, True, True, False, True]),
        ("w ILIKE 'b%'", [False, None, True, False, False, True]),
        ("w IS NULL", [False, True, False, False, False, False]),
        ("coalesce(w, 'z') = 'z'", [False, True, False, False, False, False]),
        ("w = v", [True, None, False, True, True, True]),
    ],
)
def test_encodings_change_no_result(encoding: str, condition: str, expected: list[Any]) -> None:
    other = pa.array(["a", "a", "x", "a", "", "B"])
    assert run(condition, w=ENCODINGS[encoding], v=other) == expected


def test_a_null_in_a_dictionary_is_a_null() -> None:
    array = with_nulls_in_the_dictionary()
    assert run("w IS NULL", w=array) == [False, True, False, False, False, True]
    assert run("w <> 'a'", w=array) == [False, None, True, False, True, None]
    assert run("w IN ('a', 'x') IS NOT TRUE", w=array) == [False, True, True, False, True, True]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"a\b", [True, False, False, False]),
        (r"%\%", [True, True, False, False]),
        (r"\_", [False, True, False, False]),
        ("a.b", [False, False, True, False]),
        ("a_b", [True, False, True, True]),
        ("a%b", [True, False, True, True]),
    ],
)
def test_a_pattern_has_no_escape_character(pattern: str, expected: list[bool]) -> None:
    texts = pa.array([r"a\b", r"\x", "a.b", "a\nb"])
    assert run(f"t LIKE '{pattern}'", t=texts) == expected


def test_a_condition_without_columns_holds_for_each_row() -> None:
    schema = pa.schema([("n", pa.int64())])
    assert evaluate(bind(parse_sql("1 = 1"), schema), {}, 2).to_pylist() == [True, True]
    assert run("n = n AND TRUE", n=pa.array([1, 2])) == [True, True]


def test_overflow_and_division() -> None:
    small = pa.array([2**63 - 1])
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        run("n + 1 > 0", n=small)
    assert run("n / 0 > 5", n=small) == [True]
    unsigned = pa.array([2**64 - 1], pa.uint64())
    assert run("n + 1 = 18446744073709551616", n=unsigned) == [True]
    assert run("-n = -18446744073709551615", n=unsigned) == [True]


def test_the_cost_counts_results_and_values() -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())])
    plain = Cost.estimate(bind(parse_sql("n > 5 AND n + 1 < 10"), schema))
    assert (plain.calls, plain.copying_calls, dict(plain.columns)) == (4, 0, {0: 2})
    assert plain.nbytes(1000, {}) == pytest.approx(1000 * plain.fixed_bytes)
    many = Cost.estimate(bind(parse_sql("n IN (1, 2, 3)"), schema))
    assert many.calls == 3
    copying = Cost.estimate(bind(parse_sql("coalesce(t, 'xyz') = 'a'"), schema))
    texts = pa.array(["x" * 1000])
    assert copying.copying_calls == 1
    assert copying.nbytes(1, {1: texts}) > 1000


@pytest.mark.parametrize(
    ("symbol", "data", "expected"),
    [
        ("=", b"bb", [False, None, True]),
        ("=", b"b", [False, None, False]),
        ("<>", b"b", [True, None, True]),
        ("<", b"b", [True, None, False]),
        (">=", b"bb", [False, None, True]),
        (">", b"aaa", [False, None, True]),
    ],
)
def test_bytes_of_a_fixed_length_are_compared_with_others(
    symbol: str, data: bytes, expected: list[bool | None]
) -> None:
    array = pa.array([b"aa", None, b"bb"], pa.binary(2))
    bound = bind(Call(symbol, (Column("b"), Literal(data))), pa.schema([("b", array.type)]))
    assert compute(bound, {0: array}).to_pylist() == expected
