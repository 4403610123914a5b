"""Unsigned tickets."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitarrow.errors import InvalidRequestError
from splitarrow.protocol.request import COMPRESSIONS, FORMATS, MAX_FILTER_CHARS, Request

names = st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name)
counts = st.none() | st.integers(1, (1 << 63) - 1)
requests = st.builds(
    Request,
    names,
    columns=st.none() | st.lists(names, min_size=1, max_size=5).map(tuple),
    limit=st.none() | st.integers(0, (1 << 63) - 1),
    batch_rows=counts,
    compression=st.none() | st.sampled_from(COMPRESSIONS),
    format=st.none() | st.sampled_from(FORMATS),
    filter=st.none()
    | st.binary(min_size=1, max_size=60).map(lambda data: urlsafe_b64encode(data).decode()),
    offset=st.none() | st.integers(0, (1 << 63) - 1),
    shard=st.none() | st.integers(0, (1 << 63) - 1),
    version=st.none() | st.text(min_size=1, max_size=40),
    batches=st.none()
    | st.tuples(st.integers(0, 9), st.integers(9, (1 << 63) - 1))
    | st.lists(st.integers(0, (1 << 63) - 1), min_size=2, max_size=9).map(
        lambda bounds: tuple(pairwise(sorted(bounds)))
    ),
)


@given(requests)
def test_a_request_round_trips_through_its_ticket(request_: Request) -> None:
    assert Request.parse(request_.ticket()) == request_


def test_one_range_of_batches_has_the_ticket_that_all_servers_know() -> None:
    assert Request("x", batches=(3, 7)).ticket() == b'{"dataset": "x", "batches": [3, 7]}'
    assert Request("x", batches=(3, 7)).batch_ranges == ((3, 7),)
    several = Request("x", batches=((0, 1), (3, 7)))
    assert several.ticket() == b'{"dataset": "x", "batches": [[0, 1], [3, 7]]}'
    assert several.batch_ranges == ((0, 1), (3, 7))


@given(names)
def test_a_name_is_a_ticket_by_itself(name: str) -> None:
    request = Request(name)
    assert request.is_plain
    if not name.lstrip().startswith("{"):
        assert request.ticket() == name.encode()


@pytest.mark.parametrize("name", ["{", '{"dataset": "x"}', "  {}", "\n{"])
def test_a_name_that_looks_like_json_survives(name: str) -> None:
    assert Request.parse(Request(name).ticket()) == Request(name)


def test_a_ticket_can_have_every_field() -> None:
    ticket = {
        "dataset": "flights",
        "columns": ["delay", "origin"],
        "limit": 10,
        "batch_rows": 5,
        "compression": "zstd",
        "format": "arrow",
        "filter": "AAEC_-8=",
        "offset": 3,
        "shard": 1,
        "version": "v7",
    }
    request = Request.parse(json.dumps(ticket).encode())
    assert request == Request(
        "flights", ("delay", "origin"), 10, 5, "zstd", "arrow", "AAEC_-8=", 3, 1, "v7"
    )
    assert not request.is_plain


@pytest.mark.parametrize(
    "selection", [{"filter": "AA"}, {"offset": 0}, {"shard": 0}, {"version": "v"}, {"limit": 0}]
)
def test_a_request_with_any_selection_is_not_plain(selection: dict[str, Any]) -> None:
    request = Request("x", **selection)
    assert not request.is_plain
    assert json.loads(request.ticket()) == {"dataset": "x", **selection}


@pytest.mark.parametrize(
    "selection",
    [
        {"limit": 0},
        {"limit": (1 << 63) - 1},
        {"batch_rows": 1},
        {"batch_rows": (1 << 63) - 1},
        {"offset": 0},
        {"shard": 0},
        {"version": "v" * 256},
        {"filter": "A" * MAX_FILTER_CHARS},
        {"batches": [0, 0]},
        {"batches": [(1 << 63) - 1] * 2},
    ],
    ids=lambda selection: "-".join(selection),
)
def test_each_field_may_have_its_least_and_its_greatest_value(selection: dict[str, Any]) -> None:
    request = Request.parse(json.dumps({"dataset": "x", **selection}).encode())
    assert json.loads(request.ticket()) == {"dataset": "x", **selection}


def test_a_ticket_is_utf_8_without_escapes() -> None:
    ticket = Request("flüge", limit=7).ticket()
    assert ticket == '{"dataset": "flüge", "limit": 7}'.encode()


def test_a_filter_has_44_ki_characters_at_most() -> None:
    """They fit into a signed ticket of 64 KiB, which encodes its payload in base64."""
    assert MAX_FILTER_CHARS == 44 * 1024


def test_null_means_absent() -> None:
    assert Request.parse(b'{"dataset": "x", "columns": null, "limit": null}') == Request("x")


@pytest.mark.parametrize(
    ("ticket", "problem"),
    [
        (b"", "no dataset"),
        (b"a\0b", "no dataset"),
        (b"\xff\xfe", "UTF-8"),
        (b"{", "malformed"),
        (b"{" * 5000, "malformed"),
        (b'{"a":' * 50_000, "malformed"),
        (b'{"limit": ' + b"9" * 5000 + b"}", "malformed"),
        (b"{}", "no dataset"),
        (b'{"dataset": null}', "no dataset"),
        (b'{"dataset": ""}', "no dataset"),
        (b'{"dataset": 5}', "dataset"),
        (b'{"dataset": ["x"]}', "dataset"),
        (b'{"dataset": "x\\ud800"}', "Unicode"),
        (b'{"dataset": "x", "columns": ["\\udc00"]}', "Unicode"),
        (b'{"dataset": "x", "columns": []}', "selects no columns"),
        (b'{"dataset": "x", "columns": "delay"}', "columns"),
        (b'{"dataset": "x", "columns": [1]}', "columns"),
        (b'{"dataset": "x", "columns": {}}', "columns"),
        (b'{"dataset": "x", "limit": -1}', "limit"),
        (b'{"dataset": "x", "limit": 1.0}', "limit"),
        (b'{"dataset": "x", "limit": NaN}', "limit"),
        (b'{"dataset": "x", "limit": true}', "limit"),
        (b'{"dataset": "x", "limit": "1"}', "limit"),
        (b'{"dataset": "x", "limit": 9223372036854775808}', "64 bits"),
        (b'{"dataset": "x", "batch_rows": 0}', "batch_rows"),
        (b'{"dataset": "x", "compression": "gzip"}', "none, lz4, zstd, auto"),
        (b'{"dataset": "x", "compression": 1}', "compression"),
        (b'{"dataset": "x", "format": "csv"}', "arrow, vortex"),
        (b'{"dataset": "x", "filter": ""}', "base64url"),
        (b'{"dataset": "x", "filter": "a+b/"}', "base64url"),
        (b'{"dataset": "x", "filter": "AA\\n"}', "base64url"),
        (b'{"dataset": "x", "filter": ["AA"]}', "filter"),
        (b'{"dataset": "x", "filter": "' + b"A" * (MAX_FILTER_CHARS + 1) + b'"}', "characters"),
        (b'{"dataset": "x", "offset": -1}', "offset"),
        (b'{"dataset": "x", "offset": 1.5}', "offset"),
        (b'{"dataset": "x", "offset": false}', "offset"),
        (b'{"dataset": "x", "offset": 9223372036854775808}', "64 bits"),
        (b'{"dataset": "x", "shard": -1}', "shard"),
        (b'{"dataset": "x", "shard": "0"}', "shard"),
        (b'{"dataset": "x", "version": ""}', "an empty version"),
        (b'{"dataset": "x", "version": 7}', "version"),
        (b'{"dataset": "x", "version": "\\ud800"}', "Unicode"),
        (b'{"dataset": "x", "version": "' + b"v" * 257 + b'"}', "characters"),
        (b'{"dataset": "x", "colums": ["a"]}', "colums"),
        (b'{"dataset": "x", "batches": [-1, 0]}', "batches -1:0; the first must be 0 or more"),
        (b'{"dataset": "x", "batches": [3, 2]}', "batches 3:2"),
        (b'{"dataset": "x", "batches": [0, 9223372036854775808]}', "batches .* 64 bits"),
        (b'{"dataset": "x", "batches": [0]}', "batches"),
        (b'{"dataset": "x", "batches": [0, 1, 2]}', "batches"),
        (b'{"dataset": "x", "batches": [false, 1]}', "batches"),
        (b'{"dataset": "x", "batches": {"0": 1, "2": 3}}', "batches"),
        (b'{"dataset": "x", "batches": []}', "batches"),
        (b'{"dataset": "x", "batches": [[]]}', "batches"),
        (b'{"dataset": "x", "batches": [[0, 1], 2]}', "batches"),
        (b'{"dataset": "x", "batches": [[0, 1], [true, 2]]}', "batches"),
        (b'{"dataset": "x", "batches": [[0, 1], [5, 2]]}', "batches 5:2; the first must be 0"),
        (b'{"dataset": "x", "batches": [[3, 5], [4, 6]]}', "batches 4:6 after 3:5; .* overlap"),
        (b'{"dataset": "x", "batches": [[3, 5], [0, 1]]}', "batches 0:1 after 3:5; .* ascending"),
        (b'{"dataset": "x", "batches": [' + b"[0, 0]," * 512 + b"[0, 1]]}", "513 ranges"),
        (b'{"dataset": "x", "rows": [[0, 1], [3, 4]]}', "rows"),
    ],
)
def test_an_invalid_ticket_is_refused_with_its_problem(ticket: bytes, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        Request.parse(ticket)
    assert caught.value.code == "INVALID_ARGUMENT"


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: b"{" + text.encode()))
def test_any_bytes_are_a_request_or_refused(ticket: bytes) -> None:
    try:
        request = Request.parse(ticket)
    except InvalidRequestError:
        return
    assert Request.parse(request.ticket()) == request
