"""The client of several control planes that share datasets, blocking and asynchronous.

It connects to a daemon when it first needs it, and calls all daemons at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import pyarrow as pa

from ...errors import (
    ClosedError,
    ConnectError,
    DatasetError,
    DeniedError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
    StallError,
    UsageError,
    remote_error,
)
from ...formats.text import describe_lines, format_count, html_list
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ...transport.tls_options import TlsOptions
from ..arguments import ReadPlan
from ..dataset.aio import AsyncBaseClient, AsyncClient, run_in_thread
from ..dataset.client import BaseClient, CallForShards, Client, ConnectArguments
from ..dataset.endpoints import TRANSIENT, Replica, ResumableEndpoint, draw_pause
from ..dataset.requests import (
    Descriptions,
    check_name,
    format_ranges,
    list_ordinals,
    pin_version,
    select_endpoints,
)
from ..failures import FailureMemory
from ..rpc.errors import restate_error
from ..rpc.info import DatasetInfo
from ..tokens import Token, TokenFile, TokenSource, parse_token
from ..uris import is_this_host
from .info import (
    DaemonInfo,
    MergedDataset,
    ReplicaInfo,
    list_holders,
    merge,
    merge_for_listing,
)

_MAX_THREADS = 32
_SLOW_SECONDS = 1.0
"""A daemon that takes longer than this to fail is not called by the reads that follow."""
_BRIEF_SECONDS = 0.75
"""How long a read waits for a daemon whose last call took long to fail."""
_RECONNECT_TIMEOUT = 2.0
"""The longest time limit to connect to a daemon after the first attempt, in seconds."""
T = TypeVar("T")


class DaemonConnection:
    """A connection to one daemon, which is made when it is needed.

    The parameters are those of `Client`.
    """

    def __init__(
        self, uri: DataUri, token: TokenSource | None, **options: Unpack[ConnectArguments]
    ) -> None:
        self.address = uri.address
        """The control plane, as scheme, host and port."""
        self.is_local = is_this_host(uri.host)
        """Whether the daemon runs on this host."""
        self._uri = uri
        self._token = token
        self._options = options
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._closed = False

    def client(self) -> Client:
        """Return the client of the daemon; connect if there is none yet."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the client of {self.address} is closed")
            if self._client is None:
                options = self._options.copy()
                timeout = options.get("connect_timeout", _RECONNECT_TIMEOUT)
                self._options["connect_timeout"] = min(timeout, _RECONNECT_TIMEOUT)
                self._client = Client(self._uri, self._token, **options)
            return self._client

    def close(self) -> None:
        """Close the connection, if there is one. Idempotent."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()


class DaemonPool:
    """Calls all daemons of a cluster at once. It owns the connections. Safe for several threads."""

    def __init__(self, connections: Sequence[DaemonConnection]) -> None:
        self.connections = {connection.address: connection for connection in connections}
        """The daemons by their addresses."""
        self.failures: dict[str, SplitArrowError] = {}
        """The daemons that failed in the last call, and their errors. One that does not have
        what the call names has not failed."""
        self.slow = FailureMemory()
        """The daemons that took long to fail."""
        self.unreachable = FailureMemory()
        """The daemons whose data could not be read."""
        self._executor = ThreadPoolExecutor(
            min(len(connections), _MAX_THREADS), thread_name_prefix="splitarrow-cluster"
        )
        self._closed = False

    def call_all(
        self, function: Callable[[Client], T], *, skips_slow: bool = False
    ) -> dict[str, T | SplitArrowError]:
        """Call a function with the client of each daemon; return the results or the errors.

        A `UsageError` is raised, because the arguments are then invalid at every daemon. With
        `skips_slow`, a daemon that took long to fail is not called for a while, and then only
        waited for briefly. It has the error of its last call.
        """
        if self._closed:
            raise self._closed_error()

        def call(connection: DaemonConnection) -> T | SplitArrowError:
            started = time.monotonic()
            try:
                result = function(connection.client())
            except UsageError:
                raise
            except SplitArrowError as error:
                if isinstance(error, TRANSIENT) and time.monotonic() - started > _SLOW_SECONDS:
                    self.slow.add(connection.address)
                return error
            self.slow.discard(connection.address)
            return result

        skipped = {
            address: self.failures.get(address, ConnectError(f"{address} failed lately"))
            for address in (self.connections if skips_slow else ())
            if address in self.slow
        }
        try:
            futures = {
                address: self._executor.submit(copy_context().run, call, connection)
                for address, connection in self.connections.items()
                if address not in skipped
            }
        except RuntimeError as error:
            # Another thread closed the pool meanwhile.
            raise self._closed_error() from error
        results: dict[str, T | SplitArrowError] = {**skipped}
        suspects = [each for each in futures if skips_slow and self.slow.has_failed(each)]
        for address in (*(each for each in futures if each not in suspects), *suspects):
            try:
                seconds = _BRIEF_SECONDS if address in suspects else None
                results[address] = futures[address].result(seconds)
            except TimeoutError:
                self.slow.add(address)
                results[address] = StallError(f"{address} has failed and does not respond yet")
        results = {address: results[address] for address in self.connections}
        self.failures = _select_failures(select_errors(results))
        return results

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the client of {','.join(self.connections)} is closed")

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        self._executor.shutdown(wait=False)
        for connection in self.connections.values():
            connection.close()


def select_errors(results: Mapping[str, object]) -> dict[str, SplitArrowError]:
    """Return the errors among the results of `DaemonPool.call_all`."""
    return {
        address: result
        for address, result in results.items()
        if isinstance(result, SplitArrowError)
    }


def _select_failures(errors: Mapping[str, SplitArrowError]) -> dict[str, SplitArrowError]:
    """Return the errors of daemons that have failed, rather than lack what a call names."""
    return {
        address: error for address, error in errors.items() if not isinstance(error, NotFoundError)
    }


def call_for_merged_shards(
    pool: DaemonPool,
    merged: MergedDataset,
    call: CallForShards[T],
    request: Request,
    timeout: float,
) -> dict[int, T]:
    """Return the results of an action for each shard, by ordinal.

    A daemon performs it for all its shards. Another daemon is asked only for shards that are
    missing. The time limit, in seconds, applies to each daemon.
    """
    missing = dict(enumerate(list_ordinals(merged.info)))
    found: dict[int, T] = {}
    failure: SplitArrowError | None = None
    for address, replicas in list_holders(merged).items():
        if not missing.keys() & replicas.keys():
            continue
        version = next(iter(replicas.values())).version
        try:
            client = pool.connections[address].client()
            results = call(client.channel, replace(request, version=version), timeout)
        except TRANSIENT as error:
            failure = error
            continue
        for index, replica in replicas.items():
            result = results.get(replica.shard or 0)
            if index in missing and result is not None:
                found[missing.pop(index)] = result
    if missing:
        raise failure or DatasetError(
            f"no daemon measured shard {format_ranges(missing.values())} of {request.dataset!r}",
            stream=request.dataset,
        )
    return dict(sorted(found.items()))


_COMMIT_RETRIES = 4
"""The number of retries while the daemons commit a publication one after the other."""
_REQUEST_ERRORS = ("INVALID_ARGUMENT", "UNIMPLEMENTED")
"""The codes of errors that every daemon would return for the same request."""


class ClusterClient(BaseClient):
    """A client of several daemons that share datasets, which it reads as one.

    `splitarrow.connect` returns it for several URIs. It is a context manager, and safe to use from
    several threads.

    Shards with the same snapshot and ordinal are replicas. The client reads each shard once, from
    any daemon that holds it. A daemon that fails is tried again by each later call; see `absent`.
    One that took long to fail is left out by reads that do not need it, for 30 s up to 5 minutes.
    Operations on a single daemon, such as uploads, are methods of the client that `at` returns.

    Parameters
    ----------
    uris : sequence of DataUri
        The control planes.
    token, token_file, tls, connect_timeout, timeout
        See `splitarrow.connect`. All daemons get the same token.

    Raises
    ------
    DeniedError
        If all daemons reject the token.
    ConnectError
        If no daemon responds.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> one, two = (
    ...     splitarrow.serve({name: pyarrow.table({"n": [1]})}, control="grpc://127.0.0.1:0")
    ...     for name in ("flights", "trips")
    ... )
    >>> with one, two, splitarrow.connect([one.control_uri, two.control_uri]) as client:
    ...     [info.name for info in client.datasets()]
    ['flights', 'trips']
    """

    def __init__(
        self,
        uris: Sequence[DataUri],
        token: Token | None = None,
        *,
        token_file: TokenFile = None,
        tls: TlsOptions | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 30.0,
    ) -> None:
        options = ConnectArguments(tls=tls, connect_timeout=connect_timeout, timeout=timeout)
        self._descriptions = Descriptions[MergedDataset]()
        source = parse_token(token, token_file)
        self._copy = partial(type(self), uris, source, **options)
        self._pool = DaemonPool([DaemonConnection(uri, source, **options) for uri in uris])
        try:
            self._pool.call_all(lambda client: None)
            if len(self.absent) == len(self._pool.connections):
                raise _no_response(self.absent)
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        """The addresses of the control planes, separated by commas."""
        return ",".join(self._pool.connections)

    @property
    def uris(self) -> list[str]:
        """The addresses of the control planes."""
        return list(self._pool.connections)

    @property
    def absent(self) -> Mapping[str, SplitArrowError]:
        """The daemons that failed in the last call to all daemons, and their errors."""
        return self._pool.failures

    def at(self, uri: str) -> Client:
        """Return the client of one daemon. It belongs to the cluster client, which closes it.

        Parameters
        ----------
        uri : str
            The address of the daemon, one of `uris`.

        Raises
        ------
        UsageError
            If the cluster does not contain the daemon.
        ConnectError
            If the daemon does not respond.
        """
        connection = self._pool.connections.get(uri)
        if connection is None:
            raise UsageError(f"{uri} is not a daemon of this cluster; expected one of {self.uri}")
        return connection.client()

    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets of all daemons that the caller may read, by name.

        A dataset that cannot be read is listed with the kind ``incomplete``: shards are missing,
        or daemons have different datasets of that name. `info` raises an error with the reason.

        Parameters
        ----------
        glob : str, optional
            A pattern for names, such as ``flights-*``. `None` lists all datasets.
        """
        listings = self._pool.call_all(lambda client: client.datasets(glob))
        names: dict[str, None] = {}
        for listing in listings.values():
            if not isinstance(listing, SplitArrowError):
                names.update(dict.fromkeys(info.name for info in listing))
        if not names and (errors := select_errors(listings)):
            raise next(iter(errors.values()))
        return [merge_for_listing(name, _select_infos(name, listings)) for name in names]

    def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes.

        The version is the snapshot of the publication. The endpoints are in the order of the
        dataset, and name the daemons that hold them.

        Raises
        ------
        NotFoundError
            If no daemon has the dataset.
        ConnectError, DatasetError
            If shards are missing, or daemons have different datasets of that name.
        RemoteError
            With the code FAILED_PRECONDITION, if the request names another version.
        """
        return self.describe_replicas(request).info

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset; raises as `info` does."""
        return self.info(name).schema

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published, from every daemon that has it.

        Raises
        ------
        NotFoundError
            If no daemon has the dataset.
        SplitArrowError
            If a daemon does not respond or refuses. The others have dropped the dataset.
        """
        check_name(name)
        results = self._pool.call_all(lambda client: client.drop(name))
        errors = select_errors(results)
        if failures := _select_failures(errors):
            raise restate_error(
                next(iter(failures.values())),
                f"{name!r} was not dropped at every daemon: {_join_errors(failures)}",
                name,
            )
        if len(errors) == len(results):
            raise NotFoundError(
                f"none of the daemons {self.uri} has an upload or publication {name!r}",
                stream=name,
            )

    def status(self) -> dict[str, Any]:
        """Return the status of each daemon: ``{"daemons": {address: …}}``.

        The status of a daemon that fails is ``{"error": …}``.
        """
        results = self._pool.call_all(lambda client: client.status())
        return {
            "daemons": {
                address: {"error": str(result)} if isinstance(result, SplitArrowError) else result
                for address, result in results.items()
            }
        }

    def close(self) -> None:
        """Close the connections to all daemons. Idempotent."""
        self._pool.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the addresses and the arguments, token included. The copy connects by itself."""
        return self._copy, ()

    def __repr__(self) -> str:
        count, absent = format_count(len(self.uris), "daemon"), len(self.absent)
        facts = [count, *([f"{absent} without a response"] if absent else [])]
        return describe_lines("ClusterClient", facts, self.uri)

    def _repr_html_(self) -> str:
        return html_list("ClusterClient", [format_count(len(self.uris), "daemon")], self.uris)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Point from an operation on a single daemon to `at`."""
            if not name.startswith("_") and hasattr(Client, name):
                raise AttributeError(
                    f"a ClusterClient has no {name!r}, an operation on a single daemon; "
                    f"use client.at(uri).{name}",
                    name=name,
                    obj=self,
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )

    def describe_replicas(self, request: Request) -> MergedDataset:
        """Describe a dataset as all daemons have it together; raises as `describe` does."""
        # Each daemon numbers its versions by itself. Only the snapshot is common to all.
        merged = self._merge_settled(replace(request, version=None))
        if request.version not in (None, merged.info.version):
            raise remote_error(
                "FAILED_PRECONDITION",
                f"the dataset {request.dataset!r} changed: version {request.version} was "
                f"requested, and the current version is {merged.info.version}",
                stream=request.dataset,
            )
        return merged

    def _merge_settled(self, request: Request) -> MergedDataset:
        """Merge the responses of all daemons; wait a little while they commit a publication."""
        pool = self._pool
        if any(pool.slow.has_failed(address) for address in pool.connections):
            try:
                return merge(request.dataset, self._describe_each(request, skips_slow=True))
            except (DatasetError, ConnectError, NotFoundError):
                pass  # a daemon that was not called may have what is missing
        for retry in range(_COMMIT_RETRIES):
            infos = self._describe_each(request)
            try:
                return merge(request.dataset, infos)
            except DatasetError:
                snapshots = {info.dataset.snapshot for info in infos if info.dataset is not None}
                if len(snapshots) < 2 or "" in snapshots:
                    raise
            time.sleep(draw_pause(retry))
        return merge(request.dataset, self._describe_each(request))

    def _describe_each(self, request: Request, *, skips_slow: bool = False) -> list[DaemonInfo]:
        """Describe a dataset at each daemon; raise the error if the request itself is invalid."""
        results = self._pool.call_all(
            lambda client: client.describe(request), skips_slow=skips_slow
        )
        for result in results.values():
            if isinstance(result, RemoteError) and result.code in _REQUEST_ERRORS:
                raise result
        return [DaemonInfo.of(address, result) for address, result in results.items()]

    def _call_for_shards(
        self, call: CallForShards[T], request: Request, timeout: float
    ) -> dict[int, T]:
        merged = self.describe_replicas(request)
        return call_for_merged_shards(self._pool, merged, call, request, timeout)

    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        span = request if request.selects_span else None
        limit = request.limit
        request = replace(request, limit=None, batches=None, rows=None)
        if span is None:
            merged = self.describe_replicas(request)
        else:
            merged = self._descriptions.get(request, self.describe_replicas)
            if shards is None and len(merged.info.endpoints) > 1:
                raise UsageError(
                    f"{request.dataset!r} has several shards in this cluster, and batches and "
                    "rows are counted in one shard; name it with shards",
                    stream=request.dataset,
                )
        request = replace(span or request, version=None, limit=None)
        endpoints: list[ResumableEndpoint] = []
        for index in select_endpoints(merged.info, shards):
            if limit is not None and limit <= 0:
                break
            endpoint = merged.info.endpoints[index]
            replicas = [
                # The tickets of `merged` are for all rows.
                self._plan_replica(replica, request, with_ticket=limit is None and span is None)
                for replica in self._order_replicas(merged.replicas[index], index)
            ]
            endpoints.append(
                ResumableEndpoint(
                    replicas,
                    request.dataset,
                    plan,
                    limit=limit,
                    ordinal=index if endpoint.ordinal is None else endpoint.ordinal,
                    unreachable=self._pool.unreachable,
                )
            )
            # With a filter, the total is unknown, and so is the number of rows of a shard.
            if limit is not None and endpoint.rows is not None and merged.info.rows is not None:
                limit -= endpoint.rows
        return merged.info.schema, endpoints

    def _plan_replica(self, info: ReplicaInfo, request: Request, *, with_ticket: bool) -> Replica:
        endpoint = info.endpoint
        if info.shard is not None:
            endpoint = pin_version(endpoint, info.version)
        client = self._pool.connections[info.address].client()
        return Replica(
            client.channel,
            client.describe,
            request,
            info.version,
            info.shard,
            endpoint if with_ticket else None,
        )

    def _order_replicas(self, replicas: Sequence[ReplicaInfo], index: int) -> list[ReplicaInfo]:
        """Return the local replicas first, and start at another one for each endpoint.

        This distributes the endpoints of a read evenly over equivalent daemons.
        """
        start = index % len(replicas)
        rotated = [*replicas[start:], *replicas[:start]]
        connections = self._pool.connections
        return sorted(rotated, key=lambda replica: not connections[replica.address].is_local)


def _select_infos(
    name: str, listings: Mapping[str, list[DatasetInfo] | SplitArrowError]
) -> list[DaemonInfo]:
    """Return what each daemon listed for one dataset."""
    infos: list[DaemonInfo] = []
    for address, listing in listings.items():
        if isinstance(listing, SplitArrowError):
            result: DatasetInfo | SplitArrowError = listing
        else:
            found = next((info for info in listing if info.name == name), None)
            result = found or NotFoundError(f"no dataset {name!r}", stream=name)
        infos.append(DaemonInfo.of(address, result))
    return infos


def _no_response(errors: Mapping[str, SplitArrowError]) -> SplitArrowError:
    """Return the error for a cluster none of whose daemons can be used."""
    denied = all(isinstance(error, DeniedError) for error in errors.values())
    error = next(iter(errors.values())) if denied else ConnectError("")
    return restate_error(error, f"no daemon responds: {_join_errors(errors)}", None)


def _join_errors(errors: Mapping[str, SplitArrowError]) -> str:
    return "; ".join(f"{address}: {error}" for address, error in errors.items())


class AsyncClusterClient(AsyncBaseClient[ClusterClient]):
    """The asynchronous form of `ClusterClient`: an async context manager.

    `splitarrow.aio.connect` returns it for several URIs. It connects when the context is entered.
    """

    @property
    def uris(self) -> list[str]:
        """The addresses of the control planes."""
        return self._entered.uris

    @property
    def absent(self) -> Mapping[str, SplitArrowError]:
        """The daemons that failed in the last call to all daemons, and their errors."""
        return self._entered.absent

    async def at(self, uri: str) -> AsyncClient:
        """Return the client of one daemon, connected; see `ClusterClient.at`."""
        client = await run_in_thread(partial(self._entered.at, uri))
        return AsyncClient.of(client)
