"""The bounds of the options of a read."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import splitarrow
from splitarrow.client.arguments import ReadOptions, ReadPlan
from splitarrow.errors import UsageError
from splitarrow.protocol.limits import Limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connect_timeout", 0),
        ("connect_timeout", -0.5),
        ("stall_timeout", 0),
        ("stall_timeout", -0.5),
        ("prefetch_bytes", -1),
        ("max_decoded_bytes", 0),
        ("max_decoded_bytes", -1),
        ("validate", "fast"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}; expected"):
        ReadOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connect_timeout", 0.001),
        ("stall_timeout", 0.001),
        ("stall_timeout", None),
        ("prefetch_bytes", 0),
        ("prefetch_bytes", 1),
        ("max_decoded_bytes", 1),
        ("validate", None),
        ("validate", "off"),
    ],
)
def test_a_value_at_its_bound_is_accepted(name: str, value: Any) -> None:
    assert getattr(ReadOptions(**{name: value}), name) == value


def test_a_location_needs_some_time() -> None:
    with pytest.raises(UsageError, match="location_timeout is 0; expected more than 0"):
        ReadPlan(ReadOptions(), location_timeout=0)


@pytest.mark.parametrize(
    ("name", "least"),
    [("resume_attempts", 0), ("parallel", 1), ("window_bytes", 1), ("location_timeout", 0.001)],
)
def test_the_bounds_of_a_plan(name: str, least: Any) -> None:
    changes: dict[str, Any] = {name: least}
    assert getattr(ReadPlan(ReadOptions(), **changes), name) == least
    changes[name] = least - 1
    with pytest.raises(UsageError, match=f"{name} is .*; expected"):
        ReadPlan(ReadOptions(), **changes)


def test_the_limit_of_decoded_bytes_applies_to_messages_and_prefetching() -> None:
    options = ReadOptions(prefetch_bytes=100, max_decoded_bytes=10)
    assert (options.decoder_limits.decoded_bytes, options.window_bytes) == (10, 10)
    options = ReadOptions(prefetch_bytes=5, max_decoded_bytes=10, limits=Limits(decoded_bytes=7))
    assert (options.decoder_limits.decoded_bytes, options.window_bytes) == (7, 5)


def test_functions_have_the_defaults_of_the_options() -> None:
    defaults = {field.name: field.default for field in (*fields(ReadOptions), *fields(ReadPlan))}
    for function in (splitarrow.open, splitarrow.Client.read, splitarrow.ClusterClient.read):
        found = inspect.signature(function).parameters
        shared = defaults.keys() & found.keys()
        assert len(shared) >= 7
        assert {name: found[name].default for name in shared} == {
            name: defaults[name] for name in shared
        }


def test_the_defaults_of_sizes_are_the_documented_ones() -> None:
    options = ReadOptions()
    assert (options.prefetch_bytes, options.max_decoded_bytes) == (None, 1 << 30)
    plan = ReadPlan(options)
    assert (plan.resume_attempts, plan.parallel, plan.window_bytes) == (8, 4, 256 << 20)
