"""An HTTP proxy on the loopback: it opens tunnels (CONNECT) and forwards requests for http://."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from helpers.scripted_http import Received, read_request


@dataclass
class HttpProxy:
    """A proxy, and the requests that it received."""

    credentials: str | None = None
    """The user name and the password that it requires, separated by a colon."""
    received: list[Received] = field(default_factory=list[Received])
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    @property
    def uri(self) -> str:
        user = "" if self.credentials is None else f"{self.credentials}@"
        return f"http://{user}127.0.0.1:{self.port}"

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as file:
            request = read_request(file)
            self.received.append(request)
            if self.credentials is not None:
                expected = base64.b64encode(self.credentials.encode()).decode()
                if request.headers.get("proxy-authorization") != f"Basic {expected}":
                    client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                    return
            tunnels = request.method == "CONNECT"
            url = urlsplit(f"//{request.target}" if tunnels else request.target)
            with socket.create_connection((url.hostname or "", url.port or 80)) as server:
                if tunnels:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    server.sendall(_forwarded(request, url.path, url.query))
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()


def _forwarded(request: Received, path: str, query: str) -> bytes:
    target = f"{path}?{query}" if query else path
    headers = {
        name: value
        for name, value in request.headers.items()
        if not name.startswith(("proxy-", "connection"))
    }
    lines = [f"{request.method} {target} HTTP/1.1", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.content


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def http_proxy(credentials: str | None = None) -> Generator[HttpProxy]:
    """Run a proxy until the context ends."""
    proxy = HttpProxy(credentials)
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.listener.shutdown(socket.SHUT_RDWR)
        proxy.listener.close()
        thread.join()
