"""Batches that workers pass to the trainer in the memory of the daemon, without a copy."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.shm import Mapping, list_mappings
from helpers.waiting import wait_until
from splitarrow.pytorch import StreamDataset
from splitarrow.pytorch.mapped_tensors import HELD, find_place
from splitarrow.pytorch.shared_batch import SharedBatch, pass_regions
from splitarrow.pytorch.tensors import TensorOptions, convert_batch
from splitarrow.testing import Daemon
from splitarrow.transport.memory.mapped_region import REGIONS

torch: Any = import_module("torch")
data: Any = import_module("torch.utils.data")
torchdata: Any = import_module("torchdata.stateful_dataloader")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("plans_in_this_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
ROWS = 8_000
BATCH_ROWS = 100
LOADERS = {"DataLoader": data.DataLoader, "StatefulDataLoader": torchdata.StatefulDataLoader}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = pa.array(range(ROWS), pa.int64())
    shape = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0])
    images = pa.FixedSizeListArray.from_arrays(pa.array(range(6 * ROWS), pa.int32()), 6)
    columns: dict[str, Any] = {
        "n": numbers,
        "x": numbers.cast(pa.float32()),
        "flag": pa.array([n % 3 == 0 for n in range(ROWS)]),
        "image": pa.ExtensionArray.from_storage(shape, images),
        "w": pa.array([f"word {n % 7}" for n in range(ROWS)]),
    }
    folder = tmp_path_factory.mktemp("data")
    return write_file(folder / "trips.arrow", pa.table(columns), batch_rows=1_000)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Daemon]:
    listen = ["tcp://127.0.0.1:0", "shm://"]
    with Daemon({"trips": path}, listen=listen, control="grpc://127.0.0.1:0") as daemon:
        yield daemon


def open_dataset(server: Daemon, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": BATCH_ROWS, "window_rows": 1, "transport": "shm"}
    return StreamDataset(server.control_uri, "trips", **{**settings, **options})


def find_mapping(tensor: Any) -> Mapping | None:
    """Return the mapping of the daemon's memory that a tensor is in, or None if it is elsewhere."""
    for mapping in list_mappings():
        is_shared = mapping.name.endswith("/trips.arrow") or "/memfd:splitarrow" in mapping.name
        if mapping.begin <= tensor.data_ptr() < mapping.end and is_shared:
            return mapping
    return None


def list_sealed_memory(server: Daemon) -> set[int]:
    """Return the inodes of the daemon's sealed memory."""
    found = set[int]()
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            if "memfd:splitarrow" in os.readlink(link):
                found.add(link.stat().st_ino)
        except FileNotFoundError:  # the directory lists its own descriptor
            continue
    return found


def wait_for_the_end_of_leases(server: Daemon) -> None:
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 0, "the end of all leases")


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.long), "forkserver"]
)
@pytest.mark.parametrize("loader_type", LOADERS)
def test_tensors_stay_in_the_file(
    server: Daemon, path: Path, method: str, loader_type: str
) -> None:
    columns = ["n", "x", "flag", "image", "w"]
    loader = LOADERS[loader_type](
        open_dataset(server),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
    )
    row, inode = 0, path.stat().st_ino
    for batch in loader:
        numbers = range(row, row + BATCH_ROWS)
        row += BATCH_ROWS
        assert list(batch) == columns
        for name in ("n", "x", "image"):
            mapping = find_mapping(batch[name])
            assert mapping is not None
            assert (mapping.inode, mapping.name, mapping.rights) == (inode, str(path), "r--s")
        assert find_mapping(batch["flag"]) is None
        assert batch["n"].tolist() == list(numbers)
        assert batch["x"].tolist() == list(numbers)
        assert batch["flag"].tolist() == [n % 3 == 0 for n in numbers]
        assert batch["w"] == [f"word {n % 7}" for n in numbers]
        values = torch.arange(6 * numbers[0], 6 * (numbers[-1] + 1), dtype=torch.int32)
        assert torch.equal(batch["image"], values.reshape(-1, 2, 3).permute(0, 2, 1))
    assert row == ROWS
    batch = loader = None
    wait_for_the_end_of_leases(server)


def test_tensors_stay_in_sealed_memory(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    loader = data.DataLoader(dataset, batch_size=None, num_workers=1)
    numbers = list[int]()
    for batch in loader:
        mapping = find_mapping(batch["n"])
        assert mapping is not None
        assert "memfd" in mapping.name
        assert mapping.inode in list_sealed_memory(server)
        numbers += batch["n"].tolist()
    assert numbers == list(range(ROWS))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"transport": "tcp"}], ids=str)
def test_other_batches_are_copied(server: Daemon, options: dict[str, Any]) -> None:
    dataset = open_dataset(server, columns=["n"], **options)
    loader = data.DataLoader(dataset, batch_size=None, num_workers=1)
    batches = list(loader)
    assert all(find_mapping(batch["n"]) is None for batch in batches)
    assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(ROWS))


def test_the_lease_lasts_until_the_trainer_drops_the_tensors(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n", "x"])
    loader = data.DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    kept = [batch["n"][10:20] for step, batch in enumerate(loader) if step == 15]
    with splitarrow.connect(server.control_uri) as client:
        wait_until(lambda: client.status()["stats"]["leases"] == 2)  # both columns of one batch
        if not (child := os.fork()):
            kept.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert kept[0].tolist() == list(range(1510, 1520))
        assert client.status()["stats"]["leases"] == 2
        kept.clear()
        wait_until(lambda: client.status()["stats"]["leases"] == 0)
    del loader


def test_tensors_outlive_the_worker(server: Daemon, path: Path) -> None:
    dataset = open_dataset(server)
    loader = data.DataLoader(dataset, batch_size=None, num_workers=2)
    batches = [batch["n"] for batch in loader]
    del loader
    wait_for_the_end_of_leases(server)
    assert [n for batch in batches for n in batch.tolist()] == list(range(ROWS))
    mapping = find_mapping(batches[0])
    assert mapping is not None
    assert mapping.inode == path.stat().st_ino


def test_a_trainer_that_keeps_all_batches_gets_copies_of_some(server: Daemon) -> None:
    dataset = open_dataset(server, columns=["n"])
    loader = data.DataLoader(dataset, batch_size=None, num_workers=1)
    batches = [batch["n"] for batch in loader]
    mapped = sum(find_mapping(batch) is not None for batch in batches)
    assert 60 <= mapped <= 70 < len(batches)
    assert [n for batch in batches for n in batch.tolist()] == list(range(ROWS))


KILL_A_WORKER = """
import os, signal, sys
from torch.utils.data import DataLoader
from splitarrow.pytorch import StreamDataset

dataset = StreamDataset(sys.argv[1], "trips", columns=["n"], batch_rows=100, transport="shm")
iterator = iter(DataLoader(dataset, batch_size=None, num_workers=1))
batch = next(iterator)
maps = open("/proc/self/maps").read()
assert "memfd:splitarrow" in maps
os.kill(iterator._workers[0].pid, signal.SIGKILL)
try:
    list(iterator)
except Exception as error:
    print(type(error).__name__, flush=True)
assert batch["n"].tolist() == list(range(100))
input()
"""


def test_a_worker_that_is_killed_leaves_valid_tensors_and_no_leases(server: Daemon) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILL_A_WORKER, str(server.control_uri)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert "Error" in trainer.stdout.readline()
        wait_for_the_end_of_leases(server)
        trainer.communicate("\n", timeout=60)
    assert trainer.returncode == 0


@pytest.fixture
def passes_regions() -> Iterator[None]:
    """Let this process act as a worker."""
    pass_regions()
    yield
    HELD.close()
    REGIONS.close()


def send(server: Daemon, name: str = "trips") -> Any:
    """Return the pickled first batch of a dataset as a worker sends it, and what it contains."""
    with splitarrow.connect(server.control_uri) as client:
        table = client.read(name, columns=["n", "x"], transport="shm").read_all()
    tensors = convert_batch(table.to_batches()[0], TensorOptions(), {})
    assert find_place(tensors["n"]) is not None
    return ForkingPickler.dumps(SharedBatch(tensors))


@pytest.mark.usefixtures("passes_regions")
def test_a_file_that_changes_meanwhile_is_copied(tmp_path: Path) -> None:
    rows = 1_000
    table = pa.table({"n": pa.array(range(rows), pa.int64()), "x": pa.array([0.5] * rows)})
    path = write_file(tmp_path / "trips.arrow", table, batch_rows=rows)
    with Daemon(
        {"trips": path}, listen=["tcp://127.0.0.1:0", "shm://"], control="grpc://127.0.0.1:0"
    ) as server:
        early, late = send(server), send(server)
        before = pickle.loads(early)
        assert find_mapping(before["n"]) is not None
        with path.open("r+b") as file:  # waits until all readers have released it
            file.write(bytes(path.stat().st_size))
        after = pickle.loads(late)
        for batch in (before, after):
            assert batch["n"].tolist() == list(range(rows))
            assert batch["x"].tolist() == [0.5] * rows
        del before, after, batch
        wait_until(lambda: not HELD.count)
