"""PyTorch's loaders: each row arrives once, whatever stops, resumes or dies."""

from __future__ import annotations

import copy
import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.batteries import Battery
from helpers.cluster import StartDaemons, join_uris, make_numbered_shards
from helpers.files import write_file, write_shards
from helpers.waiting import wait_until
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.testing import Daemon

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: make .venv/torch"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
ROWS = 6_000
BATCH_ROWS = 64
RANKS = [1, 2, 8]
WORKERS = [0, 1, 4]
WAYS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True},
    "threads": {"shuffle": True, "threads": 2},
    "mapped": {"transport": "shm", "interleave": 4},
}
"""Ways to read, with the options of the dataset. The last passes batches without a copy."""
Datasets = dict[tuple[str, int], list[Any]]
"""The datasets of each rank, by the way and the number of ranks."""


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    path = write_file(tmp_path_factory.mktemp("data") / "trips.arrow", table, batch_rows=250)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"trips": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        (dataset,) = open_ranks(daemon, 1, "mapped")
        for workers in (1, 0):  # starts what Python and PyTorch keep until the process ends
            numbers(load(dataset, workers, "spawn"))
        yield daemon


@pytest.fixture(scope="module")
def datasets(trips: Daemon) -> Datasets:
    """The datasets of each rank, for each way to read and number of ranks."""
    with pytest.MonkeyPatch.context() as patch:  # without a process for each
        patch.setattr("splitarrow.pytorch.plan.default_start_method", lambda: "spawn")
        return {(way, number): open_ranks(trips, number, way) for way in WAYS for number in RANKS}


def open_ranks(server: Daemon, ranks: int, way: str) -> list[Any]:
    """Return the dataset of each rank."""
    stream_dataset = import_module("splitarrow.pytorch").StreamDataset
    options = {"batch_rows": BATCH_ROWS, "window_rows": 500, "even": "uneven", **WAYS[way]}
    return [
        stream_dataset(server.control_uri, "trips", rank=rank, world_size=ranks, **options)
        for rank in range(ranks)
    ]


def load(dataset: Any, workers: int, method: str) -> Any:
    loader = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    context = method if workers else None
    return loader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


def deliver_in_two_parts(
    choose: random.Random, datasets: Datasets, before: tuple[int, int], method: str, way: str
) -> list[int]:
    """Read a part of an epoch, save the state, and read the rest with other ranks and workers.

    One rank of each part has the workers. The other ranks read by themselves.
    """
    ranks, workers = before
    delivered: list[int] = []
    state: Any = None
    steps, chosen = choose.randrange(-(-ROWS // ranks // BATCH_ROWS) + 1), choose.randrange(ranks)
    for rank, dataset in enumerate(datasets[way, ranks]):
        loader = load(copy.deepcopy(dataset), workers if rank == chosen else 0, method)
        iterator = iter(loader)
        for _ in range(steps):
            delivered += next(iterator)["n"].tolist()
        if rank == chosen:
            state = loader.state_dict()
        del iterator, loader
        gc.collect()  # closes the connection of an iterator in this process
    ranks = choose.choice(RANKS)
    workers = choose.choice([number for number in (0, 1, 2, 3, 4) if number != workers])
    chosen = choose.randrange(ranks)
    for rank, dataset in enumerate(datasets[way, ranks]):
        dataset = copy.deepcopy(dataset)
        dataset.load_state_dict(state)
        delivered += numbers(load(dataset, workers if rank == chosen else 0, method))
    return delivered


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("ranks", RANKS)
def test_loaders(
    battery: Battery,
    trips: Daemon,
    datasets: Datasets,
    ranks: int,
    workers: int,
    method: str,
) -> None:
    """Each row arrives once when an epoch continues at a random step in another way."""
    choose = random.Random(f"{ranks} {workers} {method}")
    resumes = battery.count(50)
    for number in range(resumes):
        way = list(WAYS)[number % len(WAYS)]
        delivered = deliver_in_two_parts(choose, datasets, (ranks, workers), method, way)
        assert len(delivered) == ROWS
        assert sum(delivered) == ROWS * (ROWS - 1) // 2
        assert sorted(delivered) == list(range(ROWS))
    with splitarrow.connect(str(trips.control_uri)) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)
    battery.record(resumes=resumes)


KILL_A_WORKER = """
import os, signal, sys
from torch.utils.data import DataLoader
from splitarrow.pytorch import StreamDataset

uri, transport, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
dataset = StreamDataset(uri, "trips", batch_rows=64, transport=transport)
iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2))
rows = 0
for step, batch in enumerate(iterator, 1):
    n = batch["n"].tolist()
    assert n == list(range(rows, rows + len(n)))
    rows += len(n)
    if step == steps:
        os.kill(iterator._workers[steps % 2].pid, signal.SIGKILL)
assert rows == 6000
"""


def test_killed_loader_workers(battery: Battery, trips: Daemon) -> None:
    """A loader whose worker is killed raises, or has received everything; leases end."""
    choose = random.Random(1)
    outcomes: list[str] = []
    for number in range(battery.count(20)):
        transport = ("tcp", "shm")[number % 2]
        arguments = [str(trips.control_uri), transport, str(choose.randrange(1, 90))]
        command = [sys.executable, "-W", "ignore", "-c", KILL_A_WORKER, *arguments]
        # PyTorch raises its error in whatever the main thread runs then, so this is a process.
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert "AssertionError" not in done.stderr
        assert not done.returncode or "Error" in done.stderr, done.stderr
        outcomes.append("error" if done.returncode else "complete")
        with splitarrow.connect(str(trips.control_uri)) as client:
            wait_until(lambda: client.status()["stats"]["leases"] == 0)
    battery.record(kills=len(outcomes), errors=outcomes.count("error"))


def test_killed_daemons_beside_loaders(
    battery: Battery, tmp_path: Path, daemons: StartDaemons
) -> None:
    """Workers continue at a replica when a daemon dies at a random step."""
    stream_dataset = import_module("splitarrow.pytorch").StreamDataset
    choose = random.Random(2)
    rows, kills = 12 * 700, battery.count(20)
    three = daemons(3)
    uri = join_uris(*three)
    tables = make_numbered_shards(12, 700, batch_rows=100)
    publish_shards("trips", write_shards(tmp_path / "s", tables), uri, replicas=2)
    options = {"batch_rows": 64, "window_rows": 300, "shuffle": True}
    dataset = stream_dataset(uri, "trips", **options)
    for number in range(kills):
        victim, step = three[number % 3], choose.randrange(rows // 64)
        got: list[int] = []
        loader = load(dataset, 1 + number % 3, "fork")
        for at, batch in enumerate(loader):
            got += batch["n"].tolist()
            if at == step:
                victim.kill()
        assert sorted(got) == list(range(rows))
        victim.start()
    battery.record(kills=kills)
