"""Streaming queries of the data source in Python, whose micro-batches are versions of datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..errors import DatasetError, SplitArrowError, UsageError
from ..publication.version_store import VersionStore
from .batch_queries import ReadPartition
from .options import SparkOptions
from .reader import STREAM_OPTIONS, RemoteDataset, plan_read, read_batches
from .shards import WriteJob, collect_shards
from .spark_versions import VERSION
from .stream_offsets import INITIAL_OFFSET, Offset, end_offset, find_new_shards
from .types import arrow_schema, check_readable
from .workers import Portable, hide_traceback, one_line_errors
from .writer import WRITE_OPTIONS, StagedShards, stage_task

try:
    _streaming: Any = import_module("pyspark.sql.streaming.datasource")
except ImportError:  # before Spark 4.2, which fixes the last offset by itself
    _streaming = None
_TriggerAvailableNow: Any = getattr(_streaming, "SupportsTriggerAvailableNow", object)
_StreamArrowWriter: Any = getattr(ds, "DataSourceStreamArrowWriter", object)


class DatasetStreamReader(Portable, ds.DataSourceStreamReader, _TriggerAvailableNow):
    """Finds new versions on the driver, and reads their new shards in the tasks.

    Raises `UsageError` if the options contain a limit, a filter or a version, or one has a wrong
    value.
    """

    def __init__(self, options: SparkOptions, schema: st.StructType) -> None:
        check_readable(schema)
        for name in ("limit", "filter", "version"):
            if options.text(name):
                raise UsageError(f"a streaming read does not support the option {name!r}")
        for name in STREAM_OPTIONS:
            if options.text(name):
                raise UsageError(f"only the reader in the JVM supports the option {name!r}")
        self._dataset = RemoteDataset.from_options(options)
        self._schema = arrow_schema(schema)
        self._shards_per_task = options.count("shards_per_partition")
        self._final_offset: Offset | None = None

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current version as the last one that this query reads."""
        self._final_offset = end_offset(self._dataset.info())

    def initialOffset(self) -> Offset:
        """Return the offset before the first row."""
        return INITIAL_OFFSET

    @one_line_errors
    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the offset after the last row of the current version.

        Spark passes no arguments before version 4.2.
        """
        del start, limit  # a micro-batch reads everything that is new
        return self._final_offset or end_offset(self._dataset.info())

    @one_line_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Return partitions for the shards between two offsets.

        Raises `RemoteError` with the code FAILED_PRECONDITION if the dataset was overwritten and
        the daemon no longer has the version of `end`.
        """
        if start["digest"] == end["digest"] and start["shards"] == end["shards"]:
            return []
        info, shards = find_new_shards(self._dataset.info, start, end)
        return [
            ReadPartition(task) for task in plan_read(info, shards, self._shards_per_task, None)
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        with hide_traceback():
            yield from read_batches(self._dataset, partition.value, None, self._schema)


class FailedStreamReader(ds.DataSourceStreamReader, _TriggerAvailableNow):
    """Raises an error when a query begins.

    Where ``streamReader`` raises one, PySpark raises another, about a variable of its own.
    """

    def __init__(self, error: SplitArrowError) -> None:
        self._error = error

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error."""
        raise self._error

    @one_line_errors
    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    @one_line_errors
    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Raise the error, in a query that continues from a checkpoint."""
        del start, limit
        raise self._error

    @one_line_errors
    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Raise the error, in a query that repeats its last micro-batch before all else."""
        del start, end
        raise self._error

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error. No query comes so far."""
        raise self._error


STREAM_WRITE_OPTIONS = (*(name for name in WRITE_OPTIONS if name != "job_id"), "checkpointlocation")
"""The options of ``writeStream``. Spark itself uses ``checkpointLocation``."""


def require_stream_writer() -> None:
    """Raise `UsageError` if Spark cannot pass record batches to the writer of a stream."""
    if _StreamArrowWriter is object:
        raise UsageError(
            f"Spark {VERSION} passes no record batches to the sink of a stream, as Spark 4.1 does; "
            "use foreachBatch, with df.write in its function"
        )


_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class StreamShardWriter(Portable, _StreamArrowWriter):
    """Writes each micro-batch as a version of its own job. Spark pickles it for the tasks."""

    def __init__(self, job: WriteJob, overwrite: bool) -> None:
        self._job = job
        self._overwrite = overwrite

    @one_line_errors
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

    @one_line_errors
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
