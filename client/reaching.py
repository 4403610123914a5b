"""Which way to the data: the first location of an endpoint that can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from ..errors import (
    ConnectError,
    MissingExtraError,
    NotAPeerError,
    RemoteError,
    SplitArrowError,
    UriError,
    UsageError,
)
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .blocking import Stream
from .calls import Caller
from .described import DO_GET, Endpoint
from .download import SCHEME, FlightStream
from .reader import ReadOptions, resolve

AUTO = "auto"


class Part(Protocol):
    """An endpoint being read: what `Stream` and `FlightStream` have in common."""

    @property
    def schema(self) -> pa.Schema: ...  # noqa: D102
    @property
    def transport(self) -> str: ...  # noqa: D102
    @property
    def bytes_received(self) -> int: ...  # noqa: D102
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def __next__(self) -> pa.RecordBatch: ...
    def cancel(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Way:
    """How an endpoint is reached."""

    caller: Caller
    """The control plane."""
    options: ReadOptions
    """How to read."""
    transport: str = AUTO
    """The scheme to take; ``flight`` is DoGet; ``auto`` takes the first that answers."""
    budget: float = 2.0
    """The longest time that connecting to one of several locations may take, in seconds."""
    tls: TlsOptions | None = None
    """What to trust and to show."""


def reach(way: Way, endpoint: Endpoint, name: str) -> Part:
    """Open an endpoint by the first of its locations that can be reached.

    A ticket may be good for one use: the next location is tried where no server was met, and not
    where one has refused.

    Raises
    ------
    ConnectError
        If none can be reached; it says why for each.
    UsageError
        If the transport that is wanted is not offered; it says what is.
    SplitArrowError
        If the server refuses.
    """
    offered = list(_offers(endpoint))
    wanted = [(scheme, uris) for scheme, uris in offered if way.transport in (AUTO, scheme)]
    if not wanted:
        there = ", ".join(dict.fromkeys(scheme for scheme, _ in offered)) or "nothing"
        raise UsageError(f"{name!r} is not offered by {way.transport!r}, but by {there}")
    reasons: list[str] = []
    for index, (scheme, uris) in enumerate(wanted):
        try:
            return _open(way, endpoint, name, uris, alone=len(wanted) == 1 and not index)
        except (ConnectError, NotAPeerError, MissingExtraError, UriError) as error:
            if len(wanted) == 1:
                raise
            reasons.append(f"{scheme}: {error.message}")
        except RemoteError as error:
            # It has no memory to share, or is another host's server at the same path.
            if scheme != "shm" or index == len(wanted) - 1:
                raise
            reasons.append(f"{scheme}: {error.message}")
    raise ConnectError(f"no location can be reached: {'; '.join(reasons)}", stream=name)


def _offers(endpoint: Endpoint) -> Iterator[tuple[str, list[str]]]:
    """Yield schemes and the URIs that they need, the preferred first; none means DoGet."""
    last: list[tuple[str, list[str]]] = []
    for uri in endpoint.locations:
        scheme = uri.partition(":")[0].lower()
        if scheme == DO_GET:
            last.append((SCHEME, []))
        elif not scheme.startswith("grpc"):
            yield scheme, [uri]
    if endpoint.pair is not None:
        yield endpoint.pair[0].partition(":")[0].lower(), list(endpoint.pair)
    yield from last[:1]


def _open(way: Way, endpoint: Endpoint, name: str, uris: list[str], *, alone: bool) -> Part:
    required = way.options.require_transport
    if not uris:
        if required not in (None, SCHEME):
            raise ConnectError(f"{name!r} would come by DoGet, and {required} is required")
        return FlightStream(way.caller, endpoint.ticket, name, way.options)
    budget = way.options.connect_timeout if alone else min(way.budget, way.options.connect_timeout)
    options = replace(way.options, connect_timeout=budget, prefetch_bytes=0, tls=way.tls)
    parsed = [DataUri.parse(uri).replace(ticket=None) for uri in uris]
    try:
        return Stream(resolve(parsed, endpoint.ticket), options)
    except SplitArrowError as error:
        if error.stream in (None, "?"):
            error.stream = name  # a signed ticket does not tell
        raise
