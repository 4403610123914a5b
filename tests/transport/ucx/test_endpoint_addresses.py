"""Addresses: from and to the structures of the library, and their reach."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from splitarrow.transport.ucx import endpoint as addresses
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import ffi


@pytest.mark.parametrize(
    ("host", "text"), [("10.1.2.3", "10.1.2.3:8816"), ("2001:db8::7", "[2001:db8::7]:8816")]
)
def test_an_address_survives_its_structure(host: str, text: str) -> None:
    packed = addresses.pack_address(host, 8816)
    storage = ffi.new("struct sockaddr_storage *")
    ffi.buffer(storage)[: len(packed)] = packed
    assert addresses.unpack_address(storage[0]) == (host, 8816)
    assert addresses.format_address(host, 8816) == text
    assert addresses.resolve_address(host, 8816) == host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM):
        assert len(packed) == (28 if ":" in host else 16)


def test_the_first_address_of_a_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, port: int, *, type: int) -> list[Any]:
        assert (host, port, type) == ("host", 8817, socket.SOCK_STREAM)
        families = socket.AF_INET6, socket.AF_INET
        addresses = ("2001:db8::7", 8817, 0, 0), ("10.1.2.3", 8817)
        return [(f, type, 6, "", each) for f, each in zip(families, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    assert addresses.resolve_address("host", 8817) == "2001:db8::7"


def test_an_address_of_another_family_is_unknown() -> None:
    assert addresses.unpack_address(ffi.new("struct sockaddr_storage *")[0]) == ("?", 0)


def test_the_scope_of_an_address_is_an_interface() -> None:
    index, name = socket.if_nameindex()[0]
    scoped, plain = (
        addresses.pack_address(f"fe80::1%{name}", 1),
        addresses.pack_address("fe80::1", 1),
    )
    assert int.from_bytes(scoped[-4:], "little") == index
    assert (scoped[:-4], plain[-4:]) == (plain[:-4], bytes(4))


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.9", True), ("192.0.2.1", False)],
)
def test_the_loopback_is_local(host: str, is_loopback: bool) -> None:
    assert addresses.is_loopback_address(host) is is_loopback
    assert addresses.find_reach(host) is (Reach.LOOPBACK if is_loopback else Reach.NETWORK)
    assert addresses.find_reach("2001:db8::7%1") is Reach.NETWORK


def test_an_address_of_an_interface_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            assert address[1] == 9  # the discard port, though nothing is sent

        def getsockname(self) -> Any:
            return ("10.1.2.3", 4321) if self.family == socket.AF_INET else ("fe80::7%eth0", 4321)

    monkeypatch.setattr(socket, "socket", Probe)
    assert addresses.find_reach("10.1.2.3") is Reach.HOST
    assert addresses.find_reach("10.1.2.4") is Reach.NETWORK
    assert addresses.find_reach("fe80::7") is Reach.HOST
    assert addresses.find_reach("fe80::8") is Reach.NETWORK
