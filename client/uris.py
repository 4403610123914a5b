"""The URIs of data streams and of control planes, as users give them.

A data stream has a ``want_data`` URI with a ticket. A control plane has the address
``grpc://host:port`` or ``grpc+tls://host:port``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast
from urllib.parse import unquote

from ..errors import InvalidRequestError, UriError, UsageError
from ..formats.arguments import check_text
from ..protocol.request import SIGNED_PREFIX, Request
from ..protocol.tags import FREE_DATA, KEEP_ALIVE, WANT_DATA
from ..protocol.uri import CONTROL_PORT, DataUri, Streams

UNKNOWN_NAME = "?"
"""The name of a dataset that only a ticket names."""
_SELECTION = tuple(field.name for field in fields(Request) if field.name != "dataset")


def resolve_uris(
    target: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    request: Request | None = None,
) -> list[DataUri]:
    """Return the one or two URIs of a data stream, each with the ticket to send.

    A URI such as ``tcp://host/flights`` gets its tags and its ticket. The fields of `request` that
    are not None replace those of the ticket; its dataset does not.
    """
    items = [target] if isinstance(target, (str, DataUri)) else _list_uris("target", target)
    uris = list(map(complete_uri, items))
    _check_streams(uris)
    given = _encode_ticket(ticket)
    resolved: list[DataUri] = []
    for item in uris:
        item.require_want_data()
        found = _find_ticket(item, given, uris)
        resolved.append(item if found == item.ticket else item.replace(ticket=found))
    return resolved if request is None else select(resolved, request)


def _list_uris(name: str, value: Any) -> list[str | DataUri]:
    """Return several URIs, and raise `UriError` if a value is something else."""
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        items = list(cast("Iterable[Any]", value))
        if all(isinstance(item, (str, DataUri)) for item in items):
            return items
    raise UriError(f"{name} is a {type(value).__name__}; expected a URI, or several")


def _encode_ticket(ticket: Any) -> bytes | None:
    if ticket is None or isinstance(ticket, bytes):
        return ticket
    return check_text("ticket", ticket).encode()


def select(uris: list[DataUri], request: Request) -> list[DataUri]:
    """Return URIs whose tickets have the fields of `request` that are not None.

    This raises `UsageError` if a ticket is signed, so that it cannot be changed, or malformed.
    """
    changes = {name: value for name in _SELECTION if (value := getattr(request, name)) is not None}
    if not changes:
        return uris
    for uri in uris:
        _check_unsigned(uri.ticket or b"", ", ".join(changes))
    try:
        return [
            uri.replace(ticket=replace(Request.parse(uri.ticket or b""), **changes).ticket())
            for uri in uris
        ]
    except InvalidRequestError as error:
        raise UsageError(error.message) from None


def complete_uri(uri: str | DataUri) -> DataUri:
    """Parse a URI. If it has the form ``tcp://host/flights``, fill in its tags and its ticket.

    Raises `UriError` if the URI is malformed, or has an unknown scheme. Raises `MissingExtraError`
    if the scheme needs a package that is not installed.

    Examples
    --------
    >>> complete_uri("tcp://host/flights").ticket
    b'flights'
    """
    from ..transport.registry import find_transport

    parsed = DataUri.parse(uri) if isinstance(uri, str) else uri
    traits = find_transport(parsed, (*SCHEMES, *HTTP_SCHEMES)).traits
    name = parsed.path.strip("/")
    if traits.default_port is None or not name or parsed.ticket is not None:
        return parsed
    tags = {"want_data": WANT_DATA, "keep_alive": KEEP_ALIVE}
    if traits.leases_memory:
        tags["free_data"] = FREE_DATA
    missing = {tag: value for tag, value in tags.items() if getattr(parsed, tag) is None}
    try:
        ticket = Request(name).ticket()
    except InvalidRequestError as error:
        raise UriError(f"{parsed.address}: {error.message}") from None
    return parsed.replace(path="", ticket=ticket, **missing)


def request_schema(uris: Sequence[DataUri]) -> list[DataUri]:
    """Return URIs that request all columns of the same dataset, but no rows."""
    changed: list[DataUri] = []
    for uri in uris:
        _check_unsigned(uri.ticket or b"", "filter")
        request = Request.parse(uri.ticket or b"")
        request = Request(request.dataset, version=request.version, limit=0)
        changed.append(uri.replace(ticket=request.ticket()))
    return changed


def _check_streams(uris: Sequence[DataUri]) -> None:
    """Check that the URIs carry both streams, on one connection or as a pair."""
    if len(uris) == 1:
        stream = uris[0].stream
        if stream is not Streams.BOTH:
            other = "body" if stream is Streams.METADATA else "metadata"
            raise UriError(
                f"{uris[0].redacted()} carries only the {stream.value} stream; "
                f"pass the URI with stream={other} as well"
            )
        return
    if len(uris) != 2:
        raise UriError(f"got {len(uris)} URIs; expected one URI or a pair of URIs")
    streams = [uri.stream for uri in uris]
    if set(streams) != {Streams.METADATA, Streams.BODY}:
        raise UriError(
            "a pair needs one URI with stream=metadata and one with stream=body; "
            f"got stream={streams[0].value} and stream={streams[1].value}"
        )


def _find_ticket(uri: DataUri, given: bytes | None, uris: Sequence[DataUri]) -> bytes:
    """Return the ticket for a URI: its own, the given one, or that of the other URI."""
    found = given if uri.ticket is None else uri.ticket
    if found is None:
        found = next((other.ticket for other in uris if other.ticket is not None), None)
    if not found:
        raise UriError(f"{uri.redacted()} has no ticket; add &ticket=NAME to it, or pass ticket=")
    return found


def _check_unsigned(ticket: bytes, selection: str) -> None:
    if ticket.startswith(SIGNED_PREFIX):
        raise UsageError(
            f"the ticket is signed, so {selection} cannot be changed; request another ticket from "
            "the control plane"
        )


def read_dataset_name(ticket: bytes) -> str:
    """Return the dataset that a ticket requests, for errors; ``?`` if the ticket is opaque."""
    if ticket.startswith(SIGNED_PREFIX):
        return UNKNOWN_NAME
    try:
        return Request.parse(ticket).dataset
    except InvalidRequestError:
        return UNKNOWN_NAME


_BARE_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:[0-9]+(/.*)?|\[[0-9A-Fa-f:.]+\]:[0-9]+(/.*)?")
"""Matches ``host:8815`` and ``host:8815/flights``."""
SCHEMES = ("grpc", "grpc+tcp", "grpc+tls")
_EXPECTED = "expected grpc://host:port or grpc+tls://host:port"
HTTP_SCHEMES = ("http", "https")
DATASETS_PATH = "/v1/datasets/"
"""The path of the datasets of a server over HTTP. A path may precede it."""


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


def is_this_host(host: str) -> bool:
    """Return whether a host name denotes this host, without a DNS query."""
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")


def is_http_uri(uri: str | DataUri) -> bool:
    """Return whether a URI is that of a dataset over HTTP."""
    text = uri.scheme if isinstance(uri, DataUri) else uri
    return text.partition(":")[0].lower() in HTTP_SCHEMES


def split_http_dataset(
    uri: str | DataUri, ticket: bytes | str | None = None
) -> tuple[DataUri, str]:
    """Return a server over HTTP, and the name of a dataset, which the URI or the ticket states.

    Raises `UriError` if the URI has parameters, or not exactly one of the two names a dataset.

    Examples
    --------
    >>> server, name = split_http_dataset("https://host/arrow/v1/datasets/trips/data")
    >>> server.address, name
    ('https://host/arrow', 'trips')
    >>> split_http_dataset("http://host:9816/trips")[1]
    'trips'
    """
    parsed = DataUri.parse(uri) if isinstance(uri, str) else uri
    if parsed != DataUri(parsed.scheme, parsed.host, parsed.port, parsed.path):
        raise UriError(
            f"{parsed.address} has parameters; pass them as arguments, such as columns= or limit="
        )
    if not parsed.host:
        raise UriError(f"{parsed.address} has no host; expected {parsed.scheme}://host:port/NAME")
    prefix, separator, rest = parsed.path.partition(DATASETS_PATH)
    path = rest.removesuffix("/data") if separator else parsed.path
    server, name = parsed.replace(path=prefix if separator else ""), path.strip("/")
    given = ticket.decode(errors="replace") if isinstance(ticket, bytes) else ticket
    if given and name:
        raise UriError(f"{parsed.address} already names a dataset; leave the ticket out")
    if not (name or given):
        raise UriError(f"{parsed.address} names no dataset; open {server.address}/NAME")
    return server, name or given or ""


def split_dataset(uri: str | DataUri) -> tuple[str, str | None]:
    """Return the address of a control plane, and the name of the dataset that follows it.

    Raises `UriError` if the URI has parameters.

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

    Raises `UriError` if the scheme is not a control plane's, the host is missing, or the URI has a
    path or parameters. `split_dataset` separates the name of a dataset.

    Examples
    --------
    >>> parse_control_uri("grpc://host").port
    8815
    """
    if isinstance(uri, str) and _is_bare(uri):
        uri = f"grpc://{uri}"
    parsed = DataUri.parse(uri) if isinstance(uri, str) else uri
    if parsed.scheme in HTTP_SCHEMES:
        raise UriError(
            f"{parsed.address} is reached over HTTP; connect to the control plane, as in "
            f"grpc://{parsed.host or 'host'}:{CONTROL_PORT}, or pass {parsed.scheme}://host:port/"
            "NAME to splitarrow.open"
        )
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
    return parsed.replace(port=parsed.port or CONTROL_PORT, path="")


def parse_control_uris(uris: str | DataUri | Sequence[str | DataUri]) -> list[DataUri]:
    """Parse the URIs of one or several control planes and remove duplicates.

    `uris`: the scheme of the first one applies to those without a scheme. Raises `UriError` if
    there is no URI, or one is malformed.

    Examples
    --------
    >>> [uri.address for uri in parse_control_uris("grpc://a,b:9000")]
    ['grpc://a:8815', 'grpc://b:9000']
    """
    parsed: list[DataUri] = []
    for item in [uris] if isinstance(uris, (str, DataUri)) else _list_uris("uri", uris):
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
