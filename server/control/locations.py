"""Where clients find the data: the addresses of the data listeners, as a client may dial them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

from ...protocol.uri import DataUri, StreamKind

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location that says: or ask here, by DoGet."""
HOST_HEADER = "splitarrow-host"
"""A header in which a client may say under which name it reached the control plane."""

_PREFERENCE = ("shm", "tcp+tls", "tcp", "ucx")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_DISCARD_PORT = 9

Address = IPv4Address | IPv6Address


def locations(uris: Iterable[DataUri], host: HostName) -> list[str]:
    """Return the URIs under which a ticket gets the data, the one to prefer first.

    They have no ticket of their own: that of the endpoint goes with them.
    """
    whole = [uri for uri in uris if uri.stream is StreamKind.BOTH and uri.scheme in _PREFERENCE]
    whole.sort(key=lambda uri: _PREFERENCE.index(uri.scheme))
    return [*(str(host.dialable(uri)) for uri in whole), REUSE_CONNECTION]


def pair(uris: Iterable[DataUri], host: HostName) -> bytes:
    """Return the addresses of separate servers for metadata and bodies, as JSON.

    Returns
    -------
    bytes
        ``{"metadata": URI, "body": URI}``, or nothing where there are no such listeners.
    """
    found: dict[str, str] = {}
    for uri in uris:
        if uri.stream is not StreamKind.BOTH:
            found.setdefault(uri.stream.value, str(host.dialable(uri)))
    return json.dumps(found).encode() if len(found) == 2 else b""


class HostName:
    """The name of this machine for one client.

    A listener that is bound to one address is dialled there. For one that is bound to all of
    them, the name is what the operator advertises, what the client says that it dialled, or the
    address of ours that faces the client.

    Parameters
    ----------
    advertised : str or None
        What the operator says. It counts for every listener.
    headers : mapping of str to str
        What the client sent.
    peer : str
        The client's address, as gRPC writes it: ``ipv4:127.0.0.1:51234``.
    """

    def __init__(self, advertised: str | None, headers: Mapping[str, str], peer: str) -> None:
        self._advertised = advertised
        self._dialled = _plain_host(headers.get(HOST_HEADER, ""))
        self._peer = peer

    def dialable(self, uri: DataUri) -> DataUri:
        """Return the address under which the client can dial a listener."""
        uri = uri.replace(ticket=None)
        if not uri.host:
            return uri  # a path on this machine
        if self._advertised is not None:
            return uri.replace(host=self._advertised)
        if uri.host not in _EVERYWHERE:
            return uri
        return uri.replace(host=self._dialled or _facing(_peer_address(self._peer), uri.host))


def _plain_host(text: str) -> str | None:
    """Return a host name or address that a header gives; None if it is neither."""
    host = text.strip().removeprefix("[").removesuffix("]")
    plain = host.replace("-", "").replace(".", "").replace(":", "")
    return host if plain.isascii() and plain.isalnum() and len(host) < 256 else None


def _peer_address(peer: str) -> Address | None:
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host = unquote(rest.rpartition(":")[0]).removeprefix("[").removesuffix("]")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _facing(peer: Address | None, bound: str) -> str:
    """Return the address of ours that a client at `peer` sees, of the family of `bound`."""
    family = 6 if ":" in bound else 4
    if peer is None or peer.is_loopback:
        return _EVERYWHERE[bound]
    if peer.version != family:
        return socket.gethostname()
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((str(peer), _DISCARD_PORT))  # looks up the route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
