"""The destinations of a publishing job: a folder or object store, or daemons.

Both use the data source's sink. Its tasks stage shards; its commit, on the driver, publishes them
as a version.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from ...client.cluster.publish import ShardProgress
from ...errors import DatasetError
from ...publication.layout import format_data_folder
from ...publication.manifest import Manifest
from ...publication.version_store import VersionStore
from ..folder_publication import publish_folder
from .job import Progress, PublishJob, PublishJobResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish_to_folder(
    frame: DataFrame, name: str, job: PublishJob, job_id: str, progress: Progress | None = None
) -> PublishJobResult:
    """Publish rows as the next version of a dataset in a folder or an object store.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows.
    name : str
        The name of the dataset: the name of its folder below the destination.
    job : PublishJob
        The settings.
    job_id : str
        The identifier of the publication. A version that has it already is returned as the
        result; nothing is published then.
    progress : callable, optional
        Not called: Spark shows the tasks.

    Raises
    ------
    DatasetError
        If the dataset exists and the mode is ``error``, or the dataset cannot be written.
    """
    del progress
    location = f"{job.to[0].rstrip('/')}/{name}"
    store = VersionStore(location)
    # An identifier that was generated for this run cannot have a version yet.
    manifest = _version_of_job(store, job_id) if job.job_id else None
    if manifest is None and job.mode in ("error", "ignore"):
        manifest = store.load()
        if manifest is not None and job.mode == "error":
            raise DatasetError(
                f"{location} exists, in version {manifest.version}; "
                "use the mode 'append' or 'overwrite'"
            )
    if manifest is None:
        _write(frame, location, job, job_id, overwrite=job.mode == "overwrite")
        manifest = _version_of_job(store, job_id)
    if manifest is None:
        raise DatasetError(
            f"{location}: the version of the job {job_id} was removed right after it was published"
        )
    return _result(name, location, manifest)


def publish_to_daemons(
    frame: DataFrame, name: str, job: PublishJob, job_id: str, progress: Progress | None = None
) -> PublishJobResult:
    """Write rows to shards in the staging folder, and upload these to daemons.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
        The rows.
    name : str
        The name of the dataset at the daemons.
    job : PublishJob
        The settings.
    job_id : str
        The identifier of the publication.
    progress : callable, optional
        Called with the number of uploaded shards after each upload.

    Raises
    ------
    DatasetError
        If the shards cannot be written, or a daemon does not commit them.
    """
    with _staging_folder(job) as folder:
        location = f"{folder}/{job_id}/{name}"
        _write(frame, location, job, job_id, overwrite=True)
        result = publish_folder(
            location,
            name,
            list(job.to),
            replicas=job.replicas,
            mode=job.mode,
            token=job.token,
            tls=job.tls,
            progress=_count_uploads(name, location, job.replicas, progress),
        )
    nbytes = sum(published.bytes for published in result.daemons.values())
    daemons = ",".join(result.daemons)
    return PublishJobResult(name, daemons, None, result.rows, result.shards, nbytes)


def _count_uploads(
    name: str, location: str, replicas: int, progress: Progress | None
) -> ShardProgress | None:
    """Return a callback that counts the uploaded copies of the shards at a location."""
    manifest = VersionStore(location).load()
    if progress is None or manifest is None:
        return None
    counter, total = count(1), len(manifest.shards) * replicas
    return lambda _: progress(f"{name}: {next(counter)} of {total} shards uploaded")


@contextmanager
def _staging_folder(job: PublishJob) -> Generator[str]:
    if job.staging is not None:
        yield job.staging.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="splitarrow-publish-") as folder:
        yield folder


def _write(
    frame: DataFrame, location: str, job: PublishJob, job_id: str, *, overwrite: bool
) -> None:
    options: dict[str, Any] = {
        "rows_per_shard": job.rows_per_shard,
        "bytes_per_shard": job.bytes_per_shard,
        "compression": job.compression,
        "dictionary": job.dictionary,
        "job_id": job_id,
    }
    writer = frame.write.format("splitarrow").mode("overwrite" if overwrite else "append")
    for name, value in options.items():
        if value is not None:
            writer = writer.option(name, value)
    writer.save(location)


def _version_of_job(store: VersionStore, job_id: str) -> Manifest | None:
    for version in reversed(store.list_versions()):
        manifest = store.load(version)
        if manifest is not None and manifest.job == job_id:
            return manifest
    return None


def _result(name: str, location: str, manifest: Manifest) -> PublishJobResult:
    folder = f"{format_data_folder(manifest.job)}/"
    own = [shard for shard in manifest.shards if shard.path.startswith(folder)]
    return PublishJobResult(
        name,
        location,
        manifest.version,
        rows=sum(shard.rows for shard in own),
        shards=len(own),
        nbytes=sum(shard.nbytes for shard in own),
    )
