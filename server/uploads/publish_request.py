"""Requests for publishing a dataset shard by shard: upload one shard, publish a job."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError, SplitArrowError, UsageError
from ...formats.arrow.schema import read_schema
from ...publication.layout import check_name

MODES = ("append", "overwrite")
MAX_SHARDS = 1 << 20
"""The largest number of shards of a dataset."""
_MAX_TEXT_CHARACTERS = 1024
_FIELDS = (
    "dataset",
    "job",
    "snapshot",
    "ordinals",
    "shards_total",
    "mode",
    "schema",
    "properties",
)


@dataclass(frozen=True, slots=True)
class ShardKey:
    """The identity of a shard that a client uploads. It is valid once built."""

    dataset: str
    """The name of the dataset."""
    job: str
    """The publishing job."""
    ordinal: int
    """The position of the shard in the publication, counted over all servers."""

    def __post_init__(self) -> None:
        check_job(self.job)
        if not _is_count(self.ordinal) or self.ordinal >= MAX_SHARDS:
            raise InvalidRequestError(
                f"the ordinal of the shard is {self.ordinal!r}; "
                f"it must be an integer from 0 to {MAX_SHARDS - 1}"
            )

    @classmethod
    def parse(cls, command: bytes) -> ShardKey:
        """Return the key in the command of an upload.

        The command is ``{"dataset": NAME, "publish": {"job": JOB, "ordinal": N}}``.

        Raises
        ------
        InvalidRequestError
            If the command is malformed.
        """
        values = _parse_object(command, "the command of the upload")
        publish: Any = values.get("publish")
        if set(values) != {"dataset", "publish"} or not isinstance(publish, dict):
            raise InvalidRequestError(
                "the command of the upload must be "
                '{"dataset": NAME, "publish": {"job": …, "ordinal": …}}'
            )
        ordinal: Any = publish.get("ordinal")
        return cls(_read_text(values, "dataset"), check_job(publish.get("job")), ordinal)


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A request to publish the uploaded shards of a job. It is valid once built."""

    dataset: str
    """The name of the dataset."""
    job: str
    """The publishing job."""
    snapshot: str
    """The identifier that all servers with shards of this publication share."""
    ordinals: frozenset[int]
    """The shards that this server must have."""
    shards_total: int
    """The number of shards of the publication on all servers."""
    append: bool
    """Whether the shards of the current version stay, before the new ones."""
    schema: pa.Schema | None = None
    """The schema of the shards. It is required if there are no shards."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further information to store in the manifest."""

    @classmethod
    def parse(cls, body: bytes) -> PublishRequest:
        """Return the request in the body of the action ``publish``.

        Raises
        ------
        InvalidRequestError
            If the body is malformed. The error names the field.
        """
        values = _parse_object(body, "the body of the action")
        unknown = set(values) - set(_FIELDS)
        if unknown:
            raise InvalidRequestError(f"publish: unknown fields {', '.join(sorted(unknown))}")
        total: Any = values.get("shards_total")
        if not _is_count(total) or total > MAX_SHARDS:
            raise InvalidRequestError(
                f"publish: shards_total is {total!r}; it must be an integer from 0 to {MAX_SHARDS}"
            )
        ordinals: Any = values.get("ordinals")
        if not isinstance(ordinals, list) or not all(_is_count(n) and n < total for n in ordinals):
            raise InvalidRequestError(
                f"publish: ordinals must be a list of integers from 0, less than {total}"
            )
        mode = values.get("mode", "overwrite")
        if mode not in MODES:
            raise InvalidRequestError(f"publish: mode is {mode!r}; use {' or '.join(MODES)}")
        properties: Any = values.get("properties") or {}
        if not isinstance(properties, dict) or not all(
            isinstance(text, str) for text in (*properties, *properties.values())
        ):
            raise InvalidRequestError("publish: properties must be an object of strings")
        job = check_job(values.get("job"))
        return cls(
            dataset=_read_text(values, "dataset"),
            job=job,
            snapshot=_read_text(values, "snapshot") if values.get("snapshot") else job,
            ordinals=frozenset(ordinals),
            shards_total=total,
            append=mode == "append",
            schema=_decode_schema(values.get("schema")),
            properties=properties,
        )


def check_job(job: Any) -> str:
    """Return the name of a publishing job.

    Raises
    ------
    InvalidRequestError
        If it is not a valid name.
    """
    if not isinstance(job, str):
        raise InvalidRequestError(f"the job is {str(job)[:80]!r}; it must be a string")
    try:
        return check_name(job, "job")
    except UsageError as error:
        raise InvalidRequestError(error.message) from None


def _parse_object(data: bytes, source: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{source} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{source} is not a JSON object")
    return value


def _read_text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT_CHARACTERS:
        raise InvalidRequestError(
            f"publish: {name} is {str(value)[:80]!r}; "
            f"it must be a string of 1 to {_MAX_TEXT_CHARACTERS} characters"
        )
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _decode_schema(text: Any) -> pa.Schema | None:
    if text is None:
        return None
    try:
        message = pa.ipc.read_message(pa.py_buffer(base64.b64decode(text, validate=True)))
        return read_schema(bytes(memoryview(message.metadata)))
    except (SplitArrowError, pa.ArrowException, OSError, EOFError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"publish: the schema is invalid: {error}") from None
