"""Mixtures of datasets of real daemons: rows, ranks, workers, resumes, schemas, errors."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.files import write_file
from splitarrow.errors import UsageError
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

ROWS = {"a": 500, "b": 1700, "c": 90}
"""The rows of each dataset, which has numbers from 0, 10,000 or 20,000 on."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    """Two daemons: `a` and `c` are at one, `b` at the other."""
    folder = tmp_path_factory.mktemp("data")
    paths: dict[str, Any] = {}
    for index, (name, rows) in enumerate(ROWS.items()):
        numbers: Any = pa.array(range(index * 10_000, index * 10_000 + rows), pa.int64())
        columns = {"n": numbers, name: pa.array([float(n) for n in range(rows)])}
        columns["word"] = pa.array([f"{name}{n % 3}" for n in range(rows)]).dictionary_encode()
        paths[name] = write_file(folder / f"{name}.arrow", pa.table(columns), batch_rows=60)
    options: Any = {"listen": ["tcp://127.0.0.1:0", "shm://"], "control": "grpc://127.0.0.1:0"}
    first = Daemon({"a": paths["a"], "c": paths["c"]}, **options)
    with first, Daemon({"b": paths["b"]}, **options) as second:
        yield {"a": first, "b": second, "c": first}


def open_part(servers: dict[str, Daemon], name: str, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {
        "columns": ["n"],
        "batch_rows": 32,
        "window_rows": 150,
        "shuffle": True,
        "rank": 0,
        "world_size": 1,
    }
    return StreamDataset(servers[name].control_uri, name, **{**settings, **options})


def mix(servers: dict[str, Daemon], names: str = "ab", **options: Any) -> Mixture:
    weights = options.pop("weights", [1.0] * len(names))
    mine = ("schedule", "unit", "seed", "stop", "label")
    settings = {name: options.pop(name) for name in mine if name in options}
    parts = [open_part(servers, name, **options) for name in names]
    return Mixture(list(zip(parts, weights, strict=True)), **settings)


def numbers(batch: Any) -> list[int]:
    return batch["n"].tolist()


def steps_of(ranks: list[Mixture]) -> list[list[int]]:
    """Return the rows of each step, of all ranks together."""
    steps: list[list[int]] = []
    for dataset in ranks:
        length, batches = len(dataset), list(dataset)
        assert len(batches) == length
        steps += [[] for _ in range(len(batches) - len(steps))]
        for number, batch in enumerate(batches):
            steps[number] += numbers(batch)
    return [sorted(step) for step in steps]


def test_all_rows_arrive_once_and_the_weights_hold(servers: dict[str, Daemon]) -> None:
    dataset = mix(servers, "abc", stop="all", label="part", weights=[0.2, 0.7, 0.1], even="uneven")
    batches = list(dataset)
    rows = [n for batch in batches for n in numbers(batch)]
    expected = [
        n + 10_000 * index for index, count in enumerate(ROWS.values()) for n in range(count)
    ]
    assert sorted(rows) == sorted(expected)
    assert len(rows) == dataset.rows == sum(ROWS.values())
    for batch in batches:
        assert [n // 10_000 for n in numbers(batch)] == batch["part"].tolist()
    first = Counter(n // 10_000 for n in rows[:800])
    assert first[0] == pytest.approx(160, abs=30)
    assert first[1] == pytest.approx(560, abs=40)


def test_the_order_depends_on_seed_and_epoch_alone(servers: dict[str, Daemon]) -> None:
    def rows(epoch: int = 0, **options: Any) -> list[int]:
        dataset = mix(servers, "ab", **{"seed": 5, "threads": 2, **options})
        dataset.set_epoch(epoch)
        return [n for batch in dataset for n in numbers(batch)]

    first = rows()
    assert rows(threads=0, interleave=24) == first
    assert rows(seed=6) != first
    assert rows(epoch=1) != first


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_all_numbers_of_ranks_get_the_same_rows_in_a_step(
    servers: dict[str, Daemon], stop: str
) -> None:
    def steps(ranks: int) -> list[list[int]]:
        options: dict[str, Any] = {"batch_rows": 48 // ranks, "world_size": ranks, "stop": stop}
        return steps_of(
            [mix(servers, rank=rank, even="uneven", **options) for rank in range(ranks)]
        )

    one = steps(1)
    assert steps(4) == one
    assert steps(3) == one


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_the_batches(servers: dict[str, Daemon], workers: int) -> None:
    dataset = mix(servers, stop="all")
    alone = [numbers(batch) for batch in dataset]
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert [numbers(batch) for batch in loader] == alone


def test_a_run_continues_with_other_ranks_and_workers(servers: dict[str, Daemon]) -> None:
    whole = steps_of([mix(servers, stop="all", batch_rows=48, even="uneven")])
    first = [mix(servers, stop="all", batch_rows=24, rank=r, world_size=2) for r in range(2)]
    loader = torchdata.StatefulDataLoader(first[0], batch_size=None, num_workers=2)
    batches = iter(loader)
    seen = [numbers(next(batches)) for _ in range(11)]
    state = loader.state_dict()
    assert first[1].state_dict(11)["segments"] == first[0].state_dict(11)["segments"]
    del batches
    assert all(set(mine) <= set(step) for mine, step in zip(seen, whole, strict=False))
    resumed = [
        mix(servers, stop="all", batch_rows=12, rank=r, world_size=4, even="uneven")
        for r in range(4)
    ]
    for dataset in resumed:
        dataset.load_state_dict(state)
    assert resumed[0].state_dict() == resumed[3].state_dict()
    assert [each["delivered"] for each in resumed[0].state_dict()["parts"]] == [
        sum(n < 10_000 for step in whole[:11] for n in step),
        sum(n >= 10_000 for step in whole[:11] for n in step),
    ]
    assert steps_of(resumed) == whole[11:]


def test_weights_that_a_run_changes_apply_from_its_step(servers: dict[str, Daemon]) -> None:
    state = mix(servers, "ab", stop="all").state_dict(10)
    changed = mix(servers, "ab", stop="all", weights=[0, 1])
    changed.load_state_dict(pickle.loads(pickle.dumps(state)))
    before = {n for batch in list(mix(servers, "ab", stop="all"))[:10] for n in numbers(batch)}
    after = [n for batch in changed for n in numbers(batch)]
    assert sorted(after) == sorted(set(range(10_000, 11_700)) - before)


def test_steps_can_be_left_out(servers: dict[str, Daemon]) -> None:
    every = [numbers(batch) for batch in mix(servers)]
    dataset = mix(servers)
    dataset.skip([range(5, 9), range(3, 6)])
    assert len(dataset) == len(every) - 6
    expected = [*every[:3], *every[9:]]
    assert [numbers(batch) for batch in dataset] == expected
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert [numbers(batch) for batch in loader] == expected
    resumed = mix(servers)
    resumed.load_state_dict(dataset.state_dict(5))
    assert [numbers(batch) for batch in resumed] == expected[5:]


def test_columns_that_a_part_lacks_are_null_in_its_rows(servers: dict[str, Daemon]) -> None:
    columns: Any = {"columns": None, "stop": "all", "even": "uneven"}
    with pytest.raises(UsageError, match="'a' lacks b"):
        mix(servers, **columns)
    for batch in mix(servers, on_null="mask", **columns):
        of_a = batch["n"] < 10_000
        assert torch.equal(batch["a.mask"], of_a)
        assert torch.equal(batch["b.mask"], ~of_a)
        assert torch.equal(batch["a"][of_a], batch["n"][of_a].double())


def test_categories_are_those_of_all_parts(servers: dict[str, Daemon]) -> None:
    dataset = mix(servers, columns=["n", "word"], stop="all")
    words = dataset.categories["word"]
    assert sorted(words) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    for batch in dataset:
        for n, code in zip(numbers(batch), batch["word"].tolist(), strict=True):
            name = "ab"[n // 10_000]
            assert words[code] == f"{name}{n % 10_000 % 3}"


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"n": pc.multiply(batch["n"], 2)})


def test_each_part_has_its_transform(servers: dict[str, Daemon]) -> None:
    parts = [open_part(servers, "a", transform=double), open_part(servers, "b")]
    dataset = Mixture([(part, 1) for part in parts], label="part")
    for batch in dataset:
        of_a = batch["part"] == 0
        assert bool((batch["n"][of_a] < 1000).all())
        assert not bool((batch["n"][of_a] % 2).any())
        assert bool((batch["n"][~of_a] >= 10_000).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "never"}, "stop is 'never'"),
        ({"unit": "epochs"}, "unit is 'epochs'"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"weights": [1, -1]}, "expected positive numbers"),
        ({"filter": "n > 30000"}, "'a' has no rows to mix"),
    ],
)
def test_wrong_arguments_are_refused(
    servers: dict[str, Daemon], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        mix(servers, **options)


def test_parts_that_do_not_go_together_are_refused(servers: dict[str, Daemon]) -> None:
    parts = [open_part(servers, "a"), open_part(servers, "b", batch_rows=31)]
    with pytest.raises(UsageError, match="different batch_rows: 32 and 31"):
        Mixture([(part, 1) for part in parts])
    with pytest.raises(UsageError, match="expected a StreamDataset and its weight"):
        Mixture([parts[0]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="parts is empty"):
        Mixture([])
    texts = open_part(servers, "b", transform=None, columns=["word"])
    with pytest.raises(UsageError, match="lacks word"):
        Mixture([(parts[0], 1), (texts, 1)])


def test_a_state_of_another_mixture_is_refused(servers: dict[str, Daemon]) -> None:
    state = mix(servers).state_dict(3)
    for options, message in (
        ({"seed": 1}, "another seed"),
        ({"stop": "all"}, "another value of stop"),
        ({"names": "abc"}, "a mixture of 2 datasets, not 3"),
        ({"names": "ac"}, "another dataset"),
        ({"filter": "n > 5"}, "another filter"),
    ):
        names = options.pop("names", "ab")
        with pytest.raises(UsageError, match=message):
            mix(servers, str(names), **options).load_state_dict(state)
    with pytest.raises(UsageError, match="another kind of dataset"):
        open_part(servers, "a").load_state_dict(state)
