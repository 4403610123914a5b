"""The options of a read: their bounds, and the values that they become."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.client.arguments import (
    Read,
    ReadArguments,
    ReadPlan,
    StreamOptions,
    check_spans,
    column_names,
)
from splitarrow.errors import UsageError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.request import Request
from splitarrow.transport.tls_options import TlsOptions


class Heap:
    """An allocator of the user."""

    is_host = True

    def allocate(self, nbytes: int) -> Any:
        return bytearray(nbytes)

    allocate_buffer = allocate


HEAP: Any = Heap()


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
        StreamOptions(**{name: value})


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
    assert getattr(StreamOptions(**{name: value}), name) == value


def test_a_location_needs_some_time() -> None:
    with pytest.raises(UsageError, match="location_timeout is 0; expected more than 0"):
        ReadPlan(StreamOptions(), location_timeout=0)


@pytest.mark.parametrize(
    ("name", "least"),
    [("resume_attempts", 0), ("parallel", 1), ("window_bytes", 1), ("location_timeout", 0.001)],
)
def test_the_bounds_of_a_plan(name: str, least: Any) -> None:
    changes: dict[str, Any] = {name: least}
    assert getattr(ReadPlan(StreamOptions(), **changes), name) == least
    changes[name] = least - 1
    with pytest.raises(UsageError, match=f"{name} is .*; expected"):
        ReadPlan(StreamOptions(), **changes)


def test_the_limit_of_decoded_bytes_applies_to_messages_and_prefetching() -> None:
    options = StreamOptions(prefetch_bytes=100, max_decoded_bytes=10)
    assert (options.decoder_limits.decoded_bytes, options.window_bytes) == (10, 10)
    options = StreamOptions(prefetch_bytes=5, max_decoded_bytes=10, limits=Limits(decoded_bytes=7))
    assert (options.decoder_limits.decoded_bytes, options.window_bytes) == (7, 5)


def test_the_defaults_of_sizes_are_the_documented_ones() -> None:
    options = StreamOptions()
    assert (options.prefetch_bytes, options.max_decoded_bytes) == (None, 1 << 30)
    plan = ReadPlan(options)
    assert (plan.resume_attempts, plan.parallel, plan.window_bytes) == (8, 4, 256 << 20)


def test_ranges_of_batches_are_pairs_of_integers() -> None:
    assert check_spans([3, 7], None) == {"batches": (3, 7), "rows": None}
    assert check_spans(None, [3, 7]) == {"batches": None, "rows": (3, 7)}
    for other in (3, (3,), (3, 4, 5), (3, 4.0), "ab"):
        with pytest.raises(UsageError, match="expected the first record batch and the one after"):
            check_spans(other, None)
        with pytest.raises(UsageError, match=r"rows is .* expected the first row and the one"):
            check_spans(None, other)
    with pytest.raises(UsageError, match="batches and rows both select"):
        check_spans((3, 7), (3, 7))


def test_one_column_may_be_a_string() -> None:
    assert column_names("ab") == ("ab",)
    assert column_names(["a", "b"]) == ("a", "b")
    assert column_names(None) is None


# A valid value of each option that differs from its default, and where the frozen read holds it.
ARGUMENTS: dict[str, Any] = {
    "columns": ("request", ["n"], ("n",)),
    "filter": ("", ("n", ">", 1), ("n", ">", 1)),
    "limit": ("request", 5, 5),
    "batch_rows": ("request", 2, 2),
    "compression": ("request", "lz4", "lz4"),
    "format": ("request", "vortex", "vortex"),
    "batches": ("request", [0, 1], (0, 1)),
    "rows": ("request", [2, 9], (2, 9)),
    "version": ("request", "7", "7"),
    "validate": ("options", "off", "off"),
    "connect_timeout": ("options", 1.5, 1.5),
    "stall_timeout": ("options", None, None),
    "prefetch_bytes": ("options", 100, 100),
    "max_decoded_bytes": ("options", 1000, 1000),
    "require_transport": ("options", "cma", "cma"),
    "limits": ("options", Limits(nesting=3), Limits(nesting=3)),
    "tls": ("options", TlsOptions(server_name="a"), TlsOptions(server_name="a")),
    "memory": ("", HEAP, HEAP),
    "transport": ("plan", "tcp", "tcp"),
    "location_timeout": ("plan", 0.5, 0.5),
    "resume_attempts": ("plan", 1, 1),
    "parallel": ("plan", 2, 2),
    "window_bytes": ("plan", 300, 300),
    "shards": ("", [2, 2], frozenset({2})),
    "sql": ("", "SELECT 1", "SELECT 1"),
}


def test_the_table_has_every_option() -> None:
    assert ARGUMENTS.keys() == ReadArguments.__optional_keys__


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_each_option_reaches_the_frozen_read(name: str) -> None:
    part, value, expected = ARGUMENTS[name]
    arguments: Any = {name: value}
    read = Read.of(arguments)
    holder: Any = getattr(read, part) if part else read
    assert getattr(holder, name) == expected
    assert read != Read.of({})


def test_a_read_without_options_has_the_defaults() -> None:
    assert Read.of({}, "d") == Read(Request("d"), ReadPlan(StreamOptions()))
    assert Read.of({"format": "auto"}).chooses_format
    assert Read.of({"memory": HEAP}).options.allocator is HEAP


def test_an_unknown_option_is_refused_with_the_likely_one() -> None:
    arguments: Any = {"colums": ["a"]}
    with pytest.raises(TypeError, match="no argument 'colums'; did you mean 'columns'"):
        Read.of(arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"limit": -1}, "cannot request 'd': .*limit -1"),
        ({"columns": []}, "selects no columns"),
        ({"format": "orc"}, "known are arrow, vortex"),
        ({"batches": (0, 1), "rows": (0, 1)}, "give one of them"),
        ({"parallel": 0}, "parallel is 0"),
        ({"sql": "SELECT 1", "columns": ["a"], "limit": 3}, "combined with 'd', columns, limit"),
    ],
)
def test_an_invalid_option_is_a_usage_error(arguments: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Read.of(arguments, "d")


def test_preparatory_reads_keep_what_protects_the_user() -> None:
    names = ARGUMENTS.keys() - {"rows", "sql"}
    arguments: Any = {name: ARGUMENTS[name][1] for name in names}
    options = Read.of(arguments).options
    prepared = options.for_preparation()
    for name in ("require_transport", "tls", "limits", "connect_timeout", "stall_timeout"):
        assert getattr(prepared, name) == ARGUMENTS[name][2]
    assert prepared.prefetch_bytes == 0
    assert prepared.allocator is not HEAP
