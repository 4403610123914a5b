"""The first difference of two schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.formats.arrow.schema import are_schemas_equal, describe_difference

ONE = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.bool_())])
NESTED = pa.struct([pa.field("x", pa.int8(), metadata={"k": "v"})])


def replaced(index: int, *field: Any, **options: Any) -> pa.Schema:
    return ONE.set(index, pa.field(*field, **options))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (ONE.remove(1).remove(1), "it lacks the column 'b'"),
        (ONE.append(pa.field("d", pa.int8())).append(pa.field("e", pa.int8())), "column 'd'"),
        (replaced(0, "z", pa.int32()), "it lacks the column 'a'"),
        (ONE.append(pa.field("d", pa.int8())), "it has the additional column 'd'"),
        (pa.schema([ONE.field(i) for i in (0, 2, 1)]), "its columns are in a different order"),
        (ONE.append(ONE.field(0)), "its columns are in a different order"),
        (replaced(1, "b", pa.large_string()), "its column 'b' is large_string, not string"),
        (replaced(1, "b", pa.string(), False), "its column 'b' is not nullable"),
        (
            replaced(2, "c", pa.bool_(), metadata={"k": "v"}),
            "its column 'c' has different custom metadata",
        ),
    ],
    ids=str,
)
def test_the_first_difference_is_described(other: pa.Schema, difference: str) -> None:
    found = describe_difference(ONE, other)
    assert found is not None
    assert found.endswith(difference)
    assert not are_schemas_equal(ONE, other)
    assert not are_schemas_equal(other, ONE)


def test_a_column_that_may_have_nulls_differs_from_one_that_may_not() -> None:
    strict = replaced(0, "a", pa.int32(), False)
    assert describe_difference(strict, ONE) == "its column 'a' is nullable"


def test_nested_custom_metadata_is_part_of_a_type() -> None:
    plain = pa.schema([("n", pa.struct([("x", pa.int8())]))])
    found = describe_difference(plain, pa.schema([("n", NESTED)]))
    assert found is not None
    assert found.startswith("its column 'n' is struct<x: int8")


def test_custom_metadata_of_the_schema_is_no_difference_but_schemas_are_not_equal() -> None:
    other = ONE.with_metadata({"rows": "7"})
    assert describe_difference(ONE, other) is None
    assert not are_schemas_equal(ONE, other)
    assert not are_schemas_equal(other, ONE)
    assert are_schemas_equal(other, ONE.with_metadata({"rows": "7"}))
    assert are_schemas_equal(ONE, ONE.with_metadata({}))
    assert are_schemas_equal(ONE, ONE)
