"""The scheme ``tcp``: both streams, or one of them, over a TCP connection."""

from __future__ import annotations

import ipaddress
import socket

from ..errors import ConfigError, ConnectError, UriError
from ..protocol.limits import Limits
from ..protocol.uri import DataUri, StreamKind
from .base import Capabilities
from .sockets import SocketChannel

DEFAULT_PORT = 8816
_BACKLOG = 1024
SERVER_STAGING = 16 << 10
_STAGING = 256 << 10
_HALF_STAGING = 64 << 10
"""Where a connection carries one stream only, one read must not run far ahead of the other's."""


def is_local(sock: socket.socket) -> bool:
    """Tell whether the other end of a connection is on this host."""
    peer = sock.getpeername()[0].partition("%")[0]
    if peer == sock.getsockname()[0].partition("%")[0]:
        return True
    address = ipaddress.ip_address(peer)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def tune(sock: socket.socket) -> None:
    """Set a connection up: small messages go at once, and a dead peer is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def peer_name(sock: socket.socket) -> str:
    """Return the address of the other end."""
    host, port = sock.getpeername()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpListener:
    """A bound TCP port.

    Parameters
    ----------
    uri : DataUri
        Where to bind; port 0 picks a free one.
    limits : Limits
        Bounds for the connections.
    sock : socket.socket, optional
        A socket that listens already: the port that several processes share.
    """

    def __init__(self, uri: DataUri, limits: Limits, sock: socket.socket | None = None) -> None:
        self._limits = limits
        self.socket = bound_socket(uri) if sock is None else sock
        """The listening socket."""
        self.socket.setblocking(False)
        self.uri = uri.replace(port=self.socket.getsockname()[1])
        """The address, with the port that was bound."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        return self.socket.fileno()

    def accept(self) -> SocketChannel | None:
        """Return the next client's channel, or None if none waits."""
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        try:
            tune(sock)
            return self._channel(sock)
        except OSError:  # it left already
            sock.close()
            return None

    def _channel(self, sock: socket.socket) -> SocketChannel:
        return SocketChannel(
            sock,
            self._limits,
            server=True,
            peer=peer_name(sock),
            is_local=is_local(sock),
            staging=SERVER_STAGING,
        )

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()


def bound_socket(uri: DataUri) -> socket.socket:
    """Bind and listen at the address of a URI.

    Raises
    ------
    ConfigError
        If that fails; the error names the address.
    """
    host = uri.host or "127.0.0.1"
    port = DEFAULT_PORT if uri.port is None else uri.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {uri.scheme}://{host}:{port}: {error.strerror}"
        ) from None
    return sock


def check_listener(uri: DataUri) -> None:
    """Refuse an address that has more to it than host and port.

    Raises
    ------
    UriError
        If it has a path.
    """
    if uri.path.strip("/"):
        raise UriError(f"{uri.redacted()}: a {uri.scheme} address has no path")


def connected_socket(uri: DataUri, timeout: float) -> socket.socket:
    """Connect to the address of a URI.

    Raises
    ------
    ConnectError
        If that fails; the error names the address.
    UriError
        If the URI has no host.
    """
    if not uri.host:
        raise UriError(f"{uri.redacted()}: a {uri.scheme} address needs a host")
    port = DEFAULT_PORT if uri.port is None else uri.port
    try:
        sock = socket.create_connection((uri.host, port), timeout=timeout)
    except TimeoutError:
        raise ConnectError(
            f"cannot connect to {uri.address}: no answer within {timeout:g} s"
        ) from None
    except OSError as error:
        raise ConnectError(f"cannot connect to {uri.address}: {error.strerror or error}") from None
    try:
        tune(sock)
    except OSError as error:
        sock.close()
        raise ConnectError(f"cannot connect to {uri.address}: {error.strerror or error}") from None
    return sock


def staging_bytes(uri: DataUri) -> int:
    """Return how much a reader's connection receives ahead of what it is asked for."""
    return _STAGING if uri.stream is StreamKind.BOTH else _HALF_STAGING


class TcpTransport:
    """The scheme ``tcp``."""

    scheme = "tcp"
    capabilities = Capabilities(regions=True)

    def listen(
        self, uri: DataUri, limits: Limits, sock: socket.socket | None = None
    ) -> TcpListener:
        """Bind an address; see `Transport.listen` and `TcpListener`."""
        check_listener(uri)
        return TcpListener(uri, limits, sock)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> SocketChannel:
        """Connect; see `Transport.connect`."""
        sock = connected_socket(uri, timeout)
        try:
            return SocketChannel(
                sock,
                limits,
                server=False,
                peer=peer_name(sock),
                is_local=is_local(sock),
                staging=staging_bytes(uri),
            )
        except OSError as error:
            sock.close()
            raise ConnectError(
                f"cannot connect to {uri.address}: {error.strerror or error}"
            ) from None


TRANSPORT = TcpTransport()
