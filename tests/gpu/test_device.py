"""Record batches in the memory of a CUDA device."""

from __future__ import annotations

import importlib
import mmap
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types
from helpers.files import write_file
from splitarrow.benchmarks.studies import gpu
from splitarrow.errors import SplitArrowError
from splitarrow.memory import CudaMemory, DeviceBatch, PinnedMemory
from splitarrow.memory.device import call
from splitarrow.memory.device_bodies import DeviceBodies
from splitarrow.testing import Daemon

pytestmark = pytest.mark.gpu

ARRAYS = make_arrays_of_all_types()
TABLE = pa.table(
    {
        "n": pa.array(np.arange(1_000_000)),
        "s": pa.array(np.tile(np.array(["a", "b"]), 500_000)),
    }
)


@pytest.fixture(scope="module")
def memory() -> CudaMemory:
    return CudaMemory(budget="1GiB")


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_comes_back_as_it_was(memory: CudaMemory, name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]})
    moved = memory.open_copier().copy(batch)
    assert moved.device == "cuda:0"
    assert moved.to_arrow().equals(batch)


@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:0", "ucx://127.0.0.1:0", "shm://"])
def test_streams_land_on_the_device(memory: CudaMemory, scheme: str) -> None:
    with (
        splitarrow.serve({"data": TABLE}, listen=[scheme]) as server,
        splitarrow.open(server.uri("data"), batch_rows=50_000, memory=memory) as stream,
    ):
        batches: list[Any] = list(stream)
    assert all(isinstance(batch, DeviceBatch) for batch in batches)
    assert pa.Table.from_batches([batch.to_arrow() for batch in batches]) == TABLE
    batches.clear()
    assert memory.used_bytes == 0


def test_another_process_shares_its_memory(memory: CudaMemory) -> None:
    with (
        gpu.shared_data(CudaMemory, 64 << 20) as uri,
        splitarrow.open(uri, memory=memory) as stream,
    ):
        batches: list[Any] = list(stream)
        assert memory.used_bytes == 0  # nothing was copied
        rows = sum(batch.num_rows for batch in batches)
        columns = [batch["c0"].to_numpy() for batch in batches]
        assert rows * 8 * gpu.COLUMNS == 64 << 20
        assert sum(map(len, columns)) == rows
        batches.clear()


def test_a_short_handle_of_an_allocation_is_refused(memory: CudaMemory) -> None:
    with pytest.raises(SplitArrowError, match="a handle of an allocation has 63 bytes, not 64"):
        memory.device.open_allocation(bytes(63), 4096)


def test_mapped_memory_is_page_locked(memory: CudaMemory) -> None:
    driver: Any = importlib.import_module("cuda.bindings.driver")
    attributes = driver.CUdevice_attribute
    attribute = attributes.CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
    if not call("cuDeviceGetAttribute", attribute, 0):
        pytest.skip("this device cannot page-lock memory that is mapped read-only")
    allocator = memory.open_allocator()
    with (
        splitarrow.serve({"data": TABLE}, listen="shm://") as server,
        splitarrow.open(server.uri("data"), memory=allocator) as stream,
    ):
        for batch in stream:
            buffers = [each for column in batch.columns for each in column.buffers() if each]
            assert all(memory.device.is_page_locked(each.address) for each in buffers)


def test_pageable_memory_is_known(memory: CudaMemory) -> None:
    assert not memory.device.is_page_locked(pa.allocate_buffer(1 << 20).address)
    assert memory.device.is_page_locked(memory.staging.allocate(1 << 20).address)


def test_ucx_receives_straight_into_the_device(
    memory: CudaMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    allocate = DeviceBodies.allocate
    for module in ("transport", "channel"):
        found = importlib.import_module(f"splitarrow.transport.ucx.{module}")
        known = importlib.import_module("splitarrow.transport.ucx.memory").list_device_types
        monkeypatch.setattr(found, "list_direct_types", known)  # as with an RDMA adapter

    def count(bodies: DeviceBodies, nbytes: int) -> Any:
        received.append(nbytes)
        return allocate(bodies, nbytes)

    monkeypatch.setattr(DeviceBodies, "allocate", count)
    numbers = TABLE.select(["n"])
    with (
        splitarrow.serve({"data": numbers}, listen="ucx://127.0.0.1:0") as server,
        splitarrow.open(server.uri("data"), batch_rows=50_000, memory=memory) as stream,
    ):
        batches: list[Any] = list(stream)
    assert len(received) > 10
    assert pa.Table.from_batches([batch.to_arrow() for batch in batches]) == numbers


def import_torch() -> Any:
    """Return PyTorch; skip the test if it is missing, or was built without CUDA."""
    torch: Any = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip("PyTorch was built without CUDA")
    return torch


def test_pytorch_takes_columns_and_memory_is_not_used_again_too_early(memory: CudaMemory) -> None:
    torch = import_torch()
    sums: list[Any] = []
    with (
        splitarrow.serve({"data": TABLE}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("data"), batch_rows=10_000, memory=memory) as stream,
    ):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for batch in stream:
                tensor = torch.from_dlpack(batch["n"])  # type: ignore[index]
                torch.cuda._sleep(10_000_000)
                sums.append(tensor.sum())
                del tensor, batch
    side.synchronize()
    assert int(sum(int(each) for each in sums)) == 499_999_500_000


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:0", "ucx://127.0.0.1:0", "shm://"])
def test_a_dataset_of_pytorch_yields_tensors_of_the_device(
    memory: CudaMemory, tmp_path: Path, scheme: str, shuffle: bool
) -> None:
    torch = import_torch()
    stream_dataset: Any = importlib.import_module("splitarrow.pytorch").StreamDataset
    nulls = [None if n % 7 == 3 else n for n in range(200_000)]
    table = pa.table(
        {"n": pa.array(range(200_000), pa.int64()), "f": pa.array(nulls, pa.float32())}
    )
    path = write_file(tmp_path / "data.arrow", table, batch_rows=10_000)
    options: dict[str, Any] = {"batch_rows": 4096, "shuffle": shuffle, "rank": 0, "world_size": 1}
    options["on_null"] = "mask"
    with Daemon({"data": path}, listen=[scheme], control="grpc://127.0.0.1:0") as daemon:
        arguments = (str(daemon.control_uri), "data")
        expected = list(stream_dataset(*arguments, **options))
        loader = torch.utils.data.DataLoader(
            stream_dataset(*arguments, memory=memory, **options), batch_size=None
        )
        batches = list(loader)
        assert {each.device for batch in batches for each in batch.values()} == {
            torch.device("cuda", 0)
        }
        on_host = [{name: each.cpu() for name, each in batch.items()} for batch in batches]
        assert all(
            found.keys() == host.keys()
            and all(torch.equal(found[name], host[name]) for name in host)
            for found, host in zip(on_host, expected, strict=True)
        )
        del batches, loader
    assert memory.used_bytes == 0


@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:0", "ucx://127.0.0.1:0", "shm://"])
def test_batches_on_the_device_are_served(memory: CudaMemory, scheme: str) -> None:
    (batch,) = TABLE.combine_chunks().to_batches()
    moved = memory.open_copier().copy(batch)
    with splitarrow.serve({"data": moved}, listen=scheme) as server:
        for columns in (["n"], ["n", "s"]):
            with splitarrow.open(server.uri("data"), columns=columns) as stream:
                assert stream.read_all() == TABLE.select(columns)


def test_ucx_knows_the_memory_of_the_device() -> None:
    context = importlib.import_module("splitarrow.transport.ucx.context")
    device_memory = importlib.import_module("splitarrow.transport.ucx.memory")
    CudaMemory()
    assert {1, 2} <= device_memory.list_device_types(context.get_context())


def test_ucx_takes_read_only_memory_on_a_thread_that_uses_the_device() -> None:
    context = importlib.import_module("splitarrow.transport.ucx.context")
    ucx_memory = importlib.import_module("splitarrow.transport.ucx.memory")
    with CudaMemory().device.current():
        memory = pa.py_buffer(mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ))
        registration = ucx_memory.Registration(context.get_context(), memory.address, memory.size)
        assert registration.key


def test_tensors_of_pytorch_are_served() -> None:
    torch = import_torch()
    matrix = torch.arange(600_000, device="cuda:0").reshape(-1, 2)
    numbers = torch.arange(300_000, device="cuda:0", dtype=torch.float32)
    for scheme in ("tcp://127.0.0.1:0", "ucx://127.0.0.1:0"):
        source = {"m": matrix, "n": numbers}
        with (
            splitarrow.serve({"data": source}, listen=scheme) as server,
            splitarrow.open(server.uri("data")) as stream,
        ):
            arrays = stream.to_numpy()
        assert (arrays["m"] == matrix.cpu().numpy()).all()
        assert (arrays["n"] == numbers.cpu().numpy()).all()


@pytest.mark.parametrize("scheme", ["shm://", "tcp://127.0.0.1:0"])
def test_a_matrix_of_another_process_enters_pytorch(memory: CudaMemory, scheme: str) -> None:
    torch = import_torch()
    program = f"""
        import sys
        import torch
        import splitarrow

        matrix = torch.arange(300_000, device="cuda:0").reshape(-1, 3)
        with splitarrow.serve({{"data": {{"m": matrix}}}}, listen="{scheme}") as server:
            print(server.uri("data"), flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            uri = process.stdout.readline().strip()
            with splitarrow.open(uri, memory=memory) as stream:
                batches: list[Any] = list(stream)
            assert bool(memory.used_bytes) == (scheme != "shm://")
            found = torch.cat([torch.from_dlpack(batch["m"]) for batch in batches])
            assert torch.equal(found.cpu(), torch.arange(300_000).reshape(-1, 3))
            batches.clear()
        finally:
            process.stdin.close()


class CudaArray:
    """A tensor as libraries without DLPack describe it."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def test_an_array_without_dlpack_is_served() -> None:
    torch = import_torch()
    tensor = torch.arange(1000, device="cuda:0")
    with (
        splitarrow.serve({"data": CudaArray(tensor)}) as server,
        splitarrow.open(server.uri("data")) as stream,
    ):
        assert stream.read_all()["values"].to_pylist() == list(range(1000))


def test_page_locked_memory_is_what_bodies_are_received_into() -> None:
    pinned = PinnedMemory("256MiB")
    with (
        splitarrow.serve({"data": TABLE}, listen=["tcp://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("data"), memory=pinned) as stream,
    ):
        table = stream.read_all()
    assert pinned.used_bytes > table.nbytes * 0.9
    assert table == TABLE
    del table
    assert pinned.used_bytes == 0
