"""Binding chooses exact comparisons: each result equals that of Python's exact numbers."""

from __future__ import annotations

import operator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from splitarrow.errors import UsageError
from splitarrow.filters.binding import BoundCall, bind
from splitarrow.filters.evaluation import compute
from splitarrow.filters.literals import make_scalar
from splitarrow.filters.tree import (
    COMPARISONS,
    MIRRORED,
    NANOSECONDS,
    Call,
    Cast,
    Column,
    Instant,
    Literal,
)

OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
INTEGERS = [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
DECIMALS = [pa.decimal32(5, 2), pa.decimal64(12, 0), pa.decimal128(9, 2), pa.decimal256(50, 10)]
TIMES = [
    *(pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns")),
]
NUMBERS = st.one_of(
    st.integers(-300, 300),
    st.integers(-(2**65), 2**65),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, -1, 127, 128, 255, 256]),
    st.decimals(-300, 300, places=3),
    st.decimals(allow_nan=False, allow_infinity=False).filter(lambda d: abs(d.adjusted()) < 500),
)


def limits(data_type: Any) -> tuple[int, int]:
    if pa.types.is_decimal(data_type):
        return -(10**data_type.precision) + 1, 10**data_type.precision - 1
    if pa.types.is_unsigned_integer(data_type):
        return 0, 2**data_type.bit_width - 1
    width = 32 if data_type == pa.date32() else data_type.bit_width
    return -(2 ** (width - 1)), 2 ** (width - 1) - 1


def scale(data_type: Any) -> Fraction:
    """Return the value of a unit of a type."""
    if pa.types.is_decimal(data_type):
        return Fraction(1, 10**data_type.scale)
    if pa.types.is_integer(data_type):
        return Fraction(1)
    if pa.types.is_date(data_type):
        return Fraction(86_400 * 10**9 if data_type == pa.date32() else 10**6)
    return Fraction(NANOSECONDS[data_type.unit])


@st.composite
def columns(draw: Any, types: list[Any]) -> tuple[Any, list[int | None]]:
    """Return an array, and its values as numbers of units."""
    data_type = draw(st.sampled_from(types))
    low, high = limits(data_type)
    near = st.integers(max(low, -600), min(high, 600))
    drawn = st.none() | near | st.sampled_from([low, high]) | st.integers(low, high)
    units = draw(st.lists(drawn, min_size=1, max_size=6))
    plain = (
        pa.decimal128(data_type.precision, data_type.scale)
        if str(data_type)[:9]
        in (
            "decimal32",
            "decimal64",
        )
        else data_type
    )
    scalars = [pa.scalar(None, plain) if u is None else make_scalar(u, plain) for u in units]
    return pa.array(scalars, plain).cast(data_type), units


def run(tree: Any, **arrays: Any) -> list[bool | None]:
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    bound = bind(tree, schema)
    columns = dict(enumerate(arrays.values()))
    found = compute(bound, columns)
    is_scalar = isinstance(found, pa.Scalar)
    return [found.as_py()] * len(arrays["a"]) if is_scalar else found.to_pylist()


@given(columns(INTEGERS + DECIMALS), NUMBERS, st.sampled_from(COMPARISONS), st.booleans())
def test_numbers_compare_exactly_with_literals(
    column: Any, value: Any, symbol: str, mirrored: bool
) -> None:
    array, units = column
    expected = [
        None if u is None else OPERATORS[symbol](u * scale(array.type), Fraction(value))
        for u in units
    ]
    arguments: tuple[Any, Any] = (Column("a"), Literal(value))
    tree = Call(symbol, arguments)
    if mirrored:
        tree = Call(MIRRORED[symbol], arguments[::-1])
    assert run(tree, a=array) == expected
    if symbol == "=":
        others = (Literal(12345), Literal(Decimal("0.5")))
        found = run(Call("in", (Column("a"), Literal(value), *others)), a=array)
        values = [Fraction(v) for v in (value, 12345, Decimal("0.5"))]
        assert found == [None if u is None else u * scale(array.type) in values for u in units]


@given(columns(INTEGERS + DECIMALS), columns(INTEGERS + DECIMALS), st.sampled_from(COMPARISONS))
def test_columns_of_numbers_compare_exactly(left: Any, right: Any, symbol: str) -> None:
    size = min(len(left[0]), len(right[0]))
    arrays = {"a": left[0].slice(0, size), "b": right[0].slice(0, size)}
    values = [
        [None if u is None else u * scale(array.type) for u in units[:size]]
        for array, units in (left, right)
    ]
    expected = [
        None if None in pair else OPERATORS[symbol](*pair) for pair in zip(*values, strict=True)
    ]
    assert run(Call(symbol, (Column("a"), Column("b"))), **arrays) == expected


@given(columns(TIMES), columns(TIMES), st.sampled_from(COMPARISONS))
def test_dates_and_timestamps_compare_exactly(left: Any, right: Any, symbol: str) -> None:
    test_columns_of_numbers_compare_exactly.hypothesis.inner_test(left, right, symbol)  # pyright: ignore[reportFunctionMemberAccess]


@given(columns(TIMES), st.integers(-(2**63), 2**63 - 1), st.sampled_from(COMPARISONS))
def test_dates_and_timestamps_compare_exactly_with_literals(
    column: Any, nanoseconds: int, symbol: str
) -> None:
    array, units = column
    literal = Literal(Instant("timestamptz", nanoseconds))
    expected = [
        None if u is None else OPERATORS[symbol](u * scale(array.type), nanoseconds) for u in units
    ]
    assert run(Call(symbol, (Column("a"), literal)), a=array) == expected


def test_a_literal_that_the_type_lacks_changes_the_comparison() -> None:
    schema = pa.schema([("d", pa.decimal128(9, 2)), ("u", pa.uint64())])
    below = bind(Call("<=", (Column("d"), Literal(Decimal("4.999")))), schema)
    assert below.function == "<="
    assert below.arguments[1].scalar == pa.scalar(Decimal("4.99"), pa.decimal128(9, 2))
    always = bind(Call(">", (Column("u"), Literal(-1))), schema)
    assert isinstance(always, BoundCall)
    assert (always.function, always.options) == ("always", True)


def test_a_conversion_that_keeps_all_values_is_left_out() -> None:
    schema = pa.schema([("n", pa.int16())])
    wide = bind(Call("=", (Cast(Column("n"), pa.int64()), Literal(1))), schema)
    assert wide.arguments[0] == bind(Call("=", (Column("n"), Literal(1))), schema).arguments[0]
    narrow = bind(Call("=", (Cast(Column("n"), pa.int8()), Literal(1))), schema)
    assert narrow.arguments[0].function == "cast"


SCHEMA = pa.schema(
    [
        ("n", pa.int8()),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("list", pa.list_(pa.int8())),
        ("d", pa.decimal256(76, 0)),
        ("e", pa.decimal256(76, 76)),
        ("twice", pa.int8()),
        ("twice", pa.int8()),
        ("b", pa.bool_()),
    ]
)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (Column("n"), r"n is not a condition: it has the type int8; expected bool"),
        (Column("nn"), r"there is no column 'nn'; did you mean 'n'\?"),
        (Column("twice"), "2 columns are named 'twice'"),
        (Call("=", (Column("day"), Literal(5))), "write a date in single quotes"),
        (Call("=", (Column("b"), Literal(1))), "compare it with true or false"),
        (Call("=", (Column("list"), Literal(1))), "name a field of a struct"),
        (Call("=", (Column("n"), Column("s"))), "the types int8 and string"),
        (Call("=", (Column("list"), Column("list"))), "no common type"),
        (Call("=", (Column("d"), Column("e"))), "needs decimals of 152 digits"),
        (Call("*", (Column("d"), Column("e"))), "needs decimals of 153 digits"),
        (Call("+", (Column("s"), Literal(1))), "computes with a value of the type string"),
        (Call("+", (Literal(1), Literal(1))), "computes with literals alone"),
        (Call("like", (Column("n"), Literal("a"))), "n has the type int8; expected text"),
        (Call("like", (Column("s"), Column("s"))), "the pattern of like must be a text"),
        (Call("explode", (Column("n"),)), "it calls 'explode' with 1 arguments"),
        (Call("=", (Column("n"),)), "it calls '=' with 1 arguments"),
        (Call("coalesce", (Column("n"), Column("s"))), "values of the types int8 and string"),
        (Cast(Column("list"), pa.string()), "it converts list to string"),
        (Call("intersects", (Column("s"), *[Literal(1.0)] * 4)), "is not geospatial"),
        (Call("intersects", tuple([Literal(1.0)] * 5)), "is not a geospatial column"),
        (Call("in", (Column("n"), Literal(1), Literal("x"))), "'x' cannot be compared"),
    ],
    ids=str,
)
def test_what_cannot_be_bound_is_explained(tree: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        bind(tree, SCHEMA)


@pytest.mark.parametrize("count", [1, 9])
def test_nan_is_in_no_list(count: int) -> None:
    values = [float("nan"), *map(float, range(count))]
    array = pa.array([float("nan"), 0.0, -0.0, 5.5, None], pa.float16())
    found = run(Call("in", (Column("a"), *map(Literal, values))), a=array)
    assert found == [False, True, True, False, None]


def test_enormous_numbers_cost_nothing() -> None:
    array = pa.array([1, None], pa.int64())
    for text, expected in (("1E+999999999", True), ("-1E+999999999", False), ("1E-999999", False)):
        tree = Call("<", (Column("a"), Literal(Decimal(text))))
        assert run(tree, a=array) == [expected, None]
