"""One shard of a publication: how it is asked for, taken in, and remembered until the commit."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import InvalidRequestError, SplitArrowError
from ...formats.arrow.schema import read_schema
from ...formats.manifest import ShardEntry
from ...protocol.limits import Limits
from .upload import Shelf, Upload

MODES = ("append", "overwrite")
MOST_SHARDS = 1 << 20
"""How many shards a dataset may have."""
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_LONGEST_TEXT = 1024


@dataclass(frozen=True, slots=True)
class ShardKey:
    """Which shard of which publication. It is valid once built."""

    dataset: str
    """The name of the dataset."""
    job: str
    """The publication."""
    ordinal: int
    """The place of the shard in the publication, over all servers."""

    def __post_init__(self) -> None:
        """Check it."""
        check_job(self.job)
        if not _is_count(self.ordinal) or self.ordinal >= MOST_SHARDS:
            raise InvalidRequestError(f"the ordinal of a shard is {self.ordinal!r}")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be published. It is valid once built."""

    dataset: str
    """The name of the dataset."""
    job: str
    """The publication."""
    snapshot: str
    """What is the same at every server that has shards of it."""
    ordinals: frozenset[int]
    """The shards that have to be here."""
    shards_total: int
    """How many shards the publication has, over all servers."""
    append: bool
    """Whether the shards of the version before stay in the dataset, in front."""
    schema: pa.Schema | None = None
    """Their schema; needed where there are none."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """What else the manifest is to say."""

    @classmethod
    def parse(cls, body: bytes) -> Order:
        """Read the body of the action ``publish``.

        Raises
        ------
        InvalidRequestError
            If it is not what it has to be; the error names the field.
        """
        asked = json_object(body, "the body of the action")
        known = {"dataset", "job", "snapshot", "ordinals", "shards_total", "mode", "schema"}
        unknown = set(asked) - known - {"properties"}
        if unknown:
            raise InvalidRequestError(f"publish: unknown fields {', '.join(sorted(unknown))}")
        total: Any = asked.get("shards_total")
        if not _is_count(total) or total > MOST_SHARDS:
            raise InvalidRequestError(f"publish: shards_total is {total!r}")
        ordinals: Any = asked.get("ordinals")
        if not isinstance(ordinals, list) or not all(_is_count(n) and n < total for n in ordinals):
            raise InvalidRequestError(f"publish: ordinals are no list of numbers below {total}")
        mode = asked.get("mode", "overwrite")
        if mode not in MODES:
            raise InvalidRequestError(f"publish: mode is {mode!r}; known are {', '.join(MODES)}")
        properties: Any = asked.get("properties") or {}
        if not isinstance(properties, dict) or not all(
            isinstance(text, str) for text in (*properties, *properties.values())
        ):
            raise InvalidRequestError("publish: properties are no texts")
        job = check_job(asked.get("job"))
        return cls(
            dataset=_text(asked, "dataset"),
            job=job,
            snapshot=_text(asked, "snapshot") if asked.get("snapshot") else job,
            ordinals=frozenset(ordinals),
            shards_total=total,
            append=mode == "append",
            schema=_schema(asked.get("schema")),
            properties=properties,
        )


class ShardUpload(Upload):
    """The upload of a shard: an Arrow IPC file, and what the manifest will say of it.

    Parameters
    ----------
    shelf : Shelf
        Where it will be kept.
    key : ShardKey
        Which shard it is.
    path : Path
        The temporary file; it must not exist.
    limits : Limits
        Bounds on what is uploaded.
    """

    def __init__(self, shelf: Shelf, key: ShardKey, path: Path, limits: Limits) -> None:
        super().__init__(shelf, key.dataset, path, limits, as_file=True)
        self.key = key
        self.entry: ShardEntry | None = None
        """What the manifest will say of it, once it is stored."""

    def answer(self) -> dict[str, Any]:
        """Return what the client is told."""
        assert self.entry is not None
        key = self.key
        told = {"job": key.job, "ordinal": key.ordinal, "sha256": self.entry.sha256}
        return {**super().answer(), **told}


def shard_of(command: bytes) -> ShardKey:
    """Return which shard the command of an upload names.

    Raises
    ------
    InvalidRequestError
        If it names none.
    """
    asked = json_object(command, "the command of an upload")
    publish: Any = asked.get("publish")
    if set(asked) != {"dataset", "publish"} or not isinstance(publish, dict):
        raise InvalidRequestError(
            'the command of an upload is {"dataset": NAME, "publish": {"job": …, "ordinal": …}}'
        )
    ordinal: Any = publish.get("ordinal")
    return ShardKey(_text(asked, "dataset"), check_job(publish.get("job")), ordinal)


def check_job(job: Any) -> str:
    """Return the name of a publication.

    Raises
    ------
    InvalidRequestError
        If it can be none.
    """
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise InvalidRequestError(
            f"the job {str(job)[:80]!r} of a publication has to be 1 to 128 letters, digits and "
            "_ . - of ASCII, and to begin with none of . -"
        )
    return job


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises
    ------
    InvalidRequestError
        If it is none.
    """
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{what} is no JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{what} is no JSON object")
    return value


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT:
        raise InvalidRequestError(f"publish: {name} is {str(value)[:80]!r}")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _schema(text: Any) -> pa.Schema | None:
    if text is None:
        return None
    try:
        message = pa.ipc.read_message(pa.py_buffer(base64.b64decode(text, validate=True)))
        return read_schema(bytes(memoryview(message.metadata)))
    except (SplitArrowError, pa.ArrowException, OSError, EOFError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"publish: the schema is refused: {error}") from None
