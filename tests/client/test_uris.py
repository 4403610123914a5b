"""The URIs and tickets that a read sends, and those that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from splitarrow.client.arguments import Read
from splitarrow.client.uris import (
    complete_uri,
    read_dataset_name,
    request_schema,
    resolve_uris,
)
from splitarrow.errors import UriError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.protocol.tags import FREE_DATA, KEEP_ALIVE, WANT_DATA
from splitarrow.protocol.uri import DataUri

BASE = "tcp://h:1?want_data=0x10000000001"


def test_a_uri_needs_a_ticket_of_its_own_or_gets_the_given_one() -> None:
    assert [uri.ticket for uri in resolve_uris(f"{BASE}&ticket=a")] == [b"a"]
    assert [uri.ticket for uri in resolve_uris(f"{BASE}&ticket=a", "b")] == [b"a"]
    for ticket in ("b", b"b"):
        assert [uri.ticket for uri in resolve_uris(BASE, ticket)] == [b"b"]
    for ticket in (None, "", b""):
        with pytest.raises(UriError, match="has no ticket; add &ticket=NAME to it, or pass ticket"):
            resolve_uris(BASE, ticket)


def test_a_pair_shares_a_ticket() -> None:
    metadata, body = f"{BASE}&stream=metadata", f"{BASE}&stream=body&ticket=a"
    for pair in ([metadata, body], (body, DataUri.parse(metadata))):
        assert [uri.ticket for uri in resolve_uris(pair)] == [b"a", b"a"]


@pytest.mark.parametrize(
    ("uris", "problem"),
    [
        (f"{BASE}&ticket=a&stream=metadata", "carries only the metadata stream; .* stream=body as"),
        (f"{BASE}&ticket=a&stream=body", "carries only the body stream; .* stream=metadata as"),
        ([], "got 0 URIs; expected one URI or a pair"),
        ([BASE] * 3, "got 3 URIs; expected one URI or a pair"),
        ([BASE] * 2, "a pair needs one URI .* got stream=both and stream=both"),
        ([f"{BASE}&stream=body"] * 2, "a pair needs one URI .* got stream=body and stream=body"),
        ("tcp://h:1?ticket=a", "want_data"),
        ("nothing://h", "nothing"),
    ],
)
def test_other_uris_are_refused(uris: Any, problem: str) -> None:
    with pytest.raises(UriError, match=problem):
        resolve_uris(uris)


@pytest.mark.parametrize(
    "selection",
    [
        {"columns": ["x"]},
        {"limit": 0},
        {"batch_rows": 7},
        {"compression": "zstd"},
        {"batches": [3, 7]},
        {"rows": [3, 7]},
    ],
)
def test_a_selection_becomes_a_part_of_the_ticket(selection: dict[str, Any]) -> None:
    request = Read.of(selection).request  # pyright: ignore[reportArgumentType]
    (uri,) = resolve_uris(f"{BASE}&ticket=a", None, request)
    assert json.loads(uri.ticket or b"") == {"dataset": "a", **selection}
    with pytest.raises(
        UsageError, match=f"the ticket is signed, so {next(iter(selection))} cannot"
    ):
        resolve_uris(f"{BASE}&ticket=sa1.x", None, request)


def test_a_signed_ticket_is_sent_unchanged() -> None:
    (signed,) = resolve_uris(f"{BASE}&ticket=sa1.x")
    assert signed.ticket == b"sa1.x"


def test_a_short_address_gets_its_tags_and_its_ticket() -> None:
    uri = complete_uri("tcp://h/a%20b/")
    assert (uri.want_data, uri.keep_alive, uri.free_data) == (WANT_DATA, KEEP_ALIVE, None)
    assert (uri.ticket, uri.path) == (b"a b", "")
    assert complete_uri("ucx://h/a").free_data == FREE_DATA
    assert complete_uri(f"tcp://h/a?want_data={WANT_DATA + 8}").want_data == WANT_DATA + 8
    for text in ("tcp://h/a?ticket=t", "tcp://h", "tcp://h/", "shm:///run/x", "inproc://a"):
        assert complete_uri(text) == complete_uri(DataUri.parse(text)) == DataUri.parse(text)
    with pytest.raises(UriError):
        complete_uri("tcp://h/a%00")


def test_the_schema_is_requested_without_rows_and_of_all_columns() -> None:
    uris = resolve_uris(f"{BASE}&ticket=a", None, Request("?", columns=("x",), limit=5))
    (uri,) = request_schema(uris)
    assert json.loads(uri.ticket or b"") == {"dataset": "a", "limit": 0}
    with pytest.raises(UsageError, match="the ticket is signed, so filter cannot"):
        request_schema(resolve_uris(f"{BASE}&ticket=sa1.x"))


@pytest.mark.parametrize(
    ("ticket", "name"),
    [(b"a", "a"), (b'{"dataset": "b", "limit": 3}', "b"), (b"sa1.x", "?"), (b"{", "?")],
)
def test_errors_name_the_dataset_of_a_ticket(ticket: bytes, name: str) -> None:
    assert read_dataset_name(ticket) == name
