"""Connections that are made before the transport is imported."""

from __future__ import annotations

import gc
import socket
from contextlib import closing

import pytest

from splitarrow.errors import ConnectError
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import tcp
from splitarrow.transport.early_connections import connected_early, open_socket


def test_the_transport_takes_an_early_connection_over_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = DataUri("tcp", "127.0.0.1", listener.getsockname()[1])
        with connected_early(uri, 10):
            accepted, address = listener.accept()
            with closing(accepted), closing(tcp.connect_socket(uri, 10)) as first:
                assert first.getsockname() == address
            with closing(tcp.connect_socket(uri, 10)) as second:
                assert second.getsockname() != address


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
