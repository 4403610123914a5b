"""The PROXY protocol: headers, and listeners that remove them."""

from __future__ import annotations

import ipaddress
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.proxy import SIGNATURE, binary_header, text_header
from helpers.waiting import wait_until
from splitarrow.errors import ProtocolError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import tcp
from splitarrow.transport.base import ListenOptions
from splitarrow.transport.proxy_protocol import (
    ProxiedSocket,
    ProxyHeader,
    begins_header,
    parse_header,
)

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
ports = st.integers(0, 0xFFFF)


@given(addresses, ports, st.binary(max_size=300), st.binary(max_size=50))
def test_a_header_is_found_whatever_follows_and_needs_all_of_its_bytes(
    source: str, port: int, extensions: bytes, rest: bytes
) -> None:
    for header in (binary_header(source, port, extensions), text_header(source, port)):
        assert parse_header(header + rest) == ProxyHeader(len(header), (source, port))
        assert begins_header(header)
        for size in range(len(header)):
            assert parse_header(header[:size]) is None


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", SIGNATURE, SIGNATURE + b"!\x11", b"PROXY "]),
)
@example(b"", b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 5\r\n")
@example(b"", b"PROXY \r\n")
def test_other_bytes_raise_one_kind_of_error_or_belong_to_the_client(
    data: bytes, begin: bytes
) -> None:
    try:
        header = parse_header(begin + data)
    except ProtocolError:
        assert begins_header(begin + data)
    else:
        assert header is None or header.nbytes <= len(begin + data)
        assert header != ProxyHeader(0) or not begins_header(begin + data)


@pytest.mark.parametrize(
    "header",
    [
        binary_header("192.0.2.1", command=0),
        binary_header("192.0.2.1", family=0x12),
        binary_header("2001:db8::1", family=0x31),
        SIGNATURE + b"\x20\x00\0\0",
        SIGNATURE + b"\x21\x00\0\x07ignored",
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
    ],
    ids=["local", "udp", "unix", "empty", "unspecified", "unknown", "unknown-address"],
)
def test_a_header_may_name_no_client(header: bytes) -> None:
    assert parse_header(header + b"more") == ProxyHeader(len(header))


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (SIGNATURE + b"\x11\x11\0\0", "version and command 0x11"),
        (SIGNATURE + b"\x22\x11\0\0", "version and command 0x22"),
        (SIGNATURE + b"\x21\x11\0\x0b", "11 bytes of addresses"),
        (SIGNATURE + b"\x21\x11\xff\xff", "has 65551 bytes; the limit is 4096 bytes"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "is malformed"),
        (b"PROXY TCP9 1.2.3.4 1.2.3.4 1 2\r\n", "is malformed"),
        (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "another family"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "invalid port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n", "invalid port"),
        (b"PROXY " + 101 * b"x", "no end of line"),
    ],
)
def test_a_malformed_header_is_refused(header: bytes, error: str) -> None:
    if b"bytes of addresses" in error.encode():
        header += 11 * b"\0"
    with pytest.raises(ProtocolError, match=error):
        parse_header(header)


class Listening:
    """A socket on the loopback that trusts it, and its clients."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.socket = ProxiedSocket(socket.create_server(("127.0.0.1", 0)), LOOPBACK, seconds)
        self._address = self.socket.getsockname()
        self._clients: list[socket.socket] = []

    def connect(self, *parts: bytes) -> socket.socket:
        client = socket.create_connection(self._address)
        self._clients.append(client)
        for part in parts:
            client.sendall(part)
        return client

    def is_readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def accept(self) -> tuple[bytes, Any]:
        """Return what a connection begins with, and the address of its client."""
        while True:
            assert self.is_readable(10)
            try:
                sock, address = self.socket.accept()
            except BlockingIOError:
                continue
            with sock:
                sock.setblocking(True)
                return sock.recv(100), address

    def accepts_nothing(self) -> bool:
        try:
            while self.is_readable(0):
                self.socket.accept()[0].close()
                return False
        except BlockingIOError:
            return not self.is_readable(0)
        return True

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.socket.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with closing(Listening()) as made:
        yield made


@pytest.mark.parametrize("make", [binary_header, text_header])
@pytest.mark.parametrize("source", ["192.0.2.1", "2001:db8::1"])
def test_a_connection_from_a_proxy_has_the_address_of_its_client(
    listening: Listening, make: Callable[[str], bytes], source: str
) -> None:
    listening.connect(make(source) + b"hello")
    assert listening.accept() == (b"hello", (source, 4000))


def test_a_connection_without_a_header_is_as_before(listening: Listening) -> None:
    for data in (b"hello", b"PROPFIND", b"\r\n\r\n\0\r\nQUID"):
        client = listening.connect(data)
        assert listening.accept() == (data, client.getsockname())
    client = listening.connect(binary_header("192.0.2.1", command=0) + b"healthy")
    assert listening.accept() == (b"healthy", client.getsockname())
    client = listening.connect()
    address = client.getsockname()
    client.close()
    assert listening.accept() == (b"", address)


def test_a_header_may_arrive_in_parts_while_others_connect(listening: Listening) -> None:
    header = binary_header("192.0.2.1") + b"hello"
    client = listening.connect()
    size = len(header) - len(b"hello") - 1
    for at in range(size):
        assert listening.accepts_nothing()  # and does not stay readable
        client.sendall(header[at : at + 1])
    assert listening.accepts_nothing()
    listening.connect(b"other")
    assert listening.accept()[0] == b"other"
    client.sendall(header[size:])
    assert listening.accept() == (b"hello", ("192.0.2.1", 4000))


def test_a_connection_that_ends_within_its_header_is_closed(listening: Listening) -> None:
    client = listening.connect(binary_header("192.0.2.1")[:20])
    assert listening.accepts_nothing()
    client.shutdown(socket.SHUT_WR)
    wait_until(lambda: listening.accepts_nothing() and is_closed(client))


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_silent_connections_are_closed_after_their_time() -> None:
    with closing(Listening(seconds=0.0)) as listening:
        silent = listening.connect()
        assert listening.accepts_nothing()
        listening.connect(b"next")
        assert listening.accept()[0] == b"next"
        wait_until(lambda: is_closed(silent))


def test_closing_closes_waiting_connections() -> None:
    with closing(Listening()) as listening:
        silent = listening.connect()
        assert listening.accepts_nothing()
        listening.socket.close()
        assert listening.socket.fileno() == -1
        wait_until(lambda: is_closed(silent))


@pytest.mark.parametrize(("header", "is_local"), [(binary_header("127.0.0.1"), False), (b"", True)])
def test_a_client_behind_a_proxy_is_not_on_this_host(header: bytes, is_local: bool) -> None:
    listener = tcp.TRANSPORT.listen(
        DataUri.parse("tcp://127.0.0.1:0"), ListenOptions(proxies=LOOPBACK)
    )
    with closing(listener), socket.create_connection(listener.socket.getsockname()) as client:
        client.sendall(header + b"S")
        accepted: list[Any] = []
        wait_until(lambda: accepted.append(listener.accept()) or accepted[-1] is not None)
        with closing(accepted[-1]) as channel:
            assert channel.is_local is is_local
