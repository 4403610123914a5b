"""The scheme ``tcp``: one stream or both over a TCP connection."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import math
import socket
from functools import partial
from ssl import SSLContext
from typing import Any, NamedTuple

from ..errors import ConfigError, ConnectError, UriError
from ..protocol.frames import TaggedFrame
from ..protocol.payloads import pack_interval
from ..protocol.uri import TCP_PORT, DataUri, Streams
from .base import ConnectOptions, Diagnosis, ListenOptions, Traits, list_request_tags
from .framing import PREFACE
from .idle_connections import IdleConnections
from .proxy_protocol import ProxiedSocket
from .socket_channel import RESET, SocketChannel
from .sockets import open_socket

_BACKLOG = 1024
_PROBE_SECONDS = 1.0
"""How long to wait for a program that uses an address to identify itself."""
SERVER_STAGING = 4 << 10
"""The receive buffer of a server's connection, in bytes. A reader sends requests only."""
_STAGING = 256 << 10
_HALF_STAGING = 64 << 10
"""The buffer of each connection of a pair, which keeps one from running far ahead of the other."""
_LOCAL_CONGESTION_CONTROL = b"reno"
"""The congestion control of connections within this host. Every kernel has it, for every user."""
_MAX_NAME_BYTES = 16


def is_local(sock: socket.socket) -> bool:
    """Return whether the other end of a connection is on this host."""
    peer = sock.getpeername()[0].partition("%")[0]
    if peer == sock.getsockname()[0].partition("%")[0]:
        return True
    address = ipaddress.ip_address(peer)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def set_socket_options(sock: socket.socket) -> None:
    """Configure a connection: send small messages at once, and detect a dead peer."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, True)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _set_congestion_control(sock: socket.socket, name: bytes) -> None:
    with contextlib.suppress(OSError):  # This host does not permit it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _read_congestion_control(sock: socket.socket) -> bytes:
    """Return the name of a socket's congestion control."""
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _MAX_NAME_BYTES)
    return name.partition(b"\0")[0]


def _find_congestion_control() -> bytes:
    """Return the name of this host's congestion control; empty if it is unknown."""
    with contextlib.suppress(OSError), socket.socket() as sock:
        return _read_congestion_control(sock)
    return b""


def format_peer(address: Any) -> str:
    """Return the address of a socket as text."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpListener:
    """A bound TCP port.

    The server's end of a connection within this host does not use the host's congestion control.
    It protects networks, and BBR, for example, sets timers to pace segments, which may take as much
    processor time as the rest. Connections begin with the setting of the listening socket. It is
    that of local ones, because one that has begun with BBR keeps its timers.

    Port 0 selects a free port. Several processes may share the socket of the options.
    """

    def __init__(self, uri: DataUri, options: ListenOptions) -> None:
        self._limits = options.limits
        self.socket = bind_socket(uri) if options.socket is None else options.socket
        if options.proxies:
            seconds = options.handshake_seconds
            self.socket = ProxiedSocket(
                self.socket, options.proxies, math.inf if seconds is None else seconds
            )
        """The listening socket."""
        self.socket.setblocking(False)
        self._congestion_control = _find_congestion_control()
        if self._congestion_control:
            _set_congestion_control(self.socket, _LOCAL_CONGESTION_CONTROL)
        self.uri = uri.replace(port=self.socket.getsockname()[1])
        """The address, with the port that was bound."""
        self.request_tags = list_request_tags(self.uri)
        """The tag of data requests, with the type of the bodies that it requests."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a client waits."""
        return self.socket.fileno()

    def accept(self) -> SocketChannel | None:
        """Return the channel of the next client, or None if no client waits."""
        try:
            sock, address = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        try:
            set_socket_options(sock)
            # The route of a connection may have set another one.
            local = is_local(sock)
            if not local and _read_congestion_control(sock) == _LOCAL_CONGESTION_CONTROL:
                _set_congestion_control(sock, self._congestion_control)
            # A client behind a proxy is not on this host, even if the proxy is.
            local = local and address == sock.getpeername()
            return self._make_channel(sock, format_peer(address), is_local=local)
        except OSError:  # the client has already disconnected
            sock.close()
            return None

    def _make_channel(self, sock: socket.socket, peer: str, *, is_local: bool) -> SocketChannel:
        return SocketChannel(
            sock,
            self._limits,
            server=True,
            peer=peer,
            is_local=is_local,
            staging=SERVER_STAGING,
        )

    def reject(self) -> bool:
        """Disconnect the next client; return whether one was waiting."""
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
        return True

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()


def bind_socket(uri: DataUri) -> socket.socket:
    """Return a socket that listens at the address of a URI; raise `ConfigError` if it cannot."""
    host = uri.host or "127.0.0.1"
    port = TCP_PORT if uri.port is None else uri.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            sock.bind(address)
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = f"{reason} {_explain_use(uri.scheme, host, port)}"
        raise ConfigError(f"cannot listen on {uri.scheme}://{host}:{port}: {reason}") from None
    return sock


def _explain_use(scheme: str, host: str, port: int) -> str:
    """Return a phrase: who uses an address, and where to listen instead."""
    owner = "another program"
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), _PROBE_SECONDS) as sock,
    ):
        sock.sendall(PREFACE)
        if sock.recv(len(PREFACE)) == PREFACE:
            owner = "another splitarrow server"
    option = {"h": "--http", "g": "--control"}.get(scheme[0], "--listen")
    free = f"{scheme}://{f'[{host}]' if ':' in host else host}:0"
    return f"by {owner}; choose another port, or any free one with {option} {free}"


def check_address(uri: DataUri) -> None:
    """Raise `UriError` if an address has a path besides host and port."""
    if uri.path.strip("/"):
        raise UriError(f"{uri.redacted()}: a {uri.scheme} address has no path")


def connect_socket(uri: DataUri, timeout: float) -> socket.socket:
    """Return a configured socket that is connected to an address; see `open_socket`."""
    sock = open_socket(uri, timeout)
    try:
        set_socket_options(sock)
    except OSError as error:
        sock.close()
        raise ConnectError(f"cannot connect to {uri.address}: {error.strerror or error}") from None
    return sock


def choose_staging(uri: DataUri) -> int:
    """Return the size in bytes of a receive buffer for a reader's connection."""
    return _STAGING if uri.stream is Streams.BOTH else _HALF_STAGING


class ConnectionKey(NamedTuple):
    """What a connection must have in common with another to take its place."""

    address: str
    want_data: int | None
    keep_alive: int
    stream: Streams
    context: SSLContext | None
    """The certificates in use, which change with their files."""
    server_name: str | None


class IdleSockets(IdleConnections[ConnectionKey, SocketChannel]):
    """The connections of a process to other hosts, which keep their speed for the next stream.

    A connection within the host starts at full speed, and costs the server a descriptor.
    """

    def find_descriptor(self, connection: SocketChannel) -> int:
        """Return the socket's descriptor."""
        return connection.fileno()

    def is_quiet(self, connection: SocketChannel) -> bool:
        """Return whether nothing arrives."""
        return connection.is_quiet()

    def end(self, connection: SocketChannel) -> None:
        """Close the connection."""
        connection.close()

    def find_speed(self, connection: SocketChannel) -> float:
        """Return the speed of the last stream.

        The kernel expects what it has measured. Streams that shared a link were slower.
        """
        return connection.speed


IDLE_SOCKETS = IdleSockets("splitarrow-tcp-idle", 30.0, most=16, most_alike=8)
"""The idle connections of this process."""
IDLE_SOCKETS.follow_process()


def make_key(
    uri: DataUri, context: SSLContext | None = None, server_name: str | None = None
) -> ConnectionKey | None:
    """Return what finds an idle connection; None if the server may serve one stream on each."""
    tag = uri.keep_alive
    if tag is None:
        return None
    return ConnectionKey(uri.address, uri.want_data, tag, uri.stream, context, server_name)


def take_idle(
    key: ConnectionKey | None, uri: DataUri, options: ConnectOptions
) -> SocketChannel | None:
    """Return an idle connection to the same server, or None."""
    channel = IDLE_SOCKETS.take(key) if key is not None and options.reuse else None
    if channel is not None:
        channel.renew(options.limits, choose_staging(uri), options.allocator)
        keep_when_idle(channel, key, options)
    return channel


def keep_when_idle(
    channel: SocketChannel, key: ConnectionKey | None, options: ConnectOptions
) -> None:
    """Let a connection with another host be kept after its stream."""
    if key is None or not options.reuse or channel.is_local:
        return
    payload = pack_interval(IDLE_SOCKETS.seconds)
    farewell = TaggedFrame(key.keep_alive, len(payload), (payload,))
    channel.keep_with(partial(IDLE_SOCKETS.put, key), farewell)


class TcpTransport:
    """The scheme ``tcp``."""

    scheme = "tcp"
    traits = Traits(default_port=TCP_PORT, shares_socket=True, location_rank=30)

    def listen(self, uri: DataUri, options: ListenOptions) -> TcpListener:
        """Bind an address; see `Transport.listen` and `TcpListener`."""
        check_address(uri)
        return TcpListener(uri, options)

    def connect(self, uri: DataUri, options: ConnectOptions) -> SocketChannel:
        """Connect; see `Transport.connect`."""
        key = make_key(uri)
        kept = take_idle(key, uri, options)
        if kept is not None:
            return kept
        sock = connect_socket(uri, options.timeout)
        try:
            channel = SocketChannel(
                sock,
                options.limits,
                server=False,
                peer=format_peer(sock.getpeername()),
                is_local=is_local(sock),
                staging=choose_staging(uri),
                allocator=options.allocator,
            )
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                reason = error.strerror or error
                raise ConnectError(f"cannot connect to {uri.address}: {reason}") from None
            raise
        keep_when_idle(channel, key, options)
        return channel

    def diagnose(self) -> Diagnosis:
        """Return the state of the transport, which works on every host."""
        return Diagnosis()


TRANSPORT = TcpTransport()
