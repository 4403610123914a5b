"""What the parts of a SQL condition become, and how a wrong one is explained."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from splitarrow.client.sql_filter import parse_sql_filter
from splitarrow.errors import UsageError

TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None], pa.int16()),
        "x": [0.5, 2.0, float("nan"), None],
        "s": ["ab", "ba", "bab", None],
        "t": pa.array(["ab", "ba", "bab", None], pa.large_string()),
        "ok": [True, False, None, True],
    }
)


def rows(condition: str) -> list[Any]:
    """Return the rows that a condition selects."""
    numbered = TABLE.append_column("row", pa.array(range(4)))
    return numbered.filter(parse_sql_filter(condition, TABLE.schema))["row"].to_pylist()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("1 + n = 3", [1]),
        ("n + 1 = 3", [1]),
        ("1 + 1 = n", [1]),
        ("6 / 2 = n", [2]),
        ("7 - 2 * 3 = n", [0]),
        ("n / 2 = 0.5", [0]),
        ("n * x > 3", [1]),
        ("n - 3 = -(2)", [0]),
        ("(n) = (2)", [1]),
        ("n = 1e0 OR n = 3.0", [0, 2]),
        ("s LIKE 'ab'", [0]),
        ("s LIKE 'a%'", [0]),
        ("s LIKE '%a'", [1]),
        ("s LIKE '%ab'", [0, 2]),
        ("s LIKE '%ab%'", [0, 2]),
        ("t LIKE 'b%'", [1, 2]),
        ("s NOT LIKE 'b%'", [0]),
        ("contains(s, 'ba')", [1, 2]),
        ("ok", [0, 3]),
        ("(NOT ok)", [1]),
        ("ok = false", [1]),
        ("ok IS TRUE", [0, 3]),
        ("ok IS FALSE", [1]),
        ("ok IS NOT TRUE", [1, 2]),
        ("n IS NULL", [3]),
        ("n IS NOT NULL", [0, 1, 2]),
        ("n BETWEEN 1 AND 2", [0, 1]),
        ("n NOT BETWEEN 1 AND 2", [2]),
        ("isnan(x)", [2]),
    ],
)
def test_a_condition_selects_rows(condition: str, expected: list[int]) -> None:
    assert rows(condition) == expected
    assert isinstance(parse_sql_filter(condition, TABLE.schema), pc.Expression)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("n >", "the filter 'n >' is malformed near '>': a value is missing"),
        ("n > 5 5", "is malformed near '5': Invalid expression / Unexpected token"),
        ("n = 'x", "is malformed: Error tokenizing"),
        ("", "the filter '' is malformed; expected one condition"),
        ("n > 1; n > 2", "malformed; expected one condition"),
        ("n", "n is not a condition"),
        ("n = NULL", "NULL is never equal to a value; use IS NULL"),
        ("n IS 5", "n IS 5 is not supported; expected IS NULL, IS TRUE or IS FALSE"),
        ("lower(s) = 'a'", r"LOWER\(s\) is not supported here; expected a value"),
        ("s LIKE 'a%b'", "has a wildcard inside of its pattern; use '%' at its ends"),
        ("s LIKE 'a_b'", "has a wildcard inside of its pattern"),
        ("n LIKE 'a'", "n has the type int16; expected text"),
        ("s + 1 > 2", r"s \+ 1 computes with a value of the type string"),
        ("1 + s > 2", r"1 \+ s computes with a value of the type string"),
        ("'a' + 1 = n", r"'a' \+ 1 computes with a value of the type string"),
        ("1 / 0 = n", "1 / 0 divides by zero"),
        ("n < 1" + "0" * 30, "the filter is invalid"),
    ],
)
def test_a_wrong_condition_is_explained(condition: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        parse_sql_filter(condition, TABLE.schema)
    assert "\n" not in caught.value.message
