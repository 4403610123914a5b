"""The client of a control plane: which datasets there are, reading them, and adding some."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from ..errors import InvalidRequestError, UsageError
from ..proto import Flight_pb2 as flight
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.request import SIGNED_PREFIX, Request
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .calls import Caller, parse_control
from .decoder import checked_validation
from .described import DatasetInfo, Endpoint, Stored, parse_info, parse_schema
from .parallel import DatasetStream
from .reaching import AUTO, Way
from .reader import ReadOptions
from .resuming import ResumingPart
from .upload import Progress, batches_of, put


class Client:
    """A connection to a control plane: a context manager. Made by `connect`.

    Safe to use from several threads.
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
        if connect_timeout <= 0 or timeout <= 0:
            raise UsageError("timeouts have to be more than 0 seconds")
        parsed = parse_control(uri)
        self._tls = tls
        self._caller = Caller(parsed, token, tls, timeout)
        try:
            self._caller.knock(connect_timeout)
        except BaseException:
            self._caller.close()
            raise

    @property
    def uri(self) -> str:
        """The address of the control plane."""
        return self._caller.where

    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """Return what the server has, as far as the caller may read it.

        Parameters
        ----------
        glob : str, optional
            Which names to list, such as ``flights-*``; all by default.
        """
        criteria = flight.Criteria(expression=(glob or "").encode())
        messages = self._caller.several("ListFlights", criteria.SerializeToString())
        return [parse_info(message) for message in messages]

    def info(self, name: str) -> DatasetInfo:
        """Return what the server tells of a dataset.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        """
        return self._ask({"dataset": _checked_name(name)})

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""
        descriptor = flight.FlightDescriptor(
            type=flight.FlightDescriptor.PATH, path=[_checked_name(name)]
        )
        answer = self._caller.unary("GetSchema", descriptor.SerializeToString(), subject=name)
        return parse_schema(flight.SchemaResult.FromString(answer).schema, name)

    def read(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        batch_rows: int | None = None,
        compression: str | None = None,
        transport: str = AUTO,
        validate: str | None = None,
        connect_timeout: float = 10.0,
        location_timeout: float = 2.0,
        stall_timeout: float | None = 30.0,
        prefetch_bytes: int = 0,
        window_bytes: int = 256 << 20,
        parallel: int = 4,
        resume_attempts: int = 8,
        limits: Limits = DEFAULT_LIMITS,
    ) -> DatasetStream:
        """Open a dataset for reading.

        Parameters
        ----------
        name : str
            The dataset.
        columns : sequence of str, optional
            The columns to read, in this order; all by default.
        filter : pyarrow.compute.Expression, optional
            Which rows to read, such as ``pc.field("delay") > 60``. It may use every column of
            the dataset.
        limit : int, optional
            The largest number of rows to read.
        batch_rows : int, optional
            The largest number of rows in a batch.
        compression : {"none", "lz4", "zstd"}, optional
            How the bodies travel; by default as they lie at the server.
        transport : str
            ``auto`` takes the first location that can be reached; the name of a scheme (``tcp``,
            ``tcp+tls``, ``shm``, …) takes that one only, and ``flight`` is DoGet.
        validate : {"full", "cheap", "off"}, optional
            How batches are checked; see `splitarrow.open`.
        connect_timeout, location_timeout : float
            The longest time to connect to the only location, and to one of several, in seconds.
        stall_timeout : float or None
            The longest silence of the server while something is awaited, in seconds.
        prefetch_bytes : int
            How many bytes to read ahead of the consumer where there is one endpoint.
        window_bytes : int
            How many bytes of batches may wait for the consumer where there are several.
        parallel : int
            How many endpoints are read at a time.
        resume_attempts : int
            How often in a row to try again after a broken connection; 0: never.
        limits : Limits
            Bounds on what is accepted from the server.

        Returns
        -------
        DatasetStream
            Its schema has arrived.

        Raises
        ------
        UsageError
            If an argument is wrong, or the transport is not offered.
        TransportError
            If the data cannot be reached.
        RemoteError
            If the server refuses.
        """
        options = ReadOptions(
            validate=None if validate is None else checked_validation(validate),
            connect_timeout=connect_timeout,
            stall_timeout=stall_timeout,
            prefetch_bytes=prefetch_bytes,
            limits=limits,
        )
        if location_timeout <= 0 or window_bytes < 1 or parallel < 1 or resume_attempts < 0:
            raise UsageError("location_timeout, window_bytes, parallel or resume_attempts too low")
        asked: dict[str, Any] = {
            "dataset": _checked_name(name),
            "columns": None if columns is None else _names(columns),
            "filter": None if filter is None else self._substrait(name, filter),
            "limit": limit,
            "batch_rows": batch_rows,
            "compression": compression,
        }
        asked = {key: value for key, value in asked.items() if value is not None}
        info = self._ask(asked)
        way = Way(self._caller, options, transport, location_timeout, self._tls)
        several = len(info.endpoints) > 1
        parts = [
            ResumingPart(
                way,
                _pinned(endpoint, info.version) if several else endpoint,
                name,
                info.version,
                index if several else None,
                limit,
                lambda more: self._ask({**asked, **more}),
                resume_attempts,
            )
            for index, endpoint in enumerate(info.endpoints)
        ]
        window = window_bytes if several else prefetch_bytes
        return DatasetStream(name, info.schema, parts, parallel, window, prefetch=window > 0)

    def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> Stored:
        """Upload a dataset. It appears at the server once it is complete, or not at all.

        Parameters
        ----------
        name : str
            What it shall be called.
        data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or batches
            What it is made of. Batches are sent as they come: they need not fit into memory.
        schema : pyarrow.Schema, optional
            The schema; needed where there are no batches to tell it.
        progress : callable, optional
            Is told how many rows and bytes have been handed over, from another thread.
        """
        found, batches = batches_of(data, schema)
        return put(self._caller, _checked_name(name), found, batches, progress)

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded."""
        self.act("drop", _checked_name(name).encode(), subject=name)

    def status(self) -> dict[str, Any]:
        """Return what the server counts, and the streams of the caller that run."""
        return json.loads(self.act("status"))

    def act(self, action: str, body: bytes = b"", *, subject: str | None = None) -> bytes:
        """Have the server do something; return its answer."""
        message = flight.Action(type=action, body=body).SerializeToString()
        answers = list(self._caller.several("DoAction", message, subject=subject))
        return flight.Result.FromString(answers[0]).body if answers else b""

    def close(self) -> None:
        """Close the connection. Streams by other transports go on. Idempotent."""
        self._caller.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<splitarrow.Client of {self.uri}>"

    def _ask(self, asked: dict[str, Any]) -> DatasetInfo:
        command = json.dumps(asked, ensure_ascii=False).encode()
        descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command)
        name: str = asked["dataset"]
        message = descriptor.SerializeToString()
        return parse_info(self._caller.unary("GetFlightInfo", message, subject=name), name)

    def _substrait(self, name: str, expression: Any) -> str:
        if not hasattr(expression, "to_substrait"):
            raise UsageError("filter is no expression of pyarrow.compute")
        try:
            plan = expression.to_substrait(self.schema(name))
        except (pa.ArrowException, ValueError, KeyError, NotImplementedError) as error:
            raise UsageError(f"the filter does not suit {name!r}: {error}") from None
        return base64.urlsafe_b64encode(memoryview(plan)).rstrip(b"=").decode()


def connect(
    uri: str | DataUri,
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> Client:
    """Connect to a control plane.

    Parameters
    ----------
    uri : str or DataUri
        ``grpc://host:port`` or ``grpc+tls://host:port``; the port is 8815 if left out.
    token : str, optional
        What tells the server who calls.
    tls : TlsOptions, optional
        What to trust, and to show, where connections are encrypted; by default what the
        variables ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME`` say.
    connect_timeout : float
        The longest time until the server has answered first, in seconds.
    timeout : float
        The longest time that a call may take which moves no data, in seconds.

    Returns
    -------
    Client
        The server has answered, and knows the token.

    Raises
    ------
    UsageError
        If an argument is wrong; `UriError` for the URI.
    ConnectError
        If no server answers.
    DeniedError
        If the server does not know the token.
    """
    return Client(uri, token, tls=tls, connect_timeout=connect_timeout, timeout=timeout)


def _checked_name(name: str) -> str:
    try:
        Request(name)
    except InvalidRequestError as error:
        raise UsageError(error.message.replace("the ticket names", "the name is of")) from None
    return name


def _names(columns: Iterable[str]) -> list[str]:
    if isinstance(columns, str):
        raise UsageError("columns is a list of names, not one")
    return list(columns)


def _pinned(endpoint: Endpoint, version: str) -> Endpoint:
    """Return the endpoint with the version in its ticket, so that no parts of two are mixed."""
    if not version or endpoint.ticket.startswith(SIGNED_PREFIX):
        return endpoint
    try:
        request = Request.parse(endpoint.ticket)
    except InvalidRequestError:
        return endpoint  # another server's
    ticket = dataclasses.replace(request, version=version).ticket()
    return dataclasses.replace(endpoint, ticket=ticket)
