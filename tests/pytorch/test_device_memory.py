"""StreamDataset with tensors in the memory of a device that record batches are received into."""

from __future__ import annotations

import mmap
import pickle
import threading
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers import trap_device
from helpers.files import write_file
from helpers.trap_device import HostDevice, TrapEvent, TrapMemory
from splitarrow import errors
from splitarrow.memory.device_batch import DeviceBatch, Residence
from splitarrow.pytorch import StreamDataset
from splitarrow.server.embedded import Server
from splitarrow.testing import Daemon

torch: Any = import_module("torch")
DataLoader: Any = import_module("torch.utils.data").DataLoader
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("plans_in_this_process")]

ROWS = 600
NULLS: list[Any] = [None if n % 7 == 3 else n for n in range(ROWS)]
COLUMNS: dict[str, Any] = {
    "n": pa.array(range(ROWS), pa.int64()),
    "u": pa.array(range(65_000 - ROWS, 65_000), pa.uint16()),
    "byte": pa.array([n % 200 for n in range(ROWS)], pa.uint8()),
    "f": pa.array(NULLS, pa.float32()),
    "i": pa.array(NULLS, pa.int32()),
    "b": pa.array([None if n is None else n % 3 == 0 for n in NULLS]),
    "t": pa.array(range(ROWS), pa.timestamp("us")),
    "m": pa.array([None if n is None else [n, 2 * n] for n in NULLS], pa.list_(pa.int16(), 2)),
    "e": pa.array([[n, n + 1, None] for n in range(ROWS)], pa.list_(pa.float64(), 3)),
    "s": pa.array(
        [{"x": n, "y": n % 2 == 0} if n is not None else None for n in NULLS],
        pa.struct([("x", pa.uint32()), pa.field("y", pa.bool_(), nullable=False)]),
    ),
}
WHOLE = ["n", "u", "byte", "t"]
TABLE = pa.table(COLUMNS)


class ClosedDevice(HostDevice):
    """A device whose memory the processor can touch once a consumer got it, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()

    def allocate(self, nbytes: int) -> int:
        with self._lock:
            return trap_device.TrapDevice.allocate(self, nbytes)

    def free(self, address: int) -> None:
        with self._lock:
            super().free(address)

    def copy_in(self, target: int, source: int, nbytes: int) -> None:
        with self._lock:
            super().copy_in(target, source, nbytes)

    def run(self, until: int) -> None:
        with self._lock:
            super().run(until)

    def unregister_host(self, address: int) -> None:
        with self._lock:
            end = address + self.registered.pop(address)
            assert not any(address <= source < end for _, source, _ in self._queue)

    def open_to_consumers(self) -> None:
        with self._lock:
            for address, (_, nbytes) in self._files.items():
                rights = mmap.PROT_READ | mmap.PROT_WRITE
                assert trap_device._libc.mprotect(address, nbytes, rights) == 0

    def record(self) -> TrapEvent:
        return _Event(self, self.queued)


class _Event(TrapEvent):
    _device: ClosedDevice

    def delay(self, stream: int) -> None:
        self.wait()
        self._device.open_to_consumers()


@pytest.fixture(scope="module", params=["tcp://127.0.0.1:0", "shm://"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write_file(tmp_path_factory.mktemp("data") / "data.arrow", TABLE, batch_rows=50)
    control = "grpc://127.0.0.1:0"
    with Daemon({"data": path}, listen=[request.param], control=control) as daemon:
        yield daemon


@pytest.fixture
def memory() -> TrapMemory:
    return TrapMemory(device=ClosedDevice())


def open_dataset(server: Daemon | Server, **options: Any) -> StreamDataset:
    settings: dict[str, Any] = {"batch_rows": 64, "window_rows": 150, "rank": 0, "world_size": 1}
    return StreamDataset(str(server.control_uri), "data", **{**settings, **options})


def to_lists(batches: Any) -> list[dict[str, Any]]:
    return [{name: repr(value.tolist()) for name, value in batch.items()} for batch in batches]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("on_null", ["mask", "fill"])
def test_tensors_on_the_device_equal_those_of_the_host(
    server: Daemon, memory: TrapMemory, shuffle: bool, threads: int, on_null: str
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "on_null": on_null, "threads": threads}
    expected = list(open_dataset(server, **options))
    dataset = open_dataset(server, memory=memory, **options)
    found = list(DataLoader(dataset, batch_size=None))
    assert to_lists(found) == to_lists(expected)
    kinds, others = (
        [[(name, each.dtype, each.shape) for name, each in batch.items()] for batch in batches]
        for batches in (found, expected)
    )
    assert kinds == others
    assert memory.device.queued
    assert memory.device.reads == 0
    del found, dataset
    assert memory.used_bytes == 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_continues_where_it_was_saved(
    server: Daemon, memory: TrapMemory, shuffle: bool
) -> None:
    options: dict[str, Any] = {"columns": WHOLE, "shuffle": shuffle}
    whole = [batch["n"].tolist() for batch in open_dataset(server, **options)]
    dataset = open_dataset(server, memory=memory, **options)
    iterator = iter(dataset)
    before = [next(iterator)["n"].tolist() for _ in range(3)]
    state = pickle.loads(pickle.dumps(dataset.state_dict()))
    iterator.close()
    resumed = open_dataset(server, memory=memory, **options)
    resumed.load_state_dict(state)
    assert before + [batch["n"].tolist() for batch in resumed] == whole
    on_host = open_dataset(server, **options)
    on_host.load_state_dict(state)
    assert before + [batch["n"].tolist() for batch in on_host] == whole


def test_ranks_share_the_rows(server: Daemon, memory: TrapMemory) -> None:
    found = [
        n
        for rank in range(3)
        for batch in open_dataset(
            server, columns="n", memory=memory, shuffle=True, rank=rank, world_size=3
        )
        for n in batch["n"].tolist()
    ]
    assert sorted(found) == list(range(ROWS))


def test_tensors_share_the_memory_of_the_device(server: Daemon, memory: TrapMemory) -> None:
    batches = list(open_dataset(server, columns="n", memory=memory, batch_rows=50))
    places = [memory.device.find_allocation(batch["n"].data_ptr()) for batch in batches]
    assert len(places) == ROWS // 50
    assert memory.used_bytes
    del batches
    assert memory.used_bytes == 0


@pytest.mark.parametrize("column", ["f", "b", "m", "e", "s"])
def test_nulls_are_errors_by_default(server: Daemon, memory: TrapMemory, column: str) -> None:
    dataset = open_dataset(server, columns=column, memory=memory)
    with pytest.raises(errors.InvalidDataError, match=f"the column '{column}' ha[sv]e? .*nulls"):
        list(dataset)


def test_workers_of_a_loader_are_refused(
    server: Daemon, memory: TrapMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(server, columns="n", memory=memory)
    worker = SimpleNamespace(id=0, num_workers=1)
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: worker)
    with pytest.raises(errors.UsageError, match="pass num_workers=0 to the loader"):
        iter(dataset)


def test_a_transform_is_refused(server: Daemon, memory: TrapMemory) -> None:
    with pytest.raises(errors.UsageError, match=r"pass collate .*, or device='cpu:0' in place"):
        open_dataset(server, memory=memory, transform=lambda batch: batch)


@pytest.mark.parametrize(
    "values",
    [["a"], [[1]], pa.array(["a"]).dictionary_encode(), [{"x": "a"}]],
    ids=["texts", "lists", "dictionary", "struct"],
)
def test_columns_that_the_processor_would_convert_are_refused(
    memory: TrapMemory, values: Any
) -> None:
    table = pa.table({"good": [1], "c": values})
    control = "grpc://127.0.0.1:0"
    with (
        splitarrow.serve({"data": table}, listen="tcp://127.0.0.1:0", control=control) as server,
        pytest.raises(errors.UsageError, match=r"'c' has the type .* device='cpu:0' in place of"),
    ):
        open_dataset(server, memory=memory)


def test_devices_that_pytorch_does_not_know_are_refused(server: Daemon) -> None:
    with pytest.raises(errors.UsageError, match="'trap:0'"):
        open_dataset(server, memory=TrapMemory())


def test_a_spent_budget_is_named(server: Daemon) -> None:
    small = TrapMemory(budget=1 << 10, device=ClosedDevice())
    with pytest.raises(errors.LimitError, match="the budget of 1KiB of the memory of cpu:0"):
        list(open_dataset(server, columns="n", memory=small))


def test_pytorch_takes_columns_that_are_marked_as_read_only(memory: TrapMemory) -> None:
    copied = memory.open_copier().copy(pa.record_batch({"n": COLUMNS["n"]}))
    residence = Residence(memory.device, [], memory.device.record(), is_shared=True)
    shared = DeviceBatch(copied.schema, copied.layouts, ROWS, residence)
    tensor: Any = torch.from_dlpack(shared["n"])  # a warning would be an error
    assert tensor.tolist() == list(range(ROWS))
