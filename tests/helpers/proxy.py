"""A TCP proxy on the loopback that delays, cuts or swallows what it forwards."""

from __future__ import annotations

import ipaddress
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from splitarrow.protocol.uri import DataUri

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""The first bytes of a header of the PROXY protocol, version 2."""


def binary_header(
    source: str, port: int = 4000, extensions: bytes = b"", *, command: int = 1, family: int = 0
) -> bytes:
    """Return a header of version 2."""
    address = ipaddress.ip_address(source)
    body = address.packed + address.packed + struct.pack(">HH", port, 443) + extensions
    family = family or {4: 0x11, 6: 0x21}[address.version]
    return SIGNATURE + bytes((0x20 | command, family)) + struct.pack(">H", len(body)) + body


def text_header(source: str, port: int = 4000) -> bytes:
    """Return a header of version 1."""
    version = ipaddress.ip_address(source).version
    return f"PROXY TCP{version} {source} {source} {port} 443\r\n".encode()


Inspect = Callable[[int, bytes], bool]
"""Gets the number of a connection, from 0, and bytes of its client. Returns whether to cut it."""


@dataclass
class Proxy:
    """A proxy that forwards connections to one port."""

    target: int
    """The port that connections are forwarded to."""
    header: bytes = b""
    """What the server receives before the bytes of a client."""
    delay: float = 0.0
    """The time that the bytes of the server wait, in seconds."""
    inspect: Inspect = lambda number, data: False
    """Decides which connections are cut."""
    allow: Callable[[], float] = lambda: math.inf
    """Returns how many bytes of the server a connection forwards, before it is cut."""
    is_silent: bool = False
    """Whether the proxy swallows what it receives, instead of forwarding it."""
    is_cut: bool = False
    """Whether the proxy ends connections, the others when they have something to forward."""
    accepted: int = 0
    """The number of connections so far."""
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    def run(self) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                if self.is_cut:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self.target))
                server.sendall(self.header)
            except OSError:
                client.close()
                continue
            number, self.accepted = self.accepted, self.accepted + 1
            for source, sink, part in ((client, server, number), (server, client, None)):
                threading.Thread(
                    target=self._forward, args=(source, sink, part), daemon=True
                ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, number: int | None) -> None:
        left = self.allow() if number is None else math.inf
        with suppress(OSError):
            while left > 0 and (data := source.recv(int(min(left, 1 << 16)))) and not self.is_cut:
                left -= len(data)
                if number is None:
                    time.sleep(self.delay)
                elif self.inspect(number, data):
                    break
                if not self.is_silent:
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def link_to(uri: str, host: str) -> Generator[Proxy]:
    """Forward connections to another address of this host, at the port of a URI, to that port."""
    port = DataUri.parse(uri).port
    assert port is not None
    with proxy(port, host, port) as made:
        yield made


@contextmanager
def proxy(
    target: int, host: str = "127.0.0.1", port: int = 0, *, header: bytes = b""
) -> Generator[Proxy]:
    """Forward connections to a port of this host, until the context ends."""
    made = Proxy(target, header, listener=socket.create_server((host, port)))
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.listener.shutdown(socket.SHUT_RDWR)
        made.listener.close()
        thread.join()
