"""Connections to other hosts over tcp and tls: kept for the next stream, and replaced if dead."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.pki import Pki, TlsWithDefaults
from helpers.waiting import wait_until
from splitarrow.errors import RemoteError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import registry, socket_channel, tcp, tls
from splitarrow.transport.base import ListenOptions
from splitarrow.transport.socket_channel import SocketChannel
from splitarrow.transport.tcp import IDLE_SOCKETS
from splitarrow.transport.tls_options import TlsOptions, TlsServerOptions

TABLE = pa.table({"n": list(range(1000))})
LARGE = pa.Table.from_batches([pa.record_batch({"n": pa.array(range(100_000))})] * 50)


@pytest.fixture(autouse=True)
def other_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treat this host as another one, whose connections are worth keeping."""
    IDLE_SOCKETS.close()
    for module in (tcp, tls):
        monkeypatch.setattr(module, "is_local", lambda sock: False)
    yield
    IDLE_SOCKETS.close()


@pytest.fixture(params=["tcp", "tcp+tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[splitarrow.Server]:
    listen = f"{request.param}://127.0.0.1:0"
    if request.param == "tcp":
        with splitarrow.serve({"t": TABLE, "large": LARGE}, listen=listen) as server:
            yield server
        return
    pki = Pki(tmp_path)
    transport = TlsWithDefaults(
        server=TlsServerOptions(pki.path("server")), client=TlsOptions(ca_file=pki.path("ca"))
    )
    with (
        registry.override_transport(transport),
        splitarrow.serve({"t": TABLE, "large": LARGE}, listen=listen) as server,
    ):
        yield server


def find_socket(stream: Any) -> socket.socket:
    """Return the socket of a stream's only connection."""
    return next(iter(stream._reader.channels.values()))._socket


def read(uri: str) -> str:
    """Read the table, and return the address of the client's end of the connection."""
    with splitarrow.open(uri) as stream:
        address = find_socket(stream).getsockname()
        assert stream.read_all() == TABLE
    return str(address)


def test_a_connection_is_kept_after_the_proven_end(server: splitarrow.Server) -> None:
    uri = server.uri("t")
    first = read(uri)
    assert len(IDLE_SOCKETS) == 1
    assert [read(uri), read(uri)] == [first, first]
    assert len(IDLE_SOCKETS) == 1


def test_a_connection_is_not_kept_after_an_early_end_or_an_error(
    server: splitarrow.Server,
) -> None:
    uri = server.uri("t")
    with splitarrow.open(server.uri("large")) as stream:
        assert next(stream).num_rows
    assert not IDLE_SOCKETS
    with pytest.raises(RemoteError):
        splitarrow.open(uri.replace("%22t%22", "%22u%22") if "%22" in uri else uri + "x")
    assert not IDLE_SOCKETS


def test_streams_at_once_use_connections_of_their_own(server: splitarrow.Server) -> None:
    uri = server.uri("t")
    with splitarrow.open(uri) as one, splitarrow.open(uri) as other:
        assert one.read_all() == other.read_all() == TABLE
    assert len(IDLE_SOCKETS) == 2


def test_the_fastest_connection_is_used_first(server: splitarrow.Server) -> None:
    for name in ("large", "t", "t"):
        with splitarrow.open(server.uri(name)) as one, splitarrow.open(server.uri("t")) as other:
            addresses = [find_socket(each).getsockname() for each in (one, other)]
            one.read_all()
            other.read_all()
    fast, slow = (each.connection for each in IDLE_SOCKETS._connections)
    assert fast.speed > 0
    assert slow.speed == 0
    with splitarrow.open(server.uri("t")) as stream:
        assert find_socket(stream).getsockname() == addresses[0]


def test_a_server_that_leaves_ends_its_kept_connections() -> None:
    with splitarrow.serve({"t": TABLE}, listen="tcp://127.0.0.1:0") as server:
        read(server.uri("t"))
        assert len(IDLE_SOCKETS) == 1
    wait_until(lambda: not IDLE_SOCKETS, "the end of the connection")


def test_a_kept_connection_releases_the_files_that_were_sent(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    table = pa.table({"n": list(range(100_000))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with splitarrow.serve({"t": str(path)}, listen="tcp://127.0.0.1:0") as server:
        with splitarrow.open(server.uri("t")) as stream:
            assert stream.read_all() == table
        assert len(IDLE_SOCKETS) == 1
        began = time.monotonic()
        os.close(os.open(path, os.O_WRONLY))  # It waits until no reader refers to the file.
        assert time.monotonic() - began < 1.5
        assert len(IDLE_SOCKETS) == 1


class Proxy:
    """Forwards connections to a server, until it ends those that carry something more."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.ends_next = False
        self.connections = 0
        self._address = address
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                self.ends_next = False
                server = socket.create_connection(self._address)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while (data := source.recv(1 << 16)) and not self.ends_next:
                target.sendall(data)


def test_a_connection_that_breaks_when_it_is_used_again_is_replaced(
    server: splitarrow.Server,
) -> None:
    uri = DataUri.parse(server.uri("t"))
    proxy = Proxy((uri.host, uri.port or 0))
    with proxy.listener:
        through = str(uri.replace(port=proxy.listener.getsockname()[1]))
        read(through)
        assert (len(IDLE_SOCKETS), proxy.connections) == (1, 1)
        proxy.ends_next = True
        read(through)
        assert proxy.connections == 2
        proxy.listener.shutdown(socket.SHUT_RDWR)  # It ends the thread.


def test_a_request_on_a_kept_connection_must_be_acknowledged_soon() -> None:
    with splitarrow.serve({"t": TABLE}, listen="tcp://127.0.0.1:0") as server:
        read(server.uri("t"))
        with splitarrow.open(server.uri("t")) as stream:
            option = find_socket(stream).getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == socket_channel._REUSE_MILLISECONDS <= 5000


def test_a_host_that_acknowledges_everything_is_not_silent() -> None:
    uri = DataUri.parse("tcp://127.0.0.1:0")
    with closing(tcp.TcpTransport().listen(uri, ListenOptions())) as listener:
        sock = socket.create_connection(listener.socket.getsockname())
        channel = SocketChannel(sock, Limits(), server=False, peer="peer", is_local=False)
        with closing(channel):
            assert channel.peer_silence == 0.0
            size = socket_channel._TCP_INFO.size
            real = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
            retransmissions, probes, milliseconds = socket_channel._TCP_INFO.unpack(real)
            assert (retransmissions, probes) == (0, 0)
            assert 0 <= milliseconds < 60_000
        assert channel.peer_silence == 0.0
