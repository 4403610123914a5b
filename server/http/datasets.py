"""Descriptions of datasets for JSON and for OpenAPI, and the paths that name them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.parquet as pq
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from ...errors import SplitArrowError
from ...protocol.request import Request
from ..caller import Caller
from ..catalog.dataset import ServedDataset, select_shards
from ..catalog.delta import DeltaDataset
from ..catalog.files.origins import open_handle
from ..catalog.published import PublishedDataset, PublishedVersion
from ..report import package_version
from .formats import FORMATS
from .parameters import PARAMETERS

_PREFIX = "/v1/datasets/"
_MAX_SHARD_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Target:
    """What a path below ``/v1/datasets/`` names."""

    dataset: str
    shard: int | None = None
    is_data: bool = False

    @classmethod
    def parse(cls, request: HttpRequest) -> Target:
        """Parse the path of a request: ``NAME``, then ``/shards/N``, then ``/data``.

        A slash in a name may be ``%2F``. Raises `HTTPException` if the path is malformed.
        """
        raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
        *parts, last = raw.partition(b"?")[0].decode("latin-1").removeprefix(_PREFIX).split("/")
        is_data = last == "data" and bool(parts)
        if not is_data:
            parts.append(last)
        shard = None
        if len(parts) > 2 and parts[-2] == "shards":
            if not (parts[-1].isascii() and parts[-1].isdigit()):
                raise HTTPException(404, "the number of a shard consists of digits")
            if len(parts[-1]) > _MAX_SHARD_DIGITS:
                raise HTTPException(404, "there is no such shard")
            shard = int(parts[-1])
            parts = parts[:-2]
        try:
            name = "/".join(unquote(part, errors="strict") for part in parts)
        except UnicodeDecodeError:
            raise HTTPException(400, "the path is not UTF-8") from None
        if not name or "\0" in name:
            raise HTTPException(404, "the path names no dataset")
        return cls(name, shard, is_data)


def describe(caller: Caller, target: Target) -> dict[str, Any]:
    """Return the description of a dataset or a shard, for JSON. Blocking: it looks at the files."""
    dataset = caller.find_dataset(target.dataset)
    if isinstance(dataset, (DeltaDataset, PublishedDataset)):
        dataset = dataset.resolve_version(Request(target.dataset))
    version = dataset.version
    dataset.update_description()
    shards = dataset.shards
    path = _PREFIX + quote(target.dataset, safe="")
    if target.shard is not None:
        (shard,) = select_shards(Request(target.dataset, shard=target.shard), shards)
        return {
            "name": target.dataset,
            "version": version,
            "shard": target.shard,
            "rows": shard.rows,
            "bytes": shard.nbytes,
            "data": f"{path}/shards/{target.shard}/data",
        }
    schema = dataset.schema
    return {
        "name": target.dataset,
        "kind": dataset.kind,
        "version": version,
        "rows": dataset.rows,
        "bytes": dataset.nbytes,
        "shards": len(shards),
        "schema": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in schema
        ],
        "arrow_schema": base64.b64encode(schema.serialize()).decode(),
        "statistics": summarize(dataset),
        "data": f"{path}/data",
    }


def summarize(dataset: ServedDataset) -> dict[str, dict[str, Any]]:
    """Return what is stored about the values of each column: minimum, maximum, number of nulls.

    Only published datasets and Parquet files store something. Other columns are left out.
    """
    parts: list[Mapping[str, Mapping[str, Any]]] = []
    if isinstance(dataset, PublishedVersion):
        parts = [shard["columns"] for shard in dataset.list_ranges(None) if shard["rows"]]
    elif dataset.kind == "parquet file":
        parts = list(_read_row_groups(dataset))
    columns: dict[str, dict[str, Any]] = {}
    for name in parts[0] if parts else ():
        found = [part[name] for part in parts if name in part]
        if len(found) < len(parts):
            continue
        summary: dict[str, Any] = {}
        for key, choose in (("min", min), ("max", max), ("nulls", sum)):
            values = [each[key] for each in found if key in each]
            if len(values) == len(found):
                summary[key] = choose(values)
        if summary:
            columns[name] = summary
    return columns


def _read_row_groups(dataset: ServedDataset) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the statistics of the columns in each row group of a Parquet file with rows."""
    try:
        stored = dataset.open_stored_file(Request("-"))
    except SplitArrowError:
        return
    if stored is None:
        return
    try:
        with closing(open_handle(stored.file)) as handle:
            metadata: Any = pq.read_metadata(handle)
    finally:
        stored.close()
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            yield dict(_read_statistics(group))


def _read_statistics(group: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for index in range(group.num_columns):
        column = group.column(index)
        statistics = column.statistics
        if statistics is None or "." in column.path_in_schema:
            continue
        found: dict[str, Any] = {}
        if statistics.has_min_max and isinstance(statistics.min, (int, float, str)):
            found |= {"min": statistics.min, "max": statistics.max}
        if statistics.has_null_count:
            found["nulls"] = statistics.null_count
        yield column.path_in_schema, found


_TEXT_ERROR = {
    "description": "One sentence that says what is wrong.",
    "content": {"text/plain": {}},
}


def describe_api(*, accepts_uploads: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the requests for datasets."""
    name = _parameter("name", {"type": "string"}, "The dataset; a slash in it is `%2F`.", "path")
    shard = _parameter("shard", {"type": "integer"}, "The shard, counted from 0.", "path")
    bodies = {each.media_type: {} for each in FORMATS.values()}
    data = {
        "responses": {
            "200": {"description": "The data, with its version as `ETag`.", "content": bodies},
            "206": {"description": "A range of a stored file.", "content": bodies},
            "304": {"description": "The client has this version."},
            **dict.fromkeys(("400", "401", "403", "404", "409", "429", "503"), _TEXT_ERROR),
        }
    }
    query = [
        {
            **_parameter(key, schema, text, "query"),
            **({"style": "form", "explode": False} if schema["type"] == "array" else {}),
        }
        for key, (schema, text) in PARAMETERS.items()
    ]
    properties = {
        key: {**schema, "description": text} for key, (schema, text) in PARAMETERS.items()
    }
    body = {
        "content": {"application/json": {"schema": {"type": "object", "properties": properties}}}
    }
    reads: dict[str, Any] = {
        "get": {"summary": "Read a dataset.", "parameters": query, **data},
        "post": {"summary": "Read a dataset by a long request.", "requestBody": body, **data},
    }
    if accepts_uploads:
        reads["put"] = {
            "summary": "Upload a dataset, an Arrow stream, or replace an uploaded one.",
            "parameters": [
                _parameter(
                    "If-None-Match", {"type": "string"}, "`*` replaces no dataset.", "header"
                ),
                _parameter(
                    "If-Match",
                    {"type": "string"},
                    "Replaces only the version of this `ETag`.",
                    "header",
                ),
            ],
            "requestBody": {"content": {FORMATS["arrow-stream"].media_type: {}}},
            "responses": {
                "201": {"description": "It is stored."},
                **dict.fromkeys(("400", "409", "412"), _TEXT_ERROR),
            },
        }
    described = {"200": {"description": "A JSON object.", "content": {"application/json": {}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "splitarrow", "version": package_version()},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
        "paths": {
            "/v1/datasets": {"get": {"summary": "List the datasets.", "responses": described}},
            "/v1/datasets/{name}": {
                "parameters": [name],
                "get": {"summary": "Describe a dataset.", "responses": described},
            },
            "/v1/datasets/{name}/data": {"parameters": [name], **reads},
            "/v1/datasets/{name}/shards/{shard}": {
                "parameters": [name, shard],
                "get": {"summary": "Describe a shard.", "responses": described},
            },
            "/v1/datasets/{name}/shards/{shard}/data": {
                "parameters": [name, shard],
                "get": {"summary": "Read a shard.", "parameters": query, **data},
            },
        },
    }


def _parameter(name: str, schema: Mapping[str, Any], text: str, place: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "schema": dict(schema),
        "description": text,
        **({"required": True} if place == "path" else {}),
    }
