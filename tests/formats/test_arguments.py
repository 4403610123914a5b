"""Checks of arguments: what they accept, and what their errors name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from splitarrow.errors import UsageError
from splitarrow.formats.arguments import (
    check_integer,
    check_path,
    check_seconds,
    check_text,
    import_stream,
    list_items,
)


def test_an_integer_may_be_of_another_package() -> None:
    assert check_integer("rows", np.int32(3), 1) == 3
    assert check_integer("rows", 0, 0, 1) == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "rows is 0; expected 1 or more"),
        (1 << 63, "expected 1 or more"),
        (True, "rows is True; expected an integer, 1 or more"),
        (1.0, "rows is 1.0; expected an integer, 1 or more"),
        (np.array([1, 2]), "expected an integer"),
    ],
)
def test_a_wrong_integer_is_named(value: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        check_integer("rows", value, 1)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None, 2**70])
def test_a_wrong_time_limit_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"timeout is .*; expected more than 0"):
        check_seconds("timeout", value)


def test_a_time_limit_may_be_left_out_where_it_is_optional() -> None:
    check_seconds("timeout", None, optional=True)
    check_seconds("timeout", 0.001)


@pytest.mark.parametrize("value", [b"x", 1, None, "\ud800"])
def test_text_is_unicode(value: Any) -> None:
    with pytest.raises(UsageError, match="name is"):
        check_text("name", value)


def test_a_path_may_be_an_object() -> None:
    assert check_path("file", Path("a") / "b") == "a/b"
    assert check_path("file", "\udcff") == "\udcff"  # a name that is not UTF-8


@pytest.mark.parametrize("value", [b"x", 1, None, "a\0b", "\ud800"])
def test_a_wrong_path_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"file is .*; expected a path"):
        check_path("file", value)


def test_a_long_value_is_not_quoted() -> None:
    with pytest.raises(UsageError, match=r"^rows is a list; expected"):
        check_integer("rows", list(range(100)), 1)


def test_a_string_is_not_a_list_of_characters() -> None:
    assert list_items("columns", iter("ab"), "names") == ["a", "b"]
    with pytest.raises(UsageError, match="columns is 'ab'; expected names"):
        list_items("columns", "ab", "names")


def test_an_array_of_structs_is_a_stream() -> None:
    batch = pa.record_batch({"a": [1, 2]})
    assert import_stream(batch.to_struct_array()).read_all() == pa.table({"a": [1, 2]})


def test_the_reason_why_data_has_no_arrow_type_is_stated() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match=r"a DataFrame to Arrow: .*column a"):
        import_stream(pandas.DataFrame({"a": [1, "x", object()]}))
