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
    )


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
