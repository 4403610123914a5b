"""The order that a loader announces, and what a relay makes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.publication.version_store import VersionStore
from splitarrow.pytorch import StreamDataset
from splitarrow.pytorch.position import Position
from splitarrow.server.control.actions import ActionHandler
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
torch_data: Any = import_module("torch.utils.data")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]
SHARDS = 20
SHARD_ROWS = 60
ROWS = SHARDS * SHARD_ROWS
CONTROL = "grpc://127.0.0.1:0"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = str(tmp_path_factory.mktemp("published"))
    tables = (
        pa.table({"n": pa.array(range(begin, begin + SHARD_ROWS), pa.int64())})
        for begin in range(0, ROWS, SHARD_ROWS)
    )
    publish(VersionStore(location), "first", *tables)
    return location


@pytest.fixture(scope="module")
def upstream(published: str) -> Iterator[Daemon]:
    with Daemon({"n": published}, control=CONTROL) as daemon:
        yield daemon


def open_dataset(server: Any, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 7, "window_rows": SHARD_ROWS, "shuffle": True}
    settings |= {"rank": 0, "world_size": 1, "interleave": 4, **options}
    return StreamDataset(server.control_uri, "n", **settings)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("interleave", "workers"), [(1, 1), (4, 1), (4, 2), (4, 3), (24, 4)])
@pytest.mark.parametrize("steps", [0, 13])
def test_the_order_is_that_in_which_blocks_are_needed(
    upstream: Daemon, shuffle: bool, interleave: int, workers: int, steps: int
) -> None:
    numbers = random.Random(interleave)
    for _ in range(3):
        rank, worker = numbers.randrange(2), numbers.randrange(workers)
        dataset = open_dataset(
            upstream,
            shuffle=shuffle,
            interleave=interleave,
            rank=rank,
            world_size=2,
            batch_rows=numbers.randint(5, 50),
            even=numbers.choice(["drop", "pad", "uneven"]),
        )
        position = Position.start(1, dataset._division).after(steps)  # pyright: ignore[reportPrivateUsage]
        lanes: dict[int, int] = {}
        needed: list[int] = []
        share = dataset._share(position)  # pyright: ignore[reportPrivateUsage]
        divides = share.lanes % workers == 0
        for number in range(steps, share.batches):
            if divides and number % workers != worker:
                continue
            (plan,) = dataset._plan_batches(position, iter([number]))  # pyright: ignore[reportPrivateUsage]
            for run in plan.runs:
                for piece in run.pieces:
                    if lanes.get(run.lane) != piece.block:
                        needed.append(dataset.plan.blocks[piece.block].shard)
                    lanes[run.lane] = piece.block
        found = dataset._list_shards(position, steps, worker, workers)  # pyright: ignore[reportPrivateUsage]
        assert found == [shard for shard, _ in groupby(needed)]


def sent_bytes(server: Daemon) -> int:
    with splitarrow.connect(server.control_uri) as client:
        return client.status()["sent"].get("n", {}).get("bytes", 0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_relay_keeps_what_the_next_epoch_needs_first(
    tmp_path: Path, published: str, workers: int
) -> None:
    sizes = [path.stat().st_size for path in (Path(published) / "data").rglob("*.arrow")]
    assert len(sizes) == SHARDS
    nbytes = sum(sizes) // 2 + 64
    options = ["--cache", str(tmp_path / "cache"), "--cache-bytes", str(nbytes)]
    epochs = 4
    with (
        Daemon({"n": published}, control=CONTROL) as origin,
        Daemon(control=CONTROL, upstream=origin.control_uri, arguments=options) as relay,
    ):
        dataset = open_dataset(relay, interleave=2, prefetch_blocks=1)
        described = sent_bytes(origin)
        loader = torch_data.DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=None
        )
        for epoch in range(epochs):
            dataset.set_epoch(epoch)
            rows = torch.cat([batch["n"] for batch in loader])
            assert sorted(rows.tolist()) == list(range(ROWS))
        fetched = sent_bytes(origin) - described
    # The optimum fetches all shards in the first epoch, and half of them in each other one.
    # Each of these small files has about 400 bytes of messages around it.
    best = (sum(sizes) + 400 * SHARDS) * (1 + (epochs - 1) / 2)
    assert fetched < 1.1 * best


def test_a_server_without_the_action_serves_reads(
    published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize = ActionHandler.__init__

    def forget(self: ActionHandler, *arguments: Any) -> None:
        initialize(self, *arguments)
        del self._actions["announce"]  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(ActionHandler, "__init__", forget)
    with splitarrow.serve({"n": published}, control=CONTROL) as server:
        rows = torch.cat([batch["n"] for batch in open_dataset(server)])
    assert sorted(rows.tolist()) == list(range(ROWS))


@pytest.mark.slow
def test_shards_are_fetched_before_they_are_read(
    tmp_path: Path, published: str, upstream: Daemon
) -> None:
    options = ["--cache", str(tmp_path / "cache"), "--prefetch-bytes", "1MiB"]
    with Daemon(control=CONTROL, upstream=upstream.control_uri, arguments=options) as relay:
        dataset = open_dataset(relay)
        objects = tmp_path / "cache" / "objects"
        assert not objects.exists()  # the upstream has counted the rows
        batches = iter(dataset)
        next(batches)
        wait_until(lambda: len(list(objects.iterdir())) == SHARDS)
        assert sum(len(batch["n"]) for batch in batches) < ROWS
