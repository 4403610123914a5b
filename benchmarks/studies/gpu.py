"""How fast record batches reach the memory of a GPU, beside plain copies of CUDA.

Run it with ``make gpu``, on a host with a CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
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
_QUICK: dict[str, Any] = {
    "ROUNDS": 1,
    "BATCH_BYTES": (1 << 20,),
    "TOTAL_BYTES": 4 << 20,
    "SERVED_BYTES": 2 << 20,
    "SHARED_BYTES": 4 << 20,
    "SHARED_ROUNDS": 1,
    "STEPS": 3,
}
"""The sizes with ``--quick``."""


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


def measure_waiting(
    batches: Iterator[DeviceBatch], step: Callable[[DeviceBatch], None]
) -> tuple[float, float]:
    """Return how long a loop over `batches` waits: its share of the time, and the first wait."""
    begin, waits = time.perf_counter(), list[float]()
    while True:
        requested = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        batch.wait()
        waits.append(time.perf_counter() - requested)
        step(batch)
    return sum(waits) / (time.perf_counter() - begin), waits[0]


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


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report."""

    case: str
    value: float | None
    """A rate in bytes per second, or a share of the time; None if the section has failed."""
    plain: float | None = None
    """The rate of plain copies."""
    note: str = ""
    """How the value compares with its goal, or why it is missing."""

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row as text."""
        return self.case, _format(self.value), _format(self.plain), self.note


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if value <= 1 else f"{value / 1e9:.2f} GB/s"


def measure_host_to_device(memory: DeviceMemory) -> Iterator[Row]:
    """Yield the rates of copies from the host, and of streams, beside plain copies."""
    for nbytes in BATCH_BYTES:
        figure = measure_size(memory, nbytes, TOTAL_BYTES)
        size = f"batches of {figure.batch_bytes >> 20} MiB"
        goal = describe_goal(figure.copier / figure.plain, 0.9)
        yield Row(f"host to device, {size}", figure.copier, figure.plain, goal)
        for scheme, rate in figure.streams.items():
            yield Row(f"{scheme} to device, {size}", rate, figure.plain)


def measure_device_to_host(memory: DeviceMemory) -> Iterator[Row]:
    """Yield the rates at which a dataset on the device reaches the host."""
    for scheme, rate in serve_from_device(memory, SERVED_BYTES, TOTAL_BYTES).items():
        yield Row(f"device to host over {scheme}", rate)


def measure_steps(memory: DeviceMemory) -> Iterator[Row]:
    """Yield the share of the time that training steps wait for the next batch."""
    batch = make_batch(8 << 20, memory)
    data = pa.Table.from_batches([batch] * STEPS)
    with (
        serve({"data": data}, listen="tcp://127.0.0.1:0") as server,
        open_stream(server.uri("data"), memory=memory, prefetch_bytes=64 << 20) as stream,
    ):
        batches: Iterator[DeviceBatch] = iter(stream)  # pyright: ignore[reportAssignmentType]
        share, first = measure_waiting(batches, lambda _: time.sleep(STEP_SECONDS))
    step = f"{STEPS} steps of {STEP_SECONDS * 1e3:.0f} ms"
    note = describe_goal(share, 0.02, at_most=True)
    yield Row(f"wait of {step}", share, None, f"{note}; first batch: {first * 1e3:.0f} ms")


def measure_all(
    memory: DeviceMemory, open_memory: Callable[[], DeviceMemory] = CudaMemory
) -> Iterator[Row]:
    """Yield all rows. A section that fails yields the reason, and the next one runs."""

    def share() -> Iterator[Row]:
        plain, shared = measure_sharing(open_memory, memory, SHARED_BYTES)
        goal = describe_goal(shared / plain, 0.9)
        yield Row("device to device, from another process", shared, plain, goal)

    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "host to device": lambda: measure_host_to_device(memory),
        "device to host": lambda: measure_device_to_host(memory),
        "device to device": share,
        "training steps": lambda: measure_steps(memory),
    }
    for name, measure_section in sections.items():
        try:
            yield from measure_section()
        except Exception as error:
            yield Row(name, None, None, f"failed: {type(error).__name__}: {error}")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m splitarrow.benchmarks.studies.gpu")
    parser.add_argument("--check", action="store_true", help="only check that CUDA can be used")
    parser.add_argument("--quick", action="store_true", help="measure little, to try it")
    parser.add_argument("--json", type=Path, help="also write the rows to a JSON file")
    options = parser.parse_args(arguments)
    if options.quick:
        globals().update(_QUICK)
    try:
        memory = CudaMemory(budget="4GiB")
        if options.check:
            check_pytorch()
            return 0
    except SplitArrowError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    rows = report(measure_all(memory), Console(), options.json)
    return int(any(row.value is None for row in rows))


def report(rows: Iterable[Row], console: Console, path: Path | None) -> list[Row]:
    """Print rows as a table, write them to a JSON file, and return them."""
    found = list(rows)
    table = Table("case", "value", "plain copies", "result")
    for row in found:
        table.add_row(*row.cells)
    console.print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
