"""Writing datasets: tasks stage shards, and the driver commits all of them as one version.

The writers of the data source, in `batch_queries` and `streaming_queries`, call these functions.
`write_frame` needs no data source.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as st

from ..errors import DatasetError, InvalidDataError, UsageError
from ..publication.version_store import VersionStore
from .options import SparkOptions
from .shards import TaskShards, WriteJob, collect_shards, format_attempt, write_shards
from .spark_versions import WriterCommitMessage
from .types import check_exportable, sink_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def plan_write(
    options: SparkOptions, schema: st.StructType, location: str | None = None
) -> WriteJob:
    """Return the settings of a write. Nothing is written.

    `location` replaces the option ``path``.

    Raises `UsageError` if an option is missing or has a wrong value, and `InvalidDataError` if
    Spark cannot export a column as Arrow data.
    """
    rows = options.count("rows_per_shard")
    default_bytes = DEFAULT_BYTES_PER_SHARD if rows is None else None
    compression = options.choice("compression", COMPRESSIONS, "none")
    job = WriteJob(
        location=location or options.require("path", "/data/flights"),
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
class StagedShards(TaskShards, WriterCommitMessage):
    """The result of a task, which Spark sends to the driver."""


def stage_task(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> StagedShards:
    """Write the rows of the current task to staged shards."""
    context: Any = TaskContext.get()
    if context is None:
        raise DatasetError("the sink must run in a Spark task")
    partition, attempt = context.partitionId(), context.taskAttemptId()
    shards = write_shards(job, format_attempt(partition, attempt), batches)
    return StagedShards(partition, shards, job.job_id)


def commit_shards(job: WriteJob, messages: Sequence[Any], overwrite: bool) -> None:
    """Publish the shards of all tasks as the next version, unless the job has one already."""
    VersionStore(job.location).commit(
        job.job_id, job.shard_schema, collect_shards(messages), append=not overwrite
    )


def write_frame(frame: DataFrame, options: SparkOptions, *, overwrite: bool) -> None:
    """Write a DataFrame as ``df.write`` does, over Spark Connect.

    Raises the errors of `plan_write`, those of Spark, and `InvalidDataError` if there is no column.
    """
    if not frame.schema.fields:
        raise InvalidDataError(
            "the rows have no columns, and Spark passes none of them; keep a column"
        )
    check_exportable(frame.schema)
    job = plan_write(options, frame.schema)
    store = VersionStore(job.location)
    store.create_staging(job.job_id)
    try:
        rows = frame.mapInArrow(_make_function(job), "message binary").collect()
        commit_shards(job, [pickle.loads(row["message"]) for row in rows], overwrite)
    except BaseException:
        store.discard(job.job_id)
        raise


def _make_function(
    job: WriteJob,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``. It is pickled by value, since it is nested."""

    def stage(batches: Any) -> Any:
        message = pickle.dumps(stage_task(job, iter(batches)))
        yield pa.record_batch({"message": pa.array([message], pa.binary())})

    return stage
