"""Read tasks: the driver divides the shards of one version among them, and each runs in a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...client.rpc.info import DatasetInfo
from ..casting import Caster
from .filters import PushedFilter
from .remote_dataset import RemoteDataset

_MAX_SLICE_BYTES = 16 << 20
"""The maximum size of a batch for Spark, in bytes. Spark copies each batch once more."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The shards of one version that one Spark task reads."""

    version: str
    """The version, as the control plane names it; empty for an unversioned dataset."""
    shards: tuple[int, ...] | None
    """The ordinals of the shards; None reads all rows."""
    limit: int | None = None
    """The maximum number of rows; None reads all of them."""


def plan_read(
    info: DatasetInfo, shards: Sequence[int], shards_per_task: int, limit: int | None
) -> list[ReadTask]:
    """Divide shards among read tasks.

    Parameters
    ----------
    info : DatasetInfo
        The control plane's description of the version to read.
    shards : sequence of int
        The ordinals of the shards to read.
    shards_per_task : int
        The maximum number of shards of a task.
    limit : int or None
        The maximum number of rows of the whole read. With a limit, a single task reads the
        dataset in order.
    """
    if limit is not None:
        return [ReadTask(info.version, None, limit)]
    if len(info.endpoints) == 1 and shards:
        return [ReadTask(info.version, None)]
    return [
        ReadTask(info.version, tuple(shards[start : start + shards_per_task]))
        for start in range(0, len(shards), shards_per_task)
    ]


def shard_ordinals(info: DatasetInfo) -> list[int]:
    """Return the ordinals of a dataset's shards: by default their positions."""
    return [
        position if endpoint.ordinal is None else endpoint.ordinal
        for position, endpoint in enumerate(info.endpoints)
    ]


def read_batches(
    dataset: RemoteDataset, task: ReadTask, filter: PushedFilter | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a read task with the schema that Spark expects.

    Parameters
    ----------
    dataset : RemoteDataset
        The dataset.
    task : ReadTask
        The shards to read.
    filter : PushedFilter or None
        The filter that the daemon applies; None reads all rows.
    schema : pyarrow.Schema
        The columns to read, and the types to cast them to.

    Raises
    ------
    SplitArrowError
        If the data cannot be read to its end, or a value does not fit its type.
    """
    with (
        dataset.connect() as client,
        client.read(
            dataset.name,
            columns=schema.names or None,
            filter=filter,
            limit=task.limit,
            transport=dataset.transport,
            connect_timeout=dataset.connect_timeout,
            stall_timeout=dataset.stall_timeout,
            prefetch_bytes=dataset.window_bytes,
            window_bytes=max(1, dataset.window_bytes),
            parallel=2,
            shards=task.shards,
            version=task.version or None,
        ) as stream,
    ):
        caster = Caster(stream.schema, schema)
        for batch in stream:
            for part in slice_batch(batch):
                yield caster.cast(part)


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of about 16 MiB or less. An empty batch yields none."""
    rows = batch.num_rows
    if not rows:
        return
    count = -(-batch.nbytes // _MAX_SLICE_BYTES) or 1
    slice_rows = -(-rows // count)
    for start in range(0, rows, slice_rows):
        yield batch if slice_rows >= rows else batch.slice(start, slice_rows)
