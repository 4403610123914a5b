"""The sink: tasks stage shards, and the driver commits all of them as one version.

In a streaming query, each micro-batch becomes one version, once. `find_existing` serves the modes
``error`` and ``ignore``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..errors import DatasetError, UsageError
from ..publication.manifest import ShardEntry
from ..publication.version_store import VersionStore
from .options import SparkOptions
from .shards import WriteJob, write_shards
from .types import sink_schema
from .workers import Portable

WRITE_OPTIONS = (
    "path",
    "rows_per_shard",
    "bytes_per_shard",
    "compression",
    "dictionary",
    "job_id",
)
"""The options of ``df.write``. ``path`` is the argument of ``save(...)``."""
DEFAULT_BYTES_PER_SHARD = 128 << 20
"""The size of a shard if the options limit neither rows nor bytes, in bytes."""
COMPRESSIONS = ("none", "lz4", "zstd")


def plan_write(options: SparkOptions, schema: st.StructType) -> WriteJob:
    """Return the settings of a write. Nothing is written.

    Raises `UsageError` if an option is missing or has a wrong value, and `InvalidDataError` if
    Spark cannot export a column as Arrow data.
    """
    rows = options.count("rows_per_shard")
    default_bytes = DEFAULT_BYTES_PER_SHARD if rows is None else None
    compression = options.choice("compression", COMPRESSIONS, "none")
    job = WriteJob(
        location=options.require("path", "/data/flights"),
        job_id=options.text("job_id") or uuid.uuid4().hex,
        schema=sink_schema(schema),
        rows_per_shard=rows,
        bytes_per_shard=options.nbytes("bytes_per_shard", default_bytes),
        compression=None if compression == "none" else compression,
        dictionary=tuple(_dictionary_columns(options)),
    )
    # Both calls validate: the names of the dictionary columns, the location and the job id.
    _ = job.shard_schema
    VersionStore(job.location).staging_location(job.job_id)
    return job


def _dictionary_columns(options: SparkOptions) -> list[str]:
    names = options.names("dictionary")
    if names == ["auto"]:
        raise UsageError(
            "the sink does not support dictionary=auto, because it would have to sample the data; "
            "name the columns, or call splitarrow.pipeline.dictionary_columns(df)"
        )
    return [] if names in (None, ["none"]) else names


@dataclass
class StagedShards(ds.WriterCommitMessage):
    """The result of a task, which Spark sends to the driver."""

    partition: int
    """The partition of the DataFrame that the task wrote."""
    shards: list[ShardEntry]
    """The shards that the task staged, in the order of the rows."""
    job_id: str
    """The job in whose staging folder they are."""


class ShardWriter(Portable, ds.DataSourceArrowWriter):
    """Writes a DataFrame as shards. Spark pickles it for the tasks.

    The driver creates it, and with it the staging folder of the job. `write` runs in every task.
    `commit` or `abort` runs once, on the driver.
    """

    def __init__(self, job: WriteJob, overwrite: bool) -> None:
        self._job = job
        self._overwrite = overwrite
        VersionStore(job.location).create_staging(job.job_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        """Write the rows of a task to staged shards."""
        return stage_task(self._job, iterator)

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Publish the shards of all tasks as the next version, unless the job has one already."""
        VersionStore(self._job.location).commit(
            self._job.job_id,
            self._job.shard_schema,
            collect_shards(messages),
            append=not self._overwrite,
        )

    def abort(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Delete the shards that the tasks have staged."""
        del messages
        VersionStore(self._job.location).discard(self._job.job_id)


def stage_task(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> StagedShards:
    """Write the rows of the current task to staged shards."""
    context: Any = TaskContext.get()
    if context is None:
        raise DatasetError("the sink must run in a Spark task")
    partition = context.partitionId()
    attempt = f"{partition:05}-{context.taskAttemptId()}"
    return StagedShards(partition, write_shards(job, attempt, batches), job.job_id)


def collect_shards(messages: Sequence[ds.WriterCommitMessage | None]) -> list[ShardEntry]:
    """Return the shards of all tasks in the order of the partitions.

    Raises `DatasetError` if the result of a task is missing or duplicate.
    """
    by_partition: dict[int, list[ShardEntry]] = {}
    for message in messages:
        if not isinstance(message, StagedShards):
            raise DatasetError(f"{len(messages)} tasks ran, but one of them returned no result")
        if message.partition in by_partition:
            raise DatasetError(f"two tasks returned a result for partition {message.partition}")
        by_partition[message.partition] = message.shards
    partitions = sorted(by_partition)
    if partitions != list(range(len(partitions))):
        raise DatasetError(
            f"{partitions[-1] + 1} partitions were written, but only {len(partitions)} tasks "
            "returned a result"
        )
    return [shard for partition in partitions for shard in by_partition[partition]]


STREAM_WRITE_OPTIONS = (*(name for name in WRITE_OPTIONS if name != "job_id"), "checkpointlocation")
"""The options of ``writeStream``. Spark itself uses ``checkpointLocation``."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class StreamShardWriter(Portable, ds.DataSourceStreamArrowWriter):
    """Writes each micro-batch as a version of its own job. Spark pickles it for the tasks."""

    def __init__(self, job: WriteJob, overwrite: bool) -> None:
        self._job = job
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        """Write the rows of a task to staged shards."""
        context: Any = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if not query or not batch:
            raise DatasetError("Spark names no streaming query for this task")
        job = replace(self._job, job_id=f"{query}-{batch}")
        store = VersionStore(job.location)
        store.create_staging(job.job_id)  # the driver does not know this identifier
        try:
            return stage_task(job, iterator)
        except BaseException:
            store.discard_empty_staging(job.job_id)
            raise

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None], batchId: int) -> None:
        """Publish the shards of a micro-batch as the next version, unless it has one already.

        A micro-batch without rows publishes nothing, unless it overwrites.
        """
        shards = collect_shards(messages)
        job_id = _job_id(messages)
        if job_id is None or (not shards and not self._overwrite):
            return
        VersionStore(self._job.location).commit(
            job_id, self._job.shard_schema, shards, append=not self._overwrite
        )

    def abort(self, messages: Sequence[ds.WriterCommitMessage | None], batchId: int) -> None:
        """Delete the shards that the tasks have staged."""
        job_id = _job_id(messages)
        if job_id is not None:
            VersionStore(self._job.location).discard(job_id)


def _job_id(messages: Sequence[ds.WriterCommitMessage | None]) -> str | None:
    """Return the identifier that the tasks have staged under; None if none has returned."""
    ids = {message.job_id for message in messages if isinstance(message, StagedShards)}
    if len(ids) > 1:
        raise DatasetError(f"the tasks of one micro-batch belong to {len(ids)} jobs")
    return ids.pop() if ids else None


def find_existing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the location of the dataset to write, if it exists, under the key ``existing``.

    It is None if the dataset has no version, or has one of the same job, which is not written
    twice. Raises `SplitArrowError` if an option is wrong, or the location cannot be read.
    """
    options = SparkOptions(values["options"], WRITE_OPTIONS)
    store = VersionStore(options.require("path", "/data/flights"))
    job = options.text("job_id")
    if store.load() is None or (job is not None and store.find_job(job) is not None):
        return {"existing": None}
    return {"existing": store.location}
