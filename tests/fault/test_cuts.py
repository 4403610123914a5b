"""A connection that is cut at any byte raises, and never shortens (promise P2)."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import SplitArrowError
from splitarrow.protocol.uri import DataUri


class CuttingProxy:
    """A TCP proxy that breaks each connection after so many bytes from the server."""

    def __init__(self, target: DataUri) -> None:
        self._target = (target.host, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut_after = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(self._target) as server:
                try:
                    self._pass(client, server)
                except OSError:
                    pass  # an end that leaves early is what is tested

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        request = client.recv(1 << 16)
        while len(request) < 36:
            request += client.recv(1 << 16)
        server.sendall(request)
        left = self.cut_after
        while left and (data := server.recv(min(left, 1 << 16))):
            client.sendall(data)
            left -= len(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture(scope="module")
def table() -> pa.Table:
    columns = {"n": list(range(30_000)), "s": [f"row {n}" for n in range(30_000)]}
    return pa.table(columns)


@pytest.fixture(scope="module")
def proxied(table: pa.Table) -> Iterator[tuple[CuttingProxy, str, int]]:
    with splitarrow.serve({"data": table}, batch_rows=5_000) as server:
        uri = DataUri.parse(server.uri("data"))
        with splitarrow.open(str(uri)) as stream:
            stream.read_all()
            total = stream.bytes_received
        proxy = CuttingProxy(uri)
        try:
            yield proxy, str(uri.replace(port=proxy.port)), total
        finally:
            proxy.close()


def check_cuts(proxied: tuple[CuttingProxy, str, int], cuts: list[int]) -> None:
    proxy, uri, _ = proxied
    for cut in cuts:
        proxy.cut_after = cut
        with pytest.raises(SplitArrowError):
            splitarrow.open(uri).read_all()


def test_uncut_is_whole(proxied: tuple[CuttingProxy, str, int], table: pa.Table) -> None:
    proxy, uri, total = proxied
    proxy.cut_after = total
    with splitarrow.open(uri) as stream:
        assert stream.read_all().equals(table)


def test_cut_anywhere(proxied: tuple[CuttingProxy, str, int]) -> None:
    total = proxied[2]
    draw = random.Random(1)
    cuts = [*range(40), *(total - n for n in range(1, 40))]
    check_cuts(proxied, cuts + [draw.randrange(total) for _ in range(60)])


@pytest.mark.long
def test_cut_anywhere_long(proxied: tuple[CuttingProxy, str, int]) -> None:
    total = proxied[2]
    draw = random.Random(2)
    check_cuts(proxied, [draw.randrange(total) for _ in range(1000)])
