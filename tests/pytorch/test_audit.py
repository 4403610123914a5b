"""The audit of checkpoints, against the rows that the batches before them had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file
from splitarrow.cli.app import run
from splitarrow.pytorch import Mixture, Packed, StreamDataset
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("data")
    paths: dict[str, Any] = {}
    for name, first, rows in (("a", 0, 530), ("b", 1000, 310)):
        numbers = range(first, first + rows)
        lists = [[n] * (1 + n % 4) for n in numbers]
        table = pa.table({"n": pa.array(numbers, pa.int64()), "ids": lists})
        paths[name] = write_file(folder / f"{name}.arrow", table, batch_rows=40)
    with Daemon(paths, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_part(server: Daemon, name: str = "a", **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {
        "batch_rows": 16,
        "window_rows": 100,
        "shuffle": True,
        "rank": 0,
        "world_size": 1,
        "even": "uneven",
    }
    return StreamDataset(server.control_uri, name, **{**settings, **options})


def run_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *states: Any
) -> list[dict[str, Any]]:
    paths: list[str] = []
    for number, state in enumerate(states):
        paths.append(str(tmp_path / f"{number}.json"))
        Path(paths[-1]).write_text(json.dumps(state))
    assert run(["loader", "audit", *paths, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def take(dataset: Any, steps: int) -> set[int]:
    batches = iter(dataset)
    return {n for _ in range(steps) for n in next(batches)["n"].tolist()}


def test_a_run_with_changes_of_ranks_is_audited(
    server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: Any = {"columns": "n"}
    first = [open_part(server, rank=rank, world_size=2, **columns) for rank in range(2)]
    seen = [take(dataset, 5) for dataset in first]
    states: list[Any] = [first[0].state_dict(5), first[1].state_dict()]
    assert states[0] == states[1]
    second = open_part(server, batch_rows=10, **columns)
    second.load_state_dict(states[0])
    second.skip(range(7, 9))
    seen.append(take(second, 6))
    states.append({"model": [1], "loader": {"data": second.state_dict(6)}})
    (found,) = run_audit(tmp_path, capsys, *states)
    delivered = sum(map(len, seen))
    assert delivered == len(set().union(*seen)) == 5 * 2 * 16 + 6 * 10
    expected = {"once": delivered, "repeated": 0, "skipped": 20, "errors": 0}
    assert found == {
        **found,
        **expected,
        "rows": 530,
        "remaining": 530 - delivered - 20,
        "dataset": "a",
        "epoch": 0,
    }
    list(second)
    (found,) = run_audit(tmp_path, capsys, second.state_dict())
    assert (found["once"], found["skipped"], found["remaining"]) == (510, 20, 0)


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers: list[Any] = batch["n"].to_pylist()
    if any(n % 50 == 3 for n in numbers):
        raise ValueError("bad")
    return batch


def test_rows_that_were_left_out_are_counted(
    server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"columns": "n", "transform": refuse, "on_error": "skip"}
    ranks = [open_part(server, rank=rank, world_size=2, **options) for rank in range(2)]
    for dataset in ranks:
        list(dataset)
    (found,) = run_audit(tmp_path, capsys, *(dataset.state_dict() for dataset in ranks))
    assert (found["once"], found["errors"], found["repeated"]) == (519, 11, 0)


def test_mixtures_and_packs_are_audited(
    server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def mix(**options: Any) -> Mixture:
        parts = [open_part(server, name, columns=["n", "ids"]) for name in "ab"]
        return Mixture([(part, 1) for part in parts], **options)

    for dataset, skipped in ((mix(stop="repeat"), 0), (mix(stop="all"), 16)):
        if skipped:
            dataset.skip(range(3, 4))
        rows = [n for batch in dataset for n in batch["n"].tolist()]
        found = run_audit(tmp_path, capsys, dataset.state_dict())
        assert sum(part["skipped"] for part in found) == skipped
        for number, part in enumerate(found):
            of_part = [n for n in rows if n // 1000 == number]
            once = sum(of_part.count(n) == 1 for n in set(of_part))
            assert part["once"] == once
            assert part["repeated"] == len(set(of_part)) - once
            assert part["rows"] == part["once"] + part["repeated"] + part["skipped"]
    packed = Packed(mix(stop="all"), "ids", 10)
    batches = [batch["n"].tolist() for batch in packed]
    found = run_audit(tmp_path, capsys, packed.state_dict())
    assert [(each["once"], each["remaining"]) for each in found] == [(530, 0), (310, 0)]
    found = run_audit(tmp_path, capsys, packed.state_dict(7), packed.state_dict(9))
    delivered = {n for batch in batches[:9] for n in batch}
    assert sum(each["once"] for each in found) == len(delivered)


def test_the_state_of_a_loader_is_audited(
    server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = open_part(server, columns="n")
    dataset.skip(range(2, 4))
    loader = torchdata.StatefulDataLoader(dataset, batch_size=None, num_workers=2)
    batches = iter(loader)
    for _ in range(9):
        next(batches)
    path = tmp_path / "checkpoint.pt"
    torch.save({"step": 9, "loader": loader.state_dict()}, path)
    del batches
    assert run(["loader", "audit", str(path)]) == 0
    shown = capsys.readouterr().out.split()
    assert shown[-7:] == ["0", "530", "144", "0", "32", "0", "354"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 5}, "the states are not of one run: seed is 0 and 5"),
        ({"epoch": 1}, "epoch is 0 and 1"),
        ({"stages": "other"}, "the state at step 3 does not lead to that at step 5"),
        (None, "has no state of a dataset"),
        ("text", "is neither JSON nor of torch.save"),
    ],
)
def test_states_that_do_not_belong_together_are_refused(
    server: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    state = open_part(server, columns="n").state_dict(3)
    if change == {"stages": "other"}:
        state["stages"] = [state["stages"][0], {**state["stages"][0], "steps": 0}]
        change = {"stages": [{**state["stages"][0], "steps": 5}]}
    (tmp_path / "0.json").write_text(json.dumps(state))
    other = {**state, **change} if isinstance(change, dict) else {"step": 3}
    text = "{" if change == "text" else json.dumps(other)
    (tmp_path / "1.json").write_text(text)
    assert run(["loader", "audit", str(tmp_path / "0.json"), str(tmp_path / "1.json")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
