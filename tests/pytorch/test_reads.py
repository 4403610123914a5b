"""Blocks that are read together, and record batches that are converted once for many batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow import errors
from splitarrow.client.connect import AnyClient
from splitarrow.client.kept_clients import KEPT_CLIENTS
from splitarrow.pytorch import StreamDataset, plan
from splitarrow.pytorch.plan import Block, BlockBatches, DatasetPlan, Selection, Servers
from splitarrow.pytorch.tensors import BatchTensors, TensorOptions, convert_batch
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
torch_data: Any = import_module("torch.utils.data")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]
BLOCKS = 40
BLOCK_ROWS = 50
ROWS = BLOCKS * BLOCK_ROWS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    numbers = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    path = write_file(tmp_path_factory.mktemp("data") / "n.arrow", numbers, batch_rows=BLOCK_ROWS)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"n": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 20, "window_rows": BLOCK_ROWS}
    settings |= {"rank": 0, "world_size": 1}
    return StreamDataset(server.control_uri, "n", **{**settings, **options})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Return the blocks that are read from now on, those read together as one."""
    found: list[Block] = []
    read = DatasetPlan.read

    def note(self: DatasetPlan, client: Any, blocks: Sequence[Block]) -> Iterator[BlockBatches]:
        found.append(blocks[0]._replace(end=blocks[-1].end))
        return read(self, client, blocks)

    monkeypatch.setattr(DatasetPlan, "read", note)
    return found


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


def test_blocks_that_follow_each_other_are_read_together(
    server: Daemon, reads: list[Block]
) -> None:
    dataset = open_dataset(server, prefetch_blocks=1, transport="tcp")
    assert numbers(dataset) == list(range(ROWS))
    spans = sorted((block.first, block.end) for block in reads)
    assert spans == [(0, 1), (1, 5), (5, 21), (21, 40)]


def test_only_the_blocks_of_a_rank_are_read(server: Daemon, reads: list[Block]) -> None:
    dataset = open_dataset(server, rank=1, world_size=4)
    assert numbers(dataset) == list(range(ROWS // 4, ROWS // 2))
    assert sorted(n for each in reads for n in range(each.first, each.end)) == list(range(10, 20))


def test_large_blocks_are_read_one_by_one(
    server: Daemon, reads: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitarrow.pytorch.blocks._READ_BYTES", 2 * BLOCK_ROWS * 8)
    assert numbers(open_dataset(server, transport="tcp")) == list(range(ROWS))
    assert max(each.end - each.first for each in reads) == 2
    reads.clear()
    dataset = open_dataset(server, transport="tcp", interleave=2)
    assert sorted(numbers(dataset)) == list(range(ROWS))
    assert len(reads) == BLOCKS


@pytest.mark.parametrize(("transport", "blocks"), [("tcp", 2), ("shm", 5)])
def test_more_blocks_are_read_together_over_shared_memory(
    server: Daemon,
    reads: list[Block],
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    blocks: int,
) -> None:
    for name, count in (("_READ_BYTES", 2), ("_MAPPED_READ_BYTES", 5)):
        monkeypatch.setattr(f"splitarrow.pytorch.blocks.{name}", count * BLOCK_ROWS * 8)
    assert numbers(open_dataset(server, transport=transport)) == list(range(ROWS))
    assert max(each.end - each.first for each in reads) == blocks


def test_a_shuffled_dataset_reads_one_block_at_a_time(server: Daemon, reads: list[Block]) -> None:
    assert sorted(numbers(open_dataset(server, shuffle=True))) == list(range(ROWS))
    assert {each.end - each.first for each in reads} == {1}


def test_blocks_are_read_one_by_one_where_reading_them_together_fails(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DatasetPlan.read
    refused: list[Block] = []

    def refuse(self: DatasetPlan, client: Any, blocks: Sequence[Block]) -> Iterator[BlockBatches]:
        if len(blocks) > 1:
            refused.extend(blocks[:1])
            raise errors.ExhaustedError("too many leases")
        return read(self, client, blocks)

    monkeypatch.setattr(DatasetPlan, "read", refuse)
    assert numbers(open_dataset(server, prefetch_blocks=1)) == list(range(ROWS))
    assert len(refused) == 1  # and no more are tried, as each may wait for leases


def test_a_failed_read_of_several_blocks_gives_its_leases_back(tmp_path: Path) -> None:
    numbers_of_blocks = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    path = write_file(tmp_path / "n.arrow", numbers_of_blocks, batch_rows=BLOCK_ROWS)
    options: dict[str, Any] = {"max_leased": 6 * BLOCK_ROWS * 8, "lease_seconds": 0.1}
    gc.disable()  # which must not be what gives them back
    try:
        with Daemon(
            {"n": path}, listen=["shm://"], control="grpc://127.0.0.1:0", **options
        ) as daemon:
            dataset = open_dataset(daemon, transport="shm", prefetch_blocks=1)
            assert numbers(dataset) == list(range(ROWS))
    finally:
        gc.enable()


def test_a_block_with_other_rows_than_planned_is_an_error(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = plan._take_rows

    def lose_a_row(batches: Iterator[Any], rows: int) -> list[Any]:
        return [batch.slice(1) for batch in take(batches, rows)]

    monkeypatch.setattr(plan, "_take_rows", lose_a_row)
    with pytest.raises(errors.DatasetError, match=r"record batches 0:1 of shard 0 have 49 rows"):
        numbers(open_dataset(server))


SHARD_ROWS = [130, 50, 1, 320, 20, 400]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Serve a dataset of shards with different numbers of rows."""
    folder, first = tmp_path_factory.mktemp("shards"), 0
    for index, rows in enumerate(SHARD_ROWS):
        numbers = pa.table({"n": pa.array(range(first, first + rows), pa.int64())})
        write_file(folder / f"{index}.arrow", numbers, batch_rows=BLOCK_ROWS)
        first += rows
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"n": folder}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("interleave", [1, 2])
def test_one_read_crosses_shards(
    shards: Daemon, reads: list[Block], transport: str, interleave: int
) -> None:
    options: dict[str, Any] = {"transport": transport, "prefetch_blocks": 1}
    dataset = open_dataset(shards, interleave=interleave, **options)
    expected = numbers(dataset)
    assert sorted(expected) == list(range(sum(SHARD_ROWS)))
    assert len(reads) < len(SHARD_ROWS)
    resumed = open_dataset(shards, interleave=interleave, **options)
    resumed.load_state_dict(dataset.state_dict(7))
    assert numbers(resumed) == expected[7 * 20 :]


def test_a_filter_leaves_gaps_in_a_read_across_shards(shards: Daemon, reads: list[Block]) -> None:
    chosen = "(n >= 40 and n < 60) or (n >= 200 and n < 230) or n >= 890"
    dataset = open_dataset(shards, filter=chosen, prefetch_blocks=1)
    assert numbers(dataset) == [*range(40, 60), *range(200, 230), *range(890, sum(SHARD_ROWS))]
    assert len(reads) == 2


def test_shards_are_read_one_by_one_where_reading_across_them_fails(
    shards: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ranges = Selection.open
    opened: list[int | None] = []

    def refuse(self: Selection, client: Any, shard: int | None, *arguments: Any) -> Any:
        opened.append(shard)
        if shard is None:
            raise errors.InvalidRequestError("name the shard")
        return open_ranges(self, client, shard, *arguments)

    monkeypatch.setattr(Selection, "open", refuse)
    assert numbers(open_dataset(shards, prefetch_blocks=1)) == list(range(sum(SHARD_ROWS)))
    assert opened.count(None) == 1


def test_epochs_and_datasets_share_a_connection(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, other = open_dataset(server), open_dataset(server, batch_rows=50)
    KEPT_CLIENTS.close_idle()
    connect = Servers.connect
    made: list[AnyClient] = []

    def note(self: Servers) -> AnyClient:
        made.append(connect(self))
        return made[-1]

    monkeypatch.setattr(Servers, "connect", note)
    for each in (dataset, other, dataset):
        assert numbers(each) == list(range(ROWS))
    assert len(made) == 1
    KEPT_CLIENTS.close_idle()
    with pytest.raises(errors.ClosedError):
        made[0].info("n")


@pytest.mark.parametrize("interleave", [1, 2, 5])
@pytest.mark.parametrize("batch_rows", [1, 7, 50, 120])
def test_each_worker_reads_only_its_own_blocks_together(
    server: Daemon, interleave: int, batch_rows: int
) -> None:
    dataset = open_dataset(server, interleave=interleave, batch_rows=batch_rows)
    expected = numbers(dataset)
    assert sorted(expected) == list(range(ROWS))
    resumed = open_dataset(server, interleave=interleave, batch_rows=batch_rows)
    resumed.load_state_dict(dataset.state_dict(3))
    assert numbers(resumed) == expected[3 * batch_rows :]


MIXED = pa.RecordBatch.from_pydict(
    {
        "i": pa.array(range(100), pa.int32()),
        "text": [str(n) for n in range(100)],
        "time": pa.array(range(100), pa.timestamp("us")),
        "null": [None if n == 70 else n for n in range(100)],
        "x": pa.array([n / 2 for n in range(100)]),
        "flag": [n % 3 == 0 for n in range(100)],
    }
)


@pytest.mark.parametrize("rows", [1, 3, 20, 99, 100])
@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("batch", [MIXED, MIXED.select(["i", "x"]), MIXED.select(["text"])])
def test_slices_equal_the_conversion_of_slices(batch: Any, begin: int, rows: int) -> None:
    options = TensorOptions("fill")
    tensors = BatchTensors(batch, options, {})
    for first in range(begin, 100, rows):
        last = min(first + rows, 100)
        found, expected = (
            tensors.slice(first, last),
            convert_batch(batch.slice(first, last - first), options, {}),
        )
        assert list(found) == list(expected)
        for name, value in expected.items():
            if isinstance(value, list):
                assert found[name] == value
            else:
                assert found[name].dtype == value.dtype
                assert torch.equal(torch.nan_to_num(found[name], -1), torch.nan_to_num(value, -1))


def test_a_null_is_an_error_in_its_own_batch_only() -> None:
    tensors = BatchTensors(MIXED, TensorOptions(), {})
    assert tensors.slice(50, 70)["null"].tolist() == list(range(50, 70))
    with pytest.raises(errors.InvalidDataError, match="the column 'null' has 1 nulls"):
        tensors.slice(70, 90)


def test_a_mask_is_kept_for_each_slice() -> None:
    masked = BatchTensors(MIXED, TensorOptions("mask"), {}).slice(69, 72)
    assert list(masked)[:3] == ["i", "i.mask", "text"]
    assert masked["null.mask"].tolist() == [True, False, True]


def test_a_batch_can_be_changed_while_autograd_needs_another(server: Daemon) -> None:
    batches = iter(open_dataset(server, transport="tcp"))
    first, second = (next(batches)["n"] for _ in range(2))
    weight = torch.ones(len(first), dtype=torch.float64, requires_grad=True)
    floats = first.view(torch.float64)
    loss = (weight * floats).sum()
    second.add_(1)
    loss.backward()
    assert torch.equal(weight.grad, floats)


def collate_unchanged(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_worker_sends_no_more_than_the_batch(server: Daemon) -> None:
    dataset = open_dataset(server, collate=collate_unchanged)
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=1)
    sizes = [(len(each["n"]), each["n"].untyped_storage().nbytes()) for each in loader]
    assert {nbytes // rows for rows, nbytes in sizes} == {8}
