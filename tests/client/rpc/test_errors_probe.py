"""What listens at an address that is not that of a control plane."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from splitarrow.client.rpc import errors
from splitarrow.client.rpc.errors import explain_listener
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.framing import PREFACE

ALERT = bytes.fromhex("15 0303 0002 0228")
"""The answer of a TLS server that refuses a handshake."""


class Listener:
    """A server that reads once from each connection, and answers with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection = self._socket.accept()[0]
            with connection:
                connection.settimeout(20)
                received = connection.recv(1 << 16)
                if received == b"stop":
                    return
                self.received.append(received)
                with contextlib.suppress(OSError):  # The client may close before it has read all.
                    connection.sendall(self._answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"stop")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listen() -> Iterator[Callable[[bytes], Listener]]:
    opened: list[Listener] = []

    def open_listener(answer: bytes) -> Listener:
        opened.append(Listener(answer))
        return opened[-1]

    yield open_listener
    for listener in opened:
        listener.close()


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_a_data_listener_is_recognized(listen: Callable[[bytes], Listener], scheme: str) -> None:
    listener = listen(PREFACE)
    found = explain_listener(DataUri(scheme, "127.0.0.1", listener.port))
    assert found == (
        f"a data listener is at this port; use tcp://127.0.0.1:{listener.port}/NAME, or the port "
        "of the control plane, which is 8815 by default"
    )
    assert listener.received == [PREFACE]


def test_a_server_that_refuses_a_handshake_speaks_tls(listen: Callable[[bytes], Listener]) -> None:
    listener = listen(ALERT)
    uri = DataUri("grpc", "127.0.0.1", listener.port)
    assert explain_listener(uri) == (
        f"the server requires TLS; use grpc+tls://127.0.0.1:{listener.port}"
    )
    preface, hello = listener.received
    assert preface == PREFACE
    assert hello[:2] == b"\x16\x03"  # a handshake


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", PREFACE[:-1] + b"?"])
def test_other_servers_are_not_explained(
    listen: Callable[[bytes], Listener], answer: bytes
) -> None:
    listener = listen(answer)
    assert explain_listener(DataUri("grpc", "127.0.0.1", listener.port)) is None
    assert len(listener.received) == 2


def test_a_client_that_speaks_tls_is_not_told_to(listen: Callable[[bytes], Listener]) -> None:
    listener = listen(ALERT)
    assert explain_listener(DataUri("grpc+tls", "127.0.0.1", listener.port)) is None
    assert len(listener.received) == 2  # the handshake looks for an expired certificate


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = DataUri("grpc", "127.0.0.1", silent.getsockname()[1])
        assert explain_listener(uri) is None


def test_a_port_without_a_listener_is_not_explained() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert explain_listener(DataUri("grpc", "127.0.0.1", bound.getsockname()[1])) is None
    assert explain_listener(DataUri("grpc", "127.0.0.1")) is None
