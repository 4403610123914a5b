"""Publishing a dataset shard by shard: the requests of clients, and the folder of one dataset."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import (
    DatasetError,
    InvalidDataError,
    InvalidRequestError,
    RemoteError,
    SplitArrowError,
    UsageError,
    remote_error,
)
from ...formats.arrow.schema import read_schema
from ...publication.atomic_files import write_atomic
from ...publication.layout import (
    DATA,
    PRUNED,
    STAGING,
    VERSIONS,
    check_name,
    format_data_folder,
    format_manifest_name,
)
from ...publication.manifest import (
    Manifest,
    ShardEntry,
    check_properties,
    decode_manifest,
    encode_manifest,
)
from ...publication.version_store import VersionStore

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
    def parse(cls, values: Mapping[str, Any]) -> ShardKey:
        """Return the key in the command of an upload.

        The command is ``{"dataset": NAME, "publish": {"job": JOB, "ordinal": N}}``.
        """
        publish: Any = values.get("publish")
        if set(values) != {"dataset", "publish"} or not isinstance(publish, dict):
            raise InvalidRequestError(
                'the command of the upload must be {"dataset": NAME, "if_exists": …} or '
                '{"dataset": NAME, "publish": {"job": …, "ordinal": …}}'
            )
        ordinal: Any = publish.get("ordinal")
        return cls(read_text(values, "dataset"), check_job(publish.get("job")), ordinal)


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
        """Return the request in the body of the action ``publish``."""
        values = parse_object(body, "the body of the action")
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
        job = check_job(values.get("job"))
        return cls(
            dataset=read_text(values, "dataset"),
            job=job,
            snapshot=read_text(values, "snapshot") if values.get("snapshot") else job,
            ordinals=frozenset(ordinals),
            shards_total=total,
            append=mode == "append",
            schema=_decode_schema(values.get("schema")),
            properties=_check_properties(values.get("properties")),
        )


def check_job(job: Any) -> str:
    """Return the name of a publishing job, if it is valid."""
    if not isinstance(job, str):
        raise InvalidRequestError(f"the job is {str(job)[:80]!r}; it must be a string")
    try:
        return check_name(job, "job")
    except UsageError as error:
        raise InvalidRequestError(error.message) from None


def parse_object(data: bytes, source: str) -> dict[str, Any]:
    """Return a JSON object; `source` names it in errors."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{source} is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{source} is not a JSON object")
    return value


def read_text(values: Mapping[str, Any], name: str) -> str:
    """Return a text of a JSON object, if it is valid."""
    value = values.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT_CHARACTERS:
        raise InvalidRequestError(
            f"publish: {name} is {str(value)[:80]!r}; "
            f"it must be a string of 1 to {_MAX_TEXT_CHARACTERS} characters"
        )
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_properties(value: Any) -> dict[str, str]:
    try:
        return check_properties({} if value is None else value)
    except InvalidDataError as error:
        raise InvalidRequestError(f"publish: {error.message}") from None


def _decode_schema(text: Any) -> pa.Schema | None:
    if text is None:
        return None
    try:
        message = pa.ipc.read_message(pa.py_buffer(base64.b64decode(text, validate=True)))
        return read_schema(bytes(memoryview(message.metadata)))
    except (SplitArrowError, pa.ArrowException, OSError, EOFError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"publish: the schema is invalid: {error}") from None


_RECORD_SUFFIX = ".json"
_MANIFEST_OVERHEAD_BYTES = 8 << 10
"""The largest size of a manifest without its schema, shards and properties, in bytes."""
_MAX_LISTED_SHARDS = 12


class PublishedFolder:
    """The versions of a published dataset, and the staged shards of its jobs.

    It adds records of staged shards to the files of `VersionStore`::

        _splitarrow/staging/JOB/ORDINAL-HASH.arrow    a staged shard
        _splitarrow/staging/JOB/ORDINAL.json          its record: a manifest of this one shard

    A shard counts as staged once its record exists. If the server dies before that, the client
    gets no response and uploads the shard again. The file without a record is replaced then, or
    removed with the staging folder.

    The folder need not exist.
    """

    def __init__(self, dataset: str, path: Path) -> None:
        self.dataset = dataset
        self.path = path
        self._store = VersionStore(path)

    def stage_shard(self, key: ShardKey, path: Path) -> tuple[pa.Schema, ShardEntry]:
        """Move a complete file into the staging folder. `record_shard` must follow."""
        name = f"{key.ordinal:08d}.arrow"
        return self._store.stage_file(key.job, name, path, ordinal=key.ordinal)

    def encode_record(self, key: ShardKey, schema: pa.Schema, entry: ShardEntry) -> bytes:
        """Return the record of a staged shard."""
        manifest = Manifest(
            version=1,
            created=datetime.now(UTC),
            job=key.job,
            schema=schema,
            shards=(entry,),
            shards_total=key.ordinal + 1,
        )
        return encode_manifest(manifest)

    def record_shard(self, key: ShardKey, entry: ShardEntry, record: bytes) -> None:
        """Write the record of a shard, and remove the file that was staged under its key before."""
        previous = self._load_record(key)
        if previous is not None and previous.shards[0].path != entry.path:
            self._make_staged_path(key, previous.shards[0]).unlink(missing_ok=True)
        write_atomic(self._make_record_path(key), record)

    def unstage_shard(self, key: ShardKey, entry: ShardEntry) -> None:
        """Remove a staged file, unless a record lists it: it was staged before, too."""
        previous = self._load_record(key)
        if previous is None or previous.shards[0].path != entry.path:
            self._make_staged_path(key, entry).unlink(missing_ok=True)

    def measure_staged(self, job: str = "*") -> dict[ShardKey, int]:
        """Return the staged shards of one job or of all jobs, with their sizes in bytes.

        A size includes that of the record.
        """
        sizes: dict[ShardKey, int] = {}
        for path in (self.path / STAGING).glob(f"{job}/*{_RECORD_SUFFIX}"):
            try:
                key = ShardKey(self.dataset, path.parent.name, int(path.stem))
                record = path.read_bytes()
                sizes[key] = decode_manifest(record, str(path)).nbytes + len(record)
            except (SplitArrowError, OSError, ValueError):
                continue
        return sizes

    def remove_staged(self, job: str) -> None:
        """Remove the staging folder of a job."""
        shutil.rmtree(self.path / STAGING / job, ignore_errors=True)

    def measure_committed(self) -> int:
        """Return the size of the shards and manifests of all versions, in bytes."""
        total = 0
        for top in (DATA, VERSIONS, PRUNED):
            for folder, _, names in os.walk(self.path / top):
                for name in names:
                    with suppress(FileNotFoundError):  # pruned since the folder was listed
                        total += os.stat(os.path.join(folder, name)).st_size
        return total

    def measure_commit(self, request: PublishRequest) -> int:
        """Return an upper bound of what a commit adds to the staged shards and records, in bytes.

        The records have the schema and the entries of the shards already.
        """
        nbytes = _MANIFEST_OVERHEAD_BYTES + len(json.dumps(dict(request.properties)))
        if request.schema is not None:
            nbytes += 2 * request.schema.serialize().size  # in base64
        for version in self._store.list_versions()[-1:] if request.append else ():
            with suppress(FileNotFoundError):  # pruned meanwhile
                nbytes += (self.path / format_manifest_name(version)).stat().st_size
        return nbytes

    def list_jobs(self) -> dict[str, int]:
        """Return the jobs that committed a version, with the number of the version."""
        jobs: dict[str, int] = {}
        for version in self._store.list_versions():
            manifest = self._store.load(version)
            if manifest is not None:
                jobs[manifest.job] = manifest.version
        return jobs

    def commit(self, request: PublishRequest) -> Manifest:
        """Commit the staged shards of a job as a version."""
        records = self._load_records(request)
        return self._store.commit(
            request.job,
            self._find_schema(request, records),
            [shard for record in records.values() for shard in record.shards],
            append=request.append,
            properties=dict(request.properties),
            snapshot=request.snapshot,
            shards_total=request.shards_total,
        )

    def load_committed(self, request: PublishRequest, version: int) -> Manifest:
        """Return the version that a job has committed, if a repeated request asks for the same.

        Raises `RemoteError` with the code FAILED_PRECONDITION if the request asks for something
        else, or a later version has replaced the shards of the job.
        """
        manifest = self._store.load(version)
        if manifest is None:
            raise make_publish_error(request, f"its version {version} was removed")
        offset = manifest.shards_total - request.shards_total if request.append else 0
        shards = _list_shards_of_job(manifest, request.job)
        ordinals = {shard.path: shard.ordinal - offset for shard in shards}
        if differing := sorted(frozenset(ordinals.values()) ^ request.ordinals):
            raise make_publish_error(
                request, f"it is already published with other shards: {_format_shards(differing)}"
            )
        if manifest.snapshot != request.snapshot:
            raise make_publish_error(
                request, f"it is already published as snapshot {manifest.snapshot!r}"
            )
        current = self._store.load()
        if current is None or not ordinals.keys() <= {shard.path for shard in current.shards}:
            raise make_publish_error(
                request,
                f"it is already published as version {version}, which a later version has "
                "replaced; publish under another job",
            )
        return manifest

    def find_committed_shard(self, key: ShardKey, version: int, sha256: str) -> ShardEntry:
        """Return the shard of a committed job that has the contents of a repeated upload."""
        manifest = self._store.load(version)
        if manifest is not None:
            for shard in _list_shards_of_job(manifest, key.job):
                if shard.sha256 == sha256:
                    return shard
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the job {key.job!r} of {key.dataset!r} is already published, and its shard "
            f"{key.ordinal} has other contents; publish under another job",
            stream=key.dataset,
        )

    def discard(self, job: str) -> None:
        """Remove the staged shards of a job, and its other shards unless a version has them."""
        self._store.discard(job)

    def _find_schema(self, request: PublishRequest, records: dict[int, Manifest]) -> pa.Schema:
        """Return the schema of a new version. All its shards must have it."""
        schema = request.schema
        for ordinal, record in records.items():
            if schema is not None and not record.schema.equals(schema):
                raise make_publish_error(
                    request, f"the schema of shard {ordinal} differs from the rest"
                )
            schema = record.schema
        current = self._store.load() if request.append else None
        if current is not None:
            if schema is not None and not current.schema.equals(schema):
                raise make_publish_error(
                    request, f"its schema differs from that of version {current.version}"
                )
            schema = current.schema
        if schema is None:
            raise make_publish_error(request, "it has no shard and no schema; send the schema")
        return schema

    def _load_records(self, request: PublishRequest) -> dict[int, Manifest]:
        """Return the records of the requested shards, by ordinal."""
        records: dict[int, Manifest] = {}
        missing: list[int] = []
        for ordinal in sorted(request.ordinals):
            record = self._load_record(ShardKey(request.dataset, request.job, ordinal))
            if record is None:
                missing.append(ordinal)
            else:
                records[ordinal] = record
        if missing:
            raise make_publish_error(request, f"this server has no {_format_shards(missing)}")
        return records

    def _load_record(self, key: ShardKey) -> Manifest | None:
        path = self._make_record_path(key)
        try:
            return decode_manifest(path.read_bytes(), str(path))
        except (FileNotFoundError, DatasetError):
            return None

    def _make_staged_path(self, key: ShardKey, entry: ShardEntry) -> Path:
        return self.path / STAGING / key.job / entry.path.rpartition("/")[2]

    def _make_record_path(self, key: ShardKey) -> Path:
        return self.path / STAGING / key.job / f"{key.ordinal:08d}{_RECORD_SUFFIX}"


def make_publish_error(request: PublishRequest, problem: str) -> RemoteError:
    """Return the error for a job that cannot be published in its present state."""
    return remote_error(
        "FAILED_PRECONDITION",
        f"cannot publish the job {request.job!r} of {request.dataset!r}: {problem}",
        stream=request.dataset,
    )


def _list_shards_of_job(manifest: Manifest, job: str) -> list[ShardEntry]:
    folder = f"{format_data_folder(job)}/"
    return [shard for shard in manifest.shards if shard.path.startswith(folder)]


def _format_shards(ordinals: list[int]) -> str:
    listed = ", ".join(map(str, ordinals[:_MAX_LISTED_SHARDS]))
    more = len(ordinals) - _MAX_LISTED_SHARDS
    noun = "shard" if len(ordinals) == 1 else "shards"
    return f"{noun} {listed}" + (f" and {more} more" if more > 0 else "")
