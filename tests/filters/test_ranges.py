"""Pruning keeps every part with a row that the filter selects, and drops the obvious others."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from splitarrow.filters.binding import bind
from splitarrow.filters.evaluation import evaluate
from splitarrow.filters.ranges import UNKNOWN, Range, decide, make_point, may_match, to_bound
from splitarrow.filters.sql import parse_sql
from splitarrow.filters.tree import COMPARISONS, Call, Column, Literal

SCHEMA = pa.schema([("n", pa.int8()), ("x", pa.float64()), ("s", pa.string())])
COLUMNS: dict[str, Any] = {
    "n": st.none() | st.integers(-4, 4),
    "x": st.none() | st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("nan")]),
    "s": st.none() | st.sampled_from(["", "a", "b"]),
}
LITERALS: dict[str, Any] = {
    "n": st.integers(-5, 5) | st.sampled_from([Decimal("0.5"), 300, -300]),
    "x": st.sampled_from([Decimal("-1.5"), 0, 2, Decimal("2.5")]),
    "s": st.sampled_from(["", "a", "ab"]),
}


@st.composite
def leaves(draw: Any) -> Any:
    name = draw(st.sampled_from(["n", "x", "s"]))
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "columns"]))
    if kind == "null":
        return Call("is null", (Column(name),))
    if kind == "columns" and name != "s":
        return Call(draw(st.sampled_from(COMPARISONS)), (Column("n"), Column("x")))
    if kind == "in":
        values = draw(st.lists(LITERALS[name] | st.none(), min_size=1, max_size=3))
        return Call("in", (Column(name), *map(Literal, values)))
    literal = Literal(draw(LITERALS[name]))
    return Call(draw(st.sampled_from(COMPARISONS)), (Column(name), literal))


TREES: Any = st.recursive(
    leaves(),
    lambda inner: (
        st.builds(lambda each: Call("not", (each,)), inner)
        | st.builds(lambda each: Call("is true", (each,)), inner)
        | st.builds(
            lambda name, pair: Call(name, pair),
            st.sampled_from(["and", "or"]),
            st.tuples(inner, inner),
        )
    ),
    max_leaves=6,
)


def find_range(array: Any) -> Range:
    """Return the range of a column as statistics give it: without NaN."""
    plain: Any = array.filter(pc.invert(pc.is_nan(array))) if array.type == pa.float64() else array
    bounds: Any = pc.min_max(plain)
    return Range(
        to_bound(bounds["min"]),
        to_bound(bounds["max"]),
        nulls=array.null_count > 0,
        values=array.null_count < len(array),
        nan=array.type == pa.float64(),
    )


@given(st.data(), TREES)
def test_no_selected_row_is_pruned(data: Any, tree: Any) -> None:
    rows = data.draw(st.integers(1, 4))
    arrays = [
        pa.array(data.draw(st.lists(COLUMNS[each.name], min_size=rows, max_size=rows)), each.type)
        for each in SCHEMA
    ]
    bound = bind(tree, SCHEMA)
    selected = evaluate(bound, dict(enumerate(arrays)), rows)
    ranges = [find_range(each) for each in arrays]
    if selected.true_count:
        assert may_match(bound, ranges.__getitem__)
        assert may_match(bound, lambda _: UNKNOWN)
    decision = decide(bound, ranges.__getitem__)
    assert decision is None or selected.true_count == (rows if decision else 0)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("n > 10", False),
        ("n >= 10", True),
        ("n < 1", False),
        ("n = 5.5", False),
        ("n <> 5.5", True),
        ("n IN (0, 11, 500)", False),
        ("n IN (0, 3)", True),
        ("n IN (NULL, 500)", False),
        ("NOT n IN (11)", True),
        ("NOT n IN (500)", True),
        ("NOT n IN (11, NULL)", False),
        ("NOT n BETWEEN 0 AND 20", False),
        ("n IS NULL", False),
        ("s IS NULL", True),
        ("s > 'b' OR n > 10", True),
        ("s > 'd' OR n > 10", False),
        ("s LIKE 'z%'", True),
        ("x > 10", False),
        ("NOT x <= 10", True),
        ("x <> 3", True),
        ("n + 1 > 100", True),
        ("n > x", True),
        ("n < -300", False),
        ("p = 7", True),
        ("p <> 7", False),
        ("p IS NULL", False),
    ],
)
def test_ranges_decide(condition: str, expected: bool) -> None:
    schema = SCHEMA.append(pa.field("p", pa.int32()))
    ranges = [
        Range(1, 10, nulls=False, nan=False),
        Range(1.0, 10.0),
        Range("a", "c", nan=False),
        make_point(pa.scalar(7, pa.int32())),
    ]
    bound = bind(parse_sql(condition), schema)
    assert may_match(bound, ranges.__getitem__) is expected
    assert (decide(bound, ranges.__getitem__) is not False) == expected


@pytest.mark.parametrize("condition", ["n > 0", "n IS NOT NULL", "p = 7", "n < 1 OR p < 8"])
def test_ranges_decide_for_all_rows(condition: str) -> None:
    schema = SCHEMA.append(pa.field("p", pa.int32()))
    ranges = [Range(1, 10, nulls=False), UNKNOWN, UNKNOWN, make_point(pa.scalar(7, pa.int32()))]
    bound = bind(parse_sql(condition), schema)
    assert decide(bound, [replace(each, nan=False) for each in ranges].__getitem__) is True
