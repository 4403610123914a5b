"""The addresses of a server: the URIs of its control plane and its HTTP listener.

The server refuses an address that other machines can reach if nothing protects it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from ..errors import ConfigError, UriError
from ..protocol.uri import DataUri
from ..transport.base import Traits
from ..transport.registry import find_transport
from .config import Settings

_SERVICE_SCHEMES = {
    "grpc": Traits(),
    "grpc+tls": Traits(encrypted=True),
    "http": Traits(),
    "https": Traits(encrypted=True),
}


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one. Names are not resolved.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "node7")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_exposed(uri: DataUri) -> bool:
    """Return whether other machines can reach a listener."""
    if _find_traits(uri).local_only:
        return False
    if not uri.host:  # A data listener then binds the loopback interface.
        return uri.scheme in _SERVICE_SCHEMES
    return not is_loopback(uri.host)


def _find_traits(uri: DataUri) -> Traits:
    traits = _SERVICE_SCHEMES.get(uri.scheme)
    return find_transport(uri).traits if traits is None else traits


def check_exposure(
    listeners: Iterable[DataUri],
    control: DataUri | None,
    *,
    requires_token: bool,
    signs_tickets: bool | None = None,
    client_certificates: bool = False,
    insecure: bool = False,
) -> None:
    """Raise if other machines could read without a token, a signed ticket or a certificate.

    `signs_tickets`: By default, `requires_token`. Raises `ConfigError`: The error names the
    unprotected addresses.
    """
    if insecure:
        return
    signs_tickets = requires_token if signs_tickets is None else signs_tickets
    addresses = [(uri, signs_tickets) for uri in listeners]
    if control is not None:
        addresses.append((control, requires_token))
    unprotected = [
        uri.address
        for uri, is_protected in addresses
        if is_exposed(uri)
        and not is_protected
        and not (client_certificates and _find_traits(uri).encrypted)
    ]
    if unprotected:
        raise ConfigError(
            f"everyone on the network could read from {' and '.join(unprotected)}: give "
            "--token-file or --jwks, listen on 127.0.0.1, or allow it with --insecure"
        )


def list_unencrypted_addresses(listeners: Iterable[DataUri], control: DataUri | None) -> list[str]:
    """Return the addresses at which data or tokens would cross the network unencrypted."""
    return [
        uri.address
        for uri in (*listeners, *(() if control is None else (control,)))
        if is_exposed(uri) and not _find_traits(uri).encrypted
    ]


CONTROL_PORT = 8815
_CONTROL_SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")


def control_uri(settings: Settings) -> DataUri | None:
    """Return the URI of the control plane's listener; None if the server has no control plane.

    Raises `ConfigError` if the URI is not that of a gRPC listener, or the settings that it needs
    are missing. Raises `UriError` if the URI is malformed.
    """
    if settings.control is None:
        return None
    uri = DataUri.parse(settings.control)
    if uri.scheme not in _CONTROL_SCHEMES:
        raise ConfigError(
            f"control: {uri.address} has the scheme {uri.scheme!r}; "
            "expected grpc://host:port or grpc+tls://host:port"
        )
    if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
        raise ConfigError(f"control: {uri.address} must have a host and a port only")
    if uri.scheme == "grpc+tls" and settings.tls_cert is None:
        raise ConfigError("control: grpc+tls:// needs tls_cert")
    return uri.replace(port=CONTROL_PORT if uri.port is None else uri.port, path="")


HTTP_PORT = 9816
_HTTP_SCHEMES = ("http", "https")


def http_uri(settings: Settings) -> DataUri | None:
    """Return the URI of the HTTP listener; None if the server has none.

    Raises `ConfigError` if it is not the URI of an HTTP listener, if settings that it needs are
    missing, or if other machines could use it without a token.
    """
    if settings.http is None:
        return None
    try:
        uri = DataUri.parse(settings.http)
    except UriError:
        raise ConfigError(
            f"http: {settings.http!r} is not a URI; expected http://host:port or https://host:port"
        ) from None
    if uri.scheme not in _HTTP_SCHEMES:
        raise ConfigError(
            f"http: {uri.address} has the scheme {uri.scheme!r}; "
            "expected http://host:port or https://host:port"
        )
    if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
        raise ConfigError(f"http: {uri.address} must have a host and a port only")
    if uri.scheme == "https" and settings.tls_cert is None:
        raise ConfigError("http: https:// needs tls_cert")
    uri = uri.replace(port=HTTP_PORT if uri.port is None else uri.port, path="")
    check_exposure(
        (),
        uri,
        requires_token=requires_token(settings),
        client_certificates=settings.tls_client_ca is not None,
        insecure=settings.insecure,
    )
    return uri


def requires_token(settings: Settings) -> bool:
    """Return whether the settings name tokens."""
    return settings.token_file is not None or settings.jwks is not None


class HostNames:
    """The host names that a request may have in its header ``Host``.

    A web page can let its own name resolve to this host's address, and then read the responses:
    DNS rebinding. A request with a name that is none of this server's comes from such a page. A
    page cannot do that with an address, so addresses are accepted.

    Examples
    --------
    >>> names = HostNames("data.example")
    >>> [names.accept(host) for host in ("data.example:9816", "[::1]:9816", "evil.example")]
    [True, True, False]
    """

    def __init__(self, *names: str | None) -> None:
        known = ("localhost", socket.gethostname(), *names)
        self._names = {name.lower().rstrip(".") for name in known if name}

    @classmethod
    def of(cls, settings: Settings, uri: DataUri) -> HostNames:
        """Return the names of a server."""
        return cls(uri.host, settings.advertise, *settings.http_hosts)

    def accept(self, host: str) -> bool:
        """Return whether a request with the header ``Host`` is for this server."""
        name = host.rpartition(":")[0] if _has_port(host) else host
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        return name in self._names or _is_address(name)


def _has_port(host: str) -> bool:
    _, separator, port = host.rpartition(":")
    return bool(separator) and port.isdecimal() and (host.count(":") == 1 or "]:" in host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
