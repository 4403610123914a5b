"""The W3C context of a trace: what is sent is read, and what is malformed is ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.protocol.trace_context import (
    MAX_STATE_BYTES,
    TraceContext,
    parse_context,
    parse_headers,
    parse_payload,
)
from splitarrow.protocol.uri import DataUri

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"

identifiers = st.tuples(
    st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), st.integers(0, 255)
)
keys = st.from_regex(r"[a-z][a-z0-9_*/@-]{0,20}", fullmatch=True)
values = st.from_regex(r"[!-+\--<>-~]{1,20}", fullmatch=True)
states = st.lists(st.tuples(keys, values), max_size=8, unique_by=lambda entry: entry[0])


@given(identifiers, states)
def test_a_context_survives_the_message_and_the_headers(
    numbers: tuple[int, int, int], state: list[tuple[str, str]]
) -> None:
    trace_id, span_id, flags = numbers
    context = TraceContext(f"{trace_id:032x}", f"{span_id:016x}", flags, tuple(state))
    assert parse_payload(context.pack()) == context
    assert parse_headers(dict(context.headers())) == context


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-extra",
        PARENT.upper(),
        "ff" + PARENT[2:],
        "cc" + PARENT[2:] + ".future",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-0g",
        " " + PARENT,
    ],
)
def test_a_malformed_context_is_none(parent: str) -> None:
    assert parse_context(parent) is None
    assert parse_headers({"traceparent": parent}) is None
    assert parse_payload(parent.encode()) is None


def test_fields_of_a_later_version_are_ignored() -> None:
    assert parse_context("cc" + PARENT[2:] + "-what-the-future-brings") == parse_context(PARENT)


def test_a_call_without_headers_has_no_context() -> None:
    assert parse_headers({"tracestate": "a=b"}) is None


@pytest.mark.parametrize(
    "state",
    [
        "no value",
        "a=b,a=c",
        "A=b",
        "a=\x7f",
        "a=b=c",
        ",".join(f"k{n}=v" for n in range(33)),
        "a=" + "v" * MAX_STATE_BYTES,
    ],
    ids=["no value", "twice", "case", "control", "equals", "entries", "length"],
)
def test_a_malformed_state_is_left_out(state: str) -> None:
    assert parse_context(PARENT, state) == TraceContext(TRACE_ID, SPAN_ID)


def test_spaces_around_entries_are_ignored() -> None:
    context = parse_context(PARENT, "a=1 ,\t b=2,,")
    assert context is not None
    assert context.state == (("a", "1"), ("b", "2"))


def test_a_state_that_is_too_long_is_not_sent() -> None:
    state = tuple((f"k{n}", "v" * 200) for n in range(3))
    assert TraceContext(TRACE_ID, SPAN_ID, 1, state).pack() == PARENT.encode()


@pytest.mark.parametrize("payload", [b"\xff" * 55, PARENT.encode() + b"\n" + b"a=b," * 300, b""])
def test_a_malformed_payload_is_none(payload: bytes) -> None:
    assert parse_payload(payload) is None


@given(st.binary(max_size=100))
def test_no_payload_raises(payload: bytes) -> None:
    parse_payload(payload)
    parse_payload(PARENT.encode() + b"\n" + payload)


def test_a_uri_names_the_tag() -> None:
    text = "tcp://host:1?want_data=0x10000000001&trace=0x10000000004"
    assert DataUri.parse(text).trace == 0x10000000004
    assert str(DataUri.parse(text)) == text
