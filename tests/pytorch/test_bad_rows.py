"""Rows that cannot be delivered: what arrives instead, in which batches, also after a resume."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.errors import DatasetError, UsageError
from splitarrow.pytorch import Mixture, StreamDataset
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
torchdata: Any = import_module("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
ROWS = 900
BAD = {3, 4, 5, 64, 200, 401, 402, 899}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("data")
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    path = write_file(folder / "numbers.arrow", table, batch_rows=50)
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"numbers": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def refuse(bad: frozenset[int], batch: pa.RecordBatch) -> pa.RecordBatch:
    if found := bad.intersection(batch["n"].to_pylist()):
        raise ValueError(f"cannot decode {min(found)}")
    return batch


def open_dataset(server: Daemon, bad: Any = BAD, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {
        "batch_rows": 20,
        "window_rows": 100,
        "rank": 0,
        "world_size": 1,
        "interleave": 6,
        "on_error": "skip",
        "even": "uneven",
        "transform": partial(refuse, frozenset(bad)),
    }
    return StreamDataset(server.control_uri, "numbers", **{**settings, **options})


def numbers(batches: Any) -> list[list[int]]:
    return [batch["n"].tolist() for batch in batches]


def flat(batches: Any) -> list[int]:
    return [n for batch in numbers(batches) for n in batch]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [0, 3])
def test_all_other_rows_arrive_once_in_full_batches(
    server: Daemon, threads: int, shuffle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = open_dataset(server, threads=threads, shuffle=shuffle)
    planned = len(dataset)
    with caplog.at_level(logging.WARNING, "splitarrow"):
        batches = list(dataset)
    assert sorted(flat(batches)) == sorted(set(range(ROWS)) - BAD)
    assert dataset.errors == len(BAD)
    assert len(batches) == planned
    short = [len(batch["n"]) for batch in batches if len(batch["n"]) < 20]
    assert sum(20 - rows for rows in short) == len(BAD)
    assert [len(batch["n"]) for batch in batches][:-6] == [20] * (planned - 6)
    messages = [record.getMessage() for record in caplog.records]
    assert sum("cannot decode" in message for message in messages) == len(BAD)
    plain = open_dataset(server, (), shuffle=shuffle)
    for message in messages:  # the log names the step and the row that `locate` states
        row, step = int(message.split()[3]), int(message.split()[6].rstrip(":"))
        assert plain.locate(step)["row"][row].as_py() in BAD
        assert f"cannot decode {plain.locate(step)['row'][row].as_py()}" in message
    assert numbers(dataset) == numbers(batches)
    assert dataset.errors == len(BAD)  # of this iteration


def test_workers_deliver_the_same(server: Daemon) -> None:
    alone = numbers(open_dataset(server, shuffle=True))
    for workers in (1, 2, 3):
        dataset = open_dataset(server, shuffle=True)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        assert numbers(loader) == alone
        assert dataset.errors == len(BAD)
    loader = torch.utils.data.DataLoader(
        open_dataset(server, shuffle=True), batch_size=None, num_workers=4
    )
    with pytest.raises(UsageError, match="there are 6; the loader has 4 workers"):
        list(loader)


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_run_continues_after_the_rows_that_it_left_out(server: Daemon, cut: int) -> None:
    whole = numbers(open_dataset(server))
    dataset = open_dataset(server)
    batches = iter(dataset)
    for _ in range(cut):
        next(batches)
    state = json.loads(json.dumps(dataset.state_dict()))
    del batches
    assert dataset.state_dict(cut) == state
    resumed = open_dataset(server)
    resumed.load_state_dict(state)
    assert numbers(resumed) == whole[cut:]
    if "skipped" in state["stages"][0]:
        other = open_dataset(server, on_error="raise")
        other.load_state_dict(state)
        with pytest.raises(UsageError, match="the state has left rows out"):
            next(iter(other))
    loader = torchdata.StatefulDataLoader(open_dataset(server), batch_size=None, num_workers=3)
    stream = iter(loader)
    assert [next(stream)["n"].tolist() for _ in range(cut)] == whole[:cut]
    state = loader.state_dict()
    del stream
    resumed = open_dataset(server)
    resumed.load_state_dict(state)
    assert numbers(resumed) == whole[cut:]


def test_other_ranks_continue_with_the_states_of_all(server: Daemon) -> None:
    old = [open_dataset(server, rank=rank, world_size=2) for rank in range(2)]
    seen: list[int] = []
    states: list[Any] = []
    for dataset in old:
        batches = iter(dataset)
        seen += flat(next(batches) for _ in range(8))
        states.append(dataset.state_dict())
    for rank in range(3):
        dataset = open_dataset(server, rank=rank, world_size=3, batch_rows=13)
        dataset.load_state_dict(states)
        seen += flat(dataset)
    assert Counter(seen) == Counter(set(range(ROWS)) - BAD)
    other = open_dataset(server, rank=0, world_size=2)
    with pytest.raises(UsageError, match="different steps"):
        other.load_state_dict([states[0], old[1].state_dict(3)])


@pytest.mark.parametrize("even", ["drop", "pad", "uneven"])
def test_the_policy_decides_when_rows_run_out(server: Daemon, even: Any) -> None:
    bad = frozenset(range(150, 330))
    dataset = open_dataset(server, bad, even=even, interleave=3, batch_rows=50)
    planned = len(dataset)
    batches = numbers(dataset)
    rows = Counter(n for batch in batches for n in batch)
    assert set(rows) == set(range(ROWS)) - bad
    if even == "uneven":
        assert set(rows.values()) == {1}
        assert sum(map(len, batches)) == ROWS - len(bad)
    elif even == "pad":
        assert [len(batch) for batch in batches] == [50] * planned
    else:
        assert len(batches) == planned
        assert all(batches)


def test_too_many_bad_rows_raise(server: Daemon) -> None:
    dataset = open_dataset(server, max_errors=3)
    with pytest.raises(DatasetError, match="more than max_errors=3, at last row"):
        list(dataset)
    with pytest.raises(ValueError, match="cannot decode"):
        list(open_dataset(server, on_error="raise"))


def test_rows_that_collate_refuses_are_left_out(server: Daemon) -> None:
    def collate(batch: dict[str, Any]) -> Any:
        if bool((batch["n"] % 100 == 7).any()):
            raise RuntimeError("a bad image")
        return batch["n"].tolist()

    found = [n for batch in open_dataset(server, (), collate=collate) for n in batch]
    assert sorted(found) == [n for n in range(ROWS) if n % 100 != 7]


def test_a_block_that_cannot_be_read_is_left_out(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from splitarrow.pytorch import blocks

    original = blocks.BlockSource.read_blocks

    def read_blocks(self: Any, first: int, end: int) -> Any:
        if first <= 2 < end:
            raise DatasetError("the shard is damaged", stream="numbers")
        return original(self, first, end)

    monkeypatch.setattr(blocks.BlockSource, "read_blocks", read_blocks)
    dataset = open_dataset(server, BAD, shuffle=True)
    rows = flat(dataset)
    assert sorted(rows) == [n for n in range(ROWS) if not 200 <= n < 300 and n not in BAD]
    assert dataset.errors == 100 + len(BAD - {200})
    state = dataset.state_dict(11)
    resumed = open_dataset(server, BAD, shuffle=True)
    resumed.load_state_dict(state)
    assert flat(resumed) == [n for batch in numbers(dataset)[11:] for n in batch]


def test_wrong_arguments_are_refused(server: Daemon) -> None:
    with pytest.raises(UsageError, match="on_error is 'ignore'; expected raise, skip"):
        open_dataset(server, on_error="ignore")
    with pytest.raises(UsageError, match="max_errors is 0"):
        open_dataset(server, max_errors=0)
    with pytest.raises(UsageError, match="cannot leave rows out"):
        Mixture([(open_dataset(server), 1)])
