"""Addresses that other machines can reach. The server refuses to expose unprotected ones."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from ...errors import ConfigError
from ...protocol.uri import DataUri
from ...transport.base import Traits
from ...transport.registry import find_transport

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

    Parameters
    ----------
    listeners : iterable of DataUri
        The addresses of the data listeners.
    control : DataUri or None
        The address of the control plane, or of the HTTP listener.
    requires_token : bool
        Whether it requires a token.
    signs_tickets : bool, optional
        Whether the listeners require signed tickets. By default, `requires_token`.
    client_certificates : bool
        Whether listeners with TLS require a client certificate.
    insecure : bool
        Whether to allow everything.

    Raises
    ------
    ConfigError
        The error names the unprotected addresses.
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
