"""The client of one control plane, and the interface that it shares with that of a cluster."""

from __future__ import annotations

import json
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

import pyarrow as pa

from ...errors import NotFoundError, RemoteError, SplitArrowError, UsageError
from ...formats.arguments import (
    check_choice,
    check_integer,
    check_seconds,
    check_text,
    list_items,
    refuse,
)
from ...formats.text import describe_lines, html_lines
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ...transport.grpc_usage import GRPC_USAGE
from ...transport.tls_options import TlsOptions
from ..arguments import AUTO, Read, ReadArguments, ReadPlan, build_request, column_names
from ..rpc.channel import FlightChannel, limit_calls
from ..rpc.info import (
    DatasetInfo,
    PublishResult,
    ShardUploadResult,
    UploadResult,
    count_rows,
    describe,
    list_lengths,
    parse_info,
    parse_result,
    parse_schema,
)
from ..rpc.upload import (
    IfExists,
    Progress,
    encode_publication,
    open_shard,
    read_batches,
    upload_dataset,
    upload_shard,
)
from ..stream.device_stream import wrap_for_device
from ..stream.format_choice import FormatChoice, choose_for_dataset
from ..stream.tracing import trace_plan, trace_read
from ..tokens import Token, TokenFile, TokenSource, parse_token
from ..uris import is_this_host, parse_control_uri
from .requests import (
    Descriptions,
    KeptPlans,
    check_complete,
    check_name,
    list_ordinals,
    pin_version,
    select_endpoints,
    select_span,
)

if TYPE_CHECKING:
    from .dataset import Dataset, DatasetStream
    from .endpoints import ResumableEndpoint


_MAX_SCHEMAS = 64
T = TypeVar("T")
CallForShards = Callable[[FlightChannel, Request, float], dict[int, T]]
"""Performs an action at a server, and returns a result for each of its shards by their indices."""


class ConnectArguments(TypedDict, total=False):
    """The arguments of a connection by keyword; see `splitarrow.connect`."""

    token_file: TokenFile
    tls: TlsOptions | None
    connect_timeout: float
    timeout: float


class BaseClient(Mapping[str, "Dataset"]):
    """A client that lists, describes, reads and drops datasets: a context manager.

    It is also a mapping from the names of the datasets that the caller may read.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The address of the control plane; several are separated by commas."""

    @abstractmethod
    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets that the caller may read."""

    @abstractmethod
    def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes."""

    @abstractmethod
    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return the figures of the server."""

    def info(self, name: str) -> DatasetInfo:
        """Describe a dataset: rows, bytes, schema, version and endpoints.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        """
        return self.describe(build_request(name))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self.info(name).name)
        except NotFoundError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter([info.name for info in self.datasets()])

    def __len__(self) -> int:
        return len(self.datasets())

    def __bool__(self) -> bool:
        return True

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def get(self, name: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Look up a dataset as `dataset` does; return `default` if no such dataset exists."""
        try:
            return self.dataset(name)
        except NotFoundError:
            return default

    def items(self) -> ItemsView[str, Dataset]:
        """List the datasets that the caller may read, with their names."""
        from .dataset import Dataset

        return {info.name: Dataset(self.read, info, self.info) for info in self.datasets()}.items()

    def values(self) -> ValuesView[Dataset]:
        """List the datasets that the caller may read."""
        return dict(self.items()).values()

    def dataset(self, name: str) -> Dataset:
        """Look up a dataset, to read it by ``to_pandas()``, ``head()`` and so on.

        ``client["flights"]`` is the same.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        """
        from .dataset import Dataset  # needed by reads alone

        return Dataset(self.read, self.info(name), self.info)

    def __getitem__(self, name: str) -> Dataset:
        return self.dataset(name)

    @cached_property
    def _plans(self) -> KeptPlans:
        return KeptPlans()

    @cached_property
    def _schemas(self) -> dict[str, tuple[pa.Schema, str]]:
        """The schemas of datasets that were filtered, and the versions that they are of."""
        return {}

    def count_rows(
        self,
        name: str,
        *,
        filter: Any = None,
        version: str | None = None,
        timeout: float = 600.0,
    ) -> dict[int, list[int]]:
        """Count the rows of each stored record batch, or row group of a Parquet file.

        Parameters
        ----------
        name : str
            The dataset.
        filter : str, tuples, or expression, optional
            Count only the rows that it selects; see `read`. The server reads the columns that it
            refers to.
        version : str, optional
            The version to count, as `info` reports it. `None` counts the current version.
        timeout : float
            The time limit for the server, in seconds.

        Returns
        -------
        dict of int to list of int
            For each shard, by its ordinal, the rows of its record batches. A dataset that is not
            published has a shard for each of its endpoints, counted from 0.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        RemoteError
            If the server refuses, for example because the dataset has no random access.

        Examples
        --------
        >>> import pyarrow, pyarrow.compute as pc, splitarrow
        >>> batches = pyarrow.table({"n": [1, 2, 3, 4, 5]}).to_batches(max_chunksize=2)
        >>> server = splitarrow.serve({"numbers": batches}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     client.count_rows("numbers")
        ...     client.count_rows("numbers", filter=pc.field("n") > 3)
        ...     with client.read("numbers", batches=(1, 3)) as stream:
        ...         stream.read_all()["n"].to_pylist()
        {0: [2, 2, 1]}
        {0: [0, 1, 1]}
        [3, 4, 5]
        """
        request = build_request(
            name,
            filter=self._encode_filter(name, filter),
            version=version,
        )
        check_seconds("timeout", timeout)
        return self._call_for_shards(count_rows, request, timeout)

    def list_lengths(
        self,
        name: str,
        column: str,
        *,
        filter: Any = None,
        version: str | None = None,
        timeout: float = 600.0,
    ) -> dict[int, pa.ChunkedArray[Any]]:
        """List the lengths of the lists in a column, without sending their values.

        Of an Arrow file that is not compressed, the server reads only the offsets of the lists.

        Parameters
        ----------
        name : str
            The dataset.
        column : str
            A column of lists, strings or binaries, or a field of structs (``st.x``). The lengths of
            strings and binaries are in bytes. Maps and views of strings have no lengths.
        filter, version, timeout
            Those of `count_rows`.

        Returns
        -------
        dict of int to pyarrow.ChunkedArray
            For each shard, by its ordinal, the length of the list in each selected row: int32, null
            for null. There is a chunk for each record batch that `count_rows` counts.

        Raises
        ------
        NotFoundError
            If no such dataset or column exists.
        InvalidRequestError
            If the values in the column have no lengths.
        LimitError
            If the server sends more lengths than the dataset has rows.
        RemoteError
            If the server refuses, as it does for `count_rows`, or does not know the action.

        Examples
        --------
        >>> import pyarrow, splitarrow
        >>> batches = pyarrow.table({"tokens": [[7, 8, 9], None, [4]]}).to_batches(max_chunksize=2)
        >>> server = splitarrow.serve({"documents": batches}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     lengths = client.list_lengths("documents", "tokens")
        ...     {shard: each.to_pylist() for shard, each in lengths.items()}
        ...     [len(chunk) for chunk in lengths[0].chunks]
        {0: [3, None, 1]}
        [2, 1]
        """
        request = build_request(
            name,
            columns=(column,),
            filter=self._encode_filter(name, filter),
            version=version,
        )
        check_seconds("timeout", timeout)
        return self._call_for_shards(list_lengths, request, timeout)

    @abstractmethod
    def _call_for_shards(
        self, call: CallForShards[T], request: Request, timeout: float
    ) -> dict[int, T]:
        """Return the results of an action for each shard, by ordinal."""

    def read(self, name: str | None = None, **arguments: Unpack[ReadArguments]) -> DatasetStream:
        """Open a dataset for reading.

        Parameters
        ----------
        name : str, optional
            The dataset. Leave it out with `sql`.
        **arguments
            The options; see `ReadArguments`.

        Returns
        -------
        DatasetStream
            A stream that has received its schema. With ``memory`` on a device, a `DeviceStream`.

        Raises
        ------
        UsageError
            If an argument is invalid, or the server does not offer the transport.
        TransportError
            If the data cannot be reached.
        RemoteError
            If the server refuses; `NotFoundError` if no such dataset exists.

        Examples
        --------
        >>> import pyarrow, pyarrow.compute as pc, splitarrow
        >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
        >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
        >>> with server, splitarrow.connect(server.control_uri) as client:
        ...     late = pc.field("delay") > 60
        ...     with client.read("flights", columns=["carrier"], filter=late) as stream:
        ...         stream.read_all()["carrier"].to_pylist()
        ['BB', 'CC']
        """
        read = Read.of(arguments, name)
        if read.sql is not None:
            from .sql import QueryStream

            return QueryStream(self._run_query(read, read.sql))
        if name is None:
            raise UsageError("name a dataset to read, or give sql='SELECT …'")
        return wrap_for_device(self._open(read), read.memory)

    def _run_query(self, read: Read, query: str) -> pa.Table:
        from .sql import run_query

        def open_table(name: str, columns: list[str] | None) -> DatasetStream:
            return self._open(read.selecting(dataset=name, columns=column_names(columns)))

        return run_query(query, self.schema, open_table)

    def _open(self, read: Read) -> DatasetStream:
        """Choose the format, bind the filter, plan the endpoints, and open the first of them."""
        name = read.request.dataset
        with trace_read(name) as trace:
            if read.chooses_format:
                read = read.selecting(format=self._choose_format(read).format)
            request, shards, plan = read.request, read.shards, read.plan
            if request.selects_span and shards is not None and len(shards) != 1:
                span = "rows" if request.batches is None else "batches"
                raise UsageError(
                    f"{span} are selected from one shard; shards names {len(shards)} of {name!r}"
                )
            request, schema, endpoints = self._plan(read)
            while endpoints and endpoints[0].is_kept:
                endpoints[0].trace_context = None if trace is None else trace.context
                try:
                    endpoints[0].open(first=True)
                    break
                except SplitArrowError as error:
                    self._plans.drop(request, error)
                    request, schema, endpoints = self._plan(read)
            several = len(endpoints) > 1
            channels = dict.fromkeys(endpoint.channel for endpoint in endpoints) if several else ()
            window = min(plan.window_bytes, plan.options.max_decoded_bytes)
            from .dataset import DatasetStream  # not needed by a call that fails

            return DatasetStream(
                name,
                schema,
                endpoints,
                plan.parallel,
                window if several else plan.options.window_bytes,
                limit=request.limit if several or shards is not None else None,
                holds=[channel.hold_dataset(name) for channel in channels],
                trace=trace,
            )

    def _plan(self, read: Read) -> tuple[Request, pa.Schema, list[ResumableEndpoint]]:
        """Bind the filter to the schema of the dataset; return the request and its endpoints.

        A schema is kept. It serves as long as the version to read is the one that it is of.
        """
        name = read.request.dataset
        if read.filter is None:
            return self._plan_request(read, read.request)
        known, version = self._schemas.get(name, (None, ""))
        if known is not None:
            with suppress(UsageError, RemoteError):  # the dataset may have changed
                planned = self._plan_request(read, _bind_filter(read, known))
                if planned[2] and {endpoint.version for endpoint in planned[2]} == {version}:
                    return planned
                for endpoint in planned[2]:
                    endpoint.close()
        schema, version = self._read_schema(name)
        if version:
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[name] = schema, version
        return self._plan_request(read, _bind_filter(read, schema))

    def _plan_request(
        self, read: Read, request: Request
    ) -> tuple[Request, pa.Schema, list[ResumableEndpoint]]:
        with trace_plan(request.dataset):
            return request, *self._plan_endpoints(request, read.shards, read.plan)

    def _read_schema(self, name: str) -> tuple[pa.Schema, str]:
        """Return the schema of a dataset, and the version that it is of; empty if unknown."""
        return self.schema(name), ""

    def choose_format(self, name: str) -> FormatChoice:
        """Return what ``format="auto"`` chooses for a dataset, and why; raises as `read` does."""
        return self._choose_format(Read.of({}, name))

    def _choose_format(self, read: Read) -> FormatChoice:
        return choose_for_dataset(self.uri, self._open, read)

    def sql(self, query: str) -> pa.Table:
        """Return the result of a SELECT statement over datasets. DuckDB runs it in this process.

        The tables of the statement are datasets. The server sends only the columns that the
        statement uses, with the rights of the caller and the limits of every other read.

        Parameters
        ----------
        query : str
            The statement, in DuckDB's dialect. Put a name such as ``"a/b"`` in double quotes.

        Raises
        ------
        UsageError
            If the statement is malformed or fails.
        MissingExtraError
            If duckdb is not installed.
        RemoteError
            If the server refuses; `NotFoundError` if a dataset does not exist.
        """
        return self._run_query(Read.of({"sql": check_text("query", query)}), query)

    def _encode_filter(self, name: str, filter: Any) -> str | None:
        if filter is None:
            return None
        from ...filters import encode_filter

        return encode_filter(filter, self.schema(name))

    @abstractmethod
    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        """Return the schema of a selection and the endpoints that deliver it, in order."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections to control planes. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read_request(client: Client, request: Request) -> DatasetStream:
    """Open what a request selects; raises as `Client.read` does."""
    return client._open(replace(_PLAIN_READ, request=request))  # pyright: ignore[reportPrivateUsage]


_PLAIN_READ = Read.of({}, "-")


def _bind_filter(read: Read, schema: pa.Schema) -> Request:
    from ...filters import encode_filter

    return replace(read.request, filter=encode_filter(read.filter, schema))


_USAGE = "list(client) lists the names of the datasets; client[NAME] is one dataset"


class Client(BaseClient):
    """A client of one control plane: lists, reads, uploads and publishes datasets.

    `splitarrow.connect` returns it. It is a context manager, and safe to use from several threads.
    It is a mapping from names to datasets: ``client["flights"]`` is a dataset, and iteration yields
    the names. A client can be pickled: the copy, which has the token too, connects by itself.

    Parameters
    ----------
    uri : str or DataUri
        The control plane: ``grpc://host:port`` or ``grpc+tls://host:port``.
    token, token_file, tls, connect_timeout, timeout
        See `splitarrow.connect`.
    check : bool
        Whether to wait until the server has accepted the token.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
    >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
    >>> with server, splitarrow.connect(server.control_uri) as client:
    ...     [info.name for info in client.datasets()]
    ...     client.info("flights").rows
    ...     with client.read("flights", columns=["delay"], limit=2) as stream:
    ...         stream.read_all().to_pydict()
    ['flights']
    3
    {'delay': [1, 70]}
    """

    def __init__(
        self,
        uri: str | DataUri,
        token: Token | None = None,
        *,
        token_file: TokenFile = None,
        tls: TlsOptions | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 30.0,
        check: bool = True,
    ) -> None:
        for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
            check_seconds(name, seconds)
        self._descriptions = Descriptions[DatasetInfo]()
        self._lost_attempts: dict[str, str] = {}
        """The attempts of uploads, by dataset, to which the server did not respond."""
        source = parse_token(token, token_file)
        self._copy = partial(
            type(self), uri, source, tls=tls, connect_timeout=connect_timeout, timeout=timeout
        )
        self.channel = _open_channel(parse_control_uri(uri), source, tls, timeout, connect_timeout)
        """The gRPC channel to the control plane."""
        try:
            if check:
                self.channel.check_connection(connect_timeout)
        except BaseException:
            self.channel.close()
            raise

    @property
    def uri(self) -> str:
        """The address of the control plane."""
        return self.channel.address

    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets that the caller may read.

        Parameters
        ----------
        glob : str, optional
            A pattern for names, such as ``flights-*``. `None` lists all datasets.
        """
        pattern = "" if glob is None else check_text("glob", glob)
        criteria = flight.Criteria(expression=pattern.encode())
        messages = self.channel.call_stream("ListFlights", criteria.SerializeToString())
        return [parse_info(message) for message in messages]

    def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        RemoteError
            If the server refuses; with the code FAILED_PRECONDITION if it does not have the
            version that the request names.
        """
        if not isinstance(request, Request):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("request", request, "a Request")
        return describe(self.channel, request)

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        """
        descriptor = flight.FlightDescriptor(
            type=flight.FlightDescriptor.PATH, path=[check_name(name)]
        )
        message = descriptor.SerializeToString()
        response = self.channel.call_unary("GetSchema", message, dataset=name)
        return parse_schema(flight.SchemaResult.FromString(response).schema, name)

    def _read_schema(self, name: str) -> tuple[pa.Schema, str]:
        info = self.describe(Request(name, limit=0))
        return info.schema, info.version

    def _call_for_shards(
        self, call: CallForShards[T], request: Request, timeout: float
    ) -> dict[int, T]:
        info = self.describe(request)
        check_complete(info, self.uri)
        request = replace(request, version=request.version or info.version or None)
        results = call(self.channel, request, timeout)
        return {
            ordinal: results[index]
            for ordinal, index in list_ordinals(info).items()
            if index in results
        }

    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        if request.selects_span and (shards is not None or request.version is not None):
            return self._plan_span(request, shards, plan)
        if shards is not None:
            # The server would apply the limit to all shards. The stream applies it to these.
            request = replace(request, limit=None)
        kept, call = self._plans.get(request), None
        info = kept
        if info is None:
            info, call = self._request_plan(request, plan)
            if call is None:
                self._plans.add(request, info)
        try:
            if shards is None and request.shard is None:
                check_complete(info, self.uri)
            indices = select_endpoints(info, shards)
        except BaseException:
            if call is not None:
                call.cancel()
            raise
        from .endpoints import Replica, ResumableEndpoint  # needed by reads alone

        several = len(info.endpoints) > 1

        def plan_endpoint(index: int) -> ResumableEndpoint:
            endpoint = info.endpoints[index]
            confirms = kept is not None and index == indices[0]
            if several or confirms:
                current = confirms and request.version is None
                endpoint = pin_version(endpoint, info.version, current=current)
            shard = index if several else None
            replica = Replica(self.channel, self.describe, request, info.version, shard, endpoint)
            return ResumableEndpoint(
                [replica],
                request.dataset,
                plan,
                limit=request.limit,
                is_kept=confirms,
                call=call,
            )

        return info.schema, [plan_endpoint(index) for index in indices]

    def _request_plan(self, request: Request, plan: ReadPlan) -> tuple[DatasetInfo, Any]:
        """Describe a read; return the call too if the server sends the data along."""
        from ..rpc.download import TRANSPORT as DO_GET
        from ..rpc.download import plan_read

        channel, transport = self.channel, plan.transport
        if not channel.plans_by_do_get or plan.options.require_transport not in (None, DO_GET):
            return self.describe(request), None
        is_near = is_this_host(channel.uri.host) or request.format == "vortex"
        if transport != DO_GET and (transport != AUTO or is_near):
            return self.describe(request), None
        end = time.monotonic() + channel.call_limit()
        found = plan_read(channel, request, transport, plan.options)
        with limit_calls(max(end - time.monotonic(), 0)):
            return found or (self.describe(request), None)

    def _plan_span(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        """Plan to read a part of one shard, or of all, with a known ticket if possible."""
        from .endpoints import Replica, ResumableEndpoint

        info = self._descriptions.get(
            replace(request, batches=None, rows=None, limit=None), self.describe
        )
        if shards is None and request.shard is None:
            check_complete(info, self.uri)
        index, *others = select_endpoints(info, shards)
        shard = index if shards is not None and len(info.endpoints) > 1 else None
        known = select_span(info.endpoints[index], request, info.version, across=bool(others))
        replica = Replica(self.channel, self.describe, request, info.version, shard, None, known)
        endpoint = ResumableEndpoint([replica], request.dataset, plan, limit=request.limit)
        return info.schema, [endpoint]

    def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        if_exists: IfExists = "error",
        progress: Progress | None = None,
    ) -> UploadResult:
        """Upload a dataset. The server commits it when it is complete, or keeps nothing of it.

        If the connection breaks at the end, the dataset may be stored although the call raises.
        Repeat the call with the same client then: it may replace what it has stored itself.

        Parameters
        ----------
        name : str
            The name of the dataset.
        data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or iterable
            The data. An iterable yields record batches. They are sent one by one, so that the
            data need not fit into memory.
        schema : pyarrow.Schema, optional
            The schema of an iterable that yields no record batch.
        if_exists : {"error", "replace"}, optional
            What to do if the name is taken. ``"replace"`` replaces an uploaded dataset, and keeps
            running reads of it. Of several uploads with ``"error"``, exactly one succeeds.
        progress : callable, optional
            Receives the numbers of rows and bytes sent so far, on another thread.

        Raises
        ------
        UsageError
            If an argument is invalid.
        RemoteError
            If the server refuses, with the code ``ALREADY_EXISTS`` if the name is taken.
        """
        check_name(name)
        check_choice("if_exists", if_exists, IfExists)
        found, batches = read_batches(data, schema)
        attempt = self._lost_attempts.pop(name, None) or secrets.token_hex(16)
        try:
            return upload_dataset(self.channel, name, found, batches, attempt, if_exists, progress)
        except BaseException:
            self._lost_attempts[name] = attempt
            raise

    def put_shard(
        self,
        name: str,
        data: Any,
        *,
        job: str,
        ordinal: int,
        schema: pa.Schema | None = None,
        compression: str | None = None,
        progress: Progress | None = None,
    ) -> ShardUploadResult:
        """Upload a shard of a dataset. Readers do not see it before `publish` commits it.

        A shard may be uploaded again, for example after a failure. The last upload before
        `publish` counts.

        Parameters
        ----------
        name : str
            The dataset.
        data : path-like, or any data that `put` accepts
            The contents. A path names an Arrow IPC file.
        job : str
            The publication. All its shards share this name, and no other publication does.
        ordinal : int
            The position of the shard in the whole dataset, at all servers, from 0.
        schema : pyarrow.Schema, optional
            The schema of an iterable that yields no record batch.
        compression : {"none", "lz4", "zstd"}, optional
            The codec at the server. `None` keeps that of the file.
        progress : callable, optional
            Receives the numbers of rows and bytes sent so far, on another thread.

        Raises
        ------
        UsageError
            If an argument is invalid.
        DatasetError
            If the file cannot be read as an Arrow IPC file.
        RemoteError
            If the server refuses.
        """
        with open_shard(data, schema) as shard:
            return upload_shard(
                self.channel, check_name(name), shard, job, ordinal, compression, progress
            )

    def publish(
        self,
        name: str,
        *,
        job: str,
        ordinals: Iterable[int],
        shards_total: int | None = None,
        snapshot: str | None = None,
        mode: str = "overwrite",
        schema: pa.Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> PublishResult:
        """Commit the shards that were uploaded for a job as a version of the dataset.

        Publishing the same job again returns the version that the first call created.

        Parameters
        ----------
        name : str
            The dataset.
        job : str
            The publication.
        ordinals : iterable of int
            The shards that this server must have. It refuses if one is missing.
        shards_total : int, optional
            The number of shards at all servers together. The default is the number of `ordinals`.
        snapshot : str, optional
            The identifier of the publication, equal at all servers. The default is the job.
        mode : {"overwrite", "append"}
            Whether to replace the shards of the previous version or to keep them.
        schema : pyarrow.Schema, optional
            The schema; required if this server gets no shard.
        properties : mapping of str to str, optional
            Further entries for the manifest.

        Raises
        ------
        UsageError
            If an argument is invalid.
        RemoteError
            If the server refuses.
        """
        body = encode_publication(
            check_name(name),
            job=job,
            ordinals=ordinals,
            shards_total=shards_total,
            snapshot=snapshot,
            mode=mode,
            schema=schema,
            properties=properties,
        )
        return parse_result(PublishResult, self.act("publish", body, dataset=name), name)

    def discard(self, name: str, job: str) -> None:
        """Remove the shards that were uploaded for a job and never published."""
        body = json.dumps(
            {"dataset": check_name(name), "job": check_text("job", job)}, ensure_ascii=False
        )
        self.act("discard", body.encode(), dataset=name)

    def announce(
        self,
        name: str,
        shards: Iterable[int],
        *,
        reader: str,
        version: str | None = None,
        position: int = 0,
    ) -> bool:
        """Announce the order in which a reader opens the shards of a published dataset.

        A server with a cache, such as a relay, keeps the shards that are needed soonest, and a
        relay fetches the next ones ahead. The loaders of `splitarrow.pytorch` do this themselves.

        Parameters
        ----------
        name : str
            The dataset.
        shards : iterable of int
            The ordinals of the shards, in order. It replaces the previous order of the reader; an
            empty one ends it. The server uses at most 65536 of them.
        reader : str
            A name of the reader, which is unique among those of the caller. Its announcement ends
            after 15 minutes in which it opens no shard.
        version : str, optional
            The version, as `info` reports it. `None` means the current one.
        position : int
            The number of `shards` that are done.

        Returns
        -------
        bool
            Whether the server uses the order. It does not if it reads the shards from its own disk.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        InvalidRequestError
            If the version has no such shard.
        RemoteError
            If the server refuses, or, with the code UNIMPLEMENTED, is an older one.
        """
        ordinals = list_items("shards", shards, "ordinals of shards")
        values = {
            "dataset": check_name(name),
            "version": None if version is None else check_text("version", version),
            "reader": check_text("reader", reader),
            "shards": [check_integer("an ordinal in shards", each, 0) for each in ordinals],
            "position": check_integer("position", position, 0),
        }
        body = json.dumps(values, ensure_ascii=False).encode()
        return bool(json.loads(self.act("announce", body, dataset=name))["used"])

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published.

        Raises
        ------
        RemoteError
            If the server refuses; `NotFoundError` if no such dataset exists.
        """
        self.act("drop", check_name(name).encode(), dataset=name)

    def status(self) -> dict[str, Any]:
        """Return the figures of the server, and the running streams of the caller."""
        return json.loads(self.act("status"))

    def act(self, action: str, body: bytes = b"", *, dataset: str | None = None) -> bytes:
        """Perform an action of the Flight service and return the body of its result.

        Parameters
        ----------
        action : str
            The type of the action, such as ``status``.
        body : bytes
            The body of the action.
        dataset : str, optional
            The dataset that errors name.

        Raises
        ------
        RemoteError
            If the server refuses.
        """
        kind = check_text("action", action)
        if not isinstance(body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("body", body, "bytes")
        message = flight.Action(type=kind, body=body).SerializeToString()
        results = list(self.channel.call_stream("DoAction", message, dataset=dataset))
        return flight.Result.FromString(results[0]).body if results else b""

    def close(self) -> None:
        """Close the channel. Streams over other transports continue. Idempotent."""
        self.channel.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address and the arguments, token included. The copy connects by itself."""
        return self._copy, ()

    def __repr__(self) -> str:
        return describe_lines("Client", self._facts(), _USAGE)

    def _facts(self) -> list[str]:
        return [self.uri, "with a token" if self._copy.args[1] else "without a token"]

    def _repr_html_(self) -> str:
        return html_lines("Client", self._facts(), _USAGE)


def _open_channel(
    uri: DataUri,
    token: TokenSource | None,
    tls: TlsOptions | None,
    timeout: float,
    connect_timeout: float,
) -> FlightChannel:
    """Return a channel, whose calls another process makes if gRPC can wait forever in this one."""
    if not GRPC_USAGE.is_blocked:
        return FlightChannel(uri, token, tls, timeout, connect_timeout)
    from ..rpc.forked_channel import ForkedChannel  # multiprocessing takes time to import

    return ForkedChannel(uri, token, tls, timeout, connect_timeout)
