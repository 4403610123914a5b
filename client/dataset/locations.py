"""Opening an endpoint at the first of its locations that can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ...errors import (
    ConnectError,
    MissingExtraError,
    NotAPeerError,
    RemoteError,
    SplitArrowError,
    UriError,
    UsageError,
)
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ...protocol.uri import DataUri
from ...transport.registry import find_transport, list_schemes
from ..rpc.channel import FlightChannel
from ..rpc.download import TRANSPORT as DO_GET
from ..rpc.download import FlightStream
from ..rpc.info import REUSE_CONNECTION, Endpoint
from ..stream.blocking import Stream
from ..stream.custom_metadata import CustomMetadata
from ..stream.options import ReadOptions
from ..stream.uris import resolve_uris
from .read_plan import AUTO, ReadPlan

_UNREACHABLE = (ConnectError, NotAPeerError, MissingExtraError, UriError)


class EndpointReader(Protocol):
    """An open endpoint: the interface that `Stream` and `FlightStream` share."""

    @property
    def schema(self) -> pa.Schema:
        """The schema."""
        ...

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer; None if there is none."""
        ...

    @property
    def format(self) -> str:
        """The format of the record batches that arrive."""
        ...

    @property
    def transport(self) -> str:
        """The transport that carries the data."""
        ...

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        ...

    @property
    def schema_metadata(self) -> bytes:
        """The FlatBuffer of the schema message, as it arrived."""
        ...

    def keep_messages(self) -> None:
        """Keep the messages of the batches that are read from now on; see `Stream`."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `Stream` does."""
        ...

    def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; raises as `Stream` does."""
        ...

    def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; raises as `Stream` does."""
        ...

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class _Location(NamedTuple):
    scheme: str
    """The name that `ReadPlan.transport` selects it by."""
    uris: tuple[str, ...]
    """One URI, or a pair of URIs. DoGet needs none."""


def open_endpoint(
    channel: FlightChannel, endpoint: Endpoint, plan: ReadPlan, name: str
) -> EndpointReader:
    """Open an endpoint at the first of its locations that can be reached.

    A ticket may be valid for one use only. After a server has refused it, the other locations are
    not tried.

    Parameters
    ----------
    channel : FlightChannel
        The channel to the server that returned the endpoint.
    endpoint : Endpoint
        The endpoint.
    plan : ReadPlan
        How to read.
    name : str
        The dataset that errors name.

    Raises
    ------
    ConnectError
        If no location can be reached. The message lists the reasons.
    UsageError
        If the endpoint does not offer the transport that the plan requires.
    SplitArrowError
        If the server refuses.
    """
    offered = list(_list_locations(endpoint))
    locations = [location for location in offered if plan.transport in (AUTO, location.scheme)]
    if not locations:
        schemes = ", ".join(dict.fromkeys(location.scheme for location in offered)) or "nothing"
        raise UsageError(
            f"{name!r} is not available over {plan.transport!r}; the server offers {schemes}"
        )
    if len(locations) == 1:
        timeout = plan.options.connect_timeout
        return _open_location(channel, endpoint, locations[0], plan.options, name, timeout)
    timeout = min(plan.location_timeout, plan.options.connect_timeout)
    reasons: list[str] = []
    for location in locations:
        try:
            return _open_location(channel, endpoint, location, plan.options, name, timeout)
        except _UNREACHABLE as error:
            reasons.append(f"{location.scheme}: {error.message}")
        except RemoteError as error:
            # The server cannot share memory, or another host's server has the same socket path.
            if not _is_local_only(location.scheme) or location is locations[-1]:
                raise
            reasons.append(f"{location.scheme}: {error.message}")
    raise ConnectError(f"none of the locations can be reached: {'; '.join(reasons)}", stream=name)


def _is_local_only(scheme: str) -> bool:
    return scheme in list_schemes() and find_transport(DataUri(scheme)).traits.local_only


def _list_locations(endpoint: Endpoint) -> Iterator[_Location]:
    """Yield the locations in the server's order of preference, DoGet last."""
    has_do_get = False
    for uri in endpoint.locations:
        scheme = uri.partition(":")[0].lower()
        if scheme == REUSE_CONNECTION:
            has_do_get = True
        elif not scheme.startswith("grpc"):
            yield _Location(scheme, (uri,))
    if endpoint.pair is not None:
        yield _Location(endpoint.pair[0].partition(":")[0].lower(), endpoint.pair)
    if has_do_get:
        yield _Location(DO_GET, ())


def _open_location(
    channel: FlightChannel,
    endpoint: Endpoint,
    location: _Location,
    options: ReadOptions,
    name: str,
    connect_timeout: float,
) -> EndpointReader:
    if not location.uris:
        required = options.require_transport
        if required not in (None, DO_GET):
            raise ConnectError(f"{name!r} is available over DoGet only; {required} is required")
        return FlightStream(channel, endpoint.ticket, name, options)
    # A consumer that prefetches, as the option says, leaves nothing to its streams.
    prefetch_bytes = None if options.prefetch_bytes is None else 0
    options = replace(
        options,
        connect_timeout=connect_timeout,
        prefetch_bytes=prefetch_bytes,
        tls=channel.tls,
    )
    uris = [DataUri.parse(uri).replace(ticket=None) for uri in location.uris]
    try:
        return Stream(resolve_uris(uris, endpoint.ticket), options)
    except SplitArrowError as error:
        if error.stream in (None, "?"):
            error.stream = name  # A signed ticket is opaque, so the stream has no name.
        raise
