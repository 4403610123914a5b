"""Listeners and connections over TCP."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
from contextlib import closing
from typing import Any

import pytest

from splitarrow.errors import ConfigError, ConnectError, ConnectionLostError, UriError, UsageError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri, Streams
from splitarrow.transport import tcp
from splitarrow.transport.base import ConnectOptions, ListenOptions, Traits
from splitarrow.transport.tls import TRANSPORT as TLS

LOOPBACK = DataUri("tcp", "127.0.0.1", 0, want_data=1 << 40)


def test_a_rejected_client_is_disconnected_at_once() -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        assert not listener.reject()
        address = (listener.uri.host, listener.uri.port or 0)
        with socket.create_connection(address, timeout=10) as client:
            assert select.select([listener.fileno()], [], [], 10)[0]
            assert listener.reject()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert not listener.reject()


def test_connections_send_at_once_and_notice_a_dead_peer() -> None:
    with socket.socket() as sock:
        tcp.set_socket_options(sock)
        found = {
            name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"))
            for name in ("NODELAY", "KEEPIDLE", "KEEPINTVL", "KEEPCNT")
        }
        assert found == {"NODELAY": 1, "KEEPIDLE": 30, "KEEPINTVL": 10, "KEEPCNT": 3}
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("is_local", [True, False])
def test_only_connections_within_the_host_leave_its_congestion_control(
    monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    def congestion_control(sock: socket.socket) -> bytes:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")

    with socket.socket() as unused:
        expected = b"reno" if is_local else congestion_control(unused)
    with (
        monkeypatch.context() as patch,
        closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener,
        socket.create_connection((listener.uri.host, listener.uri.port or 0), timeout=10),
    ):
        if not is_local:  # as if the client were on another host
            patch.setattr(tcp, "is_local", lambda sock: False)
        assert select.select([listener.fileno()], [], [], 10)[0]
        channel = listener.accept()
        assert channel is not None
        with closing(channel), socket.socket(fileno=os.dup(channel.fileno())) as sock:
            assert congestion_control(sock) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(UsageError("wrong"), UsageError), (OSError(107, "gone"), ConnectError)],
)
def test_a_failed_connection_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        monkeypatch.setattr(tcp, "SocketChannel", fail)
        with pytest.raises(expected):
            tcp.TRANSPORT.connect(listener.uri, ConnectOptions())
        gc.collect()  # A socket that was left open would warn.


@pytest.mark.parametrize(("host", "text"), [("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")])
def test_the_address_of_a_peer_is_written_as_in_a_uri(host: str, text: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2]) as client,
    ):
        assert tcp.format_peer(client.getpeername()) == f"{text}{listener.getsockname()[1]}"


def fail_to_configure(sock: socket.socket) -> None:
    raise OSError(errno.EINVAL, "gone")


def test_a_connection_that_breaks_at_once_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        monkeypatch.setattr(tcp, "set_socket_options", fail_to_configure)
        with pytest.raises(ConnectError, match=rf"to tcp://127\.0\.0\.1:{listener.uri.port}: gone"):
            tcp.connect_socket(listener.uri, 10)
        assert select.select([listener.fileno()], [], [], 10)[0]
        assert listener.accept() is None
        gc.collect()  # A socket that was left open would warn.


def test_nobody_waits_at_a_listener_without_clients() -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        assert listener.accept() is None
        assert not listener.reject()
        assert listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert not os.get_inheritable(listener.fileno())
        assert listener.request_tags == {1 << 40: 0}
    assert listener.fileno() == -1


class AbortedClient:
    """A listening socket whose next client has left before it was accepted."""

    def accept(self) -> Any:
        raise ConnectionAbortedError

    def close(self) -> None: ...


def test_a_client_that_left_is_not_accepted() -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        original, listener.socket = listener.socket, AbortedClient()  # pyright: ignore[reportAttributeAccessIssue]
        assert listener.accept() is None
        assert listener.reject() is False
        listener.socket = original


def test_the_ends_of_a_connection() -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        client = tcp.TRANSPORT.connect(listener.uri, ConnectOptions())
        assert select.select([listener.fileno()], [], [], 10)[0]
        server = listener.accept()
        assert server is not None
        port = client._socket.getsockname()[1]
        assert (client.peer, server.peer) == (f"127.0.0.1:{listener.uri.port}", f"127.0.0.1:{port}")
        assert client.is_local
        assert server.is_local
        for channel in (client, server):
            assert channel._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert (channel.user, channel.lanes, channel.unread_bytes) == (None, (), 0)
            assert not channel.delays_writer
            assert not channel.send_waits_readable
        client.queue([])
        assert client.send_some()
        assert (client.bytes_sent, server.receive_some(), server.bytes_received) == (8, [], 8)
        server.abort()
        with pytest.raises(ConnectionLostError):
            client.receive_some()
        client.close()


def test_an_address_in_use_is_an_error_and_leaves_no_socket() -> None:
    with closing(tcp.TRANSPORT.listen(LOOPBACK, ListenOptions())) as listener:
        address = rf"tcp://127\.0\.0\.1:{listener.uri.port}"
        why = rf"cannot listen on {address}: Address already in use by another program; "
        with pytest.raises(ConfigError, match=why):
            tcp.TRANSPORT.listen(listener.uri, ListenOptions())
        gc.collect()


def test_the_default_address_is_port_8816_of_the_loopback_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        connected.append((arguments, options))
        raise OSError("refused")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ConfigError, match=r"cannot listen on tcp://127\.0\.0\.1:8816: "):
        tcp.bind_socket(DataUri("tcp"))
    with pytest.raises(ConfigError, match=r"cannot listen on tcp://h:0: "):
        tcp.bind_socket(DataUri("tcp", "h", 0))
    with pytest.raises(ConnectError, match="cannot connect to tcp://h: refused"):
        tcp.connect_socket(DataUri("tcp", "h"), 2.5)
    assert connected[0] == (
        ("127.0.0.1", 8816),
        {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE},
    )
    assert connected[2] == (("h", 8816), {"type": socket.SOCK_STREAM})
    with pytest.raises(UriError, match="a tcp address needs a host"):
        tcp.connect_socket(DataUri("tcp"), 2.5)


@pytest.mark.parametrize("path", ["/x", "/x/"])
def test_an_address_has_no_path(path: str) -> None:
    tcp.check_address(DataUri("tcp", path="/"))
    with pytest.raises(UriError, match="a tcp address has no path"):
        tcp.check_address(DataUri("tcp", path=path))


class Ends:
    """A socket with any addresses."""

    def __init__(self, ours: str, theirs: str) -> None:
        self.getsockname = lambda: (ours, 1)
        self.getpeername = lambda: (theirs, 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.2", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("fe80::7%eth0", "fe80::7%eth1", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.8", False),
        ("fe80::7%eth0", "fe80::8%eth0", False),
    ],
)
def test_a_peer_with_our_address_or_a_loopback_one_is_local(
    ours: str, theirs: str, is_local: bool
) -> None:
    sock: Any = Ends(ours, theirs)
    assert tcp.is_local(sock) == is_local


def test_one_connection_of_a_pair_has_a_quarter_of_the_buffer() -> None:
    sizes = [tcp.choose_staging(LOOPBACK.replace(stream=stream)) for stream in Streams]
    assert sizes == [256 << 10, 64 << 10, 64 << 10]
    assert tcp.SERVER_STAGING == 4 << 10


def test_endpoints_list_encrypted_addresses_first() -> None:
    assert tcp.TRANSPORT.traits == Traits(default_port=8816, shares_socket=True, location_rank=30)
    assert TLS.traits == Traits(
        default_port=8816, encrypted=True, shares_socket=True, location_rank=20
    )


def test_limits_and_a_given_socket_reach_the_connections() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    limits = Limits(metadata_bytes=7)
    options = ListenOptions(limits=limits, socket=sock)
    with closing(tcp.TRANSPORT.listen(LOOPBACK, options)) as listener:
        assert listener.socket is sock
        assert listener.uri.port == sock.getsockname()[1]
        assert not sock.getblocking()
