"""The folder of one dataset that clients publish shard by shard."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from ...atomic_files import write_atomic
from ...errors import DatasetError, RemoteError, SplitArrowError, remote_error
from ...publication.layout import DATA, STAGING, format_data_folder
from ...publication.manifest import Manifest, ShardEntry, decode_manifest, encode_manifest
from ...publication.version_store import VersionStore
from .publish_request import PublishRequest, ShardKey

_RECORD_SUFFIX = ".json"
_MAX_LISTED_SHARDS = 12


class PublishedFolder:
    """The versions of a published dataset, and the staged shards of its jobs.

    It adds records of staged shards to the files of `VersionStore`::

        _splitarrow/staging/JOB/ORDINAL-HASH.arrow    a staged shard
        _splitarrow/staging/JOB/ORDINAL.json          its record: a manifest of this one shard

    A shard counts as staged once its record exists. If the server dies before that, the client
    gets no response and uploads the shard again. The file without a record is replaced then, or
    removed with the staging folder.

    Parameters
    ----------
    dataset : str
        The name of the dataset.
    path : Path
        The folder. It need not exist.
    """

    def __init__(self, dataset: str, path: Path) -> None:
        self.dataset = dataset
        self.path = path
        self._store = VersionStore(path)

    def stage_shard(self, key: ShardKey, path: Path) -> tuple[pa.Schema, ShardEntry]:
        """Move a complete file into the staging folder. `record_shard` must follow."""
        name = f"{key.ordinal:08d}.arrow"
        return self._store.stage_file(key.job, name, path, ordinal=key.ordinal)

    def record_shard(self, key: ShardKey, schema: pa.Schema, entry: ShardEntry) -> None:
        """Record a staged shard, and remove the file that was staged under its key before."""
        record = self._make_record_path(key)
        previous = self._load_record(key)
        if previous is not None and previous.shards[0].path != entry.path:
            file_name = previous.shards[0].path.rpartition("/")[2]
            record.with_name(file_name).unlink(missing_ok=True)
        manifest = Manifest(
            version=1,
            created=datetime.now(UTC),
            job=key.job,
            schema=schema,
            shards=(entry,),
            shards_total=key.ordinal + 1,
        )
        write_atomic(record, encode_manifest(manifest))

    def measure_staged(self, job: str = "*") -> dict[ShardKey, int]:
        """Return the staged shards of one job or of all jobs, with their sizes in bytes."""
        sizes: dict[ShardKey, int] = {}
        for path in (self.path / STAGING).glob(f"{job}/*{_RECORD_SUFFIX}"):
            try:
                key = ShardKey(self.dataset, path.parent.name, int(path.stem))
                sizes[key] = decode_manifest(path.read_bytes(), str(path)).nbytes
            except (SplitArrowError, OSError, ValueError):
                continue
        return sizes

    def remove_staged(self, job: str) -> None:
        """Remove the staging folder of a job."""
        shutil.rmtree(self.path / STAGING / job, ignore_errors=True)

    def measure_committed(self) -> int:
        """Return the size of the shards of all versions, in bytes."""
        total = 0
        for folder, _, names in os.walk(self.path / DATA):
            for name in names:
                if name.endswith(".arrow"):
                    try:
                        total += os.stat(os.path.join(folder, name)).st_size
                    except FileNotFoundError:
                        continue  # pruned since the folder was listed
        return total

    def list_jobs(self) -> dict[str, int]:
        """Return the jobs that committed a version, with the number of the version."""
        jobs: dict[str, int] = {}
        for version in self._store.list_versions():
            manifest = self._store.load(version)
            if manifest is not None:
                jobs[manifest.job] = manifest.version
        return jobs

    def commit(self, request: PublishRequest) -> Manifest:
        """Commit the staged shards of a job as a version.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if a shard is missing or schemas differ.
        """
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

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the request asks for something else, or a later
            version has replaced the shards of the job.
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
        """Return the shard of a committed job that has the contents of a repeated upload.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the job has no such shard.
        """
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
        """Remove all shards of a job that has committed no version."""
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
