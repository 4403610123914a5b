"""The scheme ``tcp+tls``: the frames of ``tcp``, with TLS 1.3 between.

Certificates come from `TlsOptions` and `TlsServerOptions`, or the variables
``SPLITARROW_TLS_…``; never from a URI, which others may have written. A URI may say
``server_name=…``, the name that the server's certificate has where that is not the host.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from ..errors import ConfigError, ConnectError, TransportError
from ..protocol.limits import Limits
from ..protocol.uri import DataUri
from .base import Capabilities
from .certificates import TlsOptions, TlsServerOptions, client_contexts, server_contexts
from .secured import TlsChannel
from .tcp import (
    SERVER_STAGING,
    TcpListener,
    check_listener,
    connected_socket,
    is_local,
    peer_name,
    staging_bytes,
)

SCHEME = "tcp+tls"


class TlsListener(TcpListener):
    """A bound TCP port whose clients speak TLS.

    Parameters
    ----------
    uri : DataUri
        Where to bind; port 0 picks a free one.
    limits : Limits
        Bounds for the connections.
    options : TlsServerOptions
        Certificates. Files that change count for new connections.
    sock : socket.socket, optional
        A socket that listens already.
    clock : callable
        The time in seconds, from any start.

    Raises
    ------
    ConfigError
        If a file cannot be used, or the address cannot be bound.
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
        self._contexts = server_contexts(options, clock=clock)
        super().__init__(uri, limits, sock)

    def _channel(self, sock: socket.socket) -> TlsChannel:
        return TlsChannel(
            sock,
            self._limits,
            self._contexts.current(),
            server=True,
            peer=peer_name(sock),
            is_local=is_local(sock),
            staging=SERVER_STAGING,
        )


class TlsTransport:
    """The scheme ``tcp+tls``.

    Parameters
    ----------
    options : TlsOptions, optional
        For connecting; None: from the environment.
    server_options : TlsServerOptions, optional
        For listening; None: from the environment.
    """

    scheme = SCHEME
    capabilities = Capabilities()

    def __init__(
        self,
        options: TlsOptions | None = None,
        server_options: TlsServerOptions | None = None,
    ) -> None:
        self._options = options
        self._server_options = server_options

    def secured(self, options: TlsOptions) -> TlsTransport:
        """Return the same transport with other options for connecting."""
        return TlsTransport(options, self._server_options)

    def listen(
        self, uri: DataUri, limits: Limits, sock: socket.socket | None = None
    ) -> TlsListener:
        """Bind an address; see `Transport.listen` and `TlsListener`."""
        check_listener(uri)
        options = self._server_options or TlsServerOptions.from_environment()
        if options is None:
            raise ConfigError(
                f"{uri.address}: TLS needs a certificate: give --tls-cert and --tls-key"
            )
        return TlsListener(uri, limits, options, sock)

    def connect(self, uri: DataUri, limits: Limits, timeout: float) -> TlsChannel:
        """Connect, handshake included; see `Transport.connect`.

        Raises
        ------
        ConnectError
            If the connection cannot be made, or one end refuses the other.
        NotAPeerError
            If what answers does not speak TLS.
        UsageError
            If a file of the options cannot be used.
        """
        deadline = time.monotonic() + timeout
        options = self._options or TlsOptions.from_environment()
        context = client_contexts(options).current()
        sock = connected_socket(uri, timeout)
        try:
            channel = TlsChannel(
                sock,
                limits,
                context,
                server=False,
                server_name=_name_to_check(uri, options),
                peer=peer_name(sock),
                is_local=is_local(sock),
                staging=staging_bytes(uri),
            )
        except (OSError, ValueError) as error:  # it is gone, or its name is none
            sock.close()
            raise ConnectError(f"cannot connect to {uri.address}: {error}") from None
        try:
            _shake_hands(channel, deadline)
        except TimeoutError:
            channel.close()
            raise ConnectError(
                f"cannot connect to {uri.address}: no TLS handshake within {timeout:g} s"
            ) from None
        except TransportError as error:
            channel.close()
            raise type(error)(f"cannot connect to {uri.address}: {error.message}") from None
        except BaseException:
            channel.close()
            raise
        return channel


def _name_to_check(uri: DataUri, options: TlsOptions) -> str:
    named = dict(uri.extra).get("server_name")
    return options.server_name or named or uri.host.partition("%")[0]


def _shake_hands(channel: TlsChannel, deadline: float) -> None:
    poll = select.poll()
    while True:
        try:
            channel.shake_hands()
            return
        except BlockingIOError:
            pass
        poll.register(channel.fileno(), select.POLLOUT if channel.has_unsent else select.POLLIN)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError


TRANSPORT = TlsTransport()
