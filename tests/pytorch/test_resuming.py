"""A loaded position is used by one iteration: the rest of the epoch, and then whole epochs."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import UsageError
from splitarrow.pytorch import MapDataset, Mixture, Packed, StreamDataset

torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")
torchdata: Any = import_module("torchdata.stateful_dataloader")
samplers: Any = import_module("torchdata.stateful_dataloader.sampler")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
Rows = list[list[int]]
"""The rows of each batch."""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    def make(begin: int, rows: int) -> list[pa.RecordBatch]:
        numbers = range(begin, begin + rows)
        tokens = [[n] * (1 + n % 5) for n in numbers]
        table = pa.table({"n": numbers, "input_ids": pa.array(tokens, pa.list_(pa.int64()))})
        return table.to_batches(max_chunksize=20)

    tables = {"a": pa.Table.from_batches(make(0, 110)), "b": pa.Table.from_batches(make(1000, 50))}
    with splitarrow.serve(tables, control="grpc://127.0.0.1:0") as server:
        yield str(server.control_uri)


def open_dataset(uri: str, name: str = "a", **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"columns": ["n"], "even": "uneven", "rank": 0, "world_size": 1}
    settings |= {"batch_rows": 16, "window_rows": 20, "shuffle": True, "interleave": 3}
    return StreamDataset(uri, name, **{**settings, **options})


def mix(uri: str, stop: Any = "all", **options: Any) -> Mixture:
    parts = [open_dataset(uri, name, **options) for name in "ab"]
    return Mixture([(parts[0], 0.6), (parts[1], 0.4)], stop=stop)


def pack(uri: str, **options: Any) -> Packed:
    columns = ["input_ids"]
    return Packed(open_dataset(uri, columns=columns, batch_rows=4, **options), length=16, window=3)


MAKERS: dict[str, Callable[[str], Any]] = {
    "stream": open_dataset,
    "threads": lambda uri: open_dataset(uri, threads=2),
    "in order": lambda uri: open_dataset(uri, shuffle=False),
    "skip errors": lambda uri: open_dataset(uri, on_error="skip", interleave=2),
    "first": lambda uri: mix(uri, "first"),
    "all": mix,
    "repeat": lambda uri: mix(uri, "repeat"),
    "packed": pack,
    "packed mixture": lambda uri: Packed(
        mix(uri, columns=["input_ids"], batch_rows=4), length=16, policy="split"
    ),
}


def read(batches: Any) -> Rows:
    return [batch["input_ids" if "input_ids" in batch else "n"].tolist() for batch in batches]


def load(dataset: Any, workers: int, is_stateful: bool = False, **options: Any) -> Any:
    loader = torchdata.StatefulDataLoader if is_stateful else data.DataLoader
    return loader(dataset, batch_size=None, num_workers=workers, **options)


def take(loader: Any, count: int) -> Rows:
    iterator = iter(loader)
    found = read(next(iterator) for _ in range(count))
    del iterator
    gc.collect()  # closes the connections of an iterator in this process
    return found


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("name", MAKERS)
def test_the_rest_comes_first_and_then_whole_epochs(uri: str, name: str, place: str) -> None:
    make = MAKERS[name]
    whole = read(make(uri))
    steps = {"start": 0, "middle": 3, "end": len(whole)}[place]
    expected = [whole[steps % len(whole) :], whole, whole]
    old = make(uri)
    assert read(old) == whole
    state = json.loads(json.dumps(old.state_dict(steps)))
    if place == "end":
        assert old.state_dict() == old.state_dict(steps)
    ways: list[Callable[[Any], Any]] = [
        lambda dataset: dataset,
        lambda dataset: data.DataLoader(dataset, batch_size=None),
        lambda dataset: dataset.watch(data.DataLoader(dataset, batch_size=None)),
    ]
    for way in ways:
        dataset = make(uri)
        dataset.load_state_dict(state)
        dataset.load_state_dict(state)  # once more changes nothing
        loader = way(dataset)
        for number, each in enumerate(expected):
            assert len(dataset) == len(each)
            assert read(loader) == each
            begun = (steps if number == 0 else 0) % len(whole)
            if number < 2:
                assert dataset.state_dict(1) == make(uri).state_dict(begun + 1)
    stateful = load(make(uri), 0, is_stateful=True)
    taken = take(stateful, steps) if place != "end" else read(stateful)
    resumed = load(make(uri), 0, is_stateful=True)
    resumed.load_state_dict(stateful.state_dict())
    assert taken == whole[:steps]
    assert [read(resumed) for _ in expected] == expected


WORKER_CASES = [
    ("stream", 1, "middle", {}),
    ("stream", 2, "middle", {}),
    ("stream", 2, "end", {"persistent_workers": True}),
    ("threads", 1, "middle", {"persistent_workers": True}),
    ("skip errors", 2, "middle", {}),
    ("all", 2, "middle", {"persistent_workers": True}),
    ("packed", 2, "middle", {}),
]


@pytest.mark.parametrize(("name", "workers", "place", "options"), WORKER_CASES)
@pytest.mark.parametrize("is_stateful", [False, True])
def test_workers_use_a_position_once(
    uri: str, name: str, workers: int, place: str, options: dict[str, Any], is_stateful: bool
) -> None:
    make = MAKERS[name]
    whole = read(make(uri))
    steps = 3 if place == "middle" else len(whole)
    expected = [whole[steps % len(whole) :], whole, whole]
    dataset = make(uri)
    loader = load(dataset, workers, is_stateful, **options)
    if is_stateful:
        old = load(make(uri), workers, is_stateful, **options)
        assert (take(old, steps) if place == "middle" else read(old)) == whole[:steps]
        loader.load_state_dict(old.state_dict())
        del old
    else:
        dataset.load_state_dict(make(uri).state_dict(steps))
    for number, each in enumerate(expected):
        torch.manual_seed(1)  # so that all iterations have the same seed
        assert read(loader) == each
        if not is_stateful:
            begun = (steps if number == 0 else 0) % len(whole)
            assert dataset.state_dict(1) == make(uri).state_dict(begun + 1)
            assert len(dataset) == len(whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_keeps_the_position_for_its_epoch_once(uri: str, workers: int) -> None:
    whole = read(open_dataset(uri))
    other = open_dataset(uri)
    other.set_epoch(1)
    following = read(other)
    dataset = open_dataset(uri)
    loader = load(dataset, workers)
    state = dataset.state_dict(2)
    for epochs, expected in (
        ((0, 0, 0), [whole[2:], whole, whole]),
        ((0, 1, 0), [whole[2:], following, whole]),
        ((1, 0), [following, whole]),
    ):
        dataset.load_state_dict(state)
        found: list[Rows] = []
        for epoch in epochs:
            dataset.set_epoch(epoch)
            found.append(read(loader))
        assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finished_epoch_is_followed_by_the_next_where_epochs_are_chosen(
    uri: str, workers: int
) -> None:
    def open_at(epoch: int) -> StreamDataset:
        dataset = open_dataset(uri)
        dataset.set_epoch(epoch)
        return dataset

    old = load(open_at(3), workers, is_stateful=True)
    steps = len(read(old))
    resumed = open_dataset(uri)
    resumed.load_state_dict(open_at(3).state_dict(steps))
    assert resumed.epoch == 4
    assert read(load(resumed, workers)) == read(open_at(4))
    resumed.load_state_dict(old.state_dict())
    assert resumed.epoch == 4
    resumed.load_state_dict(open_at(3).state_dict(1))
    assert resumed.epoch == 3
    # A stateful loader loads when it begins, after the loop has chosen the next epoch.
    resumed = open_dataset(uri)
    loader = load(resumed, workers, is_stateful=True)
    loader.load_state_dict(old.state_dict())
    resumed.set_epoch(4)
    assert read(loader) == read(open_at(4))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_stateful", [False, True])
def test_an_abandoned_iterator_uses_the_position_up(
    uri: str, workers: int, is_stateful: bool
) -> None:
    whole = read(open_dataset(uri))
    dataset = open_dataset(uri)
    loader = load(dataset, workers, is_stateful)
    if is_stateful:
        old = load(open_dataset(uri), workers, is_stateful)
        take(old, 2)
        loader.load_state_dict(old.state_dict())
    else:
        dataset.load_state_dict(open_dataset(uri).state_dict(2))
    assert take(loader, 1) == whole[2:3]
    state = loader.state_dict() if is_stateful else dataset.state_dict(1)
    assert read(loader) == whole
    again = open_dataset(uri)
    again.load_state_dict(state)
    assert read(again) == whole[3:]


def test_a_state_of_a_later_epoch_continues_there(uri: str) -> None:
    whole = read(open_dataset(uri))
    loader = load(open_dataset(uri), 0, is_stateful=True)
    take(loader, 4)
    resumed = load(open_dataset(uri), 0, is_stateful=True)
    resumed.load_state_dict(loader.state_dict())
    assert read(resumed) == whole[4:]
    assert take(resumed, 2) == whole[:2]
    state = resumed.state_dict()
    again = load(open_dataset(uri), 0, is_stateful=True)
    again.load_state_dict(state)
    assert [read(again), read(again)] == [whole[2:], whole]


@pytest.mark.parametrize("even", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("make", [open_dataset, mix, pack])
def test_all_ranks_agree_on_the_end_of_an_epoch(uri: str, make: Any, even: str) -> None:
    def open_rank(rank: int) -> Any:
        return make(uri, rank=rank, world_size=3, even=even)

    epochs = [read(open_rank(rank)) for rank in range(3)]
    last = max(map(len, epochs))
    for steps in (2, last - 1, last):
        state = open_rank(0).state_dict(steps)
        for rank, whole in enumerate(epochs):
            resumed = open_rank(rank)
            resumed.load_state_dict(state)
            rest = whole[steps:] if steps < last else whole
            assert [read(resumed), read(resumed)] == [rest, whole]


def test_steps_that_are_left_out_stay_out_of_later_epochs(uri: str) -> None:
    dataset = open_dataset(uri)
    whole = read(dataset)
    dataset.skip([range(1, 3), range(5, 100)])
    expected = [whole[0], *whole[3:5]]
    assert [read(dataset), read(dataset)] == [expected, expected]
    for steps, rest in ((1, expected[1:]), (3, expected)):
        resumed = open_dataset(uri)
        resumed.load_state_dict(dataset.state_dict(steps))
        assert [read(resumed), read(resumed)] == [rest, expected]


def test_locate_finds_rows_of_the_epoch_that_was_resumed(uri: str) -> None:
    dataset = open_dataset(uri)
    located = dataset.locate(4).to_pydict()
    resumed = open_dataset(uri)
    resumed.load_state_dict(dataset.state_dict(2))
    for _ in range(3):
        assert resumed.locate(4).to_pydict() == located
        read(resumed)


def test_workers_that_lack_a_loaded_state_refuse_to_begin(uri: str) -> None:
    dataset = open_dataset(uri)
    loader = load(dataset, 1, persistent_workers=True)
    read(loader)
    dataset.load_state_dict(dataset.state_dict(2))
    with pytest.raises(UsageError, match="make a new loader after load_state_dict"):
        read(loader)


def test_a_copy_of_a_dataset_has_a_position_of_its_own(uri: str) -> None:
    whole = read(open_dataset(uri))
    dataset = open_dataset(uri)
    dataset.load_state_dict(dataset.state_dict(2))
    copy = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, copy):
        loader = load(each, 1)
        assert [read(loader), read(loader)] == [whole[2:], whole]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_dataset_continues_with_a_stateful_sampler(uri: str, workers: int) -> None:
    def make() -> Any:
        dataset = MapDataset(uri, "a", columns=["n"])
        sampler = samplers.RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
        batches = samplers.BatchSampler(sampler, 16, drop_last=False)
        return torchdata.StatefulDataLoader(dataset, batch_sampler=batches, num_workers=workers)

    whole = make()
    expected = read(whole)
    old = make()
    assert take(old, 3) == expected[:3]
    resumed = make()
    resumed.load_state_dict(old.state_dict())
    assert read(resumed) == expected[3:]
    assert sorted(n for batch in read(resumed) for n in batch) == list(range(110))
