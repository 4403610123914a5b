"""Planning a read on the driver, without Spark and daemons."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from splitarrow import errors
from splitarrow.client.rpc.info import DatasetInfo, Endpoint
from splitarrow.pipeline.reader import (
    MAX_TASK_BYTES,
    ReadTask,
    pack_shards,
    plan_read,
    shard_ordinals,
    slice_batch,
)
from splitarrow.pipeline.stream_offsets import end_offset, has_prefix


def make_info(*checksums: str, ordinals: tuple[int, ...] | None = None) -> DatasetInfo:
    endpoints = tuple(
        Endpoint(b"", (), ordinal=None if ordinals is None else ordinals[index], sha256=checksum)
        for index, checksum in enumerate(checksums)
    )
    return DatasetInfo("set", None, None, pa.schema([]), "published", "7", endpoints)


def test_shards_are_divided_among_tasks() -> None:
    tasks = plan_read(make_info("a", "b", "c"), [4, 5, 6], 2, None)
    assert tasks == [ReadTask("7", (4, 5)), ReadTask("7", (6,))]


@pytest.mark.parametrize(
    ("sizes", "parallelism", "tasks"),
    [
        ([], 4, []),
        ([1000] * 8, 4, [2, 2, 2, 2]),  # each task has something to do
        ([MAX_TASK_BYTES] * 3, 1, [1, 1, 1]),
        ([3 * MAX_TASK_BYTES, 1, 1], 1, [1, 2]),
        ([1 << 20] * 500, 2, [25] * 20),  # 25 shards and what opening them costs
        ([None, 1, None], 1, [1, 1, 1]),
    ],
)
def test_small_shards_share_a_task(
    sizes: list[int | None], parallelism: int, tasks: list[int]
) -> None:
    packed = pack_shards(sizes, None, parallelism)
    assert [len(task) for task in packed] == tasks
    assert [index for task in packed for index in task] == list(range(len(sizes)))


def test_a_dataset_without_shards_has_no_task() -> None:
    assert plan_read(make_info(), [], 1, None) == []


def test_one_task_reads_a_single_endpoint_or_a_limited_number_of_rows() -> None:
    assert plan_read(make_info("a"), [0], 1, None) == [ReadTask("7", None)]
    assert plan_read(make_info("a", "b"), [0, 1], 1, 10) == [ReadTask("7", None, 10)]


def test_the_ordinals_default_to_the_positions() -> None:
    assert shard_ordinals(make_info("a", "b")) == [0, 1]
    assert shard_ordinals(make_info("a", "b", ordinals=(3, 5))) == [3, 5]


def test_slices_of_a_batch_are_its_rows_in_order() -> None:
    batch = pa.record_batch({"n": pa.array(np.arange(5 << 20))})
    slices = list(slice_batch(batch))
    assert [part.num_rows for part in slices] == [1747627, 1747627, 1747626]
    assert pa.Table.from_batches(slices)["n"].combine_chunks().equals(batch["n"])
    assert [part.num_rows for part in slice_batch(batch.slice(0, 10))] == [10]
    assert list(slice_batch(batch.slice(0, 0))) == []


def test_a_version_that_appends_begins_with_the_shards_of_an_offset() -> None:
    offset = end_offset(make_info("a", "b"))
    assert (offset["shards"], offset["version"]) == (2, "7")
    assert has_prefix(make_info("a", "b", "c"), offset)
    assert not has_prefix(make_info("a", "c", "c"), offset)
    assert not has_prefix(make_info("a"), offset)
    assert has_prefix(make_info(), end_offset(make_info()))


def test_an_offset_needs_checksums() -> None:
    with pytest.raises(errors.UsageError, match="'set' is not a published dataset"):
        end_offset(make_info(""))
