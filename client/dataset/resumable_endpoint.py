"""One endpoint, read to its end over as many connections as it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from ...errors import ClosedError, InvalidDataError, RemoteError, SplitArrowError, remote_error
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ..rpc.channel import FlightChannel
from ..rpc.errors import restate_error
from ..rpc.info import Endpoint
from ..stream.custom_metadata import CustomMetadata
from ..stream.tracing import activate
from .locations import EndpointReader, open_endpoint
from .read_plan import ReadPlan
from .replicas import BROKEN, TRANSIENT, Replica, ReplicaSet

_Item = TypeVar("_Item")


class ResumableEndpoint:
    """An endpoint whose read continues over a new connection when one breaks.

    Every row is returned once. After a failure, the read continues after the last row that it
    returned, at the same server or at another one that holds the same rows.

    Parameters
    ----------
    replicas : sequence of Replica
        The servers that hold the endpoint, in order of preference; at least one.
    name : str
        The dataset.
    plan : ReadPlan
        How to read.
    limit : int, optional
        The number of rows that was requested.
    ordinal : int, optional
        The ordinal of the shard, if several servers share the dataset. Errors name it, and all
        servers that were tried.
    unreachable : set of str, optional
        The addresses of servers that failed lately, shared by all endpoints of a read. They are
        tried last.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        name: str,
        plan: ReadPlan,
        *,
        limit: int | None = None,
        ordinal: int | None = None,
        unreachable: set[str] | None = None,
    ) -> None:
        shared = set[str]() if unreachable is None else unreachable
        self._replicas = ReplicaSet(replicas, plan.resume_attempts, shared)
        self._name = name
        self._plan = plan
        self._limit = limit
        self._ordinal = ordinal
        self._reader: EndpointReader | None = None
        self._earlier_bytes = 0
        self._footer_metadata: CustomMetadata | None = None
        self._keeps_messages = False
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self.rows = 0
        """The number of rows returned so far."""
        self.resumed = 0
        """The number of times that the read continued over a new connection."""
        self.trace_context: Any = None
        """The span of the read, for `activate`: the thread that connects may be another one."""

    @property
    def channel(self) -> FlightChannel:
        """The channel to the server in use."""
        return self._replicas.current.channel

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

        Parameters
        ----------
        first : bool
            Whether no endpoint of the read was opened yet. The read then fails at once if its
            only server cannot be reached, instead of waiting for it.
        """
        if self._cancelled.is_set():
            raise self._cancellation()
        if self._reader is not None:
            return
        self._replicas.prefer_reachable()
        replica, single = self._replicas.current, self._replicas.is_single
        if self._open_known(replica):
            return
        try:
            self._connect(replica, replica.endpoint)
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
            if replica.endpoint is not None and error.code == "UNAUTHENTICATED":
                self._reconnect(error, limit=1 if single else None, start_with_current=True)
            elif self._replicas.drop_current():
                self._reconnect(error)
            else:
                raise self._add_context(error) from None

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

        Parameters
        ----------
        error : SplitArrowError
            The failure that made this necessary. It is raised if no attempt succeeds.
        limit, start_with_current
            See `ReplicaSet.next_attempts`.
        """
        schema = self._close_reader()
        for replica in self._replicas.next_attempts(
            self._cancelled.wait, limit=limit, start_with_current=start_with_current
        ):
            if self._cancelled.is_set():
                raise self._cancellation()
            try:
                self._connect(replica, None, schema)
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

    def _connect(
        self, replica: Replica, endpoint: Endpoint | None, schema: pa.Schema | None = None
    ) -> None:
        """Open an endpoint, or the rest of it.

        Parameters
        ----------
        replica : Replica
            The server.
        endpoint : Endpoint, optional
            The endpoint. By default, a request to the server returns one for the remaining rows.
        schema : pyarrow.Schema, optional
            The schema that the earlier connections had.
        """
        with activate(self.trace_context):
            endpoint = endpoint or self._request_rest(replica)
            reader = open_endpoint(replica.channel, endpoint, self._plan, self._name)
        if schema is not None and not reader.schema.equals(schema):
            reader.close()
            raise InvalidDataError("the schema changed during the read", stream=self._name)
        self._footer_metadata = reader.footer_metadata
        if self._keeps_messages:
            reader.keep_messages()
        with self._lock:
            self._reader = reader
        self._replicas.record_success()
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
        info = replica.describe(
            replace(
                base,
                version=replica.version or base.version,
                shard=replica.shard,
                offset=self.rows or None,
                limit=None if self._limit is None else self._limit - self.rows,
            )
        )
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
        if self._reader is not None:
            self._reader.close()
