"""MapDataset: rows by their numbers equal those that pyarrow takes, with loaders and samplers."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.cluster import StartDaemons, join_uris, make_numbered_shards
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_parquet, write_shards
from helpers.waiting import wait_until
from splitarrow import errors
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.pytorch import MapDataset
from splitarrow.testing import Daemon
from splitarrow.transport.grpc_usage import GRPC_USAGE

torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")
distributed: Any = import_module("torch.utils.data.distributed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]
ROWS, BATCH_ROWS = 4_000, 150
NAMES = ["file", "packed", "folder", "parquet"]


def make_table(rows: int = ROWS) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    words = pa.array([f"word {n % 7}" for n in range(rows)])
    lists = pa.array([list(range(n, n + n % 4)) for n in range(rows)], pa.list_(pa.int32()))
    vectors = pa.array([[n, n + 0.5] for n in range(rows)], pa.list_(pa.float32(), 2))
    structs = pa.array([{"a": n, "t": str(n)} for n in range(rows)])
    nulls = pa.array([None if n % 3 == 0 else n for n in range(rows)], pa.float64())
    names = ["n", "w", "d", "l", "v", "s", "o"]
    columns = [numbers, words, words.dictionary_encode(), lists, vectors, structs, nulls]
    return pa.Table.from_arrays(columns, names)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    table = make_table()
    parts = [table.slice(begin, 900) for begin in range(0, ROWS, 900)]
    datasets = {
        "file": write_file(folder / "x.arrow", table, batch_rows=BATCH_ROWS),
        "packed": write_file(folder / "z.arrow", table.to_batches(BATCH_ROWS), compression="zstd"),
        "folder": write_shards(folder / "parts", parts, batch_rows=BATCH_ROWS)[0].parent,
        "parquet": write_parquet(folder / "x.parquet", table, row_group_size=BATCH_ROWS),
    }
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon(datasets, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, name: str = "file", **options: Any) -> MapDataset:
    settings: dict[str, Any] = {"on_null": "fill", **options}
    return MapDataset(server.control_uri, name, **settings)


def check_batch(batch: dict[str, Any], expected: pa.Table, categories: list[str]) -> None:
    """Check a batch against the rows that pyarrow has taken."""
    assert batch["n"].tolist() == expected["n"].to_pylist()
    assert batch["w"] == expected["w"].to_pylist()
    assert [categories[code] for code in batch["d"]] == batch["w"]
    lists: list[Any] = expected["l"].to_pylist()
    assert batch["l"].tolist() == [n for each in lists for n in each]
    lengths = pc.list_value_length(expected["l"]).to_pylist()
    assert batch["l.offsets"].diff().tolist() == lengths
    assert batch["v"].tolist() == expected["v"].to_pylist()
    assert batch["s.a"].tolist() == expected["n"].to_pylist()
    assert batch["s.t"] == [str(n) for n in batch["n"].tolist()]
    nulls = expected["o"].to_pylist()
    assert [None if x != x else x for x in batch["o"].tolist()] == nulls


def check_items(items: list[dict[str, Any]], expected: pa.Table, categories: list[str]) -> None:
    """Check rows against those that pyarrow has taken."""
    for item, row in zip(items, expected.to_pylist(), strict=True):
        assert list(item) == ["n", "w", "d", "l", "v", "s.a", "s.t", "o"]
        assert item["n"].shape == ()
        assert item["n"].item() == item["s.a"].item() == row["n"]
        assert (item["w"], item["s.t"]) == (row["w"], row["s"]["t"])
        assert categories[item["d"]] == row["w"]
        assert (item["l"].tolist(), item["v"].tolist()) == (row["l"], row["v"])
        assert item["o"].item() == row["o"] or row["o"] is None


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_that_pyarrow_takes(server: Daemon, name: str, transport: str) -> None:
    table, choose = make_table(), np.random.default_rng(7)
    dataset = open_dataset(server, name, transport=transport, cache_bytes=20_000)
    assert len(dataset) == ROWS
    for indices in (
        choose.integers(0, ROWS, 300),
        choose.permutation(ROWS)[:40],
        np.array([5, 5, ROWS - 1, 0, 5]),
        np.arange(1000, 1400),
        np.array([17]),
    ):
        expected = table.take(indices)
        check_batch(dataset.rows(indices), expected, dataset.categories["d"])
        check_items(dataset.__getitems__(indices.tolist()), expected, dataset.categories["d"])
    check_items([dataset[-3]], table.slice(ROWS - 3, 1), dataset.categories["d"])
    del dataset
    gc.collect()
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)


@pytest.mark.parametrize("name", ["file", "folder", "parquet"])
def test_a_filter_numbers_the_rows_that_it_selects(server: Daemon, name: str) -> None:
    wanted = (pc.field("w") == "word 3") & (pc.field("n") > 700)
    table = make_table().filter(wanted).select(["n", "l"])
    dataset = open_dataset(server, name, columns=["n", "l"], filter=wanted)
    assert len(dataset) == len(table)
    indices = np.random.default_rng(1).integers(0, len(table), 200)
    batch = dataset.rows(indices)
    assert batch["n"].tolist() == table.take(indices)["n"].to_pylist()
    assert dataset[-1]["n"].item() == table["n"][-1].as_py()


def read_stats(server: Daemon) -> dict[str, int]:
    with splitarrow.connect(server.control_uri) as client:
        return client.status()["stats"]


def test_one_request_for_each_shard_reads_the_record_batches_with_the_rows(
    server: Daemon,
) -> None:
    table = make_table()
    dataset = open_dataset(server, "folder", columns=["n", "v"], transport="tcp")
    indices = [10, 3999, 11, 800, 1000, 1001, 10]  # in 4 record batches of 3 of 5 shards
    before = read_stats(server)
    assert dataset.rows(indices)["n"].tolist() == indices
    after = read_stats(server)
    assert after["streams_total"] - before["streams_total"] == 3
    # The last record batch of a shard has the rest of its 900 or 400 rows.
    assert after["rows"] - before["rows"] == 3 * BATCH_ROWS + 100
    sent = after["bytes_sent"] - before["bytes_sent"]
    assert sent < table.select(["n", "v"]).nbytes / 4
    assert dataset[20]["n"].item() == 20
    assert dataset.rows([899, 3990])["n"].tolist() == [899, 3990]
    assert read_stats(server)["streams_total"] == after["streams_total"]


def test_the_cache_keeps_the_record_batches_that_were_used_last(server: Daemon) -> None:
    def count(dataset: MapDataset, *indices: int) -> int:
        before = read_stats(server)["streams_total"]
        for index in indices:
            assert dataset[index]["n"].item() == index
        return read_stats(server)["streams_total"] - before

    one = 8 * BATCH_ROWS
    dataset = open_dataset(server, columns=["n"], transport="tcp", cache_bytes=2 * one + 500)
    first, second, third = 0, BATCH_ROWS, 2 * BATCH_ROWS
    assert count(dataset, first, second, first, second) == 2
    assert count(dataset, first, third) == 1
    assert count(dataset, first, third) == 0
    assert count(dataset, second) == 1
    assert count(open_dataset(server, columns=["n"], cache_bytes=0), first, first) == 2


def test_more_ranges_than_one_request_may_name(tmp_path: Path, daemon: StartDaemon) -> None:
    path = write_file(tmp_path / "x.arrow", pa.table({"n": range(2000)}), batch_rows=1)
    server = daemon({"x": path}, control="grpc://127.0.0.1:0")
    dataset = MapDataset(server.control_uri, "x")
    indices = list(range(0, 2000, 2))[::-1]
    before = read_stats(server)["streams_total"]
    assert dataset.rows(indices)["n"].tolist() == indices
    assert read_stats(server)["streams_total"] - before == 2


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, None), (2, "fork"), (1, "spawn"), pytest.param(2, "spawn", marks=pytest.mark.long)],
)
def test_a_loader_delivers_the_rows_of_its_sampler(
    server: Daemon, workers: int, method: str | None
) -> None:
    dataset = open_dataset(server, columns=["n", "w", "v"])
    assert dataset[0]["n"].item() == 0  # this process is connected
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
    sampler = data.RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
    whole_batches = data.BatchSampler(sampler, 300, False)
    loaders = (
        data.DataLoader(dataset, batch_size=300, sampler=sampler, **options),
        data.DataLoader(dataset, batch_sampler=whole_batches, **options),
        data.DataLoader(dataset, batch_size=None, sampler=whole_batches, **options),
    )
    for loader in loaders[:1] if method == "spawn" else loaders:
        batches = list(loader)
        numbers = [n for batch in batches for n in batch["n"].tolist()]
        assert sorted(numbers) == list(range(ROWS))
        assert numbers != sorted(numbers)
        assert [len(batch["n"]) for batch in batches] == [300] * 13 + [100]
        assert batches[0]["w"] == [f"word {n % 7}" for n in numbers[:300]]
        assert batches[0]["v"].shape == (300, 2)


def _read_in_child(dataset: MapDataset, results: Any) -> None:
    results.put((dataset.rows([9, 3])["n"].tolist(), GRPC_USAGE.is_blocked))


def test_a_forked_process_may_use_grpc_although_its_parent_has_read(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    assert dataset[0]["n"].item() == 0
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_in_child, args=(dataset, results))
    child.start()
    assert results.get(timeout=60) == ([9, 3], False)
    child.join(60)
    assert child.exitcode == 0
    assert dataset.rows([1000, 2])["n"].tolist() == [1000, 2]


def test_a_distributed_sampler_divides_the_rows(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    found: list[int] = []
    for rank in range(3):
        sampler = distributed.DistributedSampler(dataset, 3, rank, shuffle=True, drop_last=True)
        loader = data.DataLoader(dataset, batch_size=100, sampler=sampler)
        found += [n for batch in loader for n in batch["n"].tolist()]
    assert len(found) == len(set(found)) == ROWS // 3 * 3


def test_a_copy_by_pickle_connects_by_itself(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    assert dataset[7]["n"].item() == 7
    copy = pickle.loads(pickle.dumps(dataset))
    assert (len(copy), copy.version) == (ROWS, dataset.version)
    assert copy.rows([3, -1])["n"].tolist() == [3, ROWS - 1]


def test_rows_that_do_not_exist_are_refused(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    for index in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match=f"no row {index}; 'file' has {ROWS} rows"):
            dataset[index]
        with pytest.raises(IndexError, match="no row"):
            dataset.rows([0, index])
    for wrong in (1.5, "n", None, [0.5], [[1]], True):
        with pytest.raises(errors.UsageError, match="expected integers"):
            dataset[wrong]
    assert dataset.rows([])["n"].tolist() == []
    assert dataset.__getitems__([]) == []
    assert dataset[torch.tensor(5)]["n"].item() == dataset[np.int8(5)]["n"].item() == 5
    assert dataset[torch.tensor([5, 6])]["n"].tolist() == [5, 6]


def test_rows_may_be_written_to(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"], transport="shm")
    for values in (dataset.rows(range(10))["n"], dataset[3]["n"]):
        values += 1
    assert dataset.rows(range(10))["n"].tolist() == list(range(10))


def test_transform_and_collate_receive_the_rows(server: Daemon) -> None:
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["n"]).rename_columns(["m"])

    dataset = open_dataset(server, transform=transform, collate=lambda values: values["m"] + 1)
    assert dataset[4].item() == 5
    assert [each.item() for each in dataset.__getitems__([4, 2])] == [5, 3]
    assert dataset.rows([4, 2]).tolist() == [5, 3]
    halved = open_dataset(server, transform=lambda batch: batch.slice(1))
    with pytest.raises(errors.UsageError, match="transform returned 1 rows for 2"):
        halved.rows([1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": "quic"}, "transport is 'quic'; expected auto, flight, inproc, tcp"),
        ({"columns": []}, "columns is empty; expected one column or more, or None for all"),
        ({"columns": ["m"]}, "no column 'm'; the columns are n, w"),
        ({"on_null": "skip"}, "on_null is 'skip'; expected error, mask, fill"),
        ({"strings": "str"}, "strings is 'str'"),
        ({"categories": {"n": [1]}}, "categories has n: not a dictionary column"),
        ({"cache_bytes": -1}, "cache_bytes is -1; expected 0 or more"),
    ],
)
def test_arguments_are_checked(server: Daemon, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        open_dataset(server, **options)


def test_nulls_and_texts_of_a_row(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["o", "w", "s"], on_null="mask", strings="bytes")
    null, value = dataset.__getitems__([3, 4])
    assert (null["o.mask"].item(), value["o.mask"].item()) == (False, True)
    assert (null["o"].item(), value["o"].item()) == (0, 4)
    assert bytes(value["w"].tolist()) == b"word 4"
    assert bytes(value["s.t"].tolist()) == b"4"
    masks = ["s.a", "s.a.mask", "s.t", "s.t.mask", "s.mask"]
    assert list(value) == ["o", "o.mask", "w", "w.mask", *masks]
    with pytest.raises(errors.InvalidDataError, match="'o' has 1 nulls"):
        open_dataset(server, on_null="error")[3]


def test_views_and_runs(tmp_path: Path, daemon: StartDaemon) -> None:
    compute: Any = pc
    words = [f"word {n}" for n in range(30)]
    values: dict[str, Any] = {
        "view": pa.array(words, pa.string_view()),
        "lists": pa.array([[word] for word in words], pa.list_(pa.string_view())),
        "structs": pa.array([{"b": word.encode()} for word in words]).cast(
            pa.struct([("b", pa.binary_view())])
        ),
        "runs": compute.run_end_encode(pa.array([n // 7 for n in range(30)])),
    }
    path = write_file(tmp_path / "x.arrow", pa.table(values), batch_rows=10)
    server = daemon({"x": path}, control="grpc://127.0.0.1:0")
    dataset = MapDataset(server.control_uri, "x")
    for cached in (False, True):
        batch = dataset.rows([25, 3, 3])
        assert batch["view"] == batch["lists"] == ["word 25", "word 3", "word 3"], cached
        assert batch["structs.b"] == [b"word 25", b"word 3", b"word 3"]
        assert batch["runs"].tolist() == [3, 0, 0]
    item = dataset[8]
    assert (item["view"], item["lists"], item["runs"].item()) == ("word 8", ["word 8"], 1)


def test_a_restart_of_the_daemon_and_a_change_of_the_data(
    tmp_path: Path, daemon: StartDaemon
) -> None:
    path = write_file(tmp_path / "x.arrow", make_table(), batch_rows=BATCH_ROWS)
    server = daemon({"x": path}, control="grpc://127.0.0.1:0")
    dataset = open_dataset(server, "x")
    assert dataset[0]["n"].item() == 0
    server.kill()
    server.start()
    assert dataset.rows([500, 3000])["n"].tolist() == [500, 3000]
    write_file(path, make_table(), batch_rows=500)
    with pytest.raises(errors.RemoteError, match="has changed"):
        dataset.rows([2000])


def test_the_rows_of_several_daemons(tmp_path: Path, daemons: StartDaemons) -> None:
    tables = make_numbered_shards(6, 700, batch_rows=100)
    three = daemons(3)
    publish_shards("trips", write_shards(tmp_path / "s", tables), join_uris(*three), replicas=2)
    dataset = MapDataset(join_uris(*three), "trips", columns=["n", "shard"], cache_bytes=0)
    indices = np.random.default_rng(2).permutation(6 * 700)[:60]
    assert dataset.rows(indices)["n"].tolist() == indices.tolist()
    three[1].kill()
    batch = dataset.rows(indices)
    assert (batch["n"].tolist(), batch["shard"].tolist()) == (
        indices.tolist(),
        (indices // 700).tolist(),
    )


def test_datasets_without_rows(tmp_path: Path, daemon: StartDaemon) -> None:
    nothing = write_file(tmp_path / "nothing.arrow", make_table().slice(0, 0))
    server = daemon({"nothing": nothing}, control="grpc://127.0.0.1:0")
    dataset = open_dataset(server, "nothing")
    assert (len(dataset), list(data.DataLoader(dataset))) == (0, [])
    with pytest.raises(IndexError, match="no row 0; 'nothing' has 0 rows"):
        dataset[0]
