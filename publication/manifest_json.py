"""Manifests as JSON.

::

    {
      "format": "splitarrow-manifest", "format_version": 1,
      "version": 3, "created": "2026-01-02T03:04:05+00:00", "job": "job-17",
      "snapshot": "job-17", "schema": "an encapsulated Arrow schema message in base64",
      "rows": 20, "bytes": 2001, "shards_total": 1,
      "shards": [{"path": "data/job-17/0-c0ffee.arrow", "ordinal": 0, "rows": 20, "bytes": 2001,
                  "sha256": "…", "columns": {"n": {"min": -5, "max": 7, "nulls": 1}}}],
      "properties": {}
    }

``snapshot``, ``shards_total``, ``properties``, ``ordinal``, ``columns``, ``min`` and ``max`` may
be missing. Unknown keys are ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa

from ..errors import DatasetError, InvalidDataError, ProtocolError
from ..formats.arrow.framing import parse_prefix
from ..formats.arrow.schema import read_schema
from .manifest import UNSET, ColumnRange, Manifest, ShardEntry
from .manifest_fields import check_count, check_list, check_object, check_text, check_texts, show

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


def decode_manifest(data: bytes, label: str) -> Manifest:
    """Return the manifest that a JSON document describes.

    Parameters
    ----------
    data : bytes
        The JSON document in UTF-8.
    label : str
        The origin of the document, for errors.

    Raises
    ------
    DatasetError
        If the document is malformed, has a later format version, or has an impossible value,
        such as a shard path that leaves the dataset. The error names the label and the field.
    """
    try:
        return _decode_manifest(_parse_document(data))
    except ProtocolError as error:
        raise DatasetError(f"{label} is not a valid manifest: {error.message}") from None


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
    fields: dict[str, Any] = {"min": column.minimum, "max": column.maximum, "nulls": column.nulls}
    fields["box"] = column.box
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

    Raises
    ------
    InvalidDataError
        If a field has an impossible value.
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
