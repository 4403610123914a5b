"""URIs of control planes, one or several."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.client.uris import (
    is_control_uri,
    parse_control_uri,
    parse_control_uris,
    split_dataset,
)
from splitarrow.errors import UriError
from splitarrow.protocol.uri import DataUri


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("grpc://a", "grpc://a:8815"),
        ("grpc+tcp://a:1/", "grpc+tcp://a:1"),
        ("grpc+tls://[::1]:2", "grpc+tls://[::1]:2"),
        ("grpc://a:0", "grpc://a:8815"),
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
        ("grpc://a/x?want_data=1", "has a path or parameters"),
        ("grpc://a/x?y=1", "has a path or parameters"),
        ("a:1/x", "grpc://a:1/x names a dataset; connect to grpc://a:1, or pass the URI to open"),
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


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        *(("grpc://a", True), ("GRPC+TLS://a/x", True), ("grpc+tcp://a", True), ("tcp://a", False)),
        *(("a:1", True), ("a-b_c.d:1/x/y", True), ("[::1]:1", True), ("[::1]:1/x", True)),
        *(("a:1,b", True), ("a", False), ("a:x", False), ("::1", False), ("shm:///a", False)),
        *((DataUri("grpc", "a"), True), (DataUri("grpc+tls", "a"), True)),
        (DataUri("tcp", "a", 1), False),
    ],
    ids=str,
)
def test_uris_of_control_planes_are_recognized(uri: Any, expected: bool) -> None:
    assert is_control_uri(uri) is expected


@pytest.mark.parametrize(
    ("uri", "address", "name"),
    [
        ("grpc://a", "grpc://a", None),
        ("grpc+tls://a:1/", "grpc+tls://a:1", None),
        ("grpc://a/x%20y/", "grpc://a", "x y"),
        ("grpc://a/x/y", "grpc://a", "x/y"),
        ("a:1/x", "grpc://a:1", "x"),
        (DataUri("grpc", "a", 2, "/x"), "grpc://a:2", "x"),
    ],
    ids=str,
)
def test_the_name_of_a_dataset_follows_the_address(
    uri: Any, address: str, name: str | None
) -> None:
    assert split_dataset(uri) == (address, name)


@pytest.mark.parametrize("uri", ["grpc://a/x?y=1", "a:1?y", "grpc://a/x#y", "grpc://a#?"])
def test_the_name_of_a_dataset_has_no_parameters(uri: str) -> None:
    with pytest.raises(UriError, match=r"has parameters; expected grpc://host:port/NAME") as caught:
        split_dataset(uri)
    assert "?y" not in str(caught.value)


def test_a_list_of_bare_addresses_is_one_of_grpc() -> None:
    found = parse_control_uris("a:1, b:2,[::1]:3")
    assert [uri.address for uri in found] == ["grpc://a:1", "grpc://b:2", "grpc://[::1]:3"]


@pytest.mark.parametrize("uris", ["grpc://a,,b", "grpc://a,", "a:1,"])
def test_a_comma_without_an_address_is_named(uris: str) -> None:
    with pytest.raises(UriError, match="an address is missing next to a comma"):
        parse_control_uris(uris)
    with pytest.raises(UriError, match="no control plane was given"):
        parse_control_uris([])
