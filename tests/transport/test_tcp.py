"""Listeners and connections over TCP."""

from __future__ import annotations

import gc
import select
import socket
from contextlib import closing

import pytest

from splitarrow.errors import ConnectError, UsageError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import tcp
from splitarrow.transport.base import ConnectOptions, ListenOptions

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
        assert tcp.format_peer(client) == f"{text}{listener.getsockname()[1]}"


def test_a_host_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError(f"{address} after {timeout}")

    monkeypatch.setattr(socket, "create_connection", time_out)
    with pytest.raises(ConnectError, match=r"cannot connect to .* no answer within 1.5 s"):
        tcp.connect_socket(LOOPBACK, 1.5)
