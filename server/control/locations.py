"""The locations in a FlightEndpoint: the data listeners, under addresses that clients can dial."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import itemgetter
from urllib.parse import unquote

from ...protocol.uri import DataUri, Streams
from ...transport.registry import find_transport

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location for DoGet on the connection to the control plane."""
HOST_HEADER = "splitarrow-host"
"""The header in which a client sends the host name that it dialled for the control plane."""

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The loopback addresses for the addresses of all interfaces."""
_DISCARD_PORT = 9

Address = IPv4Address | IPv6Address


def list_locations(listeners: Iterable[DataUri], host: HostResolver) -> list[str]:
    """Return the URIs at which a client can redeem a ticket, in order of preference.

    They contain no ticket: the endpoint has it. Listeners for one of the two streams are left
    out; see `list_stream_pair`.
    """
    ranked: list[tuple[int, DataUri]] = []
    for uri in listeners:
        rank = find_transport(uri).traits.location_rank
        if uri.stream is Streams.BOTH and rank is not None:
            ranked.append((rank, uri))
    ranked.sort(key=itemgetter(0))
    return [*(str(host.resolve(uri)) for _, uri in ranked), REUSE_CONNECTION]


def list_stream_pair(listeners: Iterable[DataUri], host: HostResolver) -> dict[str, str]:
    """Return the URIs of separate listeners for the metadata and the body stream.

    Returns
    -------
    dict
        ``{"metadata": URI, "body": URI}``. Empty if one of the two does not exist.
    """
    found: dict[str, str] = {}
    for uri in listeners:
        if uri.stream is not Streams.BOTH:
            found.setdefault(uri.stream.value, str(host.resolve(uri)))
    return found if len(found) == 2 else {}


class HostResolver:
    """Finds the host name under which one client can dial this server's listeners.

    A listener that is bound to one address is dialled there. A listener that is bound to all
    interfaces is dialled under the host name that the client sent, or under the address of the
    interface that faces the client. The advertised host replaces all of these.

    Parameters
    ----------
    advertised : str or None
        The host that the operator configured.
    headers : mapping of str to str
        The headers of the client's call.
    peer : str
        The client's address, as gRPC writes it: ``ipv4:127.0.0.1:51234``.
    """

    def __init__(self, advertised: str | None, headers: Mapping[str, str], peer: str) -> None:
        self._advertised = advertised
        self._dialled = _parse_host(headers.get(HOST_HEADER, ""))
        self._peer = peer

    def resolve(self, listener: DataUri) -> DataUri:
        """Return the address under which the client can dial a listener, without its ticket."""
        uri = listener.replace(ticket=None)
        if not uri.host:
            return uri  # a path on this machine
        if self._advertised is not None:
            return uri.replace(host=self._advertised)
        if uri.host not in _LOOPBACK:
            return uri
        host = self._dialled or _find_facing_host(_parse_peer(self._peer), uri.host)
        return uri.replace(host=host)


def _parse_host(text: str) -> str | None:
    """Return the host name or address in a header, or None if it is malformed."""
    host = text.strip().removeprefix("[").removesuffix("]")
    plain = host.replace("-", "").replace(".", "").replace(":", "")
    return host if plain.isascii() and plain.isalnum() and len(host) < 256 else None


def _parse_peer(peer: str) -> Address | None:
    family, _, rest = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return None
    host = unquote(rest.rpartition(":")[0]).removeprefix("[").removesuffix("]")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _find_facing_host(peer: Address | None, bound: str) -> str:
    """Return our address on the route to a client, in the address family of `bound`."""
    version = 6 if ":" in bound else 4
    if peer is None or peer.is_loopback:
        return _LOOPBACK[bound]
    if peer.version != version:
        return socket.gethostname()
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(peer), _DISCARD_PORT))  # finds the route, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
