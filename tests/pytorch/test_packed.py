"""Packed token lists of real daemons, also filtered, mixed, shuffled and resumed at once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from helpers.files import write_file, write_parquet
from splitarrow.errors import InvalidDataError, UsageError
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
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]
LENGTH = 64
DOCUMENTS: dict[str, dict[int, list[int]]] = {}
"""The tokens of each document by its number, by dataset. A token names its document."""


def make_documents(first: int, count: int, seed: int) -> dict[int, list[int]]:
    source = random.Random(seed)
    sizes = [source.choice([0, 1, 5, 20, 40, 150]) for _ in range(count)]
    return {n: [n * 1000 + t for t in range(size)] for n, size in enumerate(sizes, first)}


def make_table(documents: dict[int, list[int]]) -> pa.Table:
    columns = {
        "number": pa.array(documents, pa.int64()),
        "input_ids": pa.array(documents.values(), pa.list_(pa.int32())),
        "labels": pa.array([[t + 1 for t in each] for each in documents.values()]),
        "even": pa.array([n % 2 == 0 for n in documents]),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    folder = tmp_path_factory.mktemp("data")
    DOCUMENTS["a"] = make_documents(0, 300, seed=1)
    DOCUMENTS["b"] = make_documents(1000, 500, seed=2)
    a = write_file(folder / "a.arrow", make_table(DOCUMENTS["a"]), batch_rows=17)
    b = write_parquet(folder / "b.parquet", make_table(DOCUMENTS["b"]), row_group_size=40)
    nulls = pa.table({"number": [1, 2, 3], "input_ids": pa.array([[1, 2], None, [3]])})
    options: Any = {"listen": ["tcp://127.0.0.1:0", "shm://"], "control": "grpc://127.0.0.1:0"}
    first = Daemon({"a": a, "nulls": write_file(folder / "nulls.arrow", nulls)}, **options)
    with first, Daemon({"b": b}, **options) as second:
        yield {"a": first, "b": second, "nulls": first}


def open_part(servers: dict[str, Daemon], name: str, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {
        "batch_rows": 4,
        "window_rows": 50,
        "shuffle": True,
        "rank": 0,
        "world_size": 1,
    }
    return StreamDataset(servers[name].control_uri, name, **{**settings, **options})


def read_packs(batch: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """Check what a batch states of itself, and return the document and token of each place."""
    tokens = batch["input_ids"]
    rows, length = tokens.shape
    assert tokens.dtype == torch.int64
    used = batch["segment_ids"] > 0
    bounds = batch["cu_seqlens"].tolist()
    assert bounds[0] == 0
    assert bounds[-1] == rows * length
    assert set(range(0, rows * length, length)) <= set(bounds)
    assert batch["max_seqlen"] == max(e - b for b, e in pairwise(bounds))
    flat, positions = tokens.flatten(), batch["position_ids"].flatten()
    numbers = iter(batch["number"].tolist())
    for begin, end in pairwise(bounds):
        assert positions[begin:end].tolist() == list(range(end - begin))
        if used.flatten()[begin]:
            assert bool(used.flatten()[begin:end].all())
            first = int(flat[begin])
            assert first // 1000 == next(numbers)
            assert flat[begin:end].tolist() == list(range(first, first + end - begin))
        else:
            assert not bool(flat[begin:end].any())
    assert next(numbers, None) is None
    assert torch.equal(batch["labels"][used], tokens[used] + 1)
    return [
        [(t // 1000, t % 1000) for t in row[mask].tolist()]
        for row, mask in zip(tokens, used, strict=True)
    ]


def expect_tokens(*names: str) -> Counter[tuple[int, int]]:
    return Counter(
        (n, t) for name in names for n, each in DOCUMENTS[name].items() for t in range(len(each))
    )


@pytest.mark.parametrize("policy", ["fit", "split"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_each_token_arrives_once(servers: dict[str, Daemon], name: str, policy: Any) -> None:
    part = open_part(servers, name, columns=["input_ids", "labels", "number"], even="uneven")
    dataset = Packed(part, length=LENGTH, policy=policy, window=8)
    batches = list(dataset)
    assert len(batches) == len(dataset)
    packs = [pack for batch in batches for pack in read_packs(batch)]
    assert Counter(token for pack in packs for token in pack) == expect_tokens(name)
    if policy == "split":
        assert all(len(pack) == LENGTH for pack in packs[:-1])
    assert list(batches[0]) == [
        "input_ids",
        "labels",
        "position_ids",
        "segment_ids",
        "cu_seqlens",
        "max_seqlen",
        "number",
    ]
    nested = torch.nested.nested_tensor_from_jagged(
        batches[0]["input_ids"].flatten(), batches[0]["cu_seqlens"].long()
    )
    assert nested.size(0) == len(batches[0]["cu_seqlens"]) - 1


def all_at_once(servers: dict[str, Daemon], rank: int, ranks: int, rows: int, **options: Any):
    """Return packs of two filtered, shuffled and mixed datasets."""
    parts = [
        open_part(
            servers,
            name,
            columns=["input_ids", "labels", "number"],
            filter="even = true",
            batch_rows=rows,
            rank=rank,
            world_size=ranks,
            even="uneven",
        )
        for name in "ab"
    ]
    mixture = Mixture(list(zip(parts, [0.7, 0.3], strict=True)), stop="all", seed=9)
    return Packed(mixture, length=LENGTH, **options)


def steps_of(ranks: list[Any]) -> list[Counter[tuple[tuple[int, int], ...]]]:
    """Return the packs of each step, of all ranks together."""
    steps: list[Counter[tuple[tuple[int, int], ...]]] = []
    for batches in ranks:
        for number, batch in enumerate(batches):
            if number == len(steps):
                steps.append(Counter())
            steps[number].update(map(tuple, read_packs(batch)))
    return steps


@pytest.mark.parametrize("policy", ["fit", "split"])
def test_filter_mix_pack_shuffle_and_resume_with_other_ranks_and_workers(
    servers: dict[str, Daemon], policy: Any
) -> None:
    options: Any = {"policy": policy, "window": 6}
    whole = steps_of([all_at_once(servers, 0, 1, 12, **options)])
    tokens = Counter(token for step in whole for pack in step.elements() for token in pack)
    even = {each: count for each, count in expect_tokens("a", "b").items() if each[0] % 2 == 0}
    assert tokens == even

    first = [all_at_once(servers, rank, 3, 4, **options) for rank in range(3)]
    loaders = [torchdata.StatefulDataLoader(each, batch_size=None, num_workers=2) for each in first]
    streams = [iter(loader) for loader in loaders]
    taken = 7
    begun = [[next(stream) for _ in range(taken)] for stream in streams]
    states = [loader.state_dict() for loader in loaders]
    del streams
    assert steps_of(begun) == whole[:taken]
    resumed = [all_at_once(servers, rank, 6, 2, **options) for rank in range(6)]
    for dataset in resumed:
        dataset.load_state_dict(states[dataset.rank % 3])
    state = json.loads(json.dumps(resumed[0].state_dict()))
    assert state == resumed[5].state_dict()
    assert steps_of(resumed) == whole[taken:]
    again = all_at_once(servers, 0, 1, 12, **options)
    again.load_state_dict(state)
    assert (
        steps_of([torch.utils.data.DataLoader(again, batch_size=None, num_workers=3)])
        == (whole[taken:])
    )
    assert again.state_dict(2) == {**again.state_dict(1), **again.state_dict(2)}


@pytest.mark.parametrize(
    ("ranks", "policy", "window", "cut"), [(2, "fit", 1, 0), (5, "split", 4, 3), (8, "fit", 8, 9)]
)
def test_the_packs_do_not_depend_on_the_ranks(
    servers: dict[str, Daemon], ranks: int, policy: Any, window: int, cut: int
) -> None:
    options: Any = {"policy": policy, "window": window}
    one = all_at_once(servers, 0, 1, 2 * ranks, **options)
    whole = steps_of([one])
    assert steps_of([all_at_once(servers, r, ranks, 2, **options) for r in range(ranks)]) == whole
    resumed = all_at_once(servers, 0, 1, 2 * ranks, **options)
    resumed.load_state_dict(one.state_dict(min(cut, len(whole))))
    assert steps_of([resumed]) == whole[cut:]


def test_steps_can_be_left_out(servers: dict[str, Daemon]) -> None:
    every = [read_packs(batch) for batch in all_at_once(servers, 0, 1, 4)]
    dataset = all_at_once(servers, 0, 1, 4)
    dataset.skip(range(2, 5))
    assert [read_packs(batch) for batch in dataset] == [*every[:2], *every[5:]]
    assert len(dataset) == len(every) - 3


def drop_last(batch: pa.RecordBatch) -> pa.RecordBatch:
    lists = [each.as_py()[:-1] for each in batch["input_ids"]]
    return pa.record_batch({"input_ids": pa.array(lists, batch["input_ids"].type)})


def test_what_cannot_be_packed_is_refused(servers: dict[str, Daemon]) -> None:
    part = open_part(servers, "a", columns=["input_ids", "number"])
    for arguments, message in (
        ({"tokens": "words"}, "'a' has no column 'words'; its columns are input_ids, number"),
        ({"length": 0}, "length is 0"),
        ({"policy": "best"}, "policy is 'best'"),
    ):
        with pytest.raises(UsageError, match=message):
            Packed(part, **arguments)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Exception, match="only lists"):
        Packed(part, "number")
    scheduled = Mixture([(part, 1)], schedule={10: [1]})
    with pytest.raises(UsageError, match="pass unit='rows'"):
        Packed(scheduled)
    with pytest.raises(InvalidDataError, match="'input_ids' of 'nulls' has 1 nulls"):
        Packed(open_part(servers, "nulls"))
    changed = Packed(open_part(servers, "a", columns=["input_ids"], transform=drop_last))
    with pytest.raises(Exception, match="a transform must not change them"):
        next(iter(changed))


def test_null_lists_have_no_tokens_with_fill(servers: dict[str, Daemon]) -> None:
    part = open_part(servers, "nulls", on_null="fill", shuffle=False)
    (batch,) = Packed(part, length=4, policy="split", pad=-1)
    assert batch["input_ids"].tolist() == [[1, 2, 3, -1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 0]]
    assert batch["cu_seqlens"].tolist() == [0, 2, 3, 4]
    assert batch["number"].tolist() == [1, 3]


def test_a_state_of_other_packs_is_refused(servers: dict[str, Daemon]) -> None:
    state = all_at_once(servers, 0, 1, 4, window=5).state_dict(2)
    for options, message in (
        ({"window": 6}, "another window"),
        ({"window": 5, "policy": "split"}, "another policy"),
    ):
        with pytest.raises(UsageError, match=message):
            all_at_once(servers, 0, 1, 4, **options).load_state_dict(state)
