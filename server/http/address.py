"""The URI of the HTTP listener, and the host names by which clients may address it."""

from __future__ import annotations

import ipaddress
import socket

from ...errors import ConfigError, UriError
from ...protocol.uri import DataUri
from ..auth.exposure import check_exposure
from ..config import ServerSettings

DEFAULT_PORT = 9816
_SCHEMES = ("http", "https")


def http_uri(settings: ServerSettings) -> DataUri | None:
    """Return the URI of the HTTP listener; None if the server has none.

    Raises
    ------
    ConfigError
        If it is not the URI of an HTTP listener, if settings that it needs are missing, or if
        other machines could use it without a token.
    """
    if settings.http is None:
        return None
    try:
        uri = DataUri.parse(settings.http)
    except UriError:
        raise ConfigError(
            f"http: {settings.http!r} is not a URI; expected http://host:port or https://host:port"
        ) from None
    if uri.scheme not in _SCHEMES:
        raise ConfigError(
            f"http: {uri.address} has the scheme {uri.scheme!r}; "
            "expected http://host:port or https://host:port"
        )
    if uri.path not in ("", "/") or uri.want_data is not None or uri.extra or uri.ticket:
        raise ConfigError(f"http: {uri.address} must have a host and a port only")
    if uri.scheme == "https" and settings.tls_cert is None:
        raise ConfigError("http: https:// needs tls_cert")
    uri = uri.replace(port=DEFAULT_PORT if uri.port is None else uri.port, path="")
    check_exposure(
        (),
        uri,
        requires_token=requires_token(settings),
        client_certificates=settings.tls_client_ca is not None,
        insecure=settings.insecure,
    )
    return uri


def requires_token(settings: ServerSettings) -> bool:
    """Return whether the settings name tokens."""
    return settings.token_file is not None or settings.jwks is not None


class HostNames:
    """The host names that a request may have in its header ``Host``.

    A web page can let its own name resolve to this host's address, and then read the responses:
    DNS rebinding. A request with a name that is none of this server's comes from such a page. A
    page cannot do that with an address, so addresses are accepted.

    Parameters
    ----------
    *names : str or None
        More names, as in the setting ``http_hosts``.

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
    def of(cls, settings: ServerSettings, uri: DataUri) -> HostNames:
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
