"""FlightInfo: the description of a dataset, with the endpoints to read it from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, NotFoundError
from ...proto import Flight_pb2 as flight
from ...protocol.request import Request
from ..catalog.catalog import find_writers
from ..catalog.dataset import Dataset
from ..catalog.delta.dataset import DeltaDataset
from ..catalog.files.directory import DirectoryDataset
from ..catalog.files.file_dataset import FileDataset
from ..catalog.messages.tensor_messages import describe_tensors
from ..catalog.published.dataset import PublishedDataset
from ..catalog.published.version import PublishedVersion
from ..catalog.query.request_checks import check_version, select_shards
from ..catalog.query.selection import Selection
from ..catalog.query.variant_fields import resolve_schema
from .call import Call
from .locations import HostResolver, list_locations, list_stream_pair

_UNKNOWN = -1
_MAX_ENDPOINTS = 1024
_MAX_PUBLISHED_ENDPOINTS = 1 << 16
"""Higher for published datasets: each of their shards can have replicas on other servers."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a read that one endpoint delivers."""

    request: Request
    """The request for the part alone."""
    rows: int | None
    """The rows of the part's data before filter, offset and limit; None if unknown."""
    nbytes: int | None
    """The stored size of the part's data, in bytes; None if unknown."""
    app_metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The fields for the part in the endpoint's ``app_metadata``."""


class FlightInfoBuilder:
    """Builds FlightInfo messages. Its methods read files: call them on a worker thread.

    Parameters
    ----------
    advertised_host : str or None
        The host of the data listeners, where clients cannot find it out themselves.
    """

    def __init__(self, advertised_host: str | None) -> None:
        self._advertised_host = advertised_host

    def build_schema(self, call: Call, request: Request) -> bytes:
        """Return the schema of a request's result, as an encapsulated message.

        Raises
        ------
        SplitArrowError
            If the dataset or a column does not exist, or the caller may not read the dataset.
        """
        dataset = call.find_dataset(request.dataset)
        if isinstance(dataset, (DeltaDataset, PublishedDataset)):
            dataset = dataset.resolve_version(request)
        return _result_schema(call, request, dataset).serialize().to_pybytes()

    def build_info(
        self, call: Call, request: Request, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return the description of a request's result, with endpoints to read it from.

        Raises
        ------
        SplitArrowError
            If the dataset or a column does not exist, the caller may not read the dataset, or
            it cannot be read any more.
        """
        return self._build(call, request, call.find_dataset(request.dataset), descriptor)

    def build_listing(self, call: Call, name: str) -> flight.FlightInfo | None:
        """Return the description of a dataset in a listing, or None if it was just removed.

        A dataset that cannot be read any more is listed too, without counts. Reading it raises
        the reason.
        """
        descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=[name])
        try:
            dataset = call.find_dataset(name)
        except NotFoundError:
            return None
        try:
            return self._build(call, Request(name), dataset, descriptor)
        except DatasetError:
            return self._build(call, Request(name), dataset, descriptor, counted=False)

    def _build(
        self,
        call: Call,
        request: Request,
        dataset: Dataset,
        descriptor: flight.FlightDescriptor,
        *,
        counted: bool = True,
    ) -> flight.FlightInfo:
        access = call.server.access
        published: PublishedVersion | None = None
        if isinstance(dataset, PublishedDataset):
            dataset = published = dataset.resolve_version(request)
        elif isinstance(dataset, DeltaDataset):
            dataset = dataset.resolve_version(request)
            request = replace(request, version=dataset.version)
        schema = _result_schema(call, request, dataset)
        version = dataset.version
        check_version(request, version)
        if published is not None or access.signs_tickets:
            # A reader gets the state that is described here. Elsewhere, tickets stay plain names.
            request = replace(request, version=version)
        parts = [_Part(request, None, None)]
        if counted:
            parts = _split_parts(request, dataset, published)
        host = HostResolver(self._advertised_host, call.headers, call.peer)
        locations = [flight.Location(uri=uri) for uri in list_locations(call.server.uris, host)]
        pair = list_stream_pair(call.server.uris, host)
        writers = find_writers(dataset)
        app_metadata: dict[str, Any] = {
            "dataset": request.dataset,
            "version": version,
            "kind": dataset.kind,
            **({} if writers is None else {"writers": writers.value}),
            **(published.app_metadata if published is not None else {}),
            **describe_tensors(dataset),
        }
        return flight.FlightInfo(
            schema=schema.serialize().to_pybytes(),
            flight_descriptor=descriptor,
            endpoint=[
                flight.FlightEndpoint(
                    ticket=flight.Ticket(
                        ticket=access.issue_ticket(part.request, call.principal.name)
                    ),
                    location=locations,
                    app_metadata=_encode_fields({**pair, **part.app_metadata}),
                )
                for part in parts
            ],
            total_records=_sum_known([_count_rows(part) for part in parts]),
            total_bytes=_sum_known([_count_bytes(part) for part in parts]),
            ordered=True,
            app_metadata=json.dumps(app_metadata).encode(),
        )


def _result_schema(call: Call, request: Request, dataset: Dataset) -> pa.Schema:
    as_arrow = replace(request, format=None)
    kinds = (FileDataset, DirectoryDataset, PublishedVersion)
    if isinstance(dataset, kinds) and dataset.reads_fields:
        return resolve_schema(as_arrow, call.server.encoding, dataset.schema)
    return Selection.resolve(as_arrow, call.server.encoding, dataset.schema).schema


def _split_parts(
    request: Request, dataset: Dataset, published: PublishedVersion | None
) -> list[_Part]:
    """Return a part for each shard, or one part if the shards cannot be read separately."""
    shards = dataset.shards
    max_parts = _MAX_ENDPOINTS if published is None else _MAX_PUBLISHED_ENDPOINTS

    def make_shard_app_metadata(index: int) -> Mapping[str, Any]:
        return {} if published is None else published.make_shard_app_metadata(index)

    if request.shard is not None:
        (shard,) = select_shards(request, shards)
        return [_Part(request, shard.rows, shard.nbytes, make_shard_app_metadata(request.shard))]
    bounds = (request.limit, request.offset, request.batches, request.rows)
    bounded = any(bound is not None for bound in bounds)
    if bounded or not 1 < len(shards) <= max_parts:
        app_metadata = make_shard_app_metadata(0) if len(shards) == 1 and not bounded else {}
        return [_Part(request, dataset.rows, dataset.nbytes, app_metadata)]
    return [
        _Part(
            replace(request, shard=index), shard.rows, shard.nbytes, make_shard_app_metadata(index)
        )
        for index, shard in enumerate(shards)
    ]


def _encode_fields(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() if fields else b""


def _count_rows(part: _Part) -> int | None:
    """Return the number of rows that a part delivers, or None if it is unknown."""
    request, rows = part.request, part.rows
    if rows is None or request.filter is not None or request.selects_span:
        return None
    rows = max(0, rows - (request.offset or 0))
    return rows if request.limit is None else min(rows, request.limit)


def _count_bytes(part: _Part) -> int | None:
    """Return the stored size of a part in bytes, or None if not all of it is requested."""
    request = part.request
    changes = (
        request.columns,
        request.limit,
        request.compression,
        request.filter,
        request.offset,
        request.batches,
        request.rows,
    )
    return part.nbytes if all(value is None for value in changes) else None


def _sum_known(counts: list[int | None]) -> int:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else _UNKNOWN
