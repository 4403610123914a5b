"""Advertised addresses: their parts, which of them a reader gets, and their errors."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from splitarrow.protocol.uri import DataUri
from splitarrow.server.config.advertised import list_pairs, parse_advertised, parse_network


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port"),
    [
        ("data.example.org", None, "data.example.org", None),
        ("fd00::1", None, "fd00::1", None),
        ("[fd00::1]", None, "fd00::1", None),
        ("tcp=data.example.org:30016", "tcp", "data.example.org", 30016),
        ("tcp+tls=[fd00::1]:30016", "tcp+tls", "fd00::1", 30016),
        ("ucx=10.0.0.7", "ucx", "10.0.0.7", None),
        ("grpc=node_7", "grpc", "node_7", None),
        ("https=Node:443", "https", "node", 443),
    ],
)
def test_an_address_has_a_scheme_a_host_and_a_port(
    text: str, scheme: str | None, host: str, port: int | None
) -> None:
    (entry,) = parse_advertised((text,)).entries
    assert entry == (None, scheme, host, port, None)


@pytest.mark.parametrize(
    ("advertise", "advertise_for", "error"),
    [
        ("", None, "'' in '' is not HOST or HOST:PORT"),
        ("shm=h", None, "'shm' in 'shm=h' is not one of tcp, "),
        ("=h", None, "'' in '=h' is not one of"),
        ("tcp=https://h", None, r"'https' in 'tcp=https://h': expected tcp or tcp\+tls"),
        ("https=http://h", None, "'http' in 'https=http://h': expected https"),
        ("tcp://h", None, "'tcp' in 'tcp://h': expected no scheme"),
        ("h:1", None, "'h:1' has a port but no scheme of a listener; .* tcp=h:1"),
        ("tcp=fd00::1", None, r"'fd00::1' in 'tcp=fd00::1' needs brackets, as in tcp=\[fd00::1\]"),
        ("tcp=h:99999", None, "'h:99999' in 'tcp=h:99999' is not HOST or HOST:PORT: .*Port"),
        ("tcp=h:0", None, "'h:0' in 'tcp=h:0' is not"),
        ("tcp=h:", None, "'h:' in 'tcp=h:' is not"),
        ("tcp=$(NODE_IP):1", None, r"'\$\(NODE_IP\):1' in .* is not"),
        ("tcp=h/a", None, "'h/a' in 'tcp=h/a' is not"),
        ("a,b", None, "the address of all listeners is given twice"),
        ("tcp=a,tcp=b", None, "the address of tcp is given twice"),
        (None, "10.0.0.0/8", "'10.0.0.0/8' has no network; expected NETWORK=HOST"),
        (None, "10.0.0.1/8=a", "'10.0.0.1/8' is not a network: .* host bits set"),
        (None, "10.0.0.0/8=a,10.0.0.0/8=b", "all listeners for 10.0.0.0/8 is given twice"),
        (None, "10.0.0.0/8=tcp=a:b", "'a:b' in 'tcp=a:b' is not"),
    ],
)
def test_the_invalid_part_of_an_address_is_named(
    advertise: str | None, advertise_for: str | None, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        parse_advertised(
            *(() if text is None else list_pairs(text) for text in (advertise, advertise_for))
        )


def test_the_smallest_network_and_then_the_scheme_decide() -> None:
    found = parse_advertised(
        ("all", "tcp=tcp:1"),
        ("10.0.0.0/8=ten", "10.1.0.0/16=tcp=inner:2", "fd00::/8=six"),
    )

    def find(scheme: str, reader: str | None) -> str:
        entry = found.find(scheme, None if reader is None else ip_address(reader))
        assert entry is not None
        return entry.host

    assert [find("tcp", reader) for reader in ("10.1.0.1", "10.2.0.1", "192.0.2.1", None)] == [
        "inner",
        "ten",
        "tcp",
        "tcp",
    ]
    assert [find("ucx", reader) for reader in ("10.1.0.1", "192.0.2.1", "fd00::1")] == [
        "ten",
        "all",
        "six",
    ]


@pytest.mark.parametrize(
    ("text", "listener", "expected"),
    [
        ("tcp=tcp+tls://h:7", "tcp://0.0.0.0:1?want_data=0x1", "tcp+tls://h:7?want_data=0x1"),
        ("http=https://h:443", "http://0.0.0.0:1", "https://h:443"),
        ("grpc=grpc+tls://[fd00::1]", "grpc://0.0.0.0:1", "grpc+tls://[fd00::1]:1"),
        ("ucx=ucx://h", "ucx://0.0.0.0:1", "ucx://h:1"),
        ("h", "https://0.0.0.0:1", "https://h:1"),
    ],
)
def test_a_proxy_may_end_the_tls_of_readers(text: str, listener: str, expected: str) -> None:
    uri = DataUri.parse(listener)
    found = parse_advertised((text,)).find(uri.scheme, None)
    assert found is not None
    assert str(found.replace(uri)) == expected


def test_a_listener_without_an_address_keeps_its_own() -> None:
    assert parse_advertised(("tcp=h",)).find("ucx", None) is None
    assert parse_advertised((), ("10.0.0.0/8=h",)).find("tcp", ip_address("11.0.0.1")) is None


def test_a_mapping_has_only_text() -> None:
    with pytest.raises(ValueError, match="7 of 'tcp' is not text"):
        list_pairs({"tcp": 7})


def test_one_address_is_a_network() -> None:
    assert parse_network("127.0.0.1").num_addresses == 1
