"""URIs of control planes, one or several."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.client.rpc.control_uri import parse_control_uri, parse_control_uris
from splitarrow.errors import UriError
from splitarrow.protocol.uri import DataUri


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("grpc://a", "grpc://a:8815"),
        ("grpc+tcp://a:1/", "grpc+tcp://a:1"),
        ("grpc+tls://[::1]:2", "grpc+tls://[::1]:2"),
    ],
)
def test_the_default_port_is_filled_in(text: str, address: str) -> None:
    assert parse_control_uri(text).address == address
    assert parse_control_uri(DataUri.parse(text)) == parse_control_uri(text)
    assert parse_control_uri(text).path == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tcp://a", "is not the URI of a control plane"),
        ("grpc://", "has no host"),
        ("grpc://a/x", "names a dataset; connect to grpc://a"),
        ("grpc://a?want_data=0x10000000001", "has a path or parameters"),
        ("grpc://a?x=1", "has a path or parameters"),
    ],
)
def test_other_uris_are_refused(text: str, problem: str) -> None:
    with pytest.raises(UriError, match=problem):
        parse_control_uri(text)


@pytest.mark.parametrize(
    ("uris", "hosts"),
    [
        ("grpc://a, b,a", ["grpc://a:8815", "grpc://b:8815"]),
        ("grpc+tls://a,grpc://b:1", ["grpc+tls://a:8815", "grpc://b:1"]),
        (["grpc://a", "grpc://b,c"], ["grpc://a:8815", "grpc://b:8815", "grpc://c:8815"]),
        (DataUri.parse("grpc://a"), ["grpc://a:8815"]),
        ([DataUri.parse("grpc://a"), "grpc://a:8815"], ["grpc://a:8815"]),
    ],
)
def test_several_uris_are_listed_once(uris: Any, hosts: list[str]) -> None:
    assert [uri.address for uri in parse_control_uris(uris)] == hosts


def test_a_name_is_not_taken_for_a_host() -> None:
    with pytest.raises(UriError, match=r"^'flights' is not the URI of a control plane"):
        parse_control_uris("flights")


@pytest.mark.parametrize("uris", [[], "grpc://a,", "grpc://a,,b", ""])
def test_a_missing_address_is_an_error(uris: Any) -> None:
    with pytest.raises(UriError):
        parse_control_uris(uris)
