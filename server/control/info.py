"""FlightInfo: the description of a dataset, with the endpoints and locations to read it from.

The locations are the data listeners, under addresses that clients can dial. `build_schema`,
`build_info` and `build_listing` read files: call them on a worker thread.
"""

from __future__ import annotations

import csv
import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from ipaddress import IPv4Address, IPv6Address
from operator import itemgetter
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from ...errors import DatasetError, NotFoundError
from ...formats.arrow.tensors.labels import is_tensor_content
from ...proto import Flight_pb2 as flight
from ...protocol.request import AUTO, FILE, Request
from ...protocol.uri import DataUri, Streams
from ...transport.registry import find_transport
from ..addresses import ANY_INTERFACE, parse_peer
from ..catalog.dataset import ServedDataset, check_version, select_shards
from ..catalog.delta import DeltaDataset
from ..catalog.published import PublishedDataset, PublishedVersion
from ..catalog.selection import Selection
from ..catalog.stored_files import find_stored_files
from ..config.advertised import AdvertisedAddresses
from .call import Call

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location for DoGet on the connection to the control plane."""
HOST_HEADER = "splitarrow-host"
"""The header in which a client sends the host name that it dialled for the control plane."""

PLAN_SECONDS = 300
"""The time for which a client may keep a description and read with its tickets, in seconds."""
_DISCARD_PORT = 9
_MAX_URL_CHARS = 8000
"""The largest URL in characters: the length that RFC 9110 expects every server to support."""
_SMALL_BYTES = 64 << 10
"""The largest stored size of data that is sent with its plan, in bytes. It arrives within the first
window of a stream of HTTP/2."""


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
    """Return the URIs of separate listeners for the metadata and the body stream."""
    found: dict[str, str] = {}
    for uri in listeners:
        if uri.stream is not Streams.BOTH:
            found.setdefault(uri.stream.value, str(host.resolve(uri)))
    return found if len(found) == 2 else {}


def make_url(server: DataUri, request: Request) -> str | None:
    """Return the URL from which a client gets what a request selects; None if it cannot be one.

    Examples
    --------
    >>> make_url(DataUri.parse("http://host:9816"), Request("a/b", columns=("x", "y,z"), shard=3))
    'http://host:9816/v1/datasets/a%2Fb/data?columns=x%2C%22y%2Cz%22&shard=3'
    """
    columns = StringIO()
    csv.writer(columns, lineterminator="").writerow(request.columns or ())
    batches = ",".join(f"{first}:{end}" for first, end in request.batch_ranges or ())
    rows = "" if request.rows is None else f"{request.rows[0]}:{request.rows[1]}"
    compression = None if request.compression == AUTO else request.compression
    parameters = {
        "columns": columns.getvalue() or None,
        "substrait": request.filter,
        "limit": request.limit,
        "offset": request.offset,
        "rows": rows or None,
        "batches": batches or None,
        "shard": request.shard,
        "version": request.version,
        "batch_rows": request.batch_rows,
        "compression": compression,
    }
    query = urlencode({key: value for key, value in parameters.items() if value is not None})
    path = f"/v1/datasets/{quote(request.dataset, safe='')}/data"
    url = f"{server.address}{path}{'?' if query else ''}{query}"
    is_possible = request.format != FILE and not request.current and len(url) <= _MAX_URL_CHARS
    return url if is_possible else None


class HostResolver:
    """Finds the host name under which one client can dial this server's listeners.

    A listener that is bound to one address is dialled there. A listener that is bound to all
    interfaces is dialled under the host name that the client sent, or under the address of the
    interface that faces the client. An advertised address replaces all of these.
    """

    def __init__(
        self, advertised: AdvertisedAddresses, headers: Mapping[str, str], peer: str
    ) -> None:
        self._advertised = advertised
        self._dialled = _parse_host(headers.get(HOST_HEADER, ""))
        self._reader = parse_peer(peer)

    def resolve(self, listener: DataUri) -> DataUri:
        """Return the address under which the client can dial a listener, without its ticket."""
        uri = listener.replace(ticket=None)
        if not uri.host:
            return uri  # a path on this machine
        found = self._advertised.find(uri.scheme, self._reader)
        if found is not None:
            return found.replace(uri)
        if uri.host not in ANY_INTERFACE:
            return uri
        host = self._dialled or _find_facing_host(self._reader, uri.host)
        return uri.replace(host=host)


def _parse_host(text: str) -> str | None:
    """Return the host name or address in a header, or None if it is malformed."""
    host = text.strip().removeprefix("[").removesuffix("]")
    plain = host.replace("-", "").replace(".", "").replace(":", "")
    return host if plain.isascii() and plain.isalnum() and len(host) < 256 else None


def _find_facing_host(peer: IPv4Address | IPv6Address | None, bound: str) -> str:
    """Return our address on the route to a client, in the address family of `bound`."""
    version = 6 if ":" in bound else 4
    if peer is None or peer.is_loopback:
        return ANY_INTERFACE[bound]
    if peer.version != version:
        return socket.gethostname()
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(peer), _DISCARD_PORT))  # finds the route, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


_UNKNOWN = -1
_MAX_ENDPOINTS = 1024
_MAX_PUBLISHED_ENDPOINTS = 1 << 16
"""Higher for published datasets: each of their shards can have replicas on other servers."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a read that one endpoint delivers."""

    request: Request
    """The request for the part alone."""
    rows: int | None
    """The rows of the part's data before filter, offset and limit; None if unknown."""
    nbytes: int | None
    """The stored size of the part's data, in bytes; None if unknown."""
    app_metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The fields for the part in the endpoint's ``app_metadata``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The description of a read, and how much it reads."""

    info: flight.FlightInfo
    """The description, with endpoints to read from."""
    nbytes: int
    """The stored size of the data before columns and rows are selected, in bytes; -1 if unknown."""


def build_schema(call: Call, request: Request) -> bytes:
    """Return the schema of a request's result, as an encapsulated message."""
    dataset = call.find_dataset(request.dataset)
    if isinstance(dataset, (DeltaDataset, PublishedDataset)):
        dataset = dataset.resolve_version(request)
    dataset.update_description()
    return _result_schema(call, request, dataset).serialize().to_pybytes()


def build_info(
    call: Call, request: Request, descriptor: flight.FlightDescriptor
) -> flight.FlightInfo:
    """Return the description of a request's result, with endpoints to read it from."""
    return build_plan(call, request, descriptor).info


def build_plan(call: Call, request: Request, descriptor: flight.FlightDescriptor) -> Plan:
    """Return the description of a request's result, and how much it reads."""
    return _build(call, request, call.find_dataset(request.dataset), descriptor)


def build_listing(call: Call, name: str) -> flight.FlightInfo | None:
    """Return the description of a dataset in a listing, or None if it was just removed.

    A dataset that cannot be read any more is listed too, without counts. Reading it raises
    the reason.
    """
    descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=[name])
    try:
        dataset = call.find_dataset(name)
    except NotFoundError:
        return None
    try:
        return _build(call, Request(name), dataset, descriptor).info
    except DatasetError:
        return _build(call, Request(name), dataset, descriptor, counted=False).info


def _build(
    call: Call,
    request: Request,
    dataset: ServedDataset,
    descriptor: flight.FlightDescriptor,
    *,
    counted: bool = True,
) -> Plan:
    access = call.server.access
    published: PublishedVersion | None = None
    if isinstance(dataset, PublishedDataset):
        dataset = published = dataset.resolve_version(request)
    elif isinstance(dataset, DeltaDataset):
        dataset = dataset.resolve_version(request)
        request = replace(request, version=dataset.version)
    version = dataset.describe_version() if counted else dataset.version
    check_version(request, version)
    schema = _result_schema(call, request, dataset)
    if published is not None or access.signs_tickets:
        # A reader gets the state that is described here. Elsewhere, tickets stay plain names.
        request = replace(request, version=version)
    parts = [_Part(request, None, None)]
    if counted:
        parts = _split_parts(request, dataset, published)
    # Counting the rows notices a file that was replaced. The schema is not older than the version.
    schema = _result_schema(call, request, dataset)
    host = HostResolver(call.server.settings.advertised, call.headers, call.peer)
    locations = [flight.Location(uri=uri) for uri in list_locations(call.server.uris, host)]
    http = call.server.http
    http = None if http is None or is_tensor_content(schema) else host.resolve(http)
    pair = list_stream_pair(call.server.uris, host)
    writers, relay = dataset.writers, call.server.relay
    app_metadata: dict[str, Any] = {
        "dataset": request.dataset,
        "version": version,
        "kind": dataset.kind,
        **({} if writers is None else {"writers": writers.value}),
        **dataset.app_metadata,
        **({"offline": True} if relay is not None and relay.is_offline else {}),
        # A signed ticket is good for one use.
        **({} if access.signs_tickets else {"plan_seconds": PLAN_SECONDS}),
    }
    # Before the tickets are signed: none of them expires earlier.
    expires = None if access.signer is None else Timestamp(seconds=access.signer.next_expiry())
    info = flight.FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        endpoint=[
            flight.FlightEndpoint(
                ticket=flight.Ticket(ticket=access.issue_ticket(part.request, call.principal.name)),
                location=[*locations, *_locate_url(http, part.request)],
                expiration_time=expires,
                app_metadata=_encode_fields({**pair, **part.app_metadata}),
            )
            for part in parts
        ],
        total_records=_sum_known([_count_rows(part) for part in parts]),
        total_bytes=_sum_known([_count_bytes(part) for part in parts]),
        ordered=True,
        app_metadata=json.dumps(app_metadata).encode(),
    )
    return Plan(info, _sum_known([part.nbytes for part in parts]))


def _locate_url(server: DataUri | None, request: Request) -> list[flight.Location]:
    url = None if server is None else make_url(server, request)
    return [] if url is None else [flight.Location(uri=url)]


def prefers_do_get(call: Call, plan: Plan) -> bool:
    """Return whether the caller gets data sooner with its plan than from a data listener.

    The data is small, and a connection to a listener takes a round trip to another host. Data that
    listeners encrypt does not follow on a connection that is not encrypted.
    """
    if not 0 <= plan.nbytes <= _SMALL_BYTES:
        return False
    peer = parse_peer(call.peer)
    if peer is None or peer.is_loopback:
        return False
    if _find_facing_host(peer, "::" if peer.version == 6 else "0.0.0.0") == str(peer):
        return False
    encrypts = any(find_transport(uri).traits.encrypted for uri in call.server.uris)
    return not encrypts or (call.server.settings.control or "").startswith("grpc+tls")


def _result_schema(call: Call, request: Request, dataset: ServedDataset) -> pa.Schema:
    if request.format == FILE:
        return find_stored_files(dataset, request).schema
    as_arrow = replace(request, format=None)
    return Selection.resolve(as_arrow, call.server.encoding, dataset.schema).schema


def _split_parts(
    request: Request, dataset: ServedDataset, published: PublishedVersion | None
) -> list[_Part]:
    """Return a part for each shard, or one part if the shards cannot be read separately."""
    shards = dataset.shards
    max_parts = _MAX_ENDPOINTS if published is None else _MAX_PUBLISHED_ENDPOINTS

    def make_shard_app_metadata(index: int) -> Mapping[str, Any]:
        return {} if published is None else published.make_shard_app_metadata(index)

    if request.shard is not None:
        (shard,) = select_shards(request, shards)
        return [_Part(request, shard.rows, shard.nbytes, make_shard_app_metadata(request.shard))]
    bounds = (request.limit, request.offset, request.batches, request.rows)
    bounded = any(bound is not None for bound in bounds)
    if bounded or not 1 < len(shards) <= max_parts:
        app_metadata = make_shard_app_metadata(0) if len(shards) == 1 and not bounded else {}
        return [_Part(request, dataset.rows, dataset.nbytes, app_metadata)]
    return [
        _Part(
            replace(request, shard=index), shard.rows, shard.nbytes, make_shard_app_metadata(index)
        )
        for index, shard in enumerate(shards)
    ]


def _encode_fields(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() if fields else b""


def _count_rows(part: _Part) -> int | None:
    """Return the number of rows that a part delivers, or None if it is unknown."""
    request, rows = part.request, part.rows
    if request.format == FILE:
        rows = part.nbytes
    if rows is None or request.filter is not None or request.selects_span:
        return None
    rows = max(0, rows - (request.offset or 0))
    return rows if request.limit is None else min(rows, request.limit)


def _count_bytes(part: _Part) -> int | None:
    """Return the stored size of a part in bytes, or None if not all of it is requested."""
    request = part.request
    changes = (
        request.columns,
        request.limit,
        request.compression,
        request.filter,
        request.offset,
        request.batches,
        request.rows,
    )
    return part.nbytes if all(value is None for value in changes) else None


def _sum_known(counts: list[int | None]) -> int:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else _UNKNOWN
