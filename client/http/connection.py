"""Connections to HTTP servers, also through the proxies that the environment names.

The variables are ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, in either case. A
proxy forwards a request to ``http://`` itself, and opens a tunnel to ``https://``.
"""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ...errors import ConnectError, NotAPeerError, UriError, UsageError
from ...protocol.uri import DataUri
from ...transport.sockets import open_socket
from ...transport.tls import map_ssl_error
from ...transport.tls_options import TlsOptions, load_client_context

_PORTS = {"http": 80, "https": 443}
"""The default ports of URLs, by their schemes."""


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL."""

    server: DataUri
    """The scheme, the host and the port."""
    target: str
    """The path and the parameters, still encoded."""

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parse a URL; raise `UriError` if it is malformed."""
        uri = DataUri.parse(text)
        if uri.scheme not in _PORTS or not uri.host:
            raise UriError(f"{uri.redacted()} is not a URL; expected http://host:port/path")
        if not text.isascii() or " " in text:
            raise UriError(f"{uri.address} has other characters than ASCII; write them as %XX")
        parts = urlsplit(text)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(DataUri(uri.scheme, uri.host, uri.port or _PORTS[uri.scheme]), target)

    @property
    def host(self) -> str:
        """The host as in the header ``Host``, with the port unless it is the default."""
        server, name = self.server, self.server.host.partition("%")[0]
        host = f"[{name}]" if ":" in name else name.encode("idna").decode()
        return host if server.port == _PORTS[server.scheme] else f"{host}:{server.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy, and the headers for it."""

    uri: DataUri
    """The scheme, the host and the port."""
    headers: Mapping[str, str] = field(repr=False)
    """The user name and the password, if it has them."""


def find_proxy(url: Url) -> Proxy | None:
    """Return the proxy that the environment names for a URL; None to connect directly.

    Raises `UsageError` if the proxy is not one for HTTP.
    """
    proxies, server = getproxies(), url.server
    text = proxies.get(server.scheme) or proxies.get("all")
    if not text or proxy_bypass(f"{server.host}:{server.port}"):
        return None
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme != "http" or not host:
        raise UsageError(
            f"the proxy for {server.scheme}:// in the environment is not of the form "
            "http://host:port; correct the variable, or add the host to NO_PROXY"
        )
    headers: dict[str, str] = {}
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    return Proxy(DataUri("http", host, port or _PORTS["http"]), headers)


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection that can carry one request."""

    http: HTTPConnection
    """Sends the request and parses the response."""
    sock: socket.socket
    """The socket. The response may own it."""
    target: str
    """The target of the request."""
    headers: Mapping[str, str] = field(repr=False)
    """The headers that the request needs."""


def connect(url: Url, tls: TlsOptions | None, timeout: float) -> Connection:
    """Connect to the server of a URL, or to its proxy, within `timeout` seconds for each step.

    Raises `ConnectError` if the connection cannot be made, `NotAPeerError` if the server of an
    ``https`` URL does not use TLS, and `UsageError` if an option or a variable is invalid.
    """
    deadline = time.monotonic() + timeout
    proxy, server, headers, target = find_proxy(url), url.server, {"Host": url.host}, url.target
    if proxy is None:
        sock = open_socket(server, timeout)
    elif server.scheme == "https":
        sock = _open_tunnel(proxy, server, timeout)
    else:
        sock = _reach_proxy(proxy, server, timeout)
        headers |= proxy.headers
        target = f"http://{url.host}{target}"
    try:
        if server.scheme == "https":
            sock = _wrap(sock, server, tls, max(deadline - time.monotonic(), 0.1), timeout)
        http = HTTPConnection(server.host, server.port)
    except BaseException:
        sock.close()
        raise
    http.sock = sock
    return Connection(http, sock, target, headers)


def _reach_proxy(proxy: Proxy, server: DataUri, timeout: float) -> socket.socket:
    try:
        return open_socket(proxy.uri, timeout)
    except ConnectError as error:
        raise _proxy_error(proxy, server, error.message) from None


def _open_tunnel(proxy: Proxy, server: DataUri, timeout: float) -> socket.socket:
    """Let a proxy connect to a server, and return the connection."""
    http = HTTPConnection(proxy.uri.host, proxy.uri.port, timeout=timeout)
    http.set_tunnel(server.host, server.port, dict(proxy.headers))
    try:
        http.connect()
    except (OSError, HTTPException) as error:
        http.close()
        late = isinstance(error, TimeoutError)
        reason = f"no answer within {timeout:g} s" if late else _describe(error)
        raise _proxy_error(proxy, server, reason) from None
    return http.sock


def _describe(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _proxy_error(proxy: Proxy, server: DataUri, reason: str) -> ConnectError:
    return ConnectError(
        f"cannot connect to {server.address} through the proxy {proxy.uri.address}: {reason}; "
        f"NO_PROXY={server.host} bypasses it"
    )


def _wrap(
    sock: socket.socket, server: DataUri, tls: TlsOptions | None, left: float, timeout: float
) -> socket.socket:
    """Return the connection with TLS, after the handshake."""
    options = tls or TlsOptions.from_environment()
    context, name = load_client_context(options).current(), server.host.partition("%")[0]
    sock.settimeout(left)
    try:
        return context.wrap_socket(sock, server_hostname=options.server_name or name)
    except TimeoutError:
        reason = f"no TLS handshake within {timeout:g} s"
        raise ConnectError(f"cannot connect to {server.address}: {reason}") from None
    except ssl.SSLError as error:
        peer = f"{server.host}:{server.port}"
        found = map_ssl_error(error, peer, server=False, established=False, preface_received=False)
        raise type(found)(f"cannot connect to {server.address}: {found.message}") from None
    except OSError:
        raise NotAPeerError(
            f"{server.address} closed the connection during the TLS handshake; does it use http://?"
        ) from None
    except ValueError as error:  # the host is not a valid name of a server
        raise ConnectError(f"cannot connect to {server.address}: {error}") from None
