"""StreamDataset without a loader: order, ranks, positions, filters, errors, failures of daemons."""

from __future__ import annotations

import gc
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from helpers.cluster import StartDaemons, join_uris, make_numbered_shards
from helpers.control_plane import CANARY, TOKENS
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_parquet, write_shards, write_stream
from helpers.waiting import wait_until
from splitarrow import errors
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.pytorch import MapDataset, Mixture, StreamDataset
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]

ROWS = 5_000


def make_table(rows: int = ROWS) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    return pa.table({"n": numbers, "x": pc.divide(numbers.cast(pa.float64()), 7.0)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("data")
    write_file(folder / "trips.arrow", make_table(), batch_rows=300)
    for number, part in enumerate(make_numbered_shards(5, 700, batch_rows=100)):
        write_file(folder / "many" / f"{number}.arrow", part)
    words = pa.array([f"word {n % 3}" for n in range(400)]).dictionary_encode()
    fields: Any = [pa.array(range(0, 800, 2)), words]
    structs: Any = pa.StructArray.from_arrays(fields, ["x", "word"])
    table = pa.table({"n": pa.array(range(400)), "st": structs})
    write_file(folder / "structs.arrow", table, batch_rows=90)
    names = ("trips.arrow", "many", "structs.arrow")
    datasets = {name.removesuffix(".arrow"): folder / name for name in names}
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon(datasets, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, name: str = "trips", **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 64, "window_rows": 500, "rank": 0, "world_size": 1}
    return StreamDataset(server.control_uri, name, **{**settings, **options})


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
@pytest.mark.parametrize("name", ["trips", "many"])
def test_rows_arrive_in_order_without_a_shuffle(server: Daemon, name: str, transport: str) -> None:
    dataset = open_dataset(server, name, transport=transport)
    batches = list(dataset)
    assert numbers(batches) == list(range(dataset.rows))
    assert len(dataset) == len(batches) == -(-dataset.rows // 64)
    assert {len(batch["n"]) for batch in batches[:-1]} == {64}
    del batches
    gc.collect()
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0)


@pytest.mark.parametrize("name", ["trips", "many"])
def test_a_shuffle_depends_on_seed_and_epoch_alone(server: Daemon, name: str) -> None:
    dataset = open_dataset(server, name, shuffle=True, seed=1)
    first = numbers(dataset)
    assert sorted(first) == list(range(dataset.rows))
    assert first != sorted(first)
    assert numbers(dataset) == first
    assert numbers(open_dataset(server, name, shuffle=True, seed=1)) == first
    assert numbers(open_dataset(server, name, shuffle=True, seed=2)) != first
    dataset.set_epoch(1)
    second = numbers(dataset)
    assert sorted(second) == list(range(dataset.rows))
    assert second != first


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("even", ["drop", "pad", "uneven"])
def test_ranks_share_the_rows(server: Daemon, ranks: int, even: str) -> None:
    shares = [
        numbers(open_dataset(server, shuffle=True, even=even, rank=rank, world_size=ranks))
        for rank in range(ranks)
    ]
    delivered = [n for share in shares for n in share]
    assert len(set(delivered)) == (ROWS // ranks * ranks if even == "drop" else ROWS)
    assert len(delivered) - len(set(delivered)) == (-ROWS % ranks if even == "pad" else 0)
    assert max(map(len, shares)) - min(map(len, shares)) == (even == "uneven" and ROWS % ranks > 0)


def test_the_rank_is_that_of_the_environment(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = open_dataset(server, rank=None, world_size=None)
    assert numbers(dataset) == list(range(ROWS // 2, ROWS))
    assert dataset.rank == 1


def test_a_filter_counts_before_it_reads(server: Daemon) -> None:
    wanted = pc.field("n") > 3210
    shares = [
        numbers(open_dataset(server, filter=wanted, shuffle=True, rank=rank, world_size=4))
        for rank in range(4)
    ]
    assert {len(share) for share in shares} == {(ROWS - 3211) // 4}
    dataset = open_dataset(server, filter="n > 3210", columns=["x"])
    assert (dataset.rows, dataset.schema.names) == (ROWS - 3211, ["x"])
    (batch, *_) = dataset
    assert batch["x"][0].item() == pytest.approx(3211 / 7)


def test_columns_may_be_fields_of_structs(server: Daemon) -> None:
    dataset = open_dataset(server, "structs", columns=["st.x", "st.word"], filter="n >= 100")
    assert dataset.schema.names == ["st.x", "st.word"]
    batches = list(dataset)
    assert [x for batch in batches for x in batch["st.x"].tolist()] == list(range(200, 800, 2))
    assert {code for batch in batches for code in batch["st.word"].tolist()} == {0, 1, 2}
    with pytest.raises(errors.UsageError, match=r"'st' has no field 'y'; .* st\.x, st\.word"):
        open_dataset(server, "structs", columns=["st.y"])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_continues_where_it_was_saved(server: Daemon, shuffle: bool) -> None:
    choose = random.Random(5)
    whole = numbers(open_dataset(server, shuffle=shuffle))
    for _ in range(5):
        dataset = open_dataset(server, shuffle=shuffle)
        iterator, before = iter(dataset), list[int]()
        steps = choose.randrange(len(dataset))
        for _ in range(steps):
            before += next(iterator)["n"].tolist()
        state = dataset.state_dict()
        assert state == open_dataset(server, shuffle=shuffle).state_dict(steps)
        iterator.close()
        resumed = pickle.loads(pickle.dumps(open_dataset(server, shuffle=shuffle)))
        resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert len(resumed) == len(dataset) - steps
        again = iter(resumed)
        for _ in range(min(3, len(resumed))):
            before += next(again)["n"].tolist()
        last = open_dataset(server, shuffle=shuffle)
        last.load_state_dict(resumed.state_dict())
        assert before + numbers(last) == whole
        last.set_epoch(1)
        assert len(last) == len(dataset)


def test_other_ranks_and_batches_continue(server: Daemon) -> None:
    choose = random.Random(3)
    for _ in range(6):
        delivered: list[int] = []
        state: Any = None
        for last in (False, False, True):
            ranks, rows = choose.choice([1, 2, 3, 8]), choose.choice([32, 50, 64])
            states: list[Any] = []
            left = (ROWS - len(delivered)) // (ranks * rows)
            steps = choose.randrange(min(12, max(1, left)))  # after the end, an epoch would begin
            for rank in range(ranks):
                options: dict[str, Any] = {"rank": rank, "world_size": ranks, "batch_rows": rows}
                dataset = open_dataset(server, shuffle=True, even="uneven", **options)
                if state is not None:
                    dataset.load_state_dict(state)
                length, iterator = len(dataset), iter(dataset)
                for _ in range(length if last else min(steps, length)):
                    delivered += next(iterator)["n"].tolist()
                iterator.close()
                states.append(dataset.state_dict(steps))
            assert all(each == states[0] for each in states)
            state = states[0]
        assert sorted(delivered) == list(range(ROWS))


def test_a_state_of_other_data_is_refused(server: Daemon) -> None:
    state = open_dataset(server, shuffle=True).state_dict()
    for options, message in (
        ({"seed": 1}, "another seed"),
        ({"shuffle": False}, "another value of shuffle"),
        ({"name": "many"}, "another dataset"),
        ({"filter": pc.field("n") > 5}, "another filter or window_rows"),
        ({"filter": pc.field("n") >= 0}, "another filter or window_rows"),  # as many rows
    ):
        changed: dict[str, Any] = {"shuffle": True, **options}
        with pytest.raises(errors.UsageError, match=message):
            open_dataset(server, **changed).load_state_dict(state)
    other: Any
    for other in ({"step": 3}, None, 7, []):
        with pytest.raises(errors.UsageError, match="neither that of a StreamDataset nor"):
            open_dataset(server).load_state_dict(other)


def test_a_changed_dataset_is_refused(tmp_path: Path, daemon: StartDaemon) -> None:
    path = write_file(tmp_path / "trips.arrow", make_table(), batch_rows=300)
    server = daemon({"trips": path}, control="grpc://127.0.0.1:0")
    dataset = open_dataset(server)
    state = dataset.state_dict(3)
    version = dataset.version
    assert open_dataset(server, version=version).version == version
    write_file(path, make_table(), batch_rows=500)
    with pytest.raises(errors.RemoteError, match="has changed"):
        list(dataset)
    with pytest.raises(errors.UsageError, match="has changed since the state was saved"):
        open_dataset(server).load_state_dict(state)
    with pytest.raises(errors.RemoteError, match="has changed"):
        open_dataset(server, version=version)


def test_a_restart_of_the_daemon_loses_and_repeats_nothing(
    tmp_path: Path, daemon: StartDaemon
) -> None:
    path = write_file(tmp_path / "trips.arrow", make_table(), batch_rows=300)
    server = daemon({"trips": path}, control="grpc://127.0.0.1:0")
    got: list[int] = []
    for number, batch in enumerate(open_dataset(server, shuffle=True, prefetch_blocks=1)):
        got += batch["n"].tolist()
        if number == 3:
            server.kill()
            server.start()
    assert sorted(got) == list(range(ROWS))


def test_a_replica_takes_over(tmp_path: Path, daemons: StartDaemons) -> None:
    tables = make_numbered_shards(6, 700, batch_rows=100)
    three = daemons(3)
    publish_shards("trips", write_shards(tmp_path / "s", tables), join_uris(*three), replicas=2)
    options: dict[str, Any] = {"batch_rows": 64, "window_rows": 300, "shuffle": True}
    dataset = StreamDataset(join_uris(*three), "trips", **options)
    got: list[int] = []
    for number, batch in enumerate(dataset):
        got += batch["n"].tolist()
        if number == 5:
            three[1].kill()
    assert sorted(got) == list(range(6 * 700))
    again = StreamDataset(join_uris(*three), "trips", **options)
    assert numbers(again) == got
    assert again.version == dataset.version
    in_order = StreamDataset(join_uris(*three), "trips", batch_rows=64, window_rows=300)
    assert not in_order.plan.starts  # one read cannot cross shards of several daemons
    assert numbers(in_order) == list(range(6 * 700))


def test_a_token_and_signed_tickets(tmp_path: Path, daemon: StartDaemon) -> None:
    path = write_file(tmp_path / "flights.arrow", make_table(), batch_rows=300)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    server = daemon({"flights": path}, control="grpc://127.0.0.1:0", token_file=tokens)
    dataset = open_dataset(server, "flights", shuffle=True, token=CANARY)
    assert sorted(numbers(dataset)) == list(range(ROWS))
    with pytest.raises(errors.DeniedError):
        open_dataset(server, "flights")


@pytest.mark.parametrize("kind", ["parquet", "stream", "zstd"])
def test_other_files(tmp_path: Path, daemon: StartDaemon, kind: str) -> None:
    batches = make_table().to_batches(max_chunksize=300)
    if kind == "parquet":
        path = write_parquet(tmp_path / "trips.parquet", make_table(), row_group_size=300)
    elif kind == "stream":
        path = write_stream(tmp_path / "trips.arrows", batches)
    else:
        path = write_file(tmp_path / "trips.arrow", batches, compression="zstd")
    server = daemon({"trips": path}, control="grpc://127.0.0.1:0")
    assert numbers(open_dataset(server)) == list(range(ROWS))
    assert sorted(numbers(open_dataset(server, shuffle=True))) == list(range(ROWS))


def test_datasets_without_rows(tmp_path: Path, daemon: StartDaemon) -> None:
    schema = make_table().schema
    nothing = write_file(tmp_path / "nothing.arrow", schema.empty_table())
    empty = pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
    batches = write_file(tmp_path / "batches.arrow", [empty, empty])
    server = daemon({"nothing": nothing, "batches": batches}, control="grpc://127.0.0.1:0")
    for name in ("nothing", "batches"):
        for even in ("drop", "pad", "uneven"):
            dataset = open_dataset(server, name, even=even, shuffle=True, rank=1, world_size=2)
            assert (len(dataset), dataset.rows, list(dataset)) == (0, 0, [])


def test_transform_and_collate_see_every_batch(server: Daemon) -> None:
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["n"]).rename_columns(["m"])

    dataset = open_dataset(server, transform=transform, collate=lambda tensors: tensors["m"] + 1)
    assert [n for batch in dataset for n in batch.tolist()] == list(range(1, ROWS + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 1, "world_size": None}, "belong together"),
        ({"rank": 2, "world_size": 2}, "rank is 2; expected 0 to 1 for 2 ranks"),
        ({"window_rows": 0}, "window_rows is 0"),
        ({"prefetch_blocks": 0}, "prefetch_blocks is 0"),
        ({"transport": "quic"}, "transport is 'quic'; expected auto, flight, inproc, tcp"),
        ({"columns": []}, "columns is empty; expected one column or more, or None for all"),
        ({"seed": 1.5}, r"seed is 1\.5; expected an integer"),
        ({"seed": None}, "seed is None; expected an integer"),
        ({"columns": ["m"]}, "no column 'm'; the columns are n, x"),
        ({"on_null": "skip"}, "on_null is 'skip'; expected error, mask, fill"),
        ({"strings": "str"}, "strings is 'str'"),
        ({"device": "cuda"}, "device is 'cuda', but PyTorch finds no CUDA device"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"categories": {"n": [1]}}, "categories has n: not a dictionary column"),
    ],
)
def test_arguments_are_checked(server: Daemon, options: dict[str, Any], message: str) -> None:
    if "cuda" in options.values():
        import torch  # pyright: ignore

        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA device")
    with pytest.raises(errors.UsageError, match=message):
        open_dataset(server, **options)


def test_tensors_can_be_moved(server: Daemon) -> None:
    batch = next(iter(open_dataset(server, device="meta")))
    assert batch["n"].device.type == "meta"


def test_a_dataset_that_can_be_read_once_is_refused() -> None:
    reader = make_table().to_reader()
    server = splitarrow.serve({"once": reader}, control="grpc://127.0.0.1:0")
    with server, pytest.raises(errors.RemoteError, match="no random access"):
        StreamDataset(str(server.control_uri), "once")


@pytest.mark.parametrize("view", [pa.string_view(), pa.binary_view()])
def test_dictionaries_of_views_are_those_of_texts(view: Any) -> None:
    is_text = view == pa.string_view()
    kinds = [view, pa.large_string() if is_text else pa.large_binary()]
    words: Any = ["a", "a word that is out of line", "c"]
    words = words if is_text else [word.encode() for word in words]
    codes = [pa.array(each, pa.uint8()) for each in ([0, 1, None, 2], [2, 0])]
    tables: dict[str, pa.Table] = {}
    for name, kind in zip(("views", "plain"), kinds, strict=True):
        values = pa.array(words, kind)
        columns: Any = [pa.DictionaryArray.from_arrays(each, values) for each in codes]
        tables[name] = pa.table({"word": pa.chunked_array(columns)})
    with splitarrow.serve(tables, control="grpc://127.0.0.1:0") as server:
        uri = str(server.control_uri)

        def open_one(name: str, **options: Any) -> StreamDataset:
            settings: dict[str, Any] = {"batch_rows": 5, "on_null": "mask"}
            return StreamDataset(uri, name, **settings, **options)

        choices: list[dict[str, Any]] = [
            {},
            {"threads": 1, "shuffle": True},
            {"transform": lambda batch: batch},
            {"on_error": "skip"},
            {"categories": {"word": words[::-1]}},
        ]

        def read(name: str) -> list[Any]:
            datasets: list[Any] = [open_one(name, **each) for each in choices]
            assert datasets[0].categories == {"word": words}
            datasets.append(Mixture([(open_one(name), 1)]))
            datasets.append([MapDataset(uri, name, on_null="mask").rows([5, 1, 2])])
            batches = [batch for dataset in datasets for batch in dataset]
            return [{key: each.tolist() for key, each in batch.items()} for batch in batches]

        assert read("views") == read("plain")


class CountingMemory:
    """Host memory that counts what it allocates, and holds the addresses."""

    is_host = True

    def __init__(self) -> None:
        self.ranges: list[range] = []

    def allocate(self, nbytes: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(nbytes)
        self.ranges.append(range(buffer.address, buffer.address + nbytes))
        return buffer


def test_tensors_share_the_memory_that_bodies_are_received_into(server: Daemon) -> None:
    memory = CountingMemory()
    dataset = open_dataset(server, batch_rows=300, window_rows=1, transport="tcp", memory=memory)
    tensors = [batch["n"] for batch in dataset]
    assert sum(len(tensor) for tensor in tensors) == ROWS
    for tensor in tensors:
        assert any(tensor.data_ptr() in each for each in memory.ranges)


NO_PANDAS = """
import sys
from splitarrow.pytorch import plan

original = plan.make_plan
def make_plan(*arguments):
    result = original(*arguments)
    assert "pandas" not in sys.modules
    return result

plan.make_plan = make_plan
plan.run_task()
"""


def test_the_process_that_plans_does_not_import_pandas(
    server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitarrow.pytorch.plan.default_start_method", lambda: "fork")
    program = "import pickle, sys\nsys.path[:] = pickle.load(sys.stdin.buffer)\n" + NO_PANDAS
    monkeypatch.setattr("splitarrow.pytorch.plan._PROGRAM", program)
    assert open_dataset(server, filter="n < 1000").rows == 1000
