"""What may be reached from other machines, and is refused unless something guards it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from ...errors import ConfigError
from ...protocol.uri import DataUri

_WITHOUT_NETWORK = ("inproc", "shm")
_EMPTY_IS_LOOPBACK = ("tcp", "tcp+tls", "ucx")
_TLS_SCHEMES = ("tcp+tls", "grpc+tls")


def is_loopback(host: str) -> bool:
    """Tell whether a host is this one, and nobody else's, without asking anybody.

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
    """Tell whether another machine may reach a listener."""
    if uri.scheme in _WITHOUT_NETWORK:
        return False
    if not uri.host:
        return uri.scheme not in _EMPTY_IS_LOOPBACK
    return not is_loopback(uri.host)


def check_exposure(
    listeners: Iterable[DataUri],
    control: DataUri | None,
    *,
    guarded: bool,
    signed: bool | None = None,
    client_certificates: bool = False,
    insecure: bool = False,
) -> None:
    """Refuse to serve other machines without asking who they are.

    Parameters
    ----------
    listeners : iterable of DataUri
        Where readers connect to.
    control : DataUri or None
        Where the control plane listens.
    guarded : bool
        Whether the control plane asks for tokens.
    signed : bool, optional
        Whether the listeners ask for signed tickets; by default they do if `guarded`.
    client_certificates : bool
        Whether listeners with TLS let in only those who have a certificate.
    insecure : bool
        Whether it is meant.

    Raises
    ------
    ConfigError
        If somebody on the network could read; the error names the addresses and the ways out.
    """
    if insecure:
        return
    signed = guarded if signed is None else signed
    open_to_all = [
        uri.address
        for uri, asks in (
            *((uri, signed) for uri in listeners),
            *(() if control is None else ((control, guarded),)),
        )
        if is_exposed(uri) and not asks and not (client_certificates and uri.scheme in _TLS_SCHEMES)
    ]
    if open_to_all:
        raise ConfigError(
            f"everybody on the network could read from {' and '.join(open_to_all)}: give "
            "--token-file or --jwks, listen on 127.0.0.1, or say --insecure if that is meant"
        )


def in_the_clear(listeners: Iterable[DataUri], control: DataUri | None) -> list[str]:
    """Return the addresses by which data or tokens cross a network unencrypted."""
    return [
        uri.address
        for uri in (*listeners, *(() if control is None else (control,)))
        if is_exposed(uri) and uri.scheme not in _TLS_SCHEMES
    ]
