"""One endpoint of a dataset, read to its end over as many connections as it takes.

A read tries the replicas of an endpoint in order, and the locations of each replica. After a
failure it pauses, and continues at the row where it stopped.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    InvalidDataError,
    MissingExtraError,
    NotAPeerError,
    RemoteError,
    SplitArrowError,
    StallError,
    UnavailableError,
    UriError,
    UsageError,
    remote_error,
)
from ...formats.arrow.tensors.tensor import AnyTensor
from ...protocol.request import FILE, SIGNED_PREFIX, Request
from ...protocol.uri import DataUri
from ...transport.registry import find_transport, list_schemes
from ..arguments import AUTO, ReadPlan, StreamOptions
from ..failures import FailureMemory
from ..http.download import HttpServer, HttpStream, open_with_token
from ..rpc.channel import FlightChannel, limit_calls
from ..rpc.download import TRANSPORT as DO_GET
from ..rpc.download import FlightStream
from ..rpc.errors import restate_error
from ..rpc.info import REUSE_CONNECTION, DatasetInfo, Endpoint
from ..stream.batch_stream import CustomMetadata
from ..stream.opening import Opening
from ..stream.stream import Stream
from ..stream.tracing import activate
from ..tokens import renewal_margin
from ..uris import DATASETS_PATH, HTTP_SCHEMES, resolve_uris

FIRST_PAUSE_SECONDS = 0.1
"""The longest pause before the first retry. Each further retry doubles it."""
MAX_PAUSE_SECONDS = 5.0
"""The longest pause."""
RETRY_SECONDS = 5.0
"""How much longer than `stall_timeout` a read waits for a batch, over all attempts."""


def draw_pause(retry: int) -> float:
    """Draw the pause before a retry in seconds: between half of its longest pause and all of it."""
    longest = min(FIRST_PAUSE_SECONDS * 2.0**retry, MAX_PAUSE_SECONDS)
    return longest * random.uniform(0.5, 1)


BROKEN = (ConnectionLostError, StallError)
"""Errors of a connection that worked before."""
TRANSIENT = (*BROKEN, ConnectError, NotAPeerError, UnavailableError)
"""Errors that a later attempt may not meet, for example while a server restarts. A connection that
ends before its preface raises NotAPeerError."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server that holds the rows of an endpoint, and how to request them there."""

    channel: FlightChannel | HttpServer
    """The channel to the server, or where it listens."""
    describe: Callable[[Request], DatasetInfo]
    """Requests a new ticket from the server."""
    request: Request
    """The request for the rows of the endpoint, or for the dataset that has them as a shard."""
    version: str
    """The version of the dataset at the server; empty if unknown, which disables resuming. The
    first response over HTTP may state it."""
    shard: int | None
    """The index of the shard at the server; None if it is that of the request, or all rows."""
    endpoint: Endpoint | None
    """The endpoint to open first; None to request it when it is needed."""
    known: Endpoint | None = None
    """An endpoint to try before one is requested. It may be out of date."""


class ReplicaSet:
    """The replicas of one endpoint, the current one, and the failed attempts.

    The replicas are in order of preference. All endpoints of a read share the unreachable
    addresses; those of a cluster's client share them across reads.
    """

    def __init__(
        self, replicas: Sequence[Replica], attempts: int, unreachable: set[str] | FailureMemory
    ) -> None:
        self._replicas = list(replicas)
        self._attempts = attempts
        self._unreachable = unreachable
        self._index = 0
        self._failed_attempts = 0
        self._reasons: dict[str, str] = {}

    @property
    def current(self) -> Replica:
        """The replica that is in use."""
        return self._replicas[self._index]

    @property
    def is_single(self) -> bool:
        """Whether only one replica is left."""
        return len(self._replicas) == 1

    @property
    def can_resume(self) -> bool:
        """Whether a read that breaks may continue."""
        return bool(self.current.version and self._attempts)

    @property
    def reasons(self) -> str:
        """The last error of each server, as one text."""
        return "; ".join(f"{address}: {reason}" for address, reason in self._reasons.items())

    def prefer_reachable(self) -> None:
        """Move the servers that failed lately to the end."""
        self._replicas.sort(key=lambda each: each.channel.address in self._unreachable)

    def record_success(self, version: str = "") -> None:
        """Record that the current replica is reachable, and its version unless it is known."""
        self._unreachable.discard(self.current.channel.address)
        if not self.current.version:
            self._replicas[self._index] = replace(self.current, version=version)

    def record_failure(self, error: SplitArrowError) -> None:
        """Record an error of the current replica."""
        address = self.current.channel.address
        self._reasons[address] = error.message
        if isinstance(error, TRANSIENT):
            self._unreachable.add(address)

    def reset_attempts(self) -> None:
        """Forget the failed attempts, after rows have arrived."""
        self._failed_attempts = 0

    def drop_current(self) -> bool:
        """Drop the current replica, which refuses; return whether others are left.

        The last replica stays, so that `current` is always defined.
        """
        if self.is_single:
            return False
        del self._replicas[self._index]
        # The next attempt advances the index, to the replica after the one that was dropped.
        self._index = (self._index or len(self._replicas)) - 1
        return True

    def next_attempts(
        self,
        pause: Callable[[float], object],
        *,
        limit: int | None = None,
        start_with_current: bool = False,
    ) -> Iterator[Replica]:
        """Yield the replica for each further attempt, which becomes the current one.

        A pause precedes each round over all replicas; see `draw_pause`. Without a limit, each
        replica gets the number of attempts of the set.
        """
        advance = not start_with_current
        while self._failed_attempts < self._limit(limit):
            rounds, position = divmod(self._failed_attempts, len(self._replicas))
            if not position:
                pause(draw_pause(rounds))
            self._failed_attempts += 1
            if advance:
                self._index = (self._index + 1) % len(self._replicas)
            advance = True
            yield self.current

    def _limit(self, limit: int | None) -> int:
        return self._attempts * len(self._replicas) if limit is None else limit

    def __len__(self) -> int:
        return len(self._replicas)


_UNREACHABLE = (ConnectError, NotAPeerError, MissingExtraError, UriError)


EndpointReader = Stream | FlightStream | HttpStream
"""An open endpoint."""


class _Location(NamedTuple):
    scheme: str
    """The name that `ReadPlan.transport` selects it by."""
    uris: tuple[str, ...]
    """One URI, or a pair of URIs. DoGet needs none."""


def open_endpoint(
    channel: FlightChannel | HttpServer, endpoint: Endpoint, plan: ReadPlan, name: str
) -> EndpointReader:
    """Open an endpoint at the first of its locations that can be reached.

    Locations that failed lately are tried last. A ticket may be valid for one use only. After a
    server has refused it, the other locations are not tried. If no location can be reached, the
    `ConnectError` lists the reasons.
    """
    offered = list(_list_locations(endpoint))
    locations = [each for each in offered if _is_selected(each.scheme, plan.transport)]
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
    failed = channel.failed_locations
    locations.sort(key=lambda location: bool(location.uris) and location.uris[0] in failed)
    for location in locations:
        try:
            reader = _open_location(channel, endpoint, location, plan.options, name, timeout)
        except _UNREACHABLE as error:
            reasons.append(f"{location.scheme}: {error.message}")
        except BROKEN:
            for uri in location.uris:
                failed.add(uri)
            raise
        except RemoteError as error:
            # The server cannot share memory, or another host's server has the same socket path.
            if not _is_local_only(location.scheme) or location is locations[-1]:
                raise
            reasons.append(f"{location.scheme}: {error.message}")
        else:
            for uri in location.uris:
                failed.discard(uri)
            return reader
        for uri in location.uris:
            failed.add(uri)
    raise ConnectError(f"none of the locations can be reached: {'; '.join(reasons)}", stream=name)


def _is_selected(scheme: str, transport: str) -> bool:
    return transport in (AUTO, scheme) or (transport == "http" and scheme == "https")


def _is_local_only(scheme: str) -> bool:
    return scheme in list_schemes() and find_transport(DataUri(scheme)).traits.local_only


def _list_locations(endpoint: Endpoint) -> Iterator[_Location]:
    """Yield the locations in the server's order of preference: DoGet and then HTTP last."""
    has_do_get = False
    urls: list[_Location] = []
    for uri in endpoint.locations:
        scheme = uri.partition(":")[0].lower()
        if scheme == REUSE_CONNECTION:
            has_do_get = True
        elif scheme in HTTP_SCHEMES:
            urls.append(_Location(scheme, (uri,)))
        elif not scheme.startswith("grpc"):
            yield _Location(scheme, (uri,))
    if endpoint.pair is not None:
        yield _Location(endpoint.pair[0].partition(":")[0].lower(), endpoint.pair)
    if has_do_get:
        yield _Location(DO_GET, ())
    yield from urls


def _open_location(
    channel: FlightChannel | HttpServer,
    endpoint: Endpoint,
    location: _Location,
    options: StreamOptions,
    name: str,
    connect_timeout: float,
) -> EndpointReader:
    if not location.uris:
        required = options.require_transport
        if required not in (None, DO_GET):
            raise ConnectError(f"{name!r} is available over DoGet only; {required} is required")
        return FlightStream(cast("FlightChannel", channel), endpoint.ticket, name, options)
    # A consumer that prefetches, as the option says, leaves nothing to its streams.
    prefetch_bytes = None if options.prefetch_bytes is None else 0
    options = replace(
        options,
        connect_timeout=connect_timeout,
        prefetch_bytes=prefetch_bytes,
        tls=options.tls or channel.tls,
    )
    if location.scheme in HTTP_SCHEMES:
        return _open_url(channel, endpoint, location.uris[0], options, name)
    uris = [DataUri.parse(uri).replace(ticket=None) for uri in location.uris]
    try:
        return Stream(Opening(resolve_uris(uris, endpoint.ticket), options))
    except SplitArrowError as error:
        if error.stream in (None, "?"):
            error.stream = name  # A signed ticket is opaque, so the stream has no name.
        raise


def _open_url(
    channel: FlightChannel | HttpServer,
    endpoint: Endpoint,
    url: str,
    options: StreamOptions,
    name: str,
) -> HttpStream:
    """Open a location over HTTP: with an unsigned ticket if it is a daemon's, or else as it is.

    Only a daemon gets the token, and not unencrypted if the channel is encrypted.
    """
    bare, request = url.partition("?")[0], None
    if DATASETS_PATH not in bare:
        return HttpStream(url, name, options, is_foreign=True)
    is_plain = channel.uri.scheme == "grpc+tls" and url.lower().startswith("http:")
    if is_plain and channel.current_token():
        raise ConnectError(f"{bare} would transmit the token unencrypted", stream=name)
    if not endpoint.ticket.startswith(SIGNED_PREFIX):
        request = Request.parse(endpoint.ticket)
        if request.current or request.format == FILE:
            raise ConnectError(f"{bare} cannot deliver this kind of request", stream=name)
    return open_with_token(channel, bare if request else url, name, options, request)


_Item = TypeVar("_Item")


class ResumableEndpoint:
    """An endpoint whose read continues over a new connection when one breaks.

    Every row is returned once. After a failure, the read continues after the last row that it
    returned, at the same server or at another replica. The replicas are in order of preference;
    those in `unreachable` are tried last. With an ordinal, errors name it and all servers that were
    tried. A `call` is DoGet at the first replica, which the server has begun.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        name: str,
        plan: ReadPlan,
        *,
        limit: int | None = None,
        ordinal: int | None = None,
        unreachable: set[str] | FailureMemory | None = None,
        is_kept: bool = False,
        call: Any = None,
    ) -> None:
        shared = FailureMemory() if unreachable is None else unreachable
        self._replicas = ReplicaSet(replicas, plan.resume_attempts, shared)
        self._name = name
        self._plan = plan
        self._limit = limit
        self._ordinal = ordinal
        self._call = call
        self._reader: EndpointReader | None = None
        self._earlier_bytes = 0
        self._footer_metadata: CustomMetadata | None = None
        self._keeps_messages = False
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._planned = time.time()
        self.is_kept = is_kept
        """Whether the first endpoint is that of a kept plan, which the server may refuse."""
        self._waits_since = time.monotonic()
        """When the wait for the next batch began."""
        self.rows = 0
        """The number of rows returned so far."""
        self.resumed = 0
        """The number of times that the read continued over a new connection."""
        self.trace_context: Any = None
        """The span of the read, for `activate`: the thread that connects may be another one."""

    @property
    def channel(self) -> FlightChannel:
        """The channel to the control plane in use."""
        return cast("FlightChannel", self._replicas.current.channel)

    @property
    def version(self) -> str:
        """The version of the dataset at the server in use; empty if unknown."""
        return self._replicas.current.version

    @property
    def schema(self) -> pa.Schema:
        """The schema, once the endpoint is open."""
        assert self._reader is not None
        return self._reader.schema

    @property
    def schema_metadata(self) -> bytes:
        """The FlatBuffer of the schema message, once the endpoint is open."""
        assert self._reader is not None
        return self._reader.schema_metadata

    def keep_messages(self) -> None:
        """Keep the messages of all batches; call this before the first one is read."""
        self._keeps_messages = True
        if self._reader is not None:
            self._reader.keep_messages()

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer, once the endpoint is open."""
        return self._footer_metadata

    @property
    def format(self) -> str:
        """The format of the record batches that arrive, once the endpoint is open."""
        assert self._reader is not None
        return self._reader.format

    @property
    def transport(self) -> str:
        """The transport in use; empty if the endpoint is not open."""
        return "" if self._reader is None else self._reader.transport

    @property
    def bytes_received(self) -> int:
        """The size of everything received over all connections, in bytes."""
        reader = self._reader
        return self._earlier_bytes + (0 if reader is None else reader.bytes_received)

    def open(self, *, first: bool = False) -> None:
        """Connect, unless the endpoint is open; raises as `open_endpoint` does.

        The `first` endpoint of a read fails at once if its only server cannot be reached, instead
        of waiting for it.
        """
        if self._cancelled.is_set():
            raise self._cancellation()
        if self._reader is not None:
            return
        self._waits_since = time.monotonic()
        self._replicas.prefer_reachable()
        replica, single = self._replicas.current, self._replicas.is_single
        if self._open_call(replica) or self._open_known(replica):
            return
        if self.is_kept:
            # A server may need long for the first message, but not to accept a connection.
            options = self._plan.options
            seconds = min(options.connect_timeout, RETRY_SECONDS)
            options = replace(options, connect_timeout=seconds)
            self._connect(replica, replica.endpoint, plan=replace(self._plan, options=options))
            return
        endpoint = None if self._is_expiring(replica) else replica.endpoint
        try:
            self._connect(replica, endpoint)
        except TRANSIENT as error:
            self._replicas.record_failure(error)
            unreachable = first and single and not isinstance(error, BROKEN)
            if unreachable or not self._replicas.can_resume:
                raise self._add_context(error) from None
            self._reconnect(error, limit=2 * len(self._replicas) if first else None)
        except RemoteError as error:
            self._replicas.record_failure(error)
            if not self._replicas.can_resume:
                raise self._add_context(error) from None
            # The ticket may have expired, or a broken connection may have used it up.
            if endpoint is not None and error.code == "UNAUTHENTICATED":
                self._reconnect(error, limit=1 if single else None, start_with_current=True)
            elif self._replicas.drop_current():
                self._reconnect(error)
            else:
                raise self._add_context(error) from None

    def _is_expiring(self, replica: Replica) -> bool:
        """Return whether the ticket of a replica expires so soon that another one is needed.

        By this clock, which may differ from that of the server, it had not expired when it came.
        """
        if replica.endpoint is None or replica.endpoint.expires is None or not replica.version:
            return False
        lifetime = replica.endpoint.expires - self._planned
        return 0 < lifetime - renewal_margin(lifetime) <= time.time() - self._planned

    def _open_call(self, replica: Replica) -> bool:
        """Read from the call that came with the plan, and return whether the endpoint is open."""
        call, self._call = self._call, None
        if call is None:
            return False
        try:
            with activate(self.trace_context):
                reader = FlightStream(self.channel, b"", self._name, self._plan.options, call)
        except (ClosedError, StallError):
            raise
        except SplitArrowError:
            return False  # another read of the endpoint shows whether the error remains
        self._use(reader)
        return True

    def _open_known(self, replica: Replica) -> bool:
        """Open the endpoint that is known without a request, and return whether it is open."""
        if replica.known is None:
            return False
        try:
            self._connect(replica, replica.known)
        except ClosedError:
            raise
        except SplitArrowError:
            return False  # a new ticket shows whether the error remains
        return True

    def next(self) -> pa.RecordBatch | None:
        """Return the next record batch, or None at the end; raises as `Stream` does."""
        if self._reader is None or self._cancelled.is_set():
            self.open()
        self._waits_since = time.monotonic()
        while True:
            assert self._reader is not None
            try:
                batch = next(self._reader, None)
            except (*BROKEN, RemoteError) as error:
                if self._cancelled.is_set():
                    raise self._cancellation() from None
                self._replicas.record_failure(error)
                refused = isinstance(error, RemoteError)
                if not self._replicas.can_resume or (refused and not self._replicas.drop_current()):
                    raise self._add_context(error) from None
                self._reconnect(error)
                continue
            if batch is not None:
                self._replicas.reset_attempts()
                self.rows += batch.num_rows
            return batch

    def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; raises as `Stream` does."""
        return self._next_item(lambda reader: reader.next_tensor())

    def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; raises as `Stream` does."""
        array = self._next_item(lambda reader: reader.next_array())
        self.rows += 0 if array is None else len(array)
        return array

    def _next_item(self, read: Callable[[EndpointReader], _Item]) -> _Item:
        if self._reader is None or self._cancelled.is_set():
            self.open()
        assert self._reader is not None
        try:
            return read(self._reader)
        except (*BROKEN, RemoteError) as error:
            if self._cancelled.is_set():
                raise self._cancellation() from None
            raise self._add_context(error) from None

    def _reconnect(
        self,
        error: SplitArrowError,
        *,
        limit: int | None = None,
        start_with_current: bool = False,
    ) -> None:
        """Continue over a new connection, after the last row that was returned.

        If no attempt is possible, raise `error`.
        """
        schema = self._close_reader()
        for replica in self._replicas.next_attempts(
            self._pause, limit=limit, start_with_current=start_with_current
        ):
            if self._cancelled.is_set():
                raise self._cancellation()
            left = self._seconds_left()
            if left is not None and left <= 0:
                raise self._add_context(self._give_up(error)) from None
            try:
                self._connect(replica, None, schema, left)
            except TRANSIENT as failure:
                error = failure
                self._replicas.record_failure(error)
            except RemoteError as refusal:
                error = self._changed() if refusal.code == "FAILED_PRECONDITION" else refusal
                self._replicas.record_failure(error)
                if not self._replicas.drop_current():
                    break
            else:
                self.resumed += 1
                return
        raise self._add_context(error) from None

    def _pause(self, seconds: float) -> None:
        left = self._seconds_left()
        self._cancelled.wait(seconds if left is None else max(min(seconds, left), 0))

    def _seconds_left(self) -> float | None:
        """Return how long the read may continue to wait for a batch; None without a limit."""
        timeout = self._plan.options.stall_timeout
        if timeout is None:
            return None
        return self._waits_since + timeout + RETRY_SECONDS - time.monotonic()

    def _give_up(self, error: SplitArrowError) -> SplitArrowError:
        """Return the last error of a read that has waited for too long, with the time spent."""
        seconds = time.monotonic() - self._waits_since
        message = f"{error.message}; gave up after {seconds:.0f} s without data (stall_timeout)"
        return restate_error(error, message, self._name)

    def _connect(
        self,
        replica: Replica,
        endpoint: Endpoint | None,
        schema: pa.Schema | None = None,
        seconds: float | None = None,
        plan: ReadPlan | None = None,
    ) -> None:
        """Open an endpoint; by default, request one from the server for the remaining rows.

        Each step ends within the given time.
        """
        plan = plan or self._plan
        if seconds is not None:
            plan = replace(plan, options=plan.options.within(seconds))
        with activate(self.trace_context), limit_calls(seconds):
            endpoint = endpoint or self._request_rest(replica)
            reader = open_endpoint(replica.channel, endpoint, plan, self._name)
        if schema is not None and not reader.schema.equals(schema):
            reader.close()
            raise InvalidDataError("the schema changed during the read", stream=self._name)
        self._use(reader)

    def _use(self, reader: EndpointReader) -> None:
        self._footer_metadata = reader.footer_metadata
        if self._keeps_messages:
            reader.keep_messages()
        with self._lock:
            self._reader = reader
        self._replicas.record_success(reader.version if isinstance(reader, HttpStream) else "")
        if self._cancelled.is_set():
            reader.close()
            raise self._cancellation()

    def _close_reader(self) -> pa.Schema | None:
        """Close the connection in use, and return its schema."""
        reader = self._reader
        if reader is None:
            return None
        self._earlier_bytes += reader.bytes_received
        reader.close()
        with self._lock:
            self._reader = None
        return reader.schema

    def _request_rest(self, replica: Replica) -> Endpoint:
        """Request a ticket for the rows that were not returned yet."""
        base = replica.request
        request = replace(
            base,
            version=replica.version or base.version,
            shard=base.shard if replica.shard is None else replica.shard,
            offset=(base.offset or 0) + self.rows or None,
            limit=None if self._limit is None else self._limit - self.rows,
        )
        try:
            info = replica.describe(request)
        except DeniedError as error:
            if error.code != "UNAUTHENTICATED":
                raise
            after = f"after {self.rows} rows of {self._name!r}" if self.rows else f"{self._name!r}"
            message = f"the server refuses to continue the read {after}: {error.message}"
            raise restate_error(error, message, self._name) from None
        if info.version != replica.version or len(info.endpoints) != 1:
            raise self._changed()
        return info.endpoints[0]

    def _changed(self) -> RemoteError:
        return remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {self._name!r} changed after {self.rows} rows were read, and the "
            "server no longer has the earlier version; read the dataset again",
            stream=self._name,
        )

    def _add_context(self, error: SplitArrowError) -> SplitArrowError:
        """Return the error, with all servers that were tried if several share the dataset."""
        if self._ordinal is None:
            return error
        message = (
            f"cannot read shard {self._ordinal} of {self._name!r} after {self.rows} of its rows; "
            f"the daemons that hold it failed: {self._replicas.reasons}"
        )
        return restate_error(error, message, self._name)

    def _cancellation(self) -> ClosedError:
        return ClosedError("the stream was cancelled", stream=self._name)

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`."""
        self._cancelled.set()
        with self._lock:
            if self._reader is not None:
                self._reader.cancel()

    def close(self) -> None:
        """Close the connection. No other thread may be reading. Idempotent."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            self._reader.close()
