"""PyTorch's loaders: each row once, in one order, with any number of workers and start method."""

from __future__ import annotations

import gc
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.access_tokens import TokenIssuer
from helpers.cluster import StartDaemons, join_uris, make_numbered_shards
from helpers.files import write_file, write_shards
from helpers.waiting import wait_until
from splitarrow import errors
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.pytorch import MapDataset, StreamDataset
from splitarrow.pytorch.shared_batch import SharedBatch
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")
torchdata: Any = import_module("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    # torchdata 0.11 calls a function that PyTorch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
ROWS = 6_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    words = pa.array([f"word {n % 7}" for n in range(ROWS)])
    table = pa.table({"n": pa.array(range(ROWS), pa.int64()), "w": words, "d": words})
    table = table.set_column(2, "d", words.dictionary_encode())
    path = write_file(folder / "trips.arrow", table, batch_rows=250)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"trips": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {
        "batch_rows": 64,
        "window_rows": 500,
        "shuffle": True,
        "even": "uneven",
        "rank": 0,
        "world_size": 1,
    }
    return StreamDataset(server.control_uri, "trips", **{**settings, **options})


def load(dataset: StreamDataset, workers: int, method: str | None = None, **options: Any) -> Any:
    if not workers:
        return torchdata.StatefulDataLoader(dataset, batch_size=None, **options)
    return torchdata.StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method,
        **options,
    )


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


@pytest.mark.parametrize(
    ("workers", "method", "transport"),
    [
        (1, "fork", "tcp"),
        (4, "fork", "shm"),
        (5, "fork", "tcp"),
        (2, "spawn", "tcp"),
        (2, "forkserver", "shm"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (1, "fork", "shm"),
                (4, "fork", "tcp"),
                (5, "fork", "shm"),
                (2, "spawn", "shm"),
                (2, "forkserver", "tcp"),
            )
        ),
    ],
)
def test_the_order_is_that_of_one_process(
    server: Daemon, workers: int, method: str, transport: str
) -> None:
    dataset = open_dataset(server, transport=transport)
    expected = numbers(dataset)
    assert sorted(expected) == list(range(ROWS))
    loader = data.DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    batches = list(loader)
    assert numbers(batches) == expected
    assert len(batches) == len(loader)
    assert all(f"word {n % 7}" == w for n, w in zip(batches[0]["n"], batches[0]["w"], strict=True))
    categories = dataset.categories["d"]
    assert [categories[code] for code in batches[0]["d"]] == batches[0]["w"]
    del batches, loader
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)


def read_token(path: Path) -> str:
    return path.read_text()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_find_the_token_by_themselves(
    issuer: TokenIssuer, tmp_path: Path, method: str
) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.issue())
    path = write_file(tmp_path / "d.arrow", pa.table({"n": range(100)}), batch_rows=10)
    settings: dict[str, Any] = issuer.settings(control="grpc://127.0.0.1:0")
    with Daemon({"d": path}, **settings) as server:
        choices: list[dict[str, Any]] = [
            {"token_file": file},
            {"token": partial(Path.read_text, file)},  # which every process can import
        ]
        if method == "fork":  # a new process cannot import this module
            choices.append({"token": partial(read_token, file)})
        uri: Any = server.control_uri
        workers = 2 if method == "fork" else 1  # a new process takes seconds to start
        for given in choices:
            dataset = StreamDataset(uri, "d", batch_rows=10, **given)
            assert numbers(load(dataset, workers, method)) == list(range(100))
            rows = pickle.loads(pickle.dumps(MapDataset(uri, "d", **given)))
            loader = data.DataLoader(rows, num_workers=1, multiprocessing_context=method)
            assert numbers(loader) == list(range(100))
        with pytest.raises(errors.UsageError, match="token_file=PATH"):
            pickle.dumps(StreamDataset(uri, "d", token=lambda: file.read_text()))


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path)


def test_workers_that_persist_get_each_new_epoch(server: Daemon) -> None:
    dataset = open_dataset(server)
    loader = data.DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        delivered = numbers(loader)
        alone = open_dataset(server)
        alone.set_epoch(epoch)
        assert delivered == numbers(alone)


@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (0, None),
        (3, "fork"),
        (1, "spawn"),
        pytest.param(1, "fork", marks=pytest.mark.long),
        pytest.param(2, "spawn", marks=pytest.mark.long),
    ],
)
def test_a_stateful_loader_continues(server: Daemon, workers: int, method: str | None) -> None:
    expected = numbers(open_dataset(server))
    loader = load(open_dataset(server), workers, method)
    iterator, before = iter(loader), list[int]()
    for _ in range(37):
        before += next(iterator)["n"].tolist()
    state = loader.state_dict()
    del iterator
    again = load(open_dataset(server), workers, method)
    again.load_state_dict(state)
    iterator = iter(again)
    for _ in range(11):
        before += next(iterator)["n"].tolist()
    state = again.state_dict()
    del iterator, again, loader
    gc.collect()  # closes the connections of iterators in this process
    for others in (0, 2):
        dataset = open_dataset(server)
        dataset.load_state_dict(state)
        assert before + numbers(load(dataset, others, "fork")) == expected


def test_the_next_epoch_of_a_continued_loader_is_whole(server: Daemon) -> None:
    loader = load(open_dataset(server), 2, "fork")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    dataset = open_dataset(server)
    loader = load(dataset, 2, "fork")
    loader.load_state_dict(state)
    assert len(numbers(loader)) == ROWS - 64
    dataset.set_epoch(1)
    assert sorted(numbers(loader)) == list(range(ROWS))


def deliver_in_two_parts(
    server: Daemon, choose: random.Random, before: Any, after: Any
) -> list[int]:
    """Read a part of an epoch, save the state, and read the rest in another way.

    Each way is the number of ranks, the number of workers and the start method.
    """
    delivered: list[int] = []
    state: Any = None
    ranks, workers, method = before
    steps = choose.randrange(-(-ROWS // ranks // 64) + 1)
    for rank in range(ranks):
        loader = load(open_dataset(server, rank=rank, world_size=ranks), workers, method)
        iterator = iter(loader)
        for _ in range(steps):
            delivered += next(iterator)["n"].tolist()
        state = loader.state_dict()
        del iterator, loader
        gc.collect()  # closes the connection of an iterator in this process
    ranks, workers, method = after
    for rank in range(ranks):
        dataset = open_dataset(server, rank=rank, world_size=ranks)
        dataset.load_state_dict(state)
        delivered += numbers(load(dataset, workers, method))
    return delivered


WAYS = [(1, 4, "fork"), (2, 2, "fork"), (8, 0, None), (2, 1, "spawn"), (8, 1, "fork")]


@pytest.mark.usefixtures("plans_in_this_process")
@pytest.mark.parametrize("number", range(len(WAYS)))
def test_each_row_arrives_once_in_two_parts(server: Daemon, number: int) -> None:
    before, after = WAYS[number], WAYS[number - 1]
    delivered = deliver_in_two_parts(server, random.Random(number), before, after)
    assert sorted(delivered) == list(range(ROWS))


KILL_A_WORKER = """
import os, signal, sys
from torch.utils.data import DataLoader
from splitarrow.pytorch import MapDataset, StreamDataset

dataset = StreamDataset(sys.argv[1], "trips", batch_rows=64, transport="shm")
iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2))
next(iterator)
os.kill(iterator._workers[0].pid, signal.SIGKILL)
sum(len(batch["n"]) for batch in iterator)
"""


def test_a_worker_that_is_killed_ends_the_epoch_with_an_error(server: Daemon) -> None:
    # PyTorch raises its error in whatever the main thread runs then, so this is a process.
    command = [sys.executable, "-W", "ignore", "-c", KILL_A_WORKER, str(server.control_uri)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    # It is another error if PyTorch was receiving memory from the worker.
    reasons = ("killed by signal: Killed", "exited unexpectedly", "EOFError", "Connection")
    assert any(reason in done.stderr for reason in reasons), done.stderr
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)


def test_workers_continue_at_a_replica(tmp_path: Path, daemons: StartDaemons) -> None:
    tables = make_numbered_shards(6, 700, batch_rows=100)
    three = daemons(3)
    publish_shards("trips", write_shards(tmp_path / "s", tables), join_uris(*three), replicas=2)
    dataset = StreamDataset(
        join_uris(*three), "trips", batch_rows=64, window_rows=300, shuffle=True
    )
    got: list[int] = []
    for number, batch in enumerate(data.DataLoader(dataset, batch_size=None, num_workers=2)):
        got += batch["n"].tolist()
        if number == 5:
            three[0].kill()
    assert sorted(got) == list(range(6 * 700))


def test_errors_of_planning_arrive(server: Daemon) -> None:
    with pytest.raises(errors.NotFoundError, match="lost"):
        StreamDataset(server.control_uri, "lost")


def test_a_device_needs_the_process_of_the_trainer(server: Daemon) -> None:
    loader = data.DataLoader(open_dataset(server, device="meta"), batch_size=None, num_workers=1)
    with pytest.raises(errors.UsageError, match="needs a loader without workers"):
        next(iter(loader))


def test_forked_workers_read_beside_an_open_connection(server: Daemon) -> None:
    dataset = open_dataset(server)
    with splitarrow.connect(server.control_uri) as client:
        loader = data.DataLoader(dataset, batch_size=None, num_workers=2)
        assert len(numbers(loader)) == ROWS
        assert client.info("trips").rows == ROWS


def test_forked_workers_do_not_use_flight_beside_an_open_connection(server: Daemon) -> None:
    dataset = open_dataset(server, transport="flight")
    with splitarrow.connect(server.control_uri):
        forked = data.DataLoader(dataset, batch_size=None, num_workers=1)
        with pytest.raises(errors.UsageError, match="multiprocessing_context='forkserver'"):
            next(iter(forked))
        loader = data.DataLoader(
            dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver"
        )
        assert len(numbers(loader)) == ROWS
    assert len(numbers(data.DataLoader(dataset, batch_size=None, num_workers=1))) == ROWS


EMBEDDED = """
import pyarrow, splitarrow
from torch.utils.data import DataLoader
from splitarrow.pytorch import MapDataset, StreamDataset

server = splitarrow.serve({"t": pyarrow.table({"n": range(10_000)})}, control="grpc://127.0.0.1:0")
for _ in range(2):
    dataset = StreamDataset(server.control_uri, "t", batch_rows=64)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sum(len(batch["n"]) for batch in loader) == 10_000
assert len(splitarrow.open(server.uri("t")).read_all()) == 10_000
"""


def test_forked_workers_read_from_a_server_in_the_process_of_the_loader() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", EMBEDDED], check=True, timeout=120)


FORK_BESIDE_A_CLIENT = """
import sys
import splitarrow
from torch.utils.data import DataLoader
from splitarrow.pytorch import MapDataset, StreamDataset

with splitarrow.connect(sys.argv[1]) as client:
    rows = client.info("trips").rows
    dataset = StreamDataset(sys.argv[1], "trips", batch_rows=64)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sum(len(batch["n"]) for batch in loader) == rows
    assert client.info("trips").rows == rows
"""


def test_forks_beside_an_open_connection_work_with_support_of_grpc(server: Daemon) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK_BESIDE_A_CLIENT, str(server.control_uri)]
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1"}
    subprocess.run(command, env=environment, check=True, timeout=120)


PLAN_AND_FORK = """
import contextlib, os, sys
from pathlib import Path
from torch.utils.data import DataLoader
from splitarrow.pytorch import MapDataset, StreamDataset

def list_threads():
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append((task / "comm").read_text())
    return [name for name in names if name.startswith(("event_engine", "grpc", "lifeguard"))]

dataset = StreamDataset(sys.argv[1], "trips", batch_rows=64)
assert not list_threads()
for _ in range(2):
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sum(len(batch["n"]) for batch in loader) == dataset.rows
    assert not list_threads()
"""


def test_a_trainer_with_workers_starts_no_grpc(server: Daemon) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PLAN_AND_FORK, str(server.control_uri)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.parametrize("change", ["ranks", "main"])
def test_a_worker_state_that_does_not_fit_is_refused(server: Daemon, change: str) -> None:
    loader = load(open_dataset(server), 2, "fork")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    del iterator
    if change == "ranks":
        other = load(open_dataset(server, rank=0, world_size=2), 2, "fork")
        other.load_state_dict(state)
        with pytest.raises(errors.UsageError, match="ranks or batches have changed"):
            next(iter(other))
    else:
        worker = state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
        with pytest.raises(errors.UsageError, match="that of one worker of a loader"):
            open_dataset(server).load_state_dict(worker)


def test_a_worker_passes_a_batch_without_tensors(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["w"], shuffle=False)
    batches = list(data.DataLoader(dataset, batch_size=None, num_workers=1))
    assert [w for batch in batches for w in batch["w"]] == [f"word {n % 7}" for n in range(ROWS)]


def test_all_tensors_of_a_batch_share_one_piece_of_memory() -> None:
    values: dict[str, Any] = {
        "n": torch.arange(7),
        "text": ["a", "b"],
        "flag": torch.tensor([True, False, True]),
        "shape": torch.arange(12.0).reshape(2, 3, 2).permute(0, 2, 1),
        "none": torch.empty(0, 4, dtype=torch.int16),
    }
    batch = SharedBatch(values)
    copies = [pickle.loads(dump(batch)) for dump in (ForkingPickler.dumps, pickle.dumps)]
    for received in (batch, *copies):
        assert list(received) == list(values)
        assert received["text"] == ["a", "b"]
        for name in ("n", "flag", "shape", "none"):
            assert torch.equal(received[name], values[name])
            assert received[name].dtype == values[name].dtype
        memory = {received[name].untyped_storage().data_ptr() for name in ("n", "flag", "shape")}
        assert len(memory) == 1
