"""The client of one control plane."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import UsageError
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ...representation import describe_lines, html_lines
from ...transport.tls_options import TlsOptions
from ..rpc.channel import FlightChannel
from ..rpc.control_uri import parse_control_uri
from ..rpc.info import DatasetInfo, parse_info, parse_schema
from ..rpc.results import PublishResult, ShardUploadResult, UploadResult
from ..rpc.row_counts import count_rows
from ..rpc.shard_upload import encode_publication, open_shard, parse_publish_result, upload_shard
from ..rpc.upload import Progress, read_batches, upload_dataset
from .base_client import BaseClient
from .descriptions import Descriptions
from .read_plan import ReadPlan
from .requests import check_name, encode_command, pin_version, select_span
from .shards import list_ordinals, select_endpoints

if TYPE_CHECKING:
    from .resumable_endpoint import ResumableEndpoint

_USAGE = "list(client) lists the names of the datasets; client[NAME] is one dataset"


class Client(BaseClient):
    """A client of one control plane: lists, reads, uploads and publishes datasets.

    `splitarrow.connect` returns it. It is a context manager, and safe to use from several threads.
    ``client["flights"]`` is a dataset, ``"flights" in client`` looks one up, and iteration yields
    the names. A client can be pickled: the copy, which has the token too, connects by itself.

    Parameters
    ----------
    uri : str or DataUri
        The control plane: ``grpc://host:port`` or ``grpc+tls://host:port``.
    token, tls, connect_timeout, timeout
        See `splitarrow.connect`.

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
        token: str | None = None,
        *,
        tls: TlsOptions | None = None,
        connect_timeout: float = 10.0,
        timeout: float = 30.0,
    ) -> None:
        for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
            if seconds <= 0:
                raise UsageError(f"{name} is {seconds:g}; expected more than 0")
        self._descriptions = Descriptions[DatasetInfo]()
        self._copy = partial(
            type(self), uri, token, tls=tls, connect_timeout=connect_timeout, timeout=timeout
        )
        self.channel = FlightChannel(parse_control_uri(uri), token, tls, timeout)
        """The gRPC channel to the control plane."""
        try:
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
        criteria = flight.Criteria(expression=(glob or "").encode())
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
        descriptor = flight.FlightDescriptor(
            type=flight.FlightDescriptor.CMD, cmd=encode_command(request)
        )
        name, message = request.dataset, descriptor.SerializeToString()
        return parse_info(self.channel.call_unary("GetFlightInfo", message, dataset=name), name)

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

    def _count_rows(self, request: Request, timeout: float) -> dict[int, list[int]]:
        info = self.describe(request)
        request = replace(request, version=request.version or info.version or None)
        counts = count_rows(self.channel, request, timeout)
        return {
            ordinal: counts[index]
            for ordinal, index in list_ordinals(info).items()
            if index in counts
        }

    def _plan_endpoints(
        self, request: Request, shards: frozenset[int] | None, plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        if shards is not None and request.selects_span:
            return self._plan_span(request, shards, plan)
        if shards is not None:
            # The server would apply the limit to all shards. The stream applies it to these.
            request = replace(request, limit=None)
        info = self.describe(request)
        from .replicas import Replica
        from .resumable_endpoint import ResumableEndpoint  # needed by reads alone

        several = len(info.endpoints) > 1

        def plan_endpoint(index: int) -> ResumableEndpoint:
            endpoint = info.endpoints[index]
            if several:
                endpoint = pin_version(endpoint, info.version)
            shard = index if several else None
            replica = Replica(self.channel, self.describe, request, info.version, shard, endpoint)
            return ResumableEndpoint([replica], request.dataset, plan, limit=request.limit)

        return info.schema, [plan_endpoint(index) for index in select_endpoints(info, shards)]

    def _plan_span(
        self, request: Request, shards: frozenset[int], plan: ReadPlan
    ) -> tuple[pa.Schema, list[ResumableEndpoint]]:
        """Plan to read a part of one shard, with a known ticket if possible."""
        from .replicas import Replica
        from .resumable_endpoint import ResumableEndpoint

        info = self._descriptions.get(
            replace(request, batches=None, rows=None, limit=None), self.describe
        )
        (index,) = select_endpoints(info, shards)
        shard = index if len(info.endpoints) > 1 else None
        known = select_span(info.endpoints[index], request, info.version)
        replica = Replica(self.channel, self.describe, request, info.version, shard, None, known)
        endpoint = ResumableEndpoint([replica], request.dataset, plan, limit=request.limit)
        return info.schema, [endpoint]

    def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> UploadResult:
        """Upload a dataset. The server commits it when it is complete, or keeps nothing of it.

        Parameters
        ----------
        name : str
            The name of the new dataset.
        data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or iterable
            The data. An iterable yields record batches. They are sent one by one, so that the
            data need not fit into memory.
        schema : pyarrow.Schema, optional
            The schema of an iterable that yields no record batch.
        progress : callable, optional
            Receives the numbers of rows and bytes sent so far, on another thread.

        Raises
        ------
        UsageError
            If an argument is invalid.
        RemoteError
            If the server refuses.
        """
        found, batches = read_batches(data, schema)
        return upload_dataset(self.channel, check_name(name), found, batches, progress)

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
        return parse_publish_result(name, self.act("publish", body, dataset=name))

    def discard(self, name: str, job: str) -> None:
        """Remove the shards that were uploaded for a job and never published."""
        body = json.dumps({"dataset": check_name(name), "job": job}, ensure_ascii=False)
        self.act("discard", body.encode(), dataset=name)

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
        message = flight.Action(type=action, body=body).SerializeToString()
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
