"""Random mixtures, packs, filters, failures and resumes: each row once, in the same order."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.files import write_file, write_parquet
from splitarrow.testing import Daemon

if find_spec("torch") is None:
    pytest.skip("needs torch: make .venv/torch", allow_module_level=True)
torch: Any = import_module("torch")
loaders: Any = import_module("splitarrow.pytorch")

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.timeout(0)]
CASES = 2000
LENGTHS = {"a": 311, "b": 130, "c": 57}
FILTERS = {
    None: lambda n: True,
    "third != 1": lambda n: n % 3 != 1,
    "third = 2": lambda n: n % 3 == 2,
}


def size_of(number: int) -> int:
    """Return the number of tokens of a document."""
    return (number * 7919) % 23 * (number % 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    paths: dict[str, Any] = {}
    for index, (name, rows) in enumerate(LENGTHS.items()):
        numbers = [1000 * index + n for n in range(rows)]
        lists = [[n * 100 + t for t in range(size_of(n))] for n in numbers]
        columns = {"n": numbers, "third": [n % 3 for n in numbers], "ids": lists}
        table = pa.table(columns)
        if name == "b":
            paths[name] = write_parquet(folder / "b.parquet", table, row_group_size=31)
        else:
            paths[name] = write_file(folder / f"{name}.arrow", table, batch_rows=17)
    with Daemon(paths, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def plans_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("splitarrow.pytorch.plan.default_start_method", lambda: "spawn")
    yield
    gc.collect()  # the datasets of the last case have cycles, and hold descriptors


settings_of_runs = st.fixed_dictionaries(
    {
        "names": st.sampled_from(["a", "ab", "abc", "cb"]),
        "weights": st.lists(st.sampled_from([0.1, 1.0, 3.0]), min_size=3, max_size=3),
        "schedule": st.lists(
            st.tuples(
                st.integers(1, 300),
                st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=3, max_size=3),
            ),
            max_size=2,
        ),
        "filter": st.sampled_from(list(FILTERS)),
        "stop": st.sampled_from(["first", "all", "repeat"]),
        "pack": st.sampled_from([None, "fit", "split"]),
        "length": st.integers(5, 60),
        "window": st.integers(1, 6),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 3),
        "epoch": st.integers(0, 2),
    }
)
# Each part of a run: its ranks, the rows of each rank in a step, its workers, and its steps.
legs = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(0, 4), st.integers(0, 9)),
    min_size=1,
    max_size=3,
)


def open_run(server: Daemon, run: dict[str, Any], rank: int, ranks: int, rows: int) -> Any:
    parts = [
        loaders.StreamDataset(
            server.control_uri,
            name,
            columns=["n", "ids"] if run["pack"] else ["n"],
            filter=run["filter"],
            batch_rows=rows,
            rank=rank,
            world_size=ranks,
            even="uneven",
            shuffle=run["shuffle"],
            seed=run["seed"],
            window_rows=40,
        )
        for name in run["names"]
    ]
    count = len(parts)
    schedule = [(start, each[:count]) for start, each in run["schedule"] if any(each[:count])]
    dataset = loaders.Mixture(
        list(zip(parts, run["weights"][:count], strict=True)),
        schedule=schedule,
        unit="rows",
        seed=run["seed"],
        stop=run["stop"],
    )
    if run["pack"]:
        dataset = loaders.Packed(
            dataset, "ids", run["length"], policy=run["pack"], window=run["window"]
        )
    dataset.set_epoch(run["epoch"])
    return dataset


def read(dataset: Any, workers: int, most: int) -> list[Any]:
    """Return the rows or packs of the first batches, read as the workers of a loader would."""
    if not workers:
        streams = [iter(dataset)]
    else:
        streams = []
        for worker in range(workers):
            info = SimpleNamespace(id=worker, num_workers=workers)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.utils.data, "get_worker_info", lambda info=info: info)
                streams.append(iter(dataset))
    batches: list[Any] = []
    for number in range(most):
        batch = next(streams[number % len(streams)], None)
        if batch is None:
            break
        batches.append(batch["n"].tolist() if "ids" not in batch else list_packs(batch))
    return batches


def list_packs(batch: Any) -> list[tuple[int, ...]]:
    used = batch["segment_ids"] > 0
    return [tuple(row[mask].tolist()) for row, mask in zip(batch["ids"], used, strict=True)]


def join(ranks: list[list[Any]]) -> list[Counter[Any]]:
    """Return what all ranks together get in each step."""
    steps = max(map(len, ranks), default=0)
    return [
        Counter(row for batches in ranks if step < len(batches) for row in batches[step])
        for step in range(steps)
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@settings(
    max_examples=CASES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(settings_of_runs, legs)
def test_each_row_arrives_as_the_policies_state(
    server: Daemon, run: dict[str, Any], parts: list[tuple[int, int, int, int]]
) -> None:
    select = FILTERS[run["filter"]]
    expected = {
        name: [1000 * index + n for n in range(rows) if select(1000 * index + n)]
        for index, (name, rows) in enumerate(LENGTHS.items())
        if name in run["names"]
    }
    # One rank, one row at a time, is the sequence that all others must follow.
    whole = [each[0] for each in read(open_run(server, run, 0, 1, 1), 0, 10**6)]
    check_policy(whole, run, expected)
    row, state = 0, None
    for ranks, rows, workers, steps in parts:
        datasets = [open_run(server, run, rank, ranks, rows) for rank in range(ranks)]
        for dataset in datasets:
            if state is not None:
                dataset.load_state_dict(state)
        batches = [read(dataset, workers, steps) for dataset in datasets]
        found = join(batches)
        size = ranks * rows
        assert found == [
            Counter(whole[begin : begin + size])
            for begin in range(row, row + size * len(found), size)
        ]
        if row + size * steps >= len(whole):
            assert sum(map(Counter.total, found)) == len(whole) - row
            return
        row += size * steps
        state = json.loads(json.dumps(datasets[0].state_dict(steps)))
        assert state == json.loads(json.dumps(datasets[-1].state_dict(steps)))
    last = open_run(server, run, 0, 1, 5)
    last.load_state_dict(state)
    rest = [each for batch in read(last, 0, 10**6) for each in batch]
    assert Counter(rest) == Counter(whole[row:])


def check_policy(whole: list[Any], run: dict[str, Any], expected: dict[str, list[int]]) -> None:
    if run["pack"]:
        tokens = Counter(token for pack in whole for token in pack)
        numbers = Counter(token // 100 for token in tokens.elements())
        counts = {n: numbers[n] / size_of(n) for n in numbers}
        assert all(len(pack) <= run["length"] for pack in whole)
        if run["pack"] == "split":
            assert all(len(pack) == run["length"] for pack in whole[:-1])
        assert all(count == int(count) for count in counts.values())
        expected = {name: [n for n in each if size_of(n)] for name, each in expected.items()}
    else:
        counts = Counter(whole)
    count = len(run["names"])
    ends = [(0, run["weights"][:count])]
    ends += [(start, each[:count]) for start, each in run["schedule"] if any(each[:count])]
    last_weights = dict(ends)[max(dict(ends))]
    for index, (name, numbers_of) in enumerate((name, expected[name]) for name in run["names"]):
        found = [counts.get(n, 0) for n in numbers_of]
        assert max(found, default=0) - min(found, default=0) <= 1, name
        if run["stop"] != "repeat":
            assert max(found, default=0) <= 1
        if run["stop"] != "first" and last_weights[index]:
            assert min(found, default=1) >= 1
    assert set(counts) <= {n for each in expected.values() for n in each}
