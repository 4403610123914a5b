"""The addresses of a server: the URIs of its control plane and its HTTP listener.

The server refuses an address that other machines can reach if nothing protects it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

from ..errors import ConfigError
from ..protocol.uri import CONTROL_PORT, HTTP_PORT, DataUri
from ..transport.base import Traits
from ..transport.registry import find_transport
from .config import Settings

ANY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The addresses that listen on all interfaces, and the loopback address that reaches each."""
_SERVICE_SCHEMES = {
    "grpc": Traits(),
    "grpc+tcp": Traits(),
    "grpc+tls": Traits(encrypted=True),
    "http": Traits(),
    "https": Traits(encrypted=True),
}


def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address of a host, without its zone; None if it is a name.

    An IPv6 address may be in brackets. If it stands for an IPv4 address, that is returned.
    """
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def parse_peer(peer: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address of a peer, as gRPC or a channel writes it; None without one.

    Examples
    --------
    >>> parse_peer("ipv6:%5B::1%5D:1234"), parse_peer("10.0.0.7:80"), parse_peer("unix:/run/a")
    (IPv6Address('::1'), IPv4Address('10.0.0.7'), None)
    """
    address = peer.removeprefix("ipv4:").removeprefix("ipv6:")
    return parse_address(unquote(address).rpartition(":")[0])


def find_client(
    peer: str, forwarded: str | None, proxies: Iterable[IPv4Network | IPv6Network]
) -> str:
    """Return the address of a call's client, as gRPC writes it.

    It is the last one in the header ``X-Forwarded-For``, if a trusted proxy has added it.

    Examples
    --------
    >>> find_client("ipv4:10.1.0.7:80", "192.0.2.1, fd00::1", [IPv4Network("10.1.0.0/16")])
    'ipv6:[fd00::1]:0'
    """
    address = parse_peer(peer)
    if forwarded is None or address is None or not any(address in each for each in proxies):
        return peer
    client = parse_address(forwarded.rpartition(",")[2].strip())
    if client is None:
        return peer
    return f"ipv6:[{client}]:0" if client.version == 6 else f"ipv4:{client}:0"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one. Names are not resolved.

    Examples
    --------
    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "node7")]
    [True, True, True, False, False]
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    address = parse_address(host)
    return address is not None and address.is_loopback


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

    A signed ticket protects a listener for readers; `signs_tickets` is `requires_token` by default.
    Raises `ConfigError`, which names the unprotected addresses.
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


def control_uri(settings: Settings) -> DataUri | None:
    """Return the URI of the control plane's listener; None if the server has no control plane."""
    if settings.control is None:
        return None
    uri = DataUri.parse(settings.control)
    schemes = ("grpc", "grpc+tcp", "grpc+tls")
    _check_service(uri, "control", schemes, "grpc://host:port or grpc+tls://host:port", settings)
    return uri.replace(port=CONTROL_PORT if uri.port is None else uri.port, path="")


def http_uri(settings: Settings) -> DataUri | None:
    """Return the URI of the HTTP listener; None if the server has none."""
    if settings.http is None:
        return None
    uri = DataUri.parse(settings.http)
    expected = "http://host:port or https://host:port"
    _check_service(uri, "http", ("http", "https"), expected, settings)
    uri = uri.replace(port=HTTP_PORT if uri.port is None else uri.port, path="")
    check_exposure(
        (),
        uri,
        requires_token=settings.requires_token,
        client_certificates=settings.tls_client_ca is not None,
        insecure=settings.insecure,
    )
    return uri


def _check_service(
    uri: DataUri, name: str, schemes: tuple[str, ...], expected: str, settings: Settings
) -> None:
    if uri.scheme not in schemes:
        raise ConfigError(
            f"{name}: {uri.address} has the scheme {uri.scheme!r}; expected {expected}"
        )
    if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
        raise ConfigError(f"{name}: {uri.address} must have a host and a port only")
    if _find_traits(uri).encrypted and settings.tls_cert is None:
        raise ConfigError(f"{name}: {uri.scheme}:// needs tls_cert")


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
        advertised = [
            entry.host
            for entry in settings.advertised.entries
            if entry.scheme in (None, uri.scheme)
        ]
        return cls(uri.host, *advertised, *settings.http_hosts)

    def accept(self, host: str) -> bool:
        """Return whether a request with the header ``Host`` is for this server."""
        name = host.rpartition(":")[0] if _has_port(host) else host
        name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
        return name in self._names or parse_address(name) is not None


def _has_port(host: str) -> bool:
    _, separator, port = host.rpartition(":")
    return bool(separator) and port.isdecimal() and (host.count(":") == 1 or "]:" in host)
