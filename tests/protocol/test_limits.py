"""The class `Limits`."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from splitarrow.errors import UsageError
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits

NAMES = [field.name for field in fields(Limits)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_below_one_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_each_limit_may_be_one(name: str) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1


def test_the_defaults_are_those_of_a_plain_instance() -> None:
    assert Limits() == DEFAULT_LIMITS


def test_limits_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT_LIMITS.nesting = 1000  # pyright: ignore[reportAttributeAccessIssue]


def test_limits_are_shown_where_they_differ_from_the_defaults() -> None:
    assert repr(DEFAULT_LIMITS) == "Limits()"
    assert repr(Limits(calls=4096, nesting=3, uploads=1)) == "Limits(nesting=3, uploads=1)"
