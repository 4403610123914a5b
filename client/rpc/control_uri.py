"""URIs of control planes: ``grpc://host:port`` and ``grpc+tls://host:port``.

A URI may also name a dataset of the control plane: ``grpc://host:port/flights``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from ...errors import UriError
from ...protocol.uri import DataUri

_BARE_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:[0-9]+(/.*)?|\[[0-9A-Fa-f:.]+\]:[0-9]+(/.*)?")
"""Matches ``host:8815`` and ``host:8815/flights``."""
SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
DEFAULT_PORT = 8815
_EXPECTED = "expected grpc://host:port or grpc+tls://host:port"


def is_control_uri(uri: str | DataUri) -> bool:
    """Return whether a URI is that of a control plane, or of a dataset of one.

    Examples
    --------
    >>> [is_control_uri(uri) for uri in ("grpc://host", "host:8815/flights", "tcp://host/flights")]
    [True, True, False]
    """
    text = uri.scheme if isinstance(uri, DataUri) else uri
    return text.partition(":")[0].lower().startswith("grpc") or _is_bare(text)


def _is_bare(text: str) -> bool:
    return _BARE_ADDRESS.fullmatch(text.partition(",")[0]) is not None


def split_dataset(uri: str | DataUri) -> tuple[str, str | None]:
    """Return the address of a control plane, and the name of the dataset that follows it.

    Raises
    ------
    UriError
        If the URI has parameters.

    Examples
    --------
    >>> split_dataset("grpc://a,b:9000/flights"), split_dataset("host:8815")
    (('grpc://a,b:9000', 'flights'), ('grpc://host:8815', None))
    """
    text = str(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "grpc", text
    if "?" in rest or "#" in rest:
        raise UriError(f"{text.partition('?')[0]} has parameters; expected grpc://host:port/NAME")
    address, _, name = rest.partition("/")
    return f"{scheme}://{address}", unquote(name.strip("/")) or None


def parse_control_uri(uri: str | DataUri) -> DataUri:
    """Parse the URI of one control plane and fill in the default port.

    Raises
    ------
    UriError
        If the scheme is not a control plane's, the host is missing, or the URI has a path or
        parameters. `split_dataset` separates the name of a dataset.

    Examples
    --------
    >>> parse_control_uri("grpc://host").port
    8815
    """
    if isinstance(uri, str) and _is_bare(uri):
        uri = f"grpc://{uri}"
    parsed = DataUri.parse(uri) if isinstance(uri, str) else uri
    if parsed.scheme not in SCHEMES:
        raise UriError(f"{parsed.address} is not the URI of a control plane; {_EXPECTED}")
    if not parsed.host:
        raise UriError(f"{parsed.address} has no host; {_EXPECTED}")
    if parsed.path.strip("/") and parsed.want_data is None and not parsed.extra:
        bare = parsed.replace(path="").address
        raise UriError(
            f"{parsed.address} names a dataset; connect to {bare}, or pass the URI to open"
        )
    if parsed.want_data is not None or parsed.extra:
        raise UriError(f"{parsed.address} has a path or parameters; {_EXPECTED}")
    return parsed.replace(port=parsed.port or DEFAULT_PORT, path="")


def parse_control_uris(uris: str | DataUri | Sequence[str | DataUri]) -> list[DataUri]:
    """Parse the URIs of one or several control planes and remove duplicates.

    Parameters
    ----------
    uris : str, DataUri, or a sequence of them
        A string may list several hosts, separated by commas. The scheme of the first one
        applies to those without a scheme.

    Raises
    ------
    UriError
        If there is no URI, or one is malformed.

    Examples
    --------
    >>> [uri.address for uri in parse_control_uris("grpc://a,b:9000")]
    ['grpc://a:8815', 'grpc://b:9000']
    """
    parsed: list[DataUri] = []
    for item in [uris] if isinstance(uris, (str, DataUri)) else uris:
        if isinstance(item, DataUri):
            parsed.append(parse_control_uri(item))
        else:
            parsed.extend(parse_control_uri(uri) for uri in _split_hosts(item))
    if not parsed:
        raise UriError(f"no control plane was given; {_EXPECTED}")
    return list(dict.fromkeys(parsed))


def _split_hosts(text: str) -> list[str]:
    """Split a comma-separated list of hosts into URIs."""
    scheme, separator, _ = text.partition("://")
    if not separator and not _is_bare(text):
        raise UriError(f"{text!r} is not the URI of a control plane; {_EXPECTED}")
    scheme = scheme if separator else "grpc"
    hosts = [host.strip() for host in text.split(",")]
    if not all(hosts):
        raise UriError(f"{text!r}: an address is missing next to a comma")
    return [host if "://" in host else f"{scheme}://{host}" for host in hosts]
