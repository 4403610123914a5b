"""Writing with Spark: tasks write shards to staging, the driver publishes them as one version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..errors import DatasetError, UsageError
from ..formats.manifest import Manifest, ShardEntry
from ..server.catalog.versions import VersionStore
from .options import Options
from .shards import ShardPlan, write_shards
from .types import arrow_schema

OPTIONS = (
    "path",
    "rows_per_shard",
    "bytes_per_shard",
    "compression",
    "dictionary",
    "job_id",
)
"""What ``df.write`` takes."""
BYTES_PER_SHARD = 128 << 20
"""How large shards become if nothing is said, in bytes."""
COMPRESSIONS = ("none", "lz4", "zstd")


@dataclass
class ShardsWritten(ds.WriterCommitMessage):
    """What a task tells the driver."""

    partition: int
    """Which part of the rows it had."""
    shards: list[ShardEntry]
    """What it has staged."""


def shard_plan(options: Options, schema: st.StructType) -> ShardPlan:
    """Return how shards are to be written.

    Raises
    ------
    UsageError
        If an option is wrong or missing.
    InvalidDataError
        If a column cannot be written.
    """
    rows = options.count("rows_per_shard")
    default = BYTES_PER_SHARD if rows is None else None
    compression = options.choice("compression", COMPRESSIONS, "none")
    plan = ShardPlan(
        location=options.needed("path", "/data/flights"),
        job=options.text("job_id") or uuid.uuid4().hex,
        schema=arrow_schema(schema),
        rows_per_shard=rows,
        bytes_per_shard=options.nbytes("bytes_per_shard", default),
        compression=None if compression == "none" else compression,
        dictionary=tuple(_dictionary(options)),
    )
    _ = plan.stored_schema
    VersionStore(plan.location).staging(plan.job)  # both are looked at
    return plan


def _dictionary(options: Options) -> list[str]:
    names = options.names("dictionary")
    if names == ["auto"]:
        raise UsageError(
            "dictionary=auto needs to look at the data: name the columns, or ask "
            "splitarrow.pipeline.dictionary_columns(df) for them"
        )
    return [] if names in (None, ["none"]) else names


class ShardSink(ds.DataSourceArrowWriter):
    """Writes shards. It is pickled from the driver to the tasks, and back for the commit.

    Parameters
    ----------
    plan : ShardPlan
        How.
    overwrite : bool
        Whether the new version has the new shards alone.
    """

    def __init__(self, plan: ShardPlan, overwrite: bool) -> None:
        self._plan = plan
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        """Write the rows of a task; nobody sees them yet."""
        context: Any = TaskContext.get()
        if context is None:
            raise DatasetError("the sink is run by Spark, in a task")
        partition, attempt = context.partitionId(), context.taskAttemptId()
        task = f"{partition:05}-{attempt}"
        return ShardsWritten(partition, write_shards(self._plan, task, iterator))

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Publish what the tasks have written, all of it or nothing."""
        publish(self._plan, ordered_shards(messages), append=not self._overwrite)

    def abort(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Remove what the tasks have written."""
        del messages
        VersionStore(self._plan.location).discard(self._plan.job)


def ordered_shards(messages: Sequence[ds.WriterCommitMessage | None]) -> list[ShardEntry]:
    """Return the shards of all tasks, in the order of the rows.

    Raises
    ------
    DatasetError
        If the result of a task is missing, or there twice.
    """
    found: dict[int, list[ShardEntry]] = {}
    for message in messages:
        if not isinstance(message, ShardsWritten) or message.partition in found:
            raise DatasetError("the result of a task is missing, or there twice")
        found[message.partition] = message.shards
    if sorted(found) != list(range(len(found))):
        raise DatasetError(f"of {max(found) + 1} tasks only {len(found)} have told their result")
    return [shard for partition in sorted(found) for shard in found[partition]]


def publish(plan: ShardPlan, shards: Sequence[ShardEntry], *, append: bool) -> Manifest:
    """Make the next version of the shards that were staged; of one job only once."""
    store = VersionStore(plan.location)
    return store.commit(plan.job, plan.stored_schema, shards, append=append)
