"""Requests to a control plane, built from the arguments of a read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client.arguments import build_request
from splitarrow.client.dataset.requests import (
    check_name,
    format_ranges,
    pin_version,
    select_endpoints,
)
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.errors import UsageError
from splitarrow.protocol.request import Request

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_an_invalid_name_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize(
    "selection",
    [{"limit": -1}, {"batch_rows": 0}, {"compression": "gzip"}, {"columns": ()}, {"version": ""}],
)
def test_an_invalid_selection_is_a_usage_error(selection: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="'flights'"):
        build_request("flights", **selection)


@pytest.mark.parametrize("ticket", [b"sa1.signed", b'{"novel": 1}', b"\xff"])
def test_opaque_tickets_stay_unchanged(ticket: bytes) -> None:
    assert pin_version(Endpoint(ticket, ()), "7").ticket == ticket


def test_a_version_is_added_to_an_unsigned_ticket() -> None:
    endpoint = Endpoint(b'{"dataset": "d", "shard": 2}', ())
    assert Request.parse(pin_version(endpoint, "7").ticket) == Request("d", shard=2, version="7")
    assert pin_version(endpoint, "") == endpoint


def info(*ordinals: int | None) -> DatasetInfo:
    endpoints = tuple(Endpoint(b"t", (), ordinal=ordinal) for ordinal in ordinals)
    return DatasetInfo("d", None, None, SCHEMA, "table", "1", endpoints)


def test_endpoints_are_selected_by_ordinal_or_by_index() -> None:
    assert select_endpoints(info(4, 5, 9), frozenset({9, 4})) == [0, 2]
    assert select_endpoints(info(None, None), frozenset({1})) == [1]
    assert select_endpoints(info(4, 5), None) == [0, 1]
    with pytest.raises(UsageError, match="'d' has no shard 6-7, 10"):
        select_endpoints(info(4, 5, 9), frozenset({4, 6, 7, 10}))


def test_long_lists_of_shards_are_shortened() -> None:
    assert format_ranges([7, 1, 2, 3, 9]) == "1-3, 7, 9"
    assert format_ranges([]) == ""
    assert format_ranges(range(0, 24, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22"
    for count in (13, 15):
        shown = format_ranges(range(0, 2 * count, 2))
        assert shown == f"0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and {count - 12} more"
