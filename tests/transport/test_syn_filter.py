"""The filter that lets a listening socket ignore new clients."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack

import pytest

from splitarrow.transport.syn_filter import set_admitted_share


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=0.2)


def test_new_clients_are_ignored_and_connections_go_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        set_admitted_share(listener, 1 - 1e-8)
        with connect(port) as client, listener.accept()[0] as server:
            set_admitted_share(listener, 0)
            with pytest.raises(TimeoutError):
                connect(port)
            server.sendall(b"x" * 100_000)  # the connection has inherited the filter
            assert client.recv(100_000, socket.MSG_WAITALL) == b"x" * 100_000
            set_admitted_share(listener, 1)
            connect(port).close()


def test_a_part_of_the_clients_is_admitted() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener, ExitStack() as clients:
        set_admitted_share(listener, 0.5)
        pending = select.poll()
        for _ in range(60):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            pending.register(client, select.POLLOUT)
        # Ignored clients try again after a second.
        assert 10 < len(pending.poll(200)) < 50
