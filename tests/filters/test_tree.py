"""Trees travel as JSON unchanged, and Python values become the literals that SQL has for them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given

from splitarrow.errors import InvalidDataError, UsageError
from splitarrow.filters.tree import (
    MAX_DEPTH,
    Call,
    Cast,
    Column,
    Instant,
    Literal,
    combine,
    decode_tree,
    decode_type,
    encode_tree,
    list_columns,
    make_literal,
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.builds(
        Instant,
        st.sampled_from(["date", "time", "timestamp", "timestamptz", "duration"]),
        st.integers(),
    ),
)
LEAVES = st.builds(Literal, VALUES) | st.builds(Column, st.text())
TREES: Any = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            Call,
            st.text().filter(lambda name: name != "cast"),
            st.lists(inner, max_size=4).map(tuple),
        )
        | st.builds(Cast, inner, st.sampled_from([pa.int8(), pa.decimal128(9, 2)]), st.booleans())
    ),
    max_leaves=20,
)


@given(TREES)
def test_a_tree_survives_json(tree: Any) -> None:
    assert decode_tree(json.loads(encode_tree(tree))) == tree


@pytest.mark.parametrize(
    "data_type",
    [
        *(pa.uint64(), pa.float16(), pa.bool_(), pa.string_view(), pa.large_binary(), pa.date32()),
        *(pa.decimal256(50, -2), pa.timestamp("ns"), pa.timestamp("us", "Europe/Berlin")),
        *(pa.time32("ms"), pa.duration("s"), pa.binary(16), pa.date64()),
    ],
    ids=str,
)
def test_a_type_survives_as_text(data_type: Any) -> None:
    assert decode_type(str(data_type)) == data_type


@pytest.mark.parametrize(
    "value",
    [
        *({}, [], 1.5, [1], {"column": 1}, {"column": "a", "x": 1}, {"decimal": "x"}),
        *({"decimal": 1}, {"double": "x"}, {"bytes": "?"}, {"date": "1"}, {"date": True}),
        *({"era": 1}, ["cast", 1, "int99", True], ["cast", 1, "list<item: int8>", True]),
    ],
    ids=str,
)
def test_malformed_parts_are_refused(value: Any) -> None:
    with pytest.raises(InvalidDataError, match="the filter has the invalid part"):
        decode_tree(value)


def test_a_deep_tree_is_refused() -> None:
    value: Any = True
    for _ in range(MAX_DEPTH + 1):
        value = ["not", value]
    with pytest.raises(InvalidDataError, match="nested deeper than 100"):
        decode_tree(value)


DAY = 86_400 * 10**9
BERLIN = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, Decimal("0.1")),
        (float("inf"), float("inf")),
        (True, True),
        (Decimal("-4.990"), Decimal("-4.990")),
        (Decimal("Infinity"), float("inf")),
        (b"\0", b"\0"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (date(1970, 1, 2), Instant("date", DAY)),
        (date(1, 1, 1), Instant("date", -719162 * DAY)),
        (datetime(1970, 1, 1, 0, 0, 1, 5), Instant("timestamp", 10**9 + 5000)),
        (datetime(1970, 1, 1, 2, tzinfo=BERLIN), Instant("timestamptz", 0)),
        (datetime(1970, 1, 1, tzinfo=UTC), Instant("timestamptz", 0)),
        (pd.Timestamp(7), Instant("timestamp", 7)),
        (pd.Timestamp(-7, tz="UTC"), Instant("timestamptz", -7)),
        (pd.Timedelta(7), Instant("duration", 7)),
        (time(1, 0, 0, 1), Instant("time", 3600 * 10**9 + 1000)),
        (timedelta(days=-1), Instant("duration", -DAY)),
        (np.int8(5), 5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.datetime64("1970-01-01T00:00:00.000000001"), Instant("timestamp", 1)),
        (np.timedelta64(3, "s"), Instant("duration", 3 * 10**9)),
        (np.str_("a"), "a"),
        (pa.scalar(0.1), 0.1),
        (pa.scalar(5, pa.timestamp("ns", "UTC")), Instant("timestamptz", 5)),
        (pa.scalar(5, pa.time32("ms")), Instant("time", 5_000_000)),
        (pa.scalar(86_400_000, pa.date64()), Instant("date", DAY)),
        (pa.scalar(None, pa.int8()), None),
        (pa.array(["x"]).dictionary_encode()[0], "x"),
        (pa.scalar(UUID(int=2).bytes, pa.uuid()), str(UUID(int=2))),
    ],
    ids=repr,
)
def test_python_values_become_literals(value: Any, expected: Any) -> None:
    found = make_literal(value).value
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "value",
    [[1], {}, {1}, time(1, tzinfo=UTC), pa.scalar([1])],
    ids=lambda each: type(each).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="the filter is invalid"):
        make_literal(value)


def test_conjunctions_are_flat_and_list_their_columns_once() -> None:
    parts = [Call("=", (Column(name), Literal(1))) for name in "abca"]
    tree = combine("and", [combine("and", parts[:2]), combine("and", parts[2:])])
    assert tree.arguments == tuple(parts)
    assert list_columns(tree) == ["a", "b", "c"]
