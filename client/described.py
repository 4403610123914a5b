"""What a server tells of its datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError, ProtocolError, SplitArrowError
from ..formats.arrow.schema import read_schema
from ..proto import Flight_pb2 as flight
from ..protocol.limits import DEFAULT_LIMITS
from ..protocol.uri import DataUri

DO_GET = "arrow-flight-reuse-connection"
"""The scheme of the location that stands for DoGet on the connection of the control plane."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A part of a dataset, and where it is fetched."""

    ticket: bytes = field(repr=False)
    """What to ask for there."""
    locations: tuple[str, ...]
    """URIs, the one to prefer first."""
    pair: tuple[str, str] | None = None
    """The URIs of two servers, of metadata and of bodies, if there are such."""
    ordinal: int | None = None
    """Its place in the whole dataset, over all servers; None if the server does not say."""
    rows: int | None = None
    """How many rows it has as it lies; None if the server does not say."""
    nbytes: int | None = None
    """How many bytes it has as it lies; None if the server does not say."""
    sha256: str = ""
    """The checksum of its file, in hexadecimal digits; empty if the server does not say."""
    held_by: tuple[str, ...] = ()
    """The control planes of all servers that have it, where several were asked."""

    @property
    def redacted(self) -> list[str]:
        """The locations as they may be shown."""
        return [_redacted(uri) for uri in (*self.locations, *(self.pair or ()))]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A dataset, or what was asked for of it."""

    name: str
    """Its name at the server."""
    rows: int | None
    """How many rows there are; None if that is not known without reading it."""
    bytes: int | None
    """How many bytes it has as it lies at the server; None if that is not known."""
    schema: pa.Schema
    """Its schema."""
    kind: str
    """What it is made of: ``arrow file``, ``parquet directory``, ``table``."""
    version: str
    """What changes when the data does; empty if the server does not say."""
    endpoints: tuple[Endpoint, ...] = ()
    """Its parts, in order."""
    snapshot: str = ""
    """What is the same at every server that has parts of one publication; empty: it is none."""
    shards_total: int | None = None
    """How many parts the publication has, over all servers; None: it is none."""


@dataclass(frozen=True, slots=True)
class StoredShard:
    """What became of the upload of a shard."""

    name: str
    """The name of the dataset."""
    job: str
    """The publication that it belongs to."""
    ordinal: int
    """Its place in the whole dataset."""
    rows: int
    """How many rows it has."""
    bytes: int
    """How many bytes it takes at the server."""
    sha256: str
    """The checksum of its file at the server, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publication at one server."""

    name: str
    """The name of the dataset."""
    version: int
    """The version that it is there."""
    snapshot: str
    """What is the same at every server that has parts of it."""
    shards: int
    """How many parts that server has."""
    rows: int
    """How many rows they have."""
    bytes: int
    """How many bytes they take."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of an upload."""

    name: str
    """The name of the dataset."""
    rows: int
    """How many rows it has."""
    bytes: int
    """How many bytes it takes at the server."""


def parse_info(message: bytes, asked: str | None = None) -> DatasetInfo:
    """Read a FlightInfo.

    Parameters
    ----------
    message : bytes
        The serialized message.
    asked : str, optional
        The name that was asked for, where the server does not tell one.

    Raises
    ------
    ProtocolError
        If it cannot be understood.
    """
    try:
        info = flight.FlightInfo.FromString(message)
    except Exception:
        raise ProtocolError("the server sent no FlightInfo", stream=asked) from None
    about = _json(info.app_metadata)
    path = info.flight_descriptor.path
    name = about.get("dataset") or asked or (path[0] if path else "?")
    return DatasetInfo(
        name=str(name),
        rows=None if info.total_records < 0 else info.total_records,
        bytes=None if info.total_bytes < 0 else info.total_bytes,
        schema=parse_schema(info.schema, str(name)),
        kind=str(about.get("kind", "")),
        version=str(about.get("version", "")),
        endpoints=tuple(_endpoint(endpoint) for endpoint in info.endpoint),
        snapshot=str(about.get("snapshot") or ""),
        shards_total=_count(about.get("shards_total")),
    )


def parse_schema(message: bytes, name: str) -> pa.Schema:
    """Read a schema, an encapsulated message as Flight carries it.

    Raises
    ------
    ProtocolError
        If it is none.
    """
    try:
        metadata = pa.ipc.read_message(pa.py_buffer(message)).metadata
        return read_schema(
            bytes(memoryview(metadata)),
            max_nesting=DEFAULT_LIMITS.nesting,
            max_bytes=DEFAULT_LIMITS.metadata_bytes,
        )
    except SplitArrowError as error:
        error.stream = name
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidDataError(f"the schema is refused: {error}", stream=name) from None


def _endpoint(endpoint: flight.FlightEndpoint) -> Endpoint:
    about = _json(endpoint.app_metadata)
    halves = (about.get("metadata"), about.get("body"))
    locations = tuple(location.uri for location in endpoint.location)
    return Endpoint(
        ticket=endpoint.ticket.ticket,
        locations=locations or (f"{DO_GET}://?",),
        pair=(str(halves[0]), str(halves[1])) if all(halves) else None,
        ordinal=_count(about.get("ordinal")),
        rows=_count(about.get("rows")),
        nbytes=_count(about.get("bytes")),
        sha256=str(about.get("sha256") or ""),
    )


def _count(value: Any) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if good else None


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _redacted(uri: str) -> str:
    if uri.startswith(f"{DO_GET}:"):
        return f"{DO_GET}://?"
    try:
        return DataUri.parse(uri).redacted()
    except SplitArrowError:
        return uri.partition("?")[0]
