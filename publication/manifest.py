"""Manifests: the shards that make up one version of a published dataset, and their form as JSON."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pyarrow as pa

from ..errors import DatasetError, InvalidDataError, ProtocolError
from ..formats.arrow.message import parse_prefix
from ..formats.arrow.schema import read_schema
from .layout import RESERVED

MAX_COUNT = (1 << 63) - 1
"""The largest count in a manifest."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SHOWN = 64


def check_count(value: Any, name: str) -> int:
    """Return a number of rows, bytes or shards."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InvalidDataError(f"{name} is {show(value)}; expected an integer from 0 to 2^63 - 1")
    return value


def check_text(value: Any, name: str) -> str:
    """Return a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidDataError(f"{name} is {show(value)}; expected a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidDataError(f"{name} is not valid Unicode") from None
    return value


def check_texts(value: Any, name: str) -> dict[str, str]:
    """Return a mapping of texts to texts."""
    return {
        check_text(key, name): check_text(text, f"{name}[{key!r}]")
        for key, text in check_object(value, name).items()
    }


MAX_PROPERTIES_BYTES = 64 << 10
"""The largest size of the properties of a new version, in bytes of UTF-8."""


def check_properties(value: Any) -> dict[str, str]:
    """Return the properties of a new version, within `MAX_PROPERTIES_BYTES`."""
    properties = check_texts(value, "properties")
    nbytes = sum(len(text.encode()) for pair in properties.items() for text in pair)
    if nbytes > MAX_PROPERTIES_BYTES:
        raise InvalidDataError(
            f"properties has {nbytes} bytes; at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    return properties


def check_object(value: Any, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, Mapping):
        raise InvalidDataError(f"{name} is {show(value)}; expected an object")
    return dict(cast("Mapping[str, Any]", value))


def check_list(value: Any, name: str) -> list[Any]:
    """Return a JSON list."""
    if not isinstance(value, list):
        raise InvalidDataError(f"{name} is {show(value)}; expected a list")
    return cast("list[Any]", value)


def check_unique(values: Iterable[object], name: str) -> None:
    """Check that no two shards have the same value in a field."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InvalidDataError(f"two shards have the {name} {value!r}")
        seen.add(value)


def check_sha256(value: Any) -> str:
    """Return a SHA-256 in hexadecimal digits."""
    if not _SHA256.fullmatch(check_text(value, "sha256")):
        raise InvalidDataError(
            f"sha256 is {value[:_MAX_SHOWN]!r}; expected 64 lowercase hexadecimal digits"
        )
    return value


def check_path(path: Any) -> str:
    """Return the path of a shard: relative, inside the dataset, outside its reserved folder."""
    parts = check_text(path, "path").split("/")
    if "\\" in path or any(ord(char) < 32 for char in path):
        raise InvalidDataError(f"path {path!r} has a backslash or a control character")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == RESERVED:
        raise InvalidDataError(
            f"path {path!r} is not allowed: expected a relative path inside the dataset and "
            f"outside {RESERVED}"
        )
    return path


def show(value: object) -> str:
    """Return a value for an error message: scalars shortened, of all others only the type."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 4]}…"


MAX_BOUND_CHARACTERS = 64
"""The length of the longest text that may be a minimum or maximum, in characters."""
MAX_EXACT_INTEGER = (1 << 53) - 1
"""The largest integer that JSON readers keep exactly. Larger ones are written as text."""
UNSET = -1
"""The ordinal of a shard that gets its position in the list, and `Manifest.shards_total` of a
dataset that has no shards but those listed."""

RangeValue = int | float | str | None
"""A minimum or maximum, as JSON carries it. None if it is unknown."""


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The range of the values of one column in one shard.

    `column_ranges` computes it. Integers and floats are numbers. Integers that JSON readers may
    round, dates, timestamps and decimals are text.

    Raises `InvalidDataError` if a field has an impossible value. The error names the field.
    """

    minimum: RangeValue
    """The smallest value. None if it is unknown."""
    maximum: RangeValue
    """The largest value. None if it is unknown."""
    nulls: int
    """The number of null values."""
    box: tuple[float, float, float, float] | None = None
    """xmin, ymin, xmax, ymax of a geospatial column. None if there is none, or it is unknown."""

    def __post_init__(self) -> None:
        """Check the fields, and turn integers that JSON readers may round into text."""
        object.__setattr__(self, "minimum", _check_bound(self.minimum, "minimum"))
        object.__setattr__(self, "maximum", _check_bound(self.maximum, "maximum"))
        check_count(self.nulls, "nulls")
        if self.box is not None:
            object.__setattr__(self, "box", _check_box(self.box))


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The entry of one shard in a manifest. A shard is an Arrow IPC file.

    Raises `InvalidDataError` if a field has an impossible value. The error names the field.
    """

    path: str
    """The path of the file relative to the dataset. ``/`` separates its components."""
    rows: int
    """The number of rows."""
    nbytes: int
    """The length of the file in bytes."""
    sha256: str
    """The SHA-256 of the file in hexadecimal digits."""
    columns: Mapping[str, ColumnRange] = field(default_factory=dict[str, ColumnRange])
    """The ranges of the columns by column name."""
    ordinal: int = UNSET
    """The position in the whole dataset. `UNSET` means the position in `Manifest.shards`."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_path(self.path)
        check_count(self.rows, "rows")
        check_count(self.nbytes, "bytes")
        check_sha256(self.sha256)
        if self.ordinal != UNSET:
            check_count(self.ordinal, "ordinal")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a published dataset. It is valid once built.

    Raises `InvalidDataError` if a field has an impossible value. The error names the field.
    """

    version: int
    """The number of the version. The first is 1."""
    created: datetime
    """When the version was committed, in UTC."""
    job: str
    """The job that committed the version. A job commits at most one."""
    schema: pa.Schema
    """The schema of all shards."""
    shards: tuple[ShardEntry, ...] = ()
    """The shards on this server, sorted by ordinal."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further information from the publisher."""
    snapshot: str = ""
    """The identifier that all servers with shards of this publication share. Default: the job."""
    shards_total: int = UNSET
    """The number of shards on all servers. `UNSET` means the number of `shards`."""

    def __post_init__(self) -> None:
        """Check the fields, sort the shards, and fill in the defaults."""
        if check_count(self.version, "version") < 1:
            raise InvalidDataError("version is 0; the first version is 1")
        if self.created.utcoffset() != timedelta():
            raise InvalidDataError(f"created is {self.created.isoformat()}, which is not in UTC")
        if not check_text(self.job, "job"):
            raise InvalidDataError("job is empty")
        check_texts(self.properties, "properties")
        shards = _sort_shards(self.shards)
        object.__setattr__(self, "shards", shards)
        if not check_text(self.snapshot, "snapshot"):
            object.__setattr__(self, "snapshot", self.job)
        if self.shards_total == UNSET:
            object.__setattr__(self, "shards_total", len(shards))
        least = max(len(shards), shards[-1].ordinal + 1 if shards else 0)
        if check_count(self.shards_total, "shards_total") < least:
            raise InvalidDataError(
                f"shards_total is {self.shards_total}, but the largest ordinal is {least - 1}"
            )

    @property
    def rows(self) -> int:
        """The number of rows in the shards on this server."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """The length of the shards on this server in bytes."""
        return sum(shard.nbytes for shard in self.shards)


def _sort_shards(shards: tuple[ShardEntry, ...]) -> tuple[ShardEntry, ...]:
    numbered = [
        replace(shard, ordinal=index) if shard.ordinal == UNSET else shard
        for index, shard in enumerate(shards)
    ]
    numbered.sort(key=lambda shard: shard.ordinal)
    check_unique((shard.ordinal for shard in numbered), "ordinal")
    check_unique((shard.path for shard in numbered), "path")
    return tuple(numbered)


def _check_bound(value: Any, name: str) -> RangeValue:
    if isinstance(value, bool) or not isinstance(value, int | float | str | None):
        raise InvalidDataError(f"{name} is {show(value)}; expected a number or a string")
    if isinstance(value, int):
        return value if abs(value) <= MAX_EXACT_INTEGER else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidDataError(f"{name} is {value}; expected a finite number")
    if isinstance(value, str) and len(check_text(value, name)) > MAX_BOUND_CHARACTERS:
        raise InvalidDataError(
            f"{name} has {len(value)} characters; at most {MAX_BOUND_CHARACTERS} are allowed"
        )
    return value


def _check_box(value: Any) -> tuple[float, float, float, float]:
    try:
        xmin, ymin, xmax, ymax = (_check_side(side) for side in value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidDataError(f"box is {show(value)}; expected four finite numbers") from None
    return xmin, ymin, xmax, ymax


def _check_side(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


FORMAT = "splitarrow-manifest"
FORMAT_VERSION = 1

_T = TypeVar("_T")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON in UTF-8. Equal manifests give equal bytes."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": manifest.version,
        "created": manifest.created.isoformat(),
        "job": manifest.job,
        "snapshot": manifest.snapshot,
        "schema": base64.b64encode(manifest.schema.serialize().to_pybytes()).decode(),
        "rows": manifest.rows,
        "bytes": manifest.nbytes,
        "shards_total": manifest.shards_total,
        "shards": [_encode_shard(shard) for shard in manifest.shards],
        "properties": dict(manifest.properties),
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


class ManifestError(DatasetError):
    """A manifest is malformed. To read it again gives the same error."""


def decode_manifest(data: bytes, label: str) -> Manifest:
    """Return the manifest that a JSON document describes.

    Raises `ManifestError` if the document is malformed, has a later format version, or has an
    impossible value, such as a shard path that leaves the dataset. The error names the label and
    the field.
    """
    try:
        return _decode_manifest(_parse_document(data))
    except ProtocolError as error:
        raise ManifestError(f"{label} is not a valid manifest: {error.message}") from None


def _encode_shard(shard: ShardEntry) -> dict[str, Any]:
    return {
        "path": shard.path,
        "ordinal": shard.ordinal,
        "rows": shard.rows,
        "bytes": shard.nbytes,
        "sha256": shard.sha256,
        "columns": encode_ranges(shard),
    }


def encode_ranges(
    shard: ShardEntry, columns: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the ranges of a shard's columns by name, or of some of them, for JSON."""
    return {
        name: _encode_column(column)
        for name, column in shard.columns.items()
        if columns is None or name in columns
    }


def _encode_column(column: ColumnRange) -> dict[str, Any]:
    bounds = {"min": column.minimum, "max": column.maximum}
    fields = {**bounds, "nulls": column.nulls, "box": column.box}
    return {key: value for key, value in fields.items() if value is not None}


def _parse_document(data: bytes) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise InvalidDataError(f"not JSON: {reason}") from None
    document = check_object(parsed, "the document")
    if document.get("format") != FORMAT:
        raise InvalidDataError(f"format is {show(document.get('format'))}; expected {FORMAT!r}")
    if document.get("format_version") != FORMAT_VERSION:
        raise InvalidDataError(
            f"format_version is {show(document.get('format_version'))}; "
            f"this release reads {FORMAT_VERSION}"
        )
    return document


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _decode_manifest(document: dict[str, Any]) -> Manifest:
    shards = check_list(document.get("shards"), "shards")
    manifest = Manifest(
        version=check_count(document.get("version"), "version"),
        created=_decode_created(check_text(document.get("created"), "created")),
        job=check_text(document.get("job"), "job"),
        schema=_decode_schema(check_text(document.get("schema"), "schema")),
        shards=tuple(
            _decode_entry(f"shards[{index}]", _decode_shard, shard)
            for index, shard in enumerate(shards)
        ),
        properties=check_texts(document.get("properties", {}), "properties"),
        snapshot=check_text(document.get("snapshot", ""), "snapshot"),
        shards_total=_decode_optional_count(document, "shards_total"),
    )
    for name, total in (("rows", manifest.rows), ("bytes", manifest.nbytes)):
        declared = check_count(document.get(name), name)
        if declared != total:
            raise InvalidDataError(f"{name} is {declared}, but the sum over the shards is {total}")
    return manifest


def _decode_shard(shard: dict[str, Any]) -> ShardEntry:
    columns = check_object(shard.get("columns", {}), "columns")
    return ShardEntry(
        path=check_text(shard.get("path"), "path"),
        rows=check_count(shard.get("rows"), "rows"),
        nbytes=check_count(shard.get("bytes"), "bytes"),
        sha256=check_text(shard.get("sha256"), "sha256"),
        columns={
            name: _decode_entry(f"columns[{name[:64]!r}]", decode_range, column)
            for name, column in columns.items()
        },
        ordinal=_decode_optional_count(shard, "ordinal"),
    )


def decode_range(column: Mapping[str, Any]) -> ColumnRange:
    """Return the range of a column from its JSON object; see `encode_ranges`.

    Raises `InvalidDataError` if a field has an impossible value.
    """
    nulls = check_count(column.get("nulls"), "nulls")
    return ColumnRange(column.get("min"), column.get("max"), nulls, column.get("box"))


def _decode_schema(text: str) -> pa.Schema:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidDataError("schema is not valid base64") from None
    try:
        prefix = parse_prefix(data)
        metadata = data[prefix.nbytes : prefix.nbytes + prefix.metadata_length]
        if not metadata or prefix.nbytes + prefix.metadata_length != len(data):
            raise InvalidDataError("expected exactly one encapsulated Arrow message")
        return read_schema(metadata)
    except ProtocolError as error:
        raise InvalidDataError(f"schema: {error.message}") from None


def _decode_created(text: str) -> datetime:
    try:
        created = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDataError(f"created is {text[:64]!r}; expected an ISO 8601 time") from None
    if created.utcoffset() != timedelta():
        raise InvalidDataError(f"created is {text[:64]!r}, which is not in UTC")
    return created.replace(tzinfo=UTC)


def _decode_optional_count(document: Mapping[str, Any], name: str) -> int:
    return check_count(document[name], name) if name in document else UNSET


def _decode_entry(name: str, decode: Callable[[dict[str, Any]], _T], value: Any) -> _T:
    """Decode an object in the document, and put its name in front of its errors."""
    entry = check_object(value, name)
    try:
        return decode(entry)
    except ProtocolError as error:
        raise InvalidDataError(f"{name}: {error.message}") from None
