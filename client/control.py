"""The client of a control plane: which datasets there are, reading them, and adding some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from ..proto import Flight_pb2 as flight
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.uri import DataUri
from ..transport.certificates import TlsOptions
from .calls import Caller, control_uris, parse_control
from .decoder import checked_validation
from .described import (
    DatasetInfo,
    parse_info,
    parse_schema,
)
from .parallel import DatasetStream
from .reaching import AUTO, Way
from .reader import ReadOptions
from .reading import Reading, checked_name, chosen_parts, names, pinned, substrait
from .resuming import Origin, ResumingPart
from .writing import Uploads


class Client(Uploads):
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
        return self._ask({"dataset": checked_name(name)})

    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""
        descriptor = flight.FlightDescriptor(
            type=flight.FlightDescriptor.PATH, path=[checked_name(name)]
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
        require_transport: str | None = None,
        window_bytes: int = 256 << 20,
        parallel: int = 4,
        resume_attempts: int = 8,
        limits: Limits = DEFAULT_LIMITS,
        shards: Iterable[int] | None = None,
        version: str | None = None,
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
        require_transport : str, optional
            What the data has to come by: a scheme, ``flight``, or a lane of UCX such as ``cma``.
            Locations that are reached by anything else are passed over.
        window_bytes : int
            How many bytes of batches may wait for the consumer where there are several.
        parallel : int
            How many endpoints are read at a time.
        resume_attempts : int
            How often in a row to try again after a broken connection; 0: never.
        limits : Limits
            Bounds on what is accepted from the server.
        shards : iterable of int, optional
            Which parts to read, by their ordinals, or by their places among the endpoints where
            there are none; all by default. They come in the order of the dataset.
        version : str, optional
            The version to read, as `info` tells it; by default the one that is there.

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
            require_transport=require_transport,
            limits=limits,
        )
        if location_timeout <= 0 or window_bytes < 1 or parallel < 1 or resume_attempts < 0:
            raise UsageError("location_timeout, window_bytes, parallel or resume_attempts too low")
        asked: dict[str, Any] = {
            "dataset": checked_name(name),
            "columns": None if columns is None else names(columns),
            "filter": None if filter is None else substrait(name, self.schema(name), filter),
            "batch_rows": batch_rows,
            "compression": compression,
            "version": version,
        }
        asked = {key: value for key, value in asked.items() if value is not None}
        how = Reading(options, transport, location_timeout, resume_attempts)
        wanted = None if shards is None else frozenset(shards)
        schema, parts = self._parts(asked, limit, wanted, how)
        several = len(parts) > 1
        window = window_bytes if several else prefetch_bytes
        most = limit if several or wanted is not None else None
        return DatasetStream(name, schema, parts, parallel, window, prefetch=window > 0, limit=most)

    def _parts(
        self, asked: dict[str, Any], limit: int | None, shards: frozenset[int] | None, how: Reading
    ) -> tuple[pa.Schema, list[ResumingPart]]:
        """Return the schema of what is asked for, and its parts."""
        name: str = asked["dataset"]
        if limit is not None and shards is None:
            asked = {**asked, "limit": limit}
        info = self._ask(asked)
        way = self.way(how)
        several = len(info.endpoints) > 1
        chosen = chosen_parts(info, shards)
        return info.schema, [
            ResumingPart(
                [
                    Origin(
                        way,
                        pinned(info.endpoints[index], info.version)
                        if several
                        else info.endpoints[index],
                        info.version,
                        index if several else None,
                        lambda more: self._ask({**asked, **more}),
                    )
                ],
                name,
                limit if shards is None else None,
                how.resume_attempts,
            )
            for index in chosen
        ]

    def status(self) -> dict[str, Any]:
        """Return what the server counts, and the streams of the caller that run."""
        return json.loads(self.act("status"))

    def act(self, action: str, body: bytes = b"", *, subject: str | None = None) -> bytes:
        """Have the server do something; return its answer."""
        message = flight.Action(type=action, body=body).SerializeToString()
        answers = list(self._caller.several("DoAction", message, subject=subject))
        return flight.Result.FromString(answers[0]).body if answers else b""

    def asked(self, asked: dict[str, Any]) -> DatasetInfo:
        """Return what the server tells of a request, given by its fields."""
        return self._ask(asked)

    def way(self, how: Reading) -> Way:
        """Return how the endpoints of this server are reached."""
        return how.way(self._caller, self._tls)

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


def connect(
    uri: str | DataUri | Sequence[str | DataUri],
    token: str | None = None,
    *,
    tls: TlsOptions | None = None,
    connect_timeout: float = 10.0,
    timeout: float = 30.0,
) -> Client:
    """Connect to a control plane, or to several that share datasets.

    Parameters
    ----------
    uri : str, DataUri, or a sequence of them
        ``grpc://host:port`` or ``grpc+tls://host:port``; the port is 8815 if left out. Several:
        ``grpc://a:8815,b:8815``, or a list; see `FleetClient`.
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
    uris = control_uris(uri)
    if len(uris) > 1:
        from .fleet import FleetClient

        return FleetClient(uris, token, tls=tls, connect_timeout=connect_timeout, timeout=timeout)
    return Client(uris[0], token, tls=tls, connect_timeout=connect_timeout, timeout=timeout)
