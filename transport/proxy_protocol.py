"""The PROXY protocol, versions 1 and 2: a proxy in front of a listener names the client's address.

`parse_header` does no I/O. `ProxiedSocket` accepts connections whose header it has removed.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, NamedTuple

from ..errors import DeniedError, ProtocolError

Network = IPv4Network | IPv6Network
_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""The first bytes of version 2."""
_TEXT = b"PROXY "
"""The first bytes of version 1."""
_MAX_TEXT_BYTES = 107
_PREFIX = struct.Struct(">12sBBH")
"""Of version 2: signature, version and command, family and protocol, and the size of the rest."""
_MAX_BYTES = 4096
"""The largest header. Of its extensions, proxies send a few hundred bytes."""
_PORTS = struct.Struct(">HH")
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}
"""The size of an address, by family and protocol: TCP over IPv4, and over IPv6."""
_LOCAL, _PROXY = 0x20, 0x21
"""Version 2, and the command: a connection of the proxy itself, or of a client."""
_CHANGED = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
"""The events of a connection whose header is incomplete: more bytes, or its end."""
_CLOSED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_MAX_WAITING = 1024


class ProxyHeader(NamedTuple):
    """A header of the PROXY protocol."""

    nbytes: int
    """Its size; 0 if the connection has none."""
    source: tuple[str, int] | None = None
    """The address and the port of the client. None if it is that of the connection."""


def begins_header(data: bytes) -> bool:
    """Return whether the first bytes of a connection are those of a header."""
    return data.startswith((_SIGNATURE, _TEXT))


def parse_header(data: bytes) -> ProxyHeader | None:
    """Return the header that a connection begins with; None if more bytes are needed.

    Raises `ProtocolError` if the header is malformed or too large.
    """
    if not data:
        return None
    if data.startswith(_TEXT):
        return _parse_text(data)
    if data.startswith(_SIGNATURE):
        return _parse_binary(data)
    if _TEXT.startswith(data) or _SIGNATURE.startswith(data):
        return None
    return ProxyHeader(0)


def _parse_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _PREFIX.size:
        return None
    _, command, family, rest = _PREFIX.unpack_from(data)
    nbytes = _PREFIX.size + rest
    if command not in (_LOCAL, _PROXY):
        raise ProtocolError(f"a PROXY header has version and command {command:#x}")
    if nbytes > _MAX_BYTES:
        raise ProtocolError(f"a PROXY header has {nbytes} bytes; the limit is {_MAX_BYTES} bytes")
    if len(data) < nbytes:
        return None
    size = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or size is None:
        return ProxyHeader(nbytes)
    if rest < 2 * size + _PORTS.size:
        raise ProtocolError(f"a PROXY header has {rest} bytes of addresses")
    begin = _PREFIX.size
    address = ip_address(data[begin : begin + size])
    port, _ = _PORTS.unpack_from(data, begin + 2 * size)
    return ProxyHeader(nbytes, (str(address), port))


def _parse_text(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:_MAX_TEXT_BYTES].partition(b"\r\n")
    if not end:
        if len(data) < _MAX_TEXT_BYTES:
            return None
        raise ProtocolError("a PROXY header has no end of line")
    nbytes = len(line) + len(end)
    words = line.decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(nbytes)
    try:
        _, family, source, destination, port, other_port = words
        version = {"TCP4": 4, "TCP6": 6}[family]
        addresses = [ip_address(text) for text in (source, destination)]
        ports = [int(text) for text in (port, other_port) if text.isdecimal()]
    except (ValueError, KeyError):
        raise ProtocolError(f"a PROXY header is malformed: {line!r}") from None
    if {address.version for address in addresses} != {version}:
        raise ProtocolError(f"a PROXY header has addresses of another family: {line!r}")
    if len(ports) < 2 or max(ports) > 0xFFFF:
        raise ProtocolError(f"a PROXY header has an invalid port: {line!r}")
    return ProxyHeader(nbytes, (str(addresses[0]), ports[0]))


def refuse_header(peer: str) -> DeniedError:
    """Return the error for a header that `ProxiedSocket` has not removed."""
    return DeniedError(
        f"{peer} sent a PROXY header, but proxy_protocol does not list its address, or the header "
        "is malformed"
    )


class _Waiting(NamedTuple):
    """A connection whose first bytes have not arrived completely."""

    sock: socket.socket
    address: Any
    deadline: float


class ProxiedSocket(socket.socket):
    """A listening socket that removes the PROXY header of connections from trusted networks.

    `accept` returns a connection once its header has arrived, with the client's address. Other
    connections, and those with a malformed header, stay as they are. One whose header does not
    arrive within `seconds` is closed when the next one is accepted.

    It closes `sock`, which other processes may share. Its descriptor is readable when `accept` has
    something to do.
    """

    def __init__(self, sock: socket.socket, trusted: Iterable[Network], seconds: float) -> None:
        super().__init__(fileno=os.dup(sock.fileno()))
        self._sock = sock
        self.setblocking(False)
        self._trusted = tuple(trusted)
        self._seconds = seconds
        self._waiting: dict[int, _Waiting] = {}
        self._epoll = select.epoll()
        self._epoll.register(super().fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `accept` has something to do."""
        return -1 if self._epoll.closed else self._epoll.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and the address of its client.

        Raises `BlockingIOError` if none is waiting.
        """
        self._expire()
        while events := self._epoll.poll(0, 1):
            ((descriptor, event),) = events
            if descriptor == super().fileno():
                sock, address = super().accept()
                if not self._trusts(address[0]):
                    return sock, address
                one = _Waiting(sock, address, time.monotonic() + self._seconds)
                found = self._look(one)
                if found is not None:
                    return found
                self._waiting[sock.fileno()] = one
                self._epoll.register(sock.fileno(), _CHANGED)
            else:
                one = self._waiting[descriptor]
                found = self._look(one)
                if found is not None:
                    self._remove(descriptor)
                    return found
                if event & _CLOSED:
                    self._remove(descriptor).close()
        raise BlockingIOError

    def _trusts(self, host: str) -> bool:
        address = ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._trusted)

    def _look(self, one: _Waiting) -> tuple[socket.socket, Any] | None:
        """Return a connection once its first bytes decide whether it has a header."""
        try:
            data = one.sock.recv(_MAX_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            header = parse_header(data)
        except BlockingIOError:
            return None
        except (OSError, ProtocolError):  # who gets the connection meets the same problem
            return one.sock, one.address
        if header is None:
            return None if data else (one.sock, one.address)
        if header.nbytes:
            one.sock.recv(header.nbytes, socket.MSG_DONTWAIT)
        return one.sock, header.source or one.address

    def _remove(self, descriptor: int) -> socket.socket:
        self._epoll.unregister(descriptor)
        return self._waiting.pop(descriptor).sock

    def _expire(self) -> None:
        now = time.monotonic()
        for descriptor, one in list(self._waiting.items()):
            if one.deadline > now and len(self._waiting) < _MAX_WAITING:
                break
            self._remove(descriptor).close()

    def close(self) -> None:
        """Stop listening, and close the connections that `accept` has not returned."""
        for one in self._waiting.values():
            with contextlib.suppress(OSError):
                one.sock.close()
        self._waiting.clear()
        self._epoll.close()
        self._sock.close()
        super().close()
