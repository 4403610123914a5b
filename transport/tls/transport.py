"""The scheme ``tcp+tls``: the frames of ``tcp`` over TLS 1.3.

Certificates come from `TlsOptions` and `TlsServerOptions`, or from ``SPLITARROW_TLS_…`` variables.
A URI never names a file, because it may come from another party. Its parameter ``server_name``
overrides the host as the name that the server's certificate must have.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from ...errors import ConfigError, ConnectError, SplitArrowError, TransportError
from ...protocol.limits import Limits
from ...protocol.uri import DataUri
from ..base import ConnectOptions, Diagnosis, ListenOptions, Traits
from ..tcp import (
    DEFAULT_PORT,
    SERVER_STAGING,
    TcpListener,
    check_address,
    choose_staging,
    connect_socket,
    format_peer,
    is_local,
)
from .channel import TlsChannel
from .options import TlsOptions, TlsServerOptions, load_client_context, load_server_context

SCHEME = "tcp+tls"


class TlsListener(TcpListener):
    """A bound TCP port whose clients use TLS.

    Parameters
    ----------
    uri : DataUri
        The address to bind. Port 0 selects a free port.
    limits : Limits
        Limits on received frames.
    options : TlsServerOptions
        The certificates. New connections use files that have changed.
    sock : socket.socket, optional
        A listening socket to use instead of binding one.
    clock : callable
        Returns the time in seconds, from any epoch.

    Raises
    ------
    ConfigError
        If a file is invalid, or the address cannot be bound.
    """

    def __init__(
        self,
        uri: DataUri,
        limits: Limits,
        options: TlsServerOptions,
        sock: socket.socket | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contexts = load_server_context(options, clock=clock)
        super().__init__(uri, limits, sock)

    def _make_channel(self, sock: socket.socket) -> TlsChannel:
        return TlsChannel(
            sock,
            self._limits,
            self._contexts.current(),
            server=True,
            peer=format_peer(sock),
            is_local=is_local(sock),
            staging=SERVER_STAGING,
        )


class TlsTransport:
    """The scheme ``tcp+tls``."""

    scheme = SCHEME
    traits = Traits(default_port=DEFAULT_PORT, encrypted=True, shares_socket=True, location_rank=20)

    def listen(self, uri: DataUri, options: ListenOptions) -> TlsListener:
        """Bind an address; see `Transport.listen` and `TlsListener`."""
        check_address(uri)
        tls = options.tls or TlsServerOptions.from_environment()
        if tls is None:
            raise ConfigError(f"{uri.address} needs a certificate: set tls_cert and tls_key")
        return TlsListener(uri, options.limits, tls, options.socket)

    def connect(self, uri: DataUri, options: ConnectOptions) -> TlsChannel:
        """Connect, including the handshake; see `Transport.connect`.

        Raises
        ------
        ConnectError
            If the connection cannot be made, or one end refuses the other.
        NotAPeerError
            If the server does not use TLS.
        UsageError
            If a file of the options is invalid.
        """
        deadline = time.monotonic() + options.timeout
        tls = options.tls or TlsOptions.from_environment()
        context = load_client_context(tls).current()
        sock = connect_socket(uri, options.timeout)
        try:
            channel = TlsChannel(
                sock,
                options.limits,
                context,
                server=False,
                server_name=_find_server_name(uri, tls),
                peer=format_peer(sock),
                is_local=is_local(sock),
                staging=choose_staging(uri),
                allocator=options.allocator,
            )
        except BaseException as error:
            sock.close()
            # A UsageError is a ValueError that already names the problem.
            if isinstance(error, SplitArrowError) or not isinstance(error, (OSError, ValueError)):
                raise
            # The peer is gone, or the host is not a valid server name.
            raise ConnectError(f"cannot connect to {uri.address}: {error}") from None
        try:
            _shake_hands(channel, deadline)
        except TimeoutError:
            channel.close()
            raise ConnectError(
                f"cannot connect to {uri.address}: no TLS handshake within {options.timeout:g} s"
            ) from None
        except TransportError as error:
            channel.close()
            raise type(error)(f"cannot connect to {uri.address}: {error.message}") from None
        except BaseException:
            channel.close()
            raise
        return channel

    def diagnose(self) -> Diagnosis:
        """Return the state of the transport, which works on every host."""
        return Diagnosis()


def _find_server_name(uri: DataUri, options: TlsOptions) -> str:
    parameter = uri.parameter("server_name")
    return options.server_name or parameter or uri.host.partition("%")[0]


def _shake_hands(channel: TlsChannel, deadline: float) -> None:
    poll = select.poll()
    while True:
        try:
            channel.shake_hands()
            return
        except BlockingIOError:
            pass
        poll.register(
            channel.fileno(), select.POLLOUT if channel.has_unsent_bytes else select.POLLIN
        )
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError


TRANSPORT = TlsTransport()
