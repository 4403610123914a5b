"""Where the rows of a step are stored, compared with the values that the step delivers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file, write_parquet
from splitarrow.errors import UsageError
from splitarrow.pytorch import Mixture, Packed, StreamDataset
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]

TABLES: dict[tuple[str, int], pa.Table] = {}
"""The tables, by dataset and shard."""


FIELDS: Any = {"n": pa.int64(), "x": pa.int64(), "ids": pa.list_(pa.int64())}
SCHEMA = pa.schema(FIELDS)


def make_table(first: int, rows: int) -> pa.Table:
    numbers = [first + n for n in range(rows)]
    lists = [[n] * (n % 7) for n in numbers]
    columns = {"n": numbers, "x": [n % 5 for n in numbers], "ids": lists}
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("data")
    for shard, rows in enumerate((130, 0, 75)):
        TABLES["many", shard] = make_table(1000 * shard, rows)
        write_file(folder / "many" / f"{shard}.arrow", TABLES["many", shard], batch_rows=20)
    TABLES["one", 0] = make_table(5000, 220)
    one = write_parquet(folder / "one.parquet", TABLES["one", 0], row_group_size=33)
    listen = ["tcp://127.0.0.1:0"]
    datasets = {"many": folder / "many", "one": one}
    with Daemon(datasets, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_part(server: Daemon, name: str, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 12, "window_rows": 40, "rank": 0, "world_size": 1}
    return StreamDataset(server.control_uri, name, **{**settings, **options})


def look_up(located: pa.Table, column: str = "n") -> list[Any]:
    """Return the values of the stored rows that are located."""
    found: list[Any] = []
    for row in located.to_pylist():
        values: Any = TABLES[row["dataset"], row["shard"]][column]
        found.append(values[row["row"]].as_py())
    return found


@pytest.mark.parametrize("condition", [None, "x = 3", "n > 40 and x < 4"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", ["many", "one"])
def test_the_rows_of_a_step_are_located(
    server: Daemon, name: str, shuffle: bool, condition: str | None
) -> None:
    dataset = open_part(server, name, columns="n", shuffle=shuffle, filter=condition)
    assert len(dataset) > 3
    for step, batch in enumerate(dataset):
        located = dataset.locate(step)
        assert look_up(located) == batch["n"].tolist()
        assert set(located["version"].to_pylist()) == {dataset.version}


def test_steps_before_a_change_of_ranks_are_located(server: Daemon) -> None:
    old = [open_part(server, "many", columns="n", rank=r, world_size=2) for r in range(2)]
    batches = [list(dataset) for dataset in old]
    dataset = open_part(server, "many", columns="n", batch_rows=9, rank=2, world_size=3)
    dataset.load_state_dict(old[0].state_dict(4))
    for rank in range(2):
        for step in range(4):
            assert look_up(dataset.locate(step, rank=rank)) == batches[rank][step]["n"].tolist()
    assert [look_up(dataset.locate(step)) for step in range(4, 4 + len(dataset))] == [
        batch["n"].tolist() for batch in dataset
    ]
    with pytest.raises(UsageError, match="rank 2 of 2 has no step 3"):
        dataset.locate(3)
    with pytest.raises(UsageError, match="rank 2 of 3 has no step 400"):
        dataset.locate(400)
    with pytest.raises(UsageError, match="step is -1; expected 0 or more"):
        dataset.locate(-1)


def mix(server: Daemon, rank: int, ranks: int, rows: int, **options: Any) -> Mixture:
    parts = [
        open_part(server, name, batch_rows=rows, rank=rank, world_size=ranks, **options)
        for name in ("many", "one")
    ]
    return Mixture([(part, 1) for part in parts], stop="repeat")


def test_the_rows_of_a_mixture_are_located(server: Daemon) -> None:
    options: Any = {"columns": "n", "shuffle": True, "filter": "x > 1"}
    old = [mix(server, rank, 2, 6, **options) for rank in range(2)]
    batches = [list(dataset) for dataset in old]
    for rank in range(2):
        for step, batch in enumerate(batches[rank]):
            assert look_up(old[0].locate(step, rank=rank)) == batch["n"].tolist()
    same = mix(server, 0, 3, 4, **options)
    same.load_state_dict(old[0].state_dict(5))
    found = [n for rank in range(3) for n in look_up(same.locate(2, rank=rank))]
    assert sorted(found) == sorted(n for each in batches for n in each[2]["n"].tolist())
    other = mix(server, 0, 3, 6, **options)
    other.load_state_dict(old[0].state_dict(5))
    with pytest.raises(UsageError, match="step 4 had 12 rows"):
        other.locate(4)


def test_the_documents_of_packs_are_located(server: Daemon) -> None:
    mixture = mix(server, 0, 1, 3, columns=["n", "ids"], shuffle=True, filter="x > 1")
    dataset = Packed(mixture, "ids", 10, policy="split")
    for step, batch in enumerate(dataset):
        located = dataset.locate(step)
        assert look_up(located) == batch["n"].tolist()
        lists = [
            tokens[row["begin"] : row["end"]]
            for tokens, row in zip(look_up(located, "ids"), located.to_pylist(), strict=True)
        ]
        packs: list[list[int]] = [[], [], []]
        numbers: Any = located["pack"].to_pylist()
        for number, tokens in zip(numbers, lists, strict=True):
            packs[number] += tokens
        expected = [
            row[mask].tolist()
            for row, mask in zip(batch["ids"], batch["segment_ids"] > 0, strict=True)
        ]
        assert packs[: len(expected)] == expected
    resumed = Packed(mixture, "ids", 10, policy="split")
    resumed.load_state_dict(dataset.state_dict(4))
    assert resumed.locate(6).equals(dataset.locate(6))
    with pytest.raises(UsageError, match="step 3 is over at step 4"):
        resumed.locate(3)
