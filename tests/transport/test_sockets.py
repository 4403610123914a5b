"""Connecting: before the transport is imported, and to names with several addresses."""

from __future__ import annotations

import gc
import socket
import struct
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from splitarrow.errors import ConnectError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import sockets, tcp
from splitarrow.transport.sockets import connected_early, open_socket


def test_the_transport_takes_an_early_connection_over_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = DataUri("tcp", "127.0.0.1", listener.getsockname()[1])
        with connected_early(uri, 10):
            accepted, address = listener.accept()
            with closing(accepted), closing(tcp.connect_socket(uri, 10)) as first:
                assert first.getsockname() == address
            with closing(tcp.connect_socket(uri, 10)) as second:
                assert second.getsockname() != address


@pytest.mark.parametrize("resets", [False, True])
def test_an_early_connection_that_the_server_has_closed_is_replaced(resets: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = DataUri("tcp", "127.0.0.1", listener.getsockname()[1])
        with connected_early(uri, 10):
            early, address = listener.accept()
            if resets:
                early.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            early.close()
            with closing(tcp.connect_socket(uri, 10)) as later:
                assert later.getsockname() != address


def test_an_early_connection_that_nobody_needs_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = DataUri("tcp", "127.0.0.1", listener.getsockname()[1])
        with connected_early(uri, 10):
            accepted, _ = listener.accept()
        with closing(accepted):
            assert accepted.recv(1) == b""
    gc.collect()  # A socket that was left open would warn.


def test_an_early_connection_fails_like_a_later_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = DataUri("tcp", "127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ConnectError) as early, connected_early(uri, 10):
        pass
    with pytest.raises(ConnectError) as later:
        open_socket(uri, 10)
    assert early.value.message == later.value.message


@contextmanager
def silent_listener() -> Generator[tuple[str, int]]:
    """Listen at an address of this host that answers no further client."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):  # It fills the queue.
            yield listener.getsockname()


def test_an_address_that_does_not_answer_is_an_error() -> None:
    with (
        silent_listener() as (host, port),
        pytest.raises(ConnectError, match=r"cannot connect to .* no answer within 0.2 s"),
    ):
        open_socket(DataUri("tcp", host, port), 0.2)


def list_addresses(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    def look_up(host: str, port: int, **options: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in hosts]
        return [
            (family, socket.SOCK_STREAM, 6, "", (each, port))
            for family, each in zip(families, hosts, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("hosts", [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "::1", "127.0.0.2")])
def test_the_next_address_is_tried_where_the_first_is_silent(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...]
) -> None:
    with silent_listener() as (_, port), socket.create_server(("127.0.0.2", port)):
        list_addresses(monkeypatch, *hosts)
        began = time.monotonic()
        with open_socket(DataUri("tcp", "storage", port), 30) as sock:
            assert sock.getpeername() == ("127.0.0.2", port)
        assert time.monotonic() - began < 10


def test_the_next_address_is_tried_where_the_first_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        list_addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
        with open_socket(DataUri("tcp", "storage", port), 30) as sock:
            assert sock.getpeername()[0] == "127.0.0.2"
    with pytest.raises(ConnectError, match="Connection refused"):
        open_socket(DataUri("tcp", "storage", port), 30)


def test_the_families_of_a_name_are_tried_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    list_addresses(monkeypatch, "::1", "::2", "127.0.0.1", "127.0.0.2", "127.0.0.3")
    hosts = [address[0] for _, address in sockets._resolve("storage", 1)]
    assert hosts == ["::1", "127.0.0.1", "::2", "127.0.0.2", "127.0.0.3"]
