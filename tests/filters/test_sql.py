"""What the parts of a SQL condition become, and how a wrong one is explained."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.errors import UsageError
from splitarrow.filters.binding import bind
from splitarrow.filters.evaluation import evaluate
from splitarrow.filters.sql import parse_sql

TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None], pa.int16()),
        "x": [0.5, 2.0, float("nan"), None],
        "s": ["ab", "ba", "bab", None],
        "t": pa.array(["ab", "ba", "bab", None], pa.large_string()),
        "ok": [True, False, None, True],
    }
)


def rows(condition: str) -> list[int]:
    """Return the rows that a condition selects."""
    batch = TABLE.combine_chunks().to_batches()[0]
    bound = bind(parse_sql(condition), batch.schema)
    columns = dict(enumerate(batch.columns))
    mask = evaluate(bound, columns, batch.num_rows).to_pylist()
    return [row for row, selected in enumerate(mask) if selected]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("1 + n = 3", [1]),
        ("n + 1 = 3", [1]),
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
        ("x > 1", [1]),
        ("x <> 2", [0, 2]),
        ("NOT x < 1", [1, 2]),
        ("x > -1e400", [0, 1]),
        ("s LIKE 'a_'", [0]),
        ("s LIKE '%a%b'", [0, 2]),
        ("s ILIKE 'B_%'", [1, 2]),
        ("s NOT ILIKE 'B%'", [0]),
        ("n < 1" + "0" * 30, [0, 1, 2]),
        ("n IN (1, 2.5, NULL)", [0]),
        ("n NOT IN (1, NULL)", []),
        ("n IN (x, 1)", [0, 1]),
        ("n IS DISTINCT FROM 1", [1, 2, 3]),
        ("n IS NOT DISTINCT FROM NULL", [3]),
        ("coalesce(n, 7) = 7", [3]),
        ("sqrt(n * n) = 3", [2]),
        ("power(n, 2) > 3 AND abs(-n) < 3", [1]),
    ],
)
def test_a_condition_selects_rows(condition: str, expected: list[int]) -> None:
    assert rows(condition) == expected


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
        ("n LIKE 'a'", "n has the type int16; expected text"),
        ("s + 1 > 2", r"s \+ 1 computes with a value of the type string"),
        ("n < 2026-01-05", "write the result, or a date in single quotes, as in '2026-01-05'"),
        (
            "s = 'a' AND n + true > 1",
            "at character 13: n \\+ True computes with a value of the type bool",
        ),
        (
            "n > 1 AND s = 5",
            r"at character 15: 5 cannot be compared with a column of type string \(s\)",
        ),
        ("s LIKE 'a' ESCAPE '!'", "has an ESCAPE clause"),
        ("x = INTERVAL '1 month'", "expected weeks, days, hours, minutes or seconds"),
        ("n = DATE '2026-13-01'", "is not a date; expected ISO 8601"),
        ("(" * 2000 + "ok" + ")" * 2000, "nested too deeply|malformed"),
        ("1 + s > 2", r"1 \+ s computes with a value of the type string"),
        ("'a' + 1 = n", r"at character 1: 'a' \+ 1 computes with literals alone"),
        ("1 / 0 = n", "1 / 0 computes with literals alone"),
    ],
)
def test_a_wrong_condition_is_explained(condition: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        bind(parse_sql(condition), TABLE.schema)
    assert "\n" not in caught.value.message
