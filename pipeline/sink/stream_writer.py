"""The streaming sink: each micro-batch becomes one version, once.

Spark repeats a micro-batch if the query stops before the checkpoint has it. The identifier of the
job therefore derives from the query, which the checkpoint names, and from the micro-batch: the
second attempt commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds

from ...errors import DatasetError
from ...publication.version_store import VersionStore
from ..portable import Portable
from .shards import WriteJob
from .writer import OPTIONS as BATCH_OPTIONS
from .writer import StagedShards, collect_shards, stage_task

OPTIONS = (*(name for name in BATCH_OPTIONS if name != "job_id"), "checkpointlocation")
"""The options of ``writeStream``. Spark itself uses ``checkpointLocation``."""
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class StreamShardWriter(Portable, ds.DataSourceStreamArrowWriter):
    """Writes each micro-batch as a version. Spark pickles it for the tasks.

    Parameters
    ----------
    job : WriteJob
        The settings of the write. Its identifier is not used.
    overwrite : bool
        Whether each version replaces the one before (output mode ``complete``), or appends.
    """

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
