"""Manifests: which shards make up one version of a published dataset.

A published dataset is a folder, ``DATASET``. Version 1 of it is what
``DATASET/_splitarrow/versions/00000001.json`` says; the shards that it names lie below
``DATASET`` and never change.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pyarrow as pa

from ..errors import DatasetError, InvalidDataError, ProtocolError
from .arrow.message import parse_prefix
from .arrow.schema import read_schema

FORMAT = "splitarrow-manifest"
FORMAT_VERSION = 1
RESERVED = "_splitarrow"
"""The folder in a published dataset that no shard lies in."""
MOST_TEXT = 64
"""The longest text that is a smallest or largest value, in characters."""
EXACT = 1 << 53
"""Integers from here on are written as text: not every reader of JSON keeps them."""

RangeValue = int | float | str | None
"""A smallest or largest value as JSON carries it; None: not known."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNSET = -1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What the values of a column lie between, in one shard.

    Numbers are themselves; integers from 2^53 on, dates, timestamps and decimals are text, as
    `splitarrow.formats.ranges` writes and reads it.
    """

    minimum: RangeValue
    """The smallest value; None if it is not known."""
    maximum: RangeValue
    """The largest value; None if it is not known."""
    nulls: int
    """How many values are null."""

    def __post_init__(self) -> None:
        """Check it; integers that are too large for JSON become text."""
        for name, value in (("minimum", self.minimum), ("maximum", self.maximum)):
            object.__setattr__(self, name, _range_value(value, name))
        _count(self.nulls, "nulls")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard: an Arrow IPC file of a published dataset."""

    path: str
    """Where it lies, relative to the dataset; its parts are separated by ``/``."""
    rows: int
    """How many rows it has."""
    nbytes: int
    """How long the file is, in bytes."""
    sha256: str
    """The SHA-256 of the file, in hexadecimal digits."""
    columns: Mapping[str, ColumnRange] = field(default_factory=dict[str, ColumnRange])
    """What is known of the columns, by their names."""
    ordinal: int = _UNSET
    """Its position in the whole dataset; in a `Manifest`, by default, the one in the list."""

    def __post_init__(self) -> None:
        """Check it."""
        check_path(self.path)
        _count(self.rows, "rows")
        _count(self.nbytes, "bytes")
        if not _SHA256.fullmatch(_text(self.sha256, "sha256")):
            raise InvalidDataError(f"sha256 is {self.sha256[:70]!r}, not 64 hexadecimal digits")
        if self.ordinal != _UNSET:
            _count(self.ordinal, "ordinal")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a published dataset. It is valid once built.

    Raises
    ------
    InvalidDataError
        If a field is impossible; the error names it.
    """

    version: int
    """The number of the version; the first is 1."""
    created: datetime
    """When it was published, in UTC."""
    job: str
    """Which job made it; no two versions have the same."""
    schema: pa.Schema
    """The schema of all shards."""
    shards: tuple[ShardEntry, ...] = ()
    """The shards, in the order of their ordinals."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whatever else the publisher says."""
    snapshot: str = ""
    """What identifies the publication at every server that has shards of it; by default the job."""
    shards_total: int = _UNSET
    """How many shards the whole dataset has, over all servers; by default those in the list."""

    def __post_init__(self) -> None:
        """Check it, and fill in what was left out."""
        if _count(self.version, "version") < 1:
            raise InvalidDataError("version is 0; the first is 1")
        if self.created.utcoffset() != timedelta():
            raise InvalidDataError("created is not in UTC")
        if not _text(self.job, "job"):
            raise InvalidDataError("job is empty")
        _texts(self.properties, "properties")
        shards = [
            replace(shard, ordinal=index) if shard.ordinal == _UNSET else shard
            for index, shard in enumerate(self.shards)
        ]
        shards.sort(key=lambda shard: shard.ordinal)
        _refuse_twice((shard.ordinal for shard in shards), "ordinal")
        _refuse_twice((shard.path for shard in shards), "path")
        object.__setattr__(self, "shards", tuple(shards))
        if not _text(self.snapshot, "snapshot"):
            object.__setattr__(self, "snapshot", self.job)
        if self.shards_total == _UNSET:
            object.__setattr__(self, "shards_total", len(shards))
        most = max(len(shards), shards[-1].ordinal + 1 if shards else 0)
        if _count(self.shards_total, "shards_total") < most:
            raise InvalidDataError(
                f"shards_total is {self.shards_total}, but there are shards up to {most - 1}"
            )

    @property
    def rows(self) -> int:
        """How many rows the shards have."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """How long the shards are, in bytes."""
        return sum(shard.nbytes for shard in self.shards)

    def to_json(self) -> bytes:
        """Return the manifest as JSON, in UTF-8. Equal manifests give equal bytes."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "version": self.version,
            "created": self.created.isoformat(),
            "job": self.job,
            "snapshot": self.snapshot,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "rows": self.rows,
            "bytes": self.nbytes,
            "shards_total": self.shards_total,
            "shards": [_shard_document(shard) for shard in self.shards],
            "properties": dict(self.properties),
        }
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, label: str) -> Manifest:
        """Read a manifest.

        Parameters
        ----------
        data : bytes
            The JSON.
        label : str
            Where it came from, for errors.

        Raises
        ------
        DatasetError
            If it is malformed, of a later format, or says what cannot be, such as the path of a
            shard outside the dataset. The error names the label and the field.
        """
        try:
            return _manifest(cls, _parsed(data))
        except ProtocolError as error:
            raise DatasetError(f"{label} is no manifest: {error.message}") from None


def check_path(path: str) -> str:
    """Return the path of a shard.

    Raises
    ------
    InvalidDataError
        If it is not relative, or leaves the dataset, or lies where manifests do.
    """
    parts = _text(path, "path").split("/")
    if "\\" in path or any(ord(char) < 32 for char in path):
        raise InvalidDataError(f"path {path!r} has a backslash or a control character")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == RESERVED:
        raise InvalidDataError(f"path {path!r} is no path of a shard below the dataset")
    return path


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document: Any = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidDataError(f"it is not JSON: {reason}") from None
    found = _mapping(document, "it")
    if found.get("format") != FORMAT:
        raise InvalidDataError(f"format is {_short(found.get('format'))}, not {FORMAT!r}")
    if found.get("format_version") != FORMAT_VERSION:
        raise InvalidDataError(
            f"format_version is {_short(found.get('format_version'))}; "
            f"this release reads {FORMAT_VERSION}"
        )
    return found


def _manifest(kind: type[Manifest], document: dict[str, Any]) -> Manifest:
    shards = [
        _within(f"shards[{index}]", _shard, entry)
        for index, entry in enumerate(_sequence(document.get("shards"), "shards"))
    ]
    manifest = kind(
        version=_count(document.get("version"), "version"),
        created=_moment(_text(document.get("created"), "created")),
        job=_text(document.get("job"), "job"),
        schema=_within("schema", _schema, document.get("schema")),
        shards=tuple(shards),
        properties=_texts(document.get("properties", {}), "properties"),
        snapshot=_text(document.get("snapshot", ""), "snapshot"),
        shards_total=_optional_count(document, "shards_total"),
    )
    for name, found in (("rows", manifest.rows), ("bytes", manifest.nbytes)):
        said = _count(document.get(name), name)
        if said != found:
            raise InvalidDataError(f"{name} is {said}, but the shards have {found}")
    return manifest


def _shard(value: Any) -> ShardEntry:
    entry = _mapping(value, "it")
    columns = _mapping(entry.get("columns", {}), "columns")
    return ShardEntry(
        path=_text(entry.get("path"), "path"),
        rows=_count(entry.get("rows"), "rows"),
        nbytes=_count(entry.get("bytes"), "bytes"),
        sha256=_text(entry.get("sha256"), "sha256"),
        columns={
            name: _within(f"columns[{name[:64]!r}]", _column, column)
            for name, column in columns.items()
        },
        ordinal=_optional_count(entry, "ordinal"),
    )


def _column(value: Any) -> ColumnRange:
    column = _mapping(value, "it")
    return ColumnRange(column.get("min"), column.get("max"), _count(column.get("nulls"), "nulls"))


def _shard_document(shard: ShardEntry) -> dict[str, Any]:
    columns: dict[str, dict[str, Any]] = {}
    for name, found in shard.columns.items():
        known = {"min": found.minimum, "max": found.maximum, "nulls": found.nulls}
        columns[name] = {key: value for key, value in known.items() if value is not None}
    return {
        "path": shard.path,
        "ordinal": shard.ordinal,
        "rows": shard.rows,
        "bytes": shard.nbytes,
        "sha256": shard.sha256,
        "columns": columns,
    }


def _schema(value: Any) -> pa.Schema:
    try:
        data = base64.b64decode(_text(value, "it"), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidDataError("it is not base64") from None
    prefix = parse_prefix(data)
    metadata = data[prefix.nbytes : prefix.nbytes + prefix.metadata_length]
    if not metadata or prefix.nbytes + prefix.metadata_length != len(data):
        raise InvalidDataError("it is not one encapsulated message")
    return read_schema(metadata)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidDataError(f"created is {text[:64]!r}, no time of ISO 8601") from None
    if moment.utcoffset() != timedelta():
        raise InvalidDataError(f"created is {text[:64]!r}, not in UTC")
    return moment.replace(tzinfo=UTC)


def _range_value(value: Any, name: str) -> RangeValue:
    if isinstance(value, bool) or not isinstance(value, int | float | str | None):
        raise InvalidDataError(f"{name} is {_short(value)}, neither a number nor text")
    if isinstance(value, int):
        return value if abs(value) < EXACT else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidDataError(f"{name} is {value}, which JSON cannot carry")
    if isinstance(value, str) and len(_text(value, name)) > MOST_TEXT:
        raise InvalidDataError(f"{name} has {len(value)} characters; {MOST_TEXT} are allowed")
    return value


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidDataError(f"{name} is {_short(value)}, not a count")
    return value


def _optional_count(document: Mapping[str, Any], name: str) -> int:
    return _count(document[name], name) if name in document else _UNSET


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidDataError(f"{name} is {_short(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidDataError(f"{name} is not Unicode") from None
    return value


def _texts(value: Any, name: str) -> dict[str, str]:
    found = _mapping(value, name)
    return {_text(key, name): _text(text, f"{name}[{key!r}]") for key, text in found.items()}


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidDataError(f"{name} is {_short(value)}, not an object")
    return dict(cast("Mapping[str, Any]", value))


def _sequence(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InvalidDataError(f"{name} is {_short(value)}, not a list")
    return cast("list[Any]", value)


def _refuse_twice(values: Iterable[object], name: str) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InvalidDataError(f"two shards have the {name} {value!r}")
        seen.add(value)


def _within(place: str, read: Callable[[Any], _T], value: Any) -> _T:
    """Read a part; its errors say where it is."""
    try:
        return read(value)
    except ProtocolError as error:
        raise InvalidDataError(f"{place}: {error.message}") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _short(value: object) -> str:
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= 64 else f"{text[:60]}…"
