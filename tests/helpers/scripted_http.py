"""An HTTP server on the loopback that sends what a test scripts, byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

ARROW = "application/vnd.apache.arrow.stream"


class Received(NamedTuple):
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    """The headers, with names in lower case."""
    content: bytes

    @property
    def selection(self) -> dict[str, Any]:
        """The JSON object that the request contains."""
        return json.loads(self.content)


Script = Callable[[Received], Iterable[bytes]]
"""Returns what to send in response to a request. The connection closes after it."""


class ScriptedServer:
    """Answers each connection by a script, and keeps the requests."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self.received: list[Received] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._context = context
        self._ends = threading.Event()

    @property
    def uri(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def wait_for_end(self) -> Generator[bytes]:
        """Send nothing until the test ends."""
        self._ends.wait(60)
        yield b""

    def run(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            with sock, sock.makefile("rb") as file:
                request = read_request(file)
                self.received.append(request)
                for part in self.script(request):
                    sock.sendall(part)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass

    def close(self) -> None:
        self._ends.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def read_request(file: Any) -> Received:
    """Read a request; raises OSError if there is none."""
    method, _, rest = file.readline().decode("latin-1").partition(" ")
    if not rest:
        raise OSError
    headers: dict[str, str] = {}
    while line := file.readline().strip().decode("latin-1"):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    content = file.read(int(headers.get("content-length", 0)))
    return Received(method, rest.split(" ")[0], headers, content)


@contextmanager
def scripted_server(
    script: Script, context: ssl.SSLContext | None = None
) -> Generator[ScriptedServer]:
    """Serve a script until the context ends."""
    server = ScriptedServer(script, context)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def head(status: str = "200 OK", content_type: str | None = ARROW, **headers: str) -> bytes:
    """Return the beginning of a response. Underscores in names of headers become hyphens."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        fields["Content-Type"] = content_type
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def text(status: str, sentence: str, **headers: str) -> list[bytes]:
    """Return a response in plain text."""
    body = f"{sentence}\n".encode()
    size = str(len(body))
    return [head(status, "text/plain; charset=utf-8", Content_Length=size, **headers), body]


def chunked(body: bytes, size: int = 1 << 20, rows: int | None = None, **headers: str) -> bytes:
    """Return a response in chunks of a size, with the number of rows as a trailer."""
    parts = [head(Transfer_Encoding="chunked", **headers)]
    for begin in range(0, len(body), size):
        part = body[begin : begin + size]
        parts.append(b"%x\r\n%b\r\n" % (len(part), part))
    trailer = b"" if rows is None else b"splitarrow-rows: %d\r\n" % rows
    return b"".join((*parts, b"0\r\n", trailer, b"\r\n"))
