"""Networks of readers and proxies, and the addresses by which readers reach the listeners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple, cast

from ...errors import UriError
from ...protocol.uri import DataUri
from ...transport.proxy_protocol import Network

_SCHEMES = ("tcp", "tcp+tls", "ucx", "grpc", "grpc+tls", "http", "https")
"""The schemes of listeners that have a host and a port."""
_ENCRYPTED = {"tcp": "tcp+tls", "grpc": "grpc+tls", "http": "https"}
"""The schemes of readers if a proxy ends their TLS, by the scheme of the listener."""


class AdvertisedAddress(NamedTuple):
    """The address of listeners for readers."""

    network: Network | None
    """The network of these readers. None means all readers."""
    scheme: str | None
    """The scheme of the listener. None means every listener."""
    host: str
    """The host, without brackets."""
    port: int | None
    """The port. None means the port that is bound."""
    reader_scheme: str | None = None
    """The scheme for readers. None means that of the listener."""

    def replace(self, uri: DataUri) -> DataUri:
        """Return the URI of a listener with this address."""
        return uri.replace(
            scheme=self.reader_scheme or uri.scheme, host=self.host, port=self.port or uri.port
        )


@dataclass(frozen=True, slots=True)
class AdvertisedAddresses:
    """The addresses of the settings `advertise` and `advertise_for`, the most specific first.

    Examples
    --------
    >>> addresses = parse_advertised(("data.example", "tcp=node:30016"), ("10.0.0.0/8=inside",))
    >>> addresses.find("tcp", ip_address("192.0.2.1"))[2:4]
    ('node', 30016)
    >>> addresses.find("tcp", ip_address("10.0.0.1"))[2:4]
    ('inside', None)
    """

    entries: tuple[AdvertisedAddress, ...]

    def find(
        self, scheme: str, reader: IPv4Address | IPv6Address | None
    ) -> AdvertisedAddress | None:
        """Return the address of a listener for a reader; None if it is the bound one."""
        for entry in self.entries:
            if entry.scheme in (None, scheme) and (
                entry.network is None or (reader is not None and reader in entry.network)
            ):
                return entry
        return None


@lru_cache(maxsize=8)
def parse_advertised(
    advertise: tuple[str, ...], advertise_for: tuple[str, ...] = ()
) -> AdvertisedAddresses:
    """Return the addresses that two settings name; raise `ValueError` if one is malformed."""
    entries = [
        *(_parse_address(None, text) for text in advertise),
        *(_parse_address(*_split_network(text)) for text in advertise_for),
    ]
    seen: set[tuple[Network | None, str | None]] = set()
    for network, scheme, *_ in entries:
        if (network, scheme) in seen:
            of = "all listeners" if scheme is None else scheme
            readers = "" if network is None else f" for {network}"
            raise ValueError(f"the address of {of}{readers} is given twice")
        seen.add((network, scheme))
    return AdvertisedAddresses(tuple(sorted(entries, key=_rank)))


def _rank(entry: AdvertisedAddress) -> tuple[int, bool]:
    return 1 if entry.network is None else -entry.network.prefixlen, entry.scheme is None


def _split_network(text: str) -> tuple[Network, str]:
    network, separator, address = text.partition("=")
    if not separator:
        raise ValueError(f"{text!r} has no network; expected NETWORK=HOST, as in 10.0.0.0/8=node7")
    return parse_network(network), address


def parse_network(text: str) -> Network:
    """Return a network, such as 10.0.0.0/8; raise `ValueError` if it is malformed."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a network: {error}; expected one such as 10.0.0.0/8"
        ) from None


def _parse_address(network: Network | None, text: str) -> AdvertisedAddress:
    scheme, separator, address = text.rpartition("=")
    if separator and scheme not in _SCHEMES:
        raise ValueError(f"{scheme!r} in {text!r} is not one of {', '.join(_SCHEMES)}")
    reader_scheme, has_scheme, rest = address.rpartition("://")
    if has_scheme:
        if reader_scheme not in (scheme, _ENCRYPTED.get(scheme)):
            expected = " or ".join(filter(None, (scheme, _ENCRYPTED.get(scheme)))) or "no scheme"
            raise ValueError(f"{reader_scheme!r} in {text!r}: expected {expected}")
        address = rest
    if not separator and _is_ipv6(address):
        address = f"[{address}]"
    elif _is_ipv6(address):
        raise ValueError(f"{address!r} in {text!r} needs brackets, as in {scheme}=[{address}]")
    host, port = _parse_host(address, text)
    if port is not None and not separator:
        raise ValueError(
            f"{text!r} has a port but no scheme of a listener; expected SCHEME=HOST:PORT, as in "
            f"tcp={address}"
        )
    return AdvertisedAddress(network, scheme or None, host, port, reader_scheme or None)


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).version == 6
    except ValueError:
        return False


def _parse_host(address: str, text: str) -> tuple[str, int | None]:
    try:
        uri = DataUri.parse(f"tcp://{address}")
    except UriError as error:
        raise ValueError(f"{address!r} in {text!r} is not HOST or HOST:PORT: {error}") from None
    host = uri.host.partition("%")[0]
    plain = host.replace("-", "").replace("_", "").replace(".", "").replace(":", "")
    is_name = plain.isascii() and plain.isalnum()
    written = DataUri("tcp", uri.host, uri.port).address
    if written != f"tcp://{address.lower()}" or not is_name or uri.port == 0:
        raise ValueError(f"{address!r} in {text!r} is not HOST or HOST:PORT")
    return uri.host, uri.port


def list_pairs(value: Any) -> Any:
    """Return the texts of a setting that may also be a text with commas, or a mapping.

    The values of a mapping are texts, sequences of texts, or mappings.

    Examples
    --------
    >>> list_pairs({"10.0.0.0/8": {"tcp": "node:30016"}, "::/0": ["h", "http=i"]})
    ('10.0.0.0/8=tcp=node:30016', '::/0=h', '::/0=http=i')
    """
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    if isinstance(value, Mapping):
        return tuple(_list_items(cast("Mapping[str, Any]", value)))
    return value


def _list_items(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        texts = (value,) if isinstance(value, str) else list_pairs(value)
        if not isinstance(texts, Sequence):
            raise ValueError(f"{value!r} of {key!r} is not text")
        for text in cast("Iterable[Any]", texts):
            yield f"{key}={text}"
