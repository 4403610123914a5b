"""FlightInfo: what a dataset is, and where and with which tickets it is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, NotFoundError
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ..catalog.asked import asked_shards, check_version
from ..catalog.base import Dataset, DatasetVersion, Versioned
from ..catalog.selection import Selection
from .call import Call
from .locations import HostName, locations, pair
from .ports import Office, OpenOffice

_UNKNOWN = -1
_MOST_ENDPOINTS = 1024
_MOST_PUBLISHED = 1 << 16
"""Of a published dataset, whose shards other servers may have too, each has its endpoint."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one endpoint stands for."""

    request: Request
    rows: int | None
    nbytes: int | None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Informer:
    """Writes FlightInfo messages. Its methods may block: they read files.

    Parameters
    ----------
    office : Office
        Makes the tickets.
    advertised : str or None
        The host of the data listeners, where clients cannot know it.
    """

    def __init__(self, office: Office, advertised: str | None) -> None:
        self._office = office
        self._advertised = advertised

    def schema(self, call: Call, request: Request) -> bytes:
        """Return the schema of what a request gives, as an encapsulated message.

        Raises
        ------
        SplitArrowError
            If there is no such dataset or column, or the caller may not read it.
        """
        dataset = call.dataset(request.dataset)
        if isinstance(dataset, Versioned):
            dataset = dataset.at(request)
        return _schema(call, request, dataset).serialize().to_pybytes()

    def info(
        self, call: Call, request: Request, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return what a request gives and how it is fetched.

        Raises
        ------
        SplitArrowError
            If there is no such dataset or column, the caller may not read it, or the dataset
            cannot be read any more.
        """
        dataset = call.dataset(request.dataset)
        return self._info(call, request, dataset, descriptor)

    def listed(self, call: Call, name: str) -> flight.FlightInfo | None:
        """Return what is told of a dataset in a listing; None if it was removed meanwhile.

        A dataset that cannot be read any more is listed: who asks for it will be told why.
        """
        descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=[name])
        try:
            dataset = call.dataset(name)
        except NotFoundError:
            return None
        try:
            return self._info(call, Request(name), dataset, descriptor)
        except DatasetError:
            return self._info(call, Request(name), dataset, descriptor, counted=False)

    def ticket(self, call: Call, request: Request) -> bytes:
        """Return a ticket for the caller."""
        return self._office.seal(request, call.principal.name)

    def _info(
        self,
        call: Call,
        request: Request,
        dataset: Dataset,
        descriptor: flight.FlightDescriptor,
        *,
        counted: bool = True,
    ) -> flight.FlightInfo:
        published: DatasetVersion | None = None
        if isinstance(dataset, Versioned):
            dataset = published = dataset.at(request)
        schema = _schema(call, request, dataset)
        version = dataset.version
        check_version(request, version)
        pinned = _pinned(request, version, self._office)
        if published is not None:
            pinned = replace(request, version=version)
        parts = _parts(pinned, dataset, published) if counted else [_Part(pinned, None, None)]
        host = HostName(self._advertised, call.headers, call.peer)
        where = [flight.Location(uri=uri) for uri in locations(call.daemon.uris, host)]
        pairs = pair(call.daemon.uris, host)
        about: dict[str, Any] = {
            "dataset": request.dataset,
            "version": version,
            "kind": dataset.kind,
            **(published.about if published is not None else {}),
        }
        return flight.FlightInfo(
            schema=schema.serialize().to_pybytes(),
            flight_descriptor=descriptor,
            endpoint=[
                flight.FlightEndpoint(
                    ticket=flight.Ticket(ticket=self.ticket(call, part.request)),
                    location=where,
                    app_metadata=_told(pairs, part.about),
                )
                for part in parts
            ],
            total_records=_total([_rows(part) for part in parts]),
            total_bytes=_total([_nbytes(part) for part in parts]),
            ordered=True,
            app_metadata=json.dumps(about).encode(),
        )


def _schema(call: Call, request: Request, dataset: Dataset) -> pa.Schema:
    arrow = replace(request, format=None)
    return Selection.resolve(arrow, call.daemon.encoding, dataset.schema).schema


def _pinned(request: Request, version: str, office: Office) -> Request:
    """Return the request for the state that the dataset has now; plain tickets stay plain."""
    return request if isinstance(office, OpenOffice) else replace(request, version=version)


def _parts(request: Request, dataset: Dataset, published: DatasetVersion | None) -> list[_Part]:
    """Return what the endpoints stand for: one for each shard, if they can be read apart."""
    shards = dataset.shards
    most = _MOST_ENDPOINTS if published is None else _MOST_PUBLISHED

    def about(index: int) -> Mapping[str, Any]:
        return {} if published is None else published.about_shard(index)

    if request.shard is not None:
        (shard,) = asked_shards(request, shards)
        return [_Part(request, shard.rows, shard.nbytes, about(request.shard))]
    counted = request.limit is not None or request.offset is not None
    if counted or not 1 < len(shards) <= most:
        whole = about(0) if len(shards) == 1 and not counted else {}
        return [_Part(request, dataset.rows, dataset.nbytes, whole)]
    return [
        _Part(replace(request, shard=index), shard.rows, shard.nbytes, about(index))
        for index, shard in enumerate(shards)
    ]


def _told(pairs: bytes, about: Mapping[str, Any]) -> bytes:
    """Return what an endpoint tells, as JSON; nothing if there is nothing."""
    if not about:
        return pairs
    return json.dumps({**json.loads(pairs or b"{}"), **about}).encode()


def _rows(part: _Part) -> int | None:
    """Return how many rows a part gives, as far as that is known without reading it."""
    request, rows = part.request, part.rows
    if rows is None or request.filter is not None:
        return None
    rows = max(0, rows - (request.offset or 0))
    return rows if request.limit is None else min(rows, request.limit)


def _nbytes(part: _Part) -> int | None:
    """Return how many bytes a part has as it lies; None if only some of it is asked for."""
    asked = part.request
    less = (asked.columns, asked.limit, asked.compression, asked.filter, asked.offset)
    return part.nbytes if all(value is None for value in less) else None


def _total(known: list[int | None]) -> int:
    numbers = [number for number in known if number is not None]
    return sum(numbers) if len(numbers) == len(known) else _UNKNOWN
