"""Threads of the trainer that convert batches: the same batches, order and state as without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow import errors
from splitarrow.pytorch import StreamDataset
from splitarrow.pytorch.plan import BlockBatches, DatasetPlan
from splitarrow.testing import Daemon

torchdata: Any = import_module("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
ROWS = 5_000
BATCHES = -(-ROWS // 64)
THREADS = 3
PATIENCE = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    path = write_file(tmp_path_factory.mktemp("data") / "trips.arrow", table, batch_rows=300)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"trips": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 64, "window_rows": 500, "rank": 0, "world_size": 1}
    return StreamDataset(server.control_uri, "trips", **{**settings, **options})


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


def list_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("splitarrow-convert", "splitarrow-block"))]


def wait_for_the_end_of_leases(server: Daemon) -> None:
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0, "the end of all leases")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [1, THREADS])
def test_rows_arrive_once_and_in_the_same_order(
    server: Daemon, threads: int, shuffle: bool
) -> None:
    expected = numbers(open_dataset(server, shuffle=shuffle))
    delivered = numbers(open_dataset(server, shuffle=shuffle, threads=threads))
    assert len(delivered) == ROWS
    assert sum(delivered) == ROWS * (ROWS - 1) // 2
    assert sorted(delivered) == list(range(ROWS))
    assert delivered == expected
    assert not list_threads()
    wait_for_the_end_of_leases(server)


@pytest.mark.parametrize("step", [0, 1, 17, BATCHES - 1, BATCHES])
def test_a_state_is_exact_although_threads_are_ahead(server: Daemon, step: int) -> None:
    expected = numbers(open_dataset(server, shuffle=True))
    dataset = open_dataset(server, shuffle=True, threads=THREADS)
    loader = torchdata.StatefulDataLoader(dataset, batch_size=None)
    iterator = iter(loader)
    before = numbers(next(iterator) for _ in range(step))
    states = [dataset.state_dict(step), loader.state_dict()]
    del iterator, loader
    for threads, state in zip((0, 1), states, strict=True):
        rest = open_dataset(server, shuffle=True, threads=threads)
        rest.load_state_dict(state)
        following = numbers(rest)
        if step == BATCHES:  # the epoch was over
            assert before == following == expected
        else:
            assert before + following == expected


def test_workers_with_threads_continue_threads_without_workers(server: Daemon) -> None:
    expected = numbers(open_dataset(server, shuffle=True))
    dataset = open_dataset(server, shuffle=True, threads=THREADS)
    iterator = iter(dataset)
    before = numbers(next(iterator) for _ in range(20))
    state = dataset.state_dict()
    iterator.close()
    rest = open_dataset(server, shuffle=True, threads=2)
    rest.load_state_dict(state)
    loader = torchdata.StatefulDataLoader(rest, batch_size=None, num_workers=2)
    assert before + numbers(loader) == expected


def test_batches_are_converted_and_blocks_are_read_in_parallel(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    meetings = {"batch": threading.Barrier(THREADS), "block": threading.Barrier(THREADS)}
    seen: dict[str, set[str]] = {"batch": set(), "block": set()}
    lock = threading.Lock()

    def meet(kind: str) -> None:
        """Wait, at the first calls, until as many threads are here."""
        with lock:
            waits = len(seen[kind]) < THREADS
            seen[kind].add(threading.current_thread().name)
        if waits:
            meetings[kind].wait(PATIENCE)

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        meet("batch")
        return batch

    read = DatasetPlan.read

    def read_blocks(self: DatasetPlan, *arguments: Any) -> Iterator[BlockBatches]:
        meet("block")
        return read(self, *arguments)

    dataset = open_dataset(server, transform=transform, threads=THREADS, prefetch_blocks=1)
    monkeypatch.setattr(DatasetPlan, "read", read_blocks)
    assert numbers(dataset) == list(range(ROWS))
    assert {kind: len(names) for kind, names in seen.items()} == {
        "batch": THREADS,
        "block": THREADS,
    }


def test_an_error_arrives_after_the_batches_before_it(server: Daemon) -> None:
    def refuse(batch: dict[str, Any]) -> dict[str, Any]:
        if int(batch["n"][0]) == 64 * 10:
            raise ValueError("the tenth batch")
        return batch

    dataset = open_dataset(server, collate=refuse, threads=THREADS)
    delivered: list[int] = []
    with pytest.raises(ValueError, match="the tenth batch"):
        delivered.extend(n for batch in dataset for n in batch["n"].tolist())
    assert delivered == list(range(64 * 10))
    assert dataset.state_dict()["stages"][0]["steps"] == 10
    assert not list_threads()


def test_closing_the_iterator_ends_its_threads_and_leases(server: Daemon) -> None:
    iterator = iter(open_dataset(server, threads=THREADS, transport="shm"))
    next(iterator)
    assert list_threads()
    iterator.close()
    assert not list_threads()
    wait_for_the_end_of_leases(server)


def test_the_number_of_threads_is_checked(server: Daemon) -> None:
    with pytest.raises(errors.UsageError, match="threads is -1; expected 0 or more"):
        open_dataset(server, threads=-1)
