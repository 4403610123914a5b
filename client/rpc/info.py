"""What a server reports: descriptions of datasets, row counts, column ranges, results of uploads.

A description is Flight's FlightInfo, with the metadata that splitarrow adds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ...errors import InvalidDataError, LimitError, ProtocolError, RemoteError, SplitArrowError
from ...formats.arrow.schema import read_schema
from ...formats.arrow.tensors.tensor import format_shape
from ...formats.text import describe_as_html, describe_object, format_bytes, format_count
from ...proto import Flight_pb2 as flight
from ...protocol.limits import DEFAULT_LIMITS
from ...protocol.request import Request
from ...protocol.uri import DataUri
from ..uris import HTTP_SCHEMES
from .channel import MAX_ANSWER_BYTES
from .errors import restate_error

if TYPE_CHECKING:
    from .channel import FlightChannel


REUSE_CONNECTION = "arrow-flight-reuse-connection"
"""The scheme of the location that means DoGet on the channel of the control plane."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One part of a dataset, with its ticket and its locations."""

    ticket: bytes = field(repr=False)
    """The bytes that request the part."""
    locations: tuple[str, ...]
    """Alternative URIs, in the server's order of preference."""
    pair: tuple[str, str] | None = None
    """The URIs of the metadata stream and the body stream, if two servers share the work."""
    ordinal: int | None = None
    """The position of the part in a published dataset; None if the dataset is not published."""
    rows: int | None = None
    """The number of rows, before any filter; None if the server does not report it."""
    nbytes: int | None = None
    """The size at the server in bytes; None if the server does not report it."""
    sha256: str = ""
    """The checksum of the shard's file in hexadecimal digits; empty if it is not reported."""
    expires: int | None = None
    """The time at which the ticket expires, in seconds since 1970; None if it does not."""
    held_by: tuple[str, ...] = ()
    """The control planes of all daemons that hold the part; set by `ClusterClient` only."""

    @property
    def redacted_locations(self) -> list[str]:
        """The locations without their secrets, for output."""
        return [_redact(uri) for uri in (*self.locations, *(self.pair or ()))]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a dataset."""

    kind: str
    """``dense``, or the format of a sparse tensor: ``coo``, ``csr``, ``csc``, ``csf``."""
    dtype: str
    """The type of the values in NumPy."""
    shape: tuple[int, ...]
    """The sizes of the dimensions."""
    name: str | None = None
    """The name of the tensor; None if it has none."""
    dim_names: tuple[str, ...] = ()
    """The names of the dimensions; empty if none has a name."""
    non_zero_length: int | None = None
    """The number of stored values of a sparse tensor; None for a dense one."""

    def __str__(self) -> str:
        kind = "" if self.kind == "dense" else f"{self.kind} "
        count = self.non_zero_length
        values = "" if count is None else f", {format_count(count, 'value')}"
        return f"{kind}{self.dtype} {format_shape(self.shape)}{values}"


@dataclass(frozen=True, slots=True, repr=False)
class DatasetInfo:
    """A dataset, or the selection of it that was requested."""

    name: str
    """The name of the dataset."""
    rows: int | None
    """The number of rows; None if the server would have to read the data to know it."""
    bytes: int | None
    """The size at the server in bytes; None if the server does not know it."""
    schema: pa.Schema
    """The schema."""
    kind: str
    """The type of the source: ``arrow file``, ``parquet directory``, ``table`` and so on."""
    version: str
    """An identifier that changes whenever the data does; empty if the server reports none."""
    endpoints: tuple[Endpoint, ...] = ()
    """The parts, in order."""
    snapshot: str = ""
    """The identifier that a publication has at every server; empty if it is not published."""
    shards_total: int | None = None
    """The number of shards at all servers together; None if it is not published."""
    shards_held: int | None = None
    """The number of these that the server has; None if it does not report it."""
    writers: str = ""
    """What happens if another process has a file of the dataset open for writing.

    ``refused``: reads fail if it could change the file unnoticed, and otherwise if it changes the
    file. ``undetected``: reads fail only if its modification time changes, as
    the server's file system has no file leases. ``allowed``: the same, at the operator's request.
    Empty if no process writes to the data, or the server does not report it."""
    tensors: tuple[TensorInfo, ...] = ()
    """The tensors, up to a number of them; empty if the dataset holds record batches."""
    tensor_count: int = 0
    """The number of tensors."""
    plan_seconds: int = 0
    """The time for which reads may use the endpoints again, in seconds; 0 if they may not."""
    offline: bool = False
    """Whether the server is a relay that reaches no upstream: there may be a newer version."""

    def __repr__(self) -> str:
        return describe_object(f"DatasetInfo {self.name!r}", self.schema, self._facts())

    def _repr_html_(self) -> str:
        return describe_as_html(f"dataset {self.name!r}", self.schema, self._facts())

    def _facts(self) -> list[str]:
        facts = [] if self.rows is None else [format_count(self.rows, "row")]
        if self.tensor_count == 1:
            facts.append(str(self.tensors[0]))
        if self.bytes is not None:
            facts.append(format_bytes(self.bytes))
        return [*facts, *([self.kind] if self.kind else [])]


def describe(channel: FlightChannel, request: Request) -> DatasetInfo:
    """Describe the selection of a dataset that a request makes; see `Client.describe`."""
    descriptor = flight.FlightDescriptor(
        type=flight.FlightDescriptor.CMD, cmd=encode_command(request)
    )
    name, message = request.dataset, descriptor.SerializeToString()
    return parse_info(channel.call_unary("GetFlightInfo", message, dataset=name), name)


def encode_command(request: Request) -> bytes:
    """Return the command of a flight descriptor for a request: a JSON object.

    Examples
    --------
    >>> encode_command(Request("flights", limit=3))
    b'{"dataset": "flights", "limit": 3}'
    """
    fields = {name: value for name, value in asdict(request).items() if value is not None}
    return json.dumps(fields, ensure_ascii=False).encode()


def parse_info(message: bytes, requested: str | None = None) -> DatasetInfo:
    """Parse a FlightInfo. The requested name applies if the message does not contain one."""
    try:
        info = flight.FlightInfo.FromString(message)
    except Exception:
        raise ProtocolError("the server sent a malformed FlightInfo", stream=requested) from None
    metadata = _parse_metadata(info.app_metadata)
    path = info.flight_descriptor.path
    name = str(metadata.get("dataset") or requested or (path[0] if path else "?"))
    return DatasetInfo(
        name=name,
        rows=None if info.total_records < 0 else info.total_records,
        bytes=None if info.total_bytes < 0 else info.total_bytes,
        schema=parse_schema(info.schema, name),
        kind=str(metadata.get("kind", "")),
        version=str(metadata.get("version", "")),
        endpoints=tuple(_parse_endpoint(endpoint) for endpoint in info.endpoint),
        snapshot=str(metadata.get("snapshot") or ""),
        writers=str(metadata.get("writers") or ""),
        shards_total=_parse_count(metadata.get("shards_total")),
        shards_held=_parse_count(metadata.get("shards_held")),
        tensors=_parse_tensors(metadata.get("tensors")),
        tensor_count=_parse_count(metadata.get("tensor_count")) or 0,
        plan_seconds=_parse_count(metadata.get("plan_seconds")) or 0,
        offline=metadata.get("offline") is True,
    )


def parse_schema(message: bytes, name: str) -> pa.Schema:
    """Parse a schema, which Flight carries as an encapsulated message."""
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
        raise InvalidDataError(f"the schema cannot be decoded: {error}", stream=name) from None


def _parse_endpoint(endpoint: flight.FlightEndpoint) -> Endpoint:
    metadata = _parse_metadata(endpoint.app_metadata)
    pair = (metadata.get("metadata"), metadata.get("body"))
    locations = tuple(location.uri for location in endpoint.location)
    return Endpoint(
        ticket=endpoint.ticket.ticket,
        locations=locations or (f"{REUSE_CONNECTION}://?",),
        pair=(str(pair[0]), str(pair[1])) if all(pair) else None,
        ordinal=_parse_count(metadata.get("ordinal")),
        rows=_parse_count(metadata.get("rows")),
        nbytes=_parse_count(metadata.get("bytes")),
        sha256=str(metadata.get("sha256") or ""),
        expires=endpoint.expiration_time.seconds if endpoint.HasField("expiration_time") else None,
    )


def _parse_tensors(value: Any) -> tuple[TensorInfo, ...]:
    """Parse the descriptions of tensors, and skip those that are malformed."""
    items: list[Any] = value if isinstance(value, list) else []
    found: list[TensorInfo] = []
    for item in items:
        fields: dict[str, Any] = item if isinstance(item, dict) else {}
        shape = fields.get("shape")
        sizes = [_parse_count(size) for size in shape] if isinstance(shape, list) else [None]
        names = fields.get("dim_names")
        name = fields.get("name")
        known = [size for size in sizes if size is not None]
        if len(known) < len(sizes):
            continue
        found.append(
            TensorInfo(
                kind=str(fields.get("kind")),
                dtype=str(fields.get("dtype")),
                shape=tuple(known),
                name=None if name is None else str(name),
                dim_names=tuple(map(str, names)) if isinstance(names, list) else (),
                non_zero_length=_parse_count(fields.get("non_zero_length")),
            )
        )
    return tuple(found)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_count(value: Any) -> int | None:
    return value if _is_count(value) else None


def _parse_metadata(text: bytes) -> Mapping[str, Any]:
    """Parse a JSON object. Other applications may put anything else into ``app_metadata``."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _redact(uri: str) -> str:
    if uri.startswith(f"{REUSE_CONNECTION}:"):
        return f"{REUSE_CONNECTION}://?"
    if uri.partition(":")[0].lower() in HTTP_SCHEMES:
        return uri.partition("?")[0]  # the rest may sign it
    try:
        return DataUri.parse(uri).redacted()
    except SplitArrowError:
        return uri.partition("?")[0]


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload."""

    name: str
    """The name of the dataset."""
    rows: int
    """The number of rows."""
    bytes: int
    """The size of the dataset at the server, in bytes."""


@dataclass(frozen=True, slots=True)
class ShardUploadResult:
    """The result of the upload of a shard."""

    name: str
    """The name of the dataset."""
    job: str
    """The publication that the shard belongs to."""
    ordinal: int
    """The position of the shard in the dataset, from 0."""
    rows: int
    """The number of rows."""
    bytes: int
    """The size of the shard's file at the server, in bytes."""
    sha256: str
    """The checksum of the shard's file at the server, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The result of a publication at one server."""

    name: str
    """The name of the dataset."""
    version: int
    """The number of the version that the server created."""
    snapshot: str
    """The identifier that this publication has at every server."""
    shards: int
    """The number of shards that the server holds."""
    rows: int
    """The number of rows in those shards."""
    bytes: int
    """The size of those shards in bytes."""


_Result = TypeVar("_Result", UploadResult, ShardUploadResult, PublishResult)
_TYPES: dict[Any, Callable[[Any], Any]] = {"str": str, "int": int}


def parse_result(kind: type[_Result], response: bytes, name: str) -> _Result:
    """Parse the result of an upload or of a publication; raise `ProtocolError` if malformed."""
    try:
        result: Any = json.loads(response)
        result["name"] = result["dataset"]
        return kind(**{each.name: _TYPES[each.type](result[each.name]) for each in fields(kind)})
    except (ValueError, RecursionError, KeyError, TypeError):
        what = "publication" if kind is PublishResult else "upload"
        raise ProtocolError(f"the server sent a malformed {what} result", stream=name) from None


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_count, values))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


RowCounts = dict[int, list[int]]
"""For each shard, the rows of its record batches."""


def count_rows(channel: FlightChannel, request: Request, timeout: float) -> RowCounts:
    """Count the rows of each record batch of a dataset, within a time limit in seconds."""
    return {
        shard["shard"]: shard["rows"]
        for shard in _call_for_shards(
            *(channel, "count", request, timeout, "row counts"),
            lambda shard: _are_counts(shard["rows"]),
        )
    }


Lengths = dict[int, "pa.ChunkedArray[Any]"]
"""For each shard, the lengths of values as int32, with a chunk for each of its record batches."""
_MAX_LENGTHS = 1 << 29
"""The number of lengths that a server may send if it does not know the rows of the dataset."""
_LENGTH_BYTES = 8
"""More than the encoding takes for a length."""


def list_lengths(channel: FlightChannel, request: Request, timeout: float) -> Lengths:
    """List the lengths of the values in the column of a request, within a time limit in seconds.

    Raises `RemoteError` with the code UNIMPLEMENTED if the server is an older one. Raises
    `LimitError` if it sends more lengths than it has rows.
    """
    found: Lengths = {}
    parts: list[Any] = []
    # The description of a selection by a filter has no rows.
    whole = replace(request, columns=None, filter=None)
    rows = describe(channel, whole).rows
    left = max_rows = _MAX_LENGTHS if rows is None else rows
    try:
        for part in _call_for_shards(
            channel,
            "lengths",
            request,
            timeout,
            "lengths",
            lambda part: part["rows"] is None or _are_counts(part["rows"]),
            parse=_parse_lengths,
            max_bytes=MAX_ANSWER_BYTES + _LENGTH_BYTES * max_rows,
        ):
            parts.append(part["lengths"])
            left -= len(part["lengths"])
            if left < 0:
                raise LimitError(
                    f"{channel.address} sent more than {max_rows} lengths, one for each row",
                    stream=request.dataset,
                )
            if part["rows"] is not None:
                ends = [0, *accumulate(part["rows"])]
                lengths = pa.concat_arrays(parts)
                parts = []
                if ends[-1] != len(lengths):
                    raise ProtocolError("the server sent malformed lengths", stream=request.dataset)
                chunks = [lengths.slice(begin, end - begin) for begin, end in pairwise(ends)]
                found[part["shard"]] = pa.chunked_array(chunks, pa.int32())
        if parts:
            raise ProtocolError("the server sent malformed lengths", stream=request.dataset)
    except RemoteError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        message = f"{channel.address} is too old to list lengths; update it ({error.message})"
        raise restate_error(error, message, request.dataset) from None
    return found


def _parse_lengths(body: bytes) -> Any:
    from ...formats.arrow.lengths import decode_lengths  # imports pyarrow.compute

    header, lengths = decode_lengths(body)
    return {"rows": None, **header, "lengths": lengths}


@dataclass(frozen=True, slots=True)
class ShardRanges:
    """The ranges of the columns of one shard."""

    rows: int
    """The number of rows."""
    columns: Mapping[str, Mapping[str, Any]]
    """For each column, ``min``, ``max`` and ``nulls`` as a manifest has them. A bound may be
    missing."""


def read_ranges(
    channel: FlightChannel, request: Request, timeout: float = 60.0
) -> dict[int, ShardRanges]:
    """Return the ranges of the columns of a published dataset, within a time limit in seconds.

    Raises `RemoteError` with the code UNIMPLEMENTED if the dataset is not published, or the server
    is an older one.
    """
    return {
        shard["shard"]: ShardRanges(shard["rows"], shard["columns"])
        for shard in _call_for_shards(
            *(channel, "ranges", request, timeout, "column ranges"),
            lambda shard: (
                _is_count(shard["rows"])
                and all(isinstance(column, dict) for column in shard["columns"].values())
            ),
        )
    }


def read_manifest(channel: FlightChannel, request: Request, timeout: float = 60.0) -> bytes:
    """Return the manifest of a version of a published dataset, within a time limit in seconds."""
    message = flight.Action(type="manifest", body=request.ticket()).SerializeToString()
    results = channel.call_stream(
        "DoAction", message, dataset=request.dataset, timeout=timeout, max_bytes=_MAX_MANIFEST_BYTES
    )
    return b"".join(flight.Result.FromString(result).body for result in results)


_MAX_MANIFEST_BYTES = 1 << 30


def _call_for_shards(
    channel: FlightChannel,
    action: str,
    request: Request,
    timeout: float,
    content: str,
    is_valid: Callable[[Any], bool],
    parse: Callable[[bytes], Any] = json.loads,
    **limits: int,
) -> Iterator[Any]:
    """Perform an action that returns JSON objects with shards, and yield the objects."""
    name = request.dataset
    message = flight.Action(type=action, body=request.ticket()).SerializeToString()
    options: Any = {"dataset": name, "timeout": timeout, **limits}
    for result in channel.call_stream("DoAction", message, **options):
        try:
            shard: Any = parse(flight.Result.FromString(result).body)
            is_valid_shard = _is_count(shard["shard"]) and is_valid(shard)
        except (ProtocolError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            is_valid_shard, shard = False, None
        if not is_valid_shard:
            raise ProtocolError(f"the server sent malformed {content}", stream=name)
        yield shard
