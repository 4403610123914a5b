"""The orders that loaders announce, and what a relay makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import splitarrow
from helpers.publication import publish
from helpers.waiting import wait_until
from splitarrow.client.dataset.client import Client
from splitarrow.errors import RemoteError
from splitarrow.publication.version_store import VersionStore
from splitarrow.pytorch import MapDataset, Mixture, Packed, StreamDataset
from splitarrow.pytorch.position import Position
from splitarrow.server.control.actions import ActionHandler
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
torch_data: Any = import_module("torch.utils.data")
torchdata: Any = import_module("torchdata.stateful_dataloader")

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]
SHARDS = 20
SHARD_ROWS = 60
ROWS = SHARDS * SHARD_ROWS
FEW_ROWS = 20
"""The rows of a shard where each batch has one row."""
CONTROL = "grpc://127.0.0.1:0"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = str(tmp_path_factory.mktemp("published"))
    publish(VersionStore(location), "first", *make_tables(SHARDS, SHARD_ROWS))
    return location


def make_tables(shards: int, rows: int) -> Iterator[pa.Table]:
    """Yield a table for each shard: numbers, and lists of three tokens."""
    tokens = pa.array([[1, 2, 3]] * rows, pa.list_(pa.int32()))
    for begin in range(0, shards * rows, rows):
        yield pa.table({"n": pa.array(range(begin, begin + rows)), "input_ids": tokens})


@pytest.fixture(scope="module")
def upstream(published: str) -> Iterator[Daemon]:
    with Daemon({"n": published}, control=CONTROL) as daemon:
        yield daemon


def open_dataset(server: Any, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 7, "window_rows": SHARD_ROWS, "shuffle": True}
    settings |= {"rank": 0, "world_size": 1, "interleave": 4, "columns": ["n"], **options}
    return StreamDataset(server.control_uri, settings.pop("name", "n"), **settings)


LOADERS = ["stream", "all", "repeat", "split", "fit"]


def open_loader(kind: str, server: Any, names: Sequence[str] | None = None, **options: Any) -> Any:
    """Return a dataset, a mixture that ends in one of two ways, or packs of one of two policies."""
    if kind == "stream":
        return open_dataset(server, **options)
    if kind in ("split", "fit"):
        documents = open_dataset(server, **options, columns=["n", "input_ids"])
        return Packed(documents, length=4 if kind == "fit" else 3, policy=kind, window=30)
    parts = [open_dataset(server, name=name, **options) for name in names or ("n", "few")]
    return Mixture([(part, 1) for part in parts], stop="all" if kind == "all" else "repeat")


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("interleave", "workers"), [(1, 1), (4, 1), (4, 2), (4, 3), (24, 4)])
@pytest.mark.parametrize("steps", [0, 13])
def test_the_order_is_that_in_which_blocks_are_needed(
    upstream: Daemon, shuffle: bool, interleave: int, workers: int, steps: int
) -> None:
    numbers = random.Random(interleave)
    for _ in range(3):
        rank, worker = numbers.randrange(2), numbers.randrange(workers)
        dataset = open_dataset(
            upstream,
            shuffle=shuffle,
            interleave=interleave,
            rank=rank,
            world_size=2,
            batch_rows=numbers.randint(5, 50),
            even=numbers.choice(["drop", "pad", "uneven"]),
        )
        position = Position.start(1, dataset._division).after(steps)  # pyright: ignore[reportPrivateUsage]
        lanes: dict[int, int] = {}
        needed: list[int] = []
        share = dataset._share(position)  # pyright: ignore[reportPrivateUsage]
        divides = share.lanes % workers == 0
        for number in range(steps, share.batches):
            if divides and number % workers != worker:
                continue
            (plan,) = dataset._plan_batches(position, iter([number]))  # pyright: ignore[reportPrivateUsage]
            for run in plan.runs:
                for piece in run.pieces:
                    if lanes.get(run.lane) != piece.block:
                        needed.append(dataset.plan.blocks[piece.block].shard)
                    lanes[run.lane] = piece.block
        blocks = dataset._list_blocks(position, steps, worker, workers)  # pyright: ignore[reportPrivateUsage]
        assert list(dataset.plan.list_shards(blocks)) == [shard for shard, _ in groupby(needed)]


def sent_bytes(server: Daemon) -> int:
    with splitarrow.connect(server.control_uri) as client:
        return client.status()["sent"].get("n", {}).get("bytes", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("stream", 0),
        pytest.param("stream", 2, marks=pytest.mark.long),
        ("all", 0),
        ("fit", 0),
    ],
)
def test_a_relay_keeps_what_the_next_epoch_needs_first(
    tmp_path: Path, published: str, kind: str, workers: int
) -> None:
    sizes = [path.stat().st_size for path in (Path(published) / "data").rglob("*.arrow")]
    assert len(sizes) == SHARDS
    nbytes = sum(sizes) // 2 + 64
    options = ["--cache", str(tmp_path / "cache"), "--cache-bytes", str(nbytes)]
    epochs = 4
    with (
        Daemon({"n": published}, control=CONTROL) as origin,
        Daemon(control=CONTROL, upstream=origin.control_uri, arguments=options) as relay,
    ):
        names = ["n"] if kind == "all" else None
        dataset = open_loader(kind, relay, names, interleave=2, prefetch_blocks=1)
        described = sent_bytes(origin)
        loader = torch_data.DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=None
        )
        for epoch in range(epochs):
            dataset.set_epoch(epoch)
            rows = torch.cat([batch["n"] for batch in loader])
            assert sorted(rows.tolist()) == list(range(ROWS))
        fetched = sent_bytes(origin) - described
    # The optimum fetches all shards in the first epoch, and half of them in each other one.
    # Each of these small files has about 400 bytes of messages around it.
    best = (sum(sizes) + 400 * SHARDS) * (1 + (epochs - 1) / 2)
    assert fetched < 1.1 * best


def test_a_server_without_the_action_serves_reads(
    published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize = ActionHandler.__init__

    def forget(self: ActionHandler, *arguments: Any) -> None:
        initialize(self, *arguments)
        del self._actions["announce"]  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(ActionHandler, "__init__", forget)
    with splitarrow.serve({"n": published}, control=CONTROL) as server:
        rows = torch.cat([batch["n"] for batch in open_dataset(server)])
    assert sorted(rows.tolist()) == list(range(ROWS))


@pytest.mark.slow
def test_shards_are_fetched_before_they_are_read(
    tmp_path: Path, published: str, upstream: Daemon
) -> None:
    options = ["--cache", str(tmp_path / "cache"), "--prefetch-bytes", "1MiB"]
    with Daemon(control=CONTROL, upstream=upstream.control_uri, arguments=options) as relay:
        dataset = open_dataset(relay)
        objects = tmp_path / "cache" / "objects"
        assert not objects.exists()  # the upstream has counted the rows
        batches = iter(dataset)
        next(batches)
        wait_until(lambda: len(list(objects.iterdir())) == SHARDS)
        assert sum(len(batch["n"]) for batch in batches) < ROWS


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A relay of two datasets with small shards, whose cache holds half of the larger one."""
    folder = tmp_path_factory.mktemp("relay")
    sources = {"n": str(folder / "n"), "few": str(folder / "few")}
    for name, shards in (("n", 12), ("few", 4)):
        publish(VersionStore(sources[name]), "first", *make_tables(shards, FEW_ROWS))
    nbytes = sum(path.stat().st_size for path in (folder / "n" / "data").rglob("*.arrow")) // 2
    options = ["--cache", str(folder / "cache"), "--cache-bytes", str(nbytes)]
    with (
        Daemon(sources, control=CONTROL) as origin,
        Daemon(control=CONTROL, upstream=origin.control_uri, arguments=options) as daemon,
    ):
        yield daemon


class Record(NamedTuple):
    """The shards that loaders of this process have announced and read, by dataset."""

    announced: dict[str, list[list[int]]]
    read: dict[str, list[int]]
    readers: set[str]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    found = Record({}, {}, set())
    announce, read = Client.announce, Client.read

    def record_announcement(self: Client, name: str, shards: Any, **options: Any) -> bool:
        found.announced.setdefault(name, []).append(ordinals := list(shards))
        found.readers.add(options["reader"])
        return announce(self, name, ordinals, **options)

    def record_read(self: Client, name: str, **options: Any) -> Any:
        found.read.setdefault(name, []).extend(options["shards"])
        return read(self, name, **options)

    monkeypatch.setattr(Client, "announce", record_announcement)
    monkeypatch.setattr(Client, "read", record_read)
    return found


@pytest.mark.parametrize("steps", [0, 71])
@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_announce_what_they_read(
    relay: Daemon, record: Record, kind: str, steps: int
) -> None:
    # With one row in a batch, blocks are needed one after the other.
    dataset = open_loader(kind, relay, batch_rows=1, window_rows=FEW_ROWS, prefetch_blocks=1)
    dataset.load_state_dict(dataset.state_dict(steps))
    assert not record.announced
    assert len(dataset) == sum(1 for _ in dataset)
    ends = {name: len(shards) for name, shards in record.read.items()}
    dataset.set_epoch(1)
    list(dataset)
    assert ends.keys() == ({"n", "few"} if kind in ("all", "repeat") else {"n"})
    assert len(record.readers) == len(ends)  # a server has one order for each name
    for name, end in ends.items():
        question, both, *_, last = record.announced[name]
        read = [list_changes(record.read[name][:end]), list_changes(record.read[name][end:])]
        assert not question
        assert both[: len(read[0])] == read[0]
        assert last[: len(read[1])] == read[1]
        if kind == "repeat":  # the next epoch may take another number of passes
            assert len(both) > len(read[0])
        else:
            assert list_changes(both) == list_changes(read[0] + read[1])


@pytest.mark.parametrize(("kind", "shards"), [("all", 5), ("fit", 12)])
def test_a_rank_announces_the_lanes_that_it_reads(
    relay: Daemon, record: Record, kind: str, shards: int
) -> None:
    # A rank has four lanes, and may need the one beside them. With "fit", it needs all lanes.
    options: dict[str, Any] = {"world_size": 3, "interleave": 12, "window_rows": FEW_ROWS}
    dataset = open_loader(kind, relay, ["n"], batch_rows=20, shuffle=False, **options)
    list(dataset)
    _, order = record.announced["n"]
    assert set(order) == set(range(shards))
    assert set(record.read["n"]) <= set(order)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("all", marks=pytest.mark.long), "split"])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_each_worker_announces_what_its_rank_reads_after_a_resume(
    tmp_path: Path, relay: Daemon, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    announce = Client.announce

    def write(self: Client, name: str, shards: Any, *, reader: str, **options: Any) -> bool:
        (tmp_path / reader).write_text(json.dumps(ordinals := list(shards)))
        return announce(self, name, ordinals, reader=reader, **options)

    def load() -> Any:
        dataset = open_loader(kind, relay, ["n"], batch_rows=FEW_ROWS, shuffle=False, interleave=1)
        return torchdata.StatefulDataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"
        )

    loader = load()
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    state = loader.state_dict()
    del batches
    monkeypatch.setattr(Client, "announce", write)
    resumed = load()
    resumed.load_state_dict(state)
    assert sum(len(batch["n"]) for batch in resumed) == 6 * FEW_ROWS
    first, second = sorted(json.loads(path.read_text()) for path in tmp_path.iterdir())
    # A worker continues behind its own last batch, the fifth or the sixth one.
    assert (first, second) == ([*range(5, 12), *range(12)], [*range(6, 12), *range(12)])


def list_changes(shards: list[int]) -> list[int]:
    return [shard for shard, _ in groupby(shards)]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_server_without_a_cache_gets_a_question_only(
    upstream: Daemon, record: Record, kind: str
) -> None:
    dataset = open_loader(kind, upstream, ["n"])
    next(iter(dataset))
    assert record.announced == {"n": [[]]}


def test_rows_that_samplers_choose_are_not_announced(relay: Daemon, record: Record) -> None:
    dataset = MapDataset(relay.control_uri, "n", columns=["n"])
    assert dataset.rows([70, 3])["n"].tolist() == [70, 3]
    assert not record.announced


def test_an_announcement_that_fails_has_no_effect(
    relay: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def fail(self: Client, name: str, shards: Any, **options: Any) -> bool:
        names.append(name)
        raise RemoteError("refused")

    monkeypatch.setattr(Client, "announce", fail)
    dataset = open_loader("all", relay)
    assert sum(len(batch["n"]) for batch in dataset) == dataset.rows
    assert names == ["n", "few"]
