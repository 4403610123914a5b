"""How fast record batches reach the memory of a GPU, beside plain copies of CUDA.

Run it with ``make gpu``, on a host with a CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from ...client.open import open as open_stream
from ...errors import SplitArrowError, UsageError
from ...memory import CudaMemory, DeviceMemory
from ...memory.device_batch import DeviceBatch
from ...memory.interfaces import read_tensor
from ...server.catalog.device_table import BATCH_BYTES as BATCH_LIMIT
from ...server.embedded import serve

COLUMNS = 8
ROUNDS = 5
BATCH_BYTES = (1 << 20, 8 << 20, 64 << 20)
TOTAL_BYTES = 2 << 30
SERVED_BYTES = 64 << 20
SHARED_BYTES = 1 << 30
SHARED_ROUNDS = 4
STEP_SECONDS = 0.020
STEPS = 200


@dataclass(frozen=True, slots=True)
class Figure:
    """The rates of one size of batches, in bytes per second."""

    batch_bytes: int
    plain: float
    """Plain copies from page-locked memory, with an event for each."""
    copier: float
    """The same batches, as `DeviceBatch`."""
    streams: dict[str, float]
    """Streams, by their transport, from the request to the last copy."""


def make_batch(nbytes: int, memory: DeviceMemory) -> pa.RecordBatch:
    """Return a batch of float64 columns, in one allocation of the staging memory."""
    rows = nbytes // (8 * COLUMNS)
    body = memory.staging.allocate(rows * 8 * COLUMNS)
    arrays = [
        pa.Array.from_buffers(pa.float64(), rows, [None, body.slice(index * rows * 8, rows * 8)])
        for index in range(COLUMNS)
    ]
    return pa.record_batch(arrays, names=[f"c{index}" for index in range(COLUMNS)])


def measure(run: Callable[[], int]) -> float:
    """Return the best rate of several rounds, in bytes per second; `run` returns its bytes."""
    rates: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        nbytes = run()
        rates.append(nbytes / (time.perf_counter() - begin))
    return max(rates)


def copy_plainly(
    memory: DeviceMemory, batch: pa.RecordBatch, count: int, targets: list[int]
) -> int:
    """Copy a batch several times to areas of the device in turn, and wait for all."""
    device, nbytes = memory.device, batch.nbytes
    data = batch.column(0).buffers()[1]
    assert data is not None
    for index in range(count):
        device.copy_in(targets[index % len(targets)], data.address, nbytes)
        device.record()
    device.synchronize()
    return count * nbytes


def copy_batches(memory: DeviceMemory, batch: pa.RecordBatch, count: int) -> int:
    """Copy a batch several times with a copier, holding two results, and wait for the last."""
    copier = memory.open_copier()
    held: list[DeviceBatch] = []
    for _ in range(count):
        held = [*held[-1:], copier.copy(batch)]
    held[-1].wait()
    return count * batch.nbytes


def read_stream(uri: str, memory: DeviceMemory) -> int:
    """Read a stream to the device, and wait for the last copy."""
    nbytes, last = 0, None
    with open_stream(uri, memory=memory) as stream:
        for last in stream:
            nbytes += last.num_rows * 8 * COLUMNS
    assert isinstance(last, DeviceBatch)
    last.wait()
    return nbytes


def measure_size(memory: DeviceMemory, nbytes: int, total: int) -> Figure:
    """Return the rates for batches of a size in bytes."""
    batch = make_batch(nbytes, memory)
    count = max(2, total // batch.nbytes)
    targets = [memory.device.allocate(batch.nbytes) for _ in range(2)]
    try:
        plain = measure(lambda: copy_plainly(memory, batch, count, targets))
    finally:
        for target in targets:
            memory.device.free(target)
    copier = measure(lambda: copy_batches(memory, batch, count))
    table = pa.Table.from_batches([batch] * count)
    streams: dict[str, float] = {}
    with serve({"data": table}, listen=["tcp://127.0.0.1:0", "shm://"]) as server:
        for scheme in ("tcp", "shm"):
            uri = server.uri("data", scheme)
            streams[scheme] = measure(lambda uri=uri: read_stream(uri, memory))
    return Figure(batch.nbytes, plain, copier, streams)


def serve_from_device(memory: DeviceMemory, nbytes: int, total: int) -> dict[str, float]:
    """Return the rates at which a dataset on the device reaches the host, by transport."""
    moved = memory.open_copier().copy(make_batch(nbytes, memory))
    count = max(1, total // nbytes)
    rates: dict[str, float] = {}
    for scheme in ("tcp", "ucx"):
        with serve({"data": [moved] * count}, listen=f"{scheme}://127.0.0.1:0") as server:
            uri = server.uri("data")
            rates[scheme] = measure(lambda uri=uri: count_bytes(uri))
    return rates


def serve_shared(connection: Any, open_memory: Callable[[], DeviceMemory], nbytes: int) -> None:
    """Serve a batch on the device, send the URI, and wait until the other end is closed."""
    memory = open_memory()
    batch = memory.open_copier().copy(make_batch(nbytes, memory))
    with serve({"data": batch}, listen="shm://") as server:
        connection.send(server.uri("data"))
        with contextlib.suppress(EOFError):
            connection.recv()


@contextmanager
def shared_data(open_memory: Callable[[], DeviceMemory], nbytes: int) -> Generator[str]:
    """Run `serve_shared` in a process of its own, and return the URI."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_shared, args=(theirs, open_memory, nbytes))
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        process.join()


def copy_shared(uri: str, memory: DeviceMemory, target: int, rounds: int) -> int:
    """Copy the data of another process within the device; return the bytes."""
    device, copied = memory.device, 0
    for _ in range(rounds):
        with open_stream(uri, memory=memory) as stream:
            for batch in stream:
                assert isinstance(batch, DeviceBatch)
                for name in batch.schema.names:
                    column = batch[name]
                    nbytes = len(column) * 8
                    device.copy_within(target, read_tensor(column).address, nbytes)
                    copied += nbytes
                device.synchronize()
        if memory.used_bytes:
            raise UsageError("the memory of another process could not be opened by CUDA IPC")
    return copied


def measure_sharing(
    open_memory: Callable[[], DeviceMemory], memory: DeviceMemory, nbytes: int
) -> tuple[float, float]:
    """Return the rates of copies within the device: plain ones, and those from another process.

    Both copy the parts of columns that a server sends in one batch.
    """
    part = min(nbytes, BATCH_LIMIT) // COLUMNS
    source, target = (memory.device.allocate(part) for _ in range(2))

    def copy_plainly() -> int:
        for _ in range(SHARED_ROUNDS * nbytes // (part * COLUMNS)):
            for _ in range(COLUMNS):
                memory.device.copy_within(target, source, part)
            memory.device.synchronize()
        return SHARED_ROUNDS * nbytes // (part * COLUMNS) * part * COLUMNS

    try:
        plain = measure(copy_plainly)
        with shared_data(open_memory, nbytes) as uri:
            shared = measure(lambda: copy_shared(uri, memory, target, SHARED_ROUNDS))
    finally:
        memory.device.free(source)
        memory.device.free(target)
    return plain, shared


def describe_goal(reached: float, goal: float, *, at_most: bool = False) -> str:
    """Return a sentence on a goal, both as shares."""
    met = reached <= goal if at_most else reached >= goal
    return f"{reached:.1%}; the goal is {'at most' if at_most else 'at least'} {goal:.0%}: " + (
        "reached" if met else "missed"
    )


def count_bytes(uri: str) -> int:
    """Read a stream into host memory; return its size in bytes."""
    with open_stream(uri) as stream:
        return sum(batch.num_rows * 8 * COLUMNS for batch in stream)


def measure_waiting(batches: Iterator[DeviceBatch], step: Callable[[DeviceBatch], None]) -> float:
    """Return the share of the time that a loop over `batches` waits for the next one."""
    begin, waited = time.perf_counter(), 0.0
    while True:
        requested = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        batch.wait()
        waited += time.perf_counter() - requested
        step(batch)
    return waited / (time.perf_counter() - begin)


def check_pytorch() -> None:
    """Raise `UsageError` if PyTorch is installed and cannot use the device."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return
    if not torch.cuda.is_available():
        raise UsageError(
            f"PyTorch {torch.__version__} finds no CUDA device; run `make clean`, and then "
            "`make gpu` with an index of packages that has a build of PyTorch with CUDA"
        )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.gpu")
    parser.add_argument("--check", action="store_true", help="only check that CUDA can be used")
    options = parser.parse_args(arguments)
    try:
        memory = CudaMemory(budget="4GiB")
        if options.check:
            check_pytorch()
        else:
            report(memory, Console())
    except SplitArrowError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def report(
    memory: DeviceMemory,
    console: Console,
    open_memory: Callable[[], DeviceMemory] = CudaMemory,
) -> None:
    """Measure everything, and print the figures."""
    table = Table("batch", "plain copies", "copier", "share", "tcp", "shm")
    share = 0.0
    for nbytes in BATCH_BYTES:
        figure = measure_size(memory, nbytes, TOTAL_BYTES)
        rates = (figure.plain, figure.copier, *figure.streams.values())
        plain, copier, *streams = [f"{rate / 1e9:.1f} GB/s" for rate in rates]
        share = figure.copier / figure.plain
        table.add_row(f"{figure.batch_bytes >> 20} MiB", plain, copier, f"{share:.0%}", *streams)
    console.print(table)
    console.print(f"host to device, beside plain copies: {describe_goal(share, 0.9)}")
    served = serve_from_device(memory, SERVED_BYTES, TOTAL_BYTES)
    rates = ", ".join(f"{scheme} {rate / 1e9:.1f} GB/s" for scheme, rate in served.items())
    console.print(f"a dataset on the device, read into host memory: {rates}")
    plain, shared = measure_sharing(open_memory, memory, SHARED_BYTES)
    console.print(
        f"device to device, from another process: {shared / 1e9:.1f} GB/s, of plain copies "
        f"{plain / 1e9:.1f} GB/s: {describe_goal(shared / plain, 0.9)}"
    )
    batch = make_batch(8 << 20, memory)
    data = pa.Table.from_batches([batch] * STEPS)
    with (
        serve({"data": data}, listen="tcp://127.0.0.1:0") as server,
        open_stream(server.uri("data"), memory=memory, prefetch_bytes=64 << 20) as stream,
    ):
        batches: Iterator[DeviceBatch] = iter(stream)  # pyright: ignore[reportAssignmentType]
        share = measure_waiting(batches, lambda _: time.sleep(STEP_SECONDS))
    step = f"{STEP_SECONDS * 1e3:.0f} ms"
    goal = describe_goal(share, 0.02, at_most=True)
    console.print(f"of the time, {STEPS} steps of {step} waited for {goal}")


if __name__ == "__main__":
    raise SystemExit(main())
