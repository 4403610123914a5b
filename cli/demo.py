"""``splitarrow demo``: serve a table, read it in another process, verify and time it.

``python -m splitarrow.cli.demo`` is that process. It reads a job and commands from standard input,
as lines of JSON, and replies to each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pyarrow as pa
from rich.console import Console

from ..benchmarks.backends import Backend, available_backends, find_backend
from ..benchmarks.backends.backend import Consumer
from ..benchmarks.datasets import TRIP_SCHEMA, BatchFile, write_trips
from ..benchmarks.worker import Handler, WorkerProcess, receive_replies, run_worker
from ..errors import InvalidDataError
from ..formats.text import format_bytes
from ..testing import Daemon
from .exit_status import raise_on_signals
from .formatting import format_count, format_duration
from .options import option
from .output_file import OutputFile
from .terminal import make_table, standard_output

_WORKER_MODULE = "splitarrow.cli.demo"
_ROW_BYTES = 145
"""The approximate size of a row of the table, in bytes."""
_REPLY_SECONDS = 120.0
_TCP = "splitarrow-tcp"
_SHM = "splitarrow-shm"
_FLIGHT = "flight"
_LABELS = {
    _TCP: "splitarrow over TCP",
    _SHM: "splitarrow, shared memory",
    _FLIGHT: "Arrow Flight (pyarrow, C++)",
}


def demo(
    rows: Annotated[
        int, option(min=1, help="The number of rows of the table.", metavar="ROWS")
    ] = 3_000_000,
    repeat: Annotated[
        int, option(min=1, help="The number of timed reads over each transport.", metavar="N")
    ] = 5,
    keep: Annotated[
        Path | None,
        option(
            help="Write the table to FOLDER/trips.arrow and keep it.",
            default="a temporary folder, removed at the end",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Serve a table, read it in another process, verify it, and time it.

    This writes a table of taxi trips (timestamps, numbers, strings, nulls, a dictionary; 51
    million values), starts a daemon for it, reads it in another process and compares every value
    with the file. Then it times this read and the same read over Arrow Flight in turns. Both use
    the same file and machine, and each server and client is its own process. The median counts.
    """
    with raise_on_signals(), ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="splitarrow-demo-")))
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        path = (keep or folder) / "trips.arrow"
        nbytes = _write_table(path, rows, sync=keep is not None)
        readers = _start(stack, path)
        _verify(readers)
        seconds = _time(readers, repeat)
    _show(seconds, nbytes, rows)
    if keep is not None:
        command = f"splitarrow serve {path} --control grpc://127.0.0.1:8815"
        _print(f"\nThe table is kept. To serve it:\n  {command}")


def _print(text: str) -> None:
    with standard_output():
        print(text)


def _write_table(path: Path, rows: int, *, sync: bool) -> int:
    """Write the table, and return the size of the file in bytes."""
    needed, free = rows * _ROW_BYTES, shutil.disk_usage(path.parent).free
    if free < needed:
        problem = f"it needs {format_bytes(needed)}, but {format_bytes(free)} are free"
        raise OSError(0, problem, str(path.parent))
    started = time.perf_counter()
    with OutputFile(path, sync=sync) as file:
        write_trips(file.part, rows)
    nbytes = path.stat().st_size
    _print(
        f"table   {format_count(rows, 'trip')}, {len(TRIP_SCHEMA)} columns, "
        f"{format_count(rows * len(TRIP_SCHEMA), 'value')}, {format_bytes(nbytes)}, "
        f"written in {format_duration(time.perf_counter() - started)}"
    )
    return nbytes


def _start(stack: ExitStack, path: Path) -> dict[str, WorkerProcess]:
    """Start every server and a reader for each, and return the readers by backend."""

    def start_worker(label: str, **job: str) -> WorkerProcess:
        return stack.enter_context(WorkerProcess(label, job, _WORKER_MODULE))

    listen = ("tcp://127.0.0.1:0", "shm://")
    daemon = stack.enter_context(Daemon({"trips": path}, listen=listen))
    addresses = {_TCP: daemon.uri("trips", "tcp"), _SHM: daemon.uri("trips", "shm")}
    _print(f"serve   process {daemon.pid}: {addresses[_TCP]}")
    _, unavailable = available_backends()
    if _FLIGHT in unavailable:
        _print(f"        no comparison with Arrow Flight: {unavailable[_FLIGHT]}")
    else:
        server = start_worker("the Flight server", backend=_FLIGHT, path=str(path))
        (reply,) = receive_replies([server], _REPLY_SECONDS)
        addresses[_FLIGHT] = reply["address"]
    readers = {
        backend: start_worker(
            f"the reader of {backend}", backend=backend, path=str(path), address=address
        )
        for backend, address in addresses.items()
    }
    receive_replies(list(readers.values()), _REPLY_SECONDS)
    return readers


def _verify(readers: dict[str, WorkerProcess]) -> None:
    """Compare the data of every reader with the file. This is also the warm-up."""
    for backend, reader in readers.items():
        reply = reader.request({"compare": True}, _REPLY_SECONDS)
        if backend == _TCP:
            _print(
                f"fetch   process {reader.pid}: {format_count(reply['rows'], 'row')}, "
                "schema and every value equal to the file"
            )


def _time(readers: dict[str, WorkerProcess], repeat: int) -> dict[str, float]:
    """Return the median time of a read of each reader, in seconds. The readers take turns."""
    _print(f"timing  {format_count(repeat, 'read')} of each, in turns\n")
    times: dict[str, list[float]] = {backend: [] for backend in readers}
    for _ in range(repeat):
        for backend, reader in readers.items():
            reply = reader.request({"compare": False}, _REPLY_SECONDS)
            times[backend].append(reply["seconds"])
    return {backend: median(seconds) for backend, seconds in times.items()}


def _show(times: dict[str, float], nbytes: int, rows: int) -> None:
    table = make_table()
    table.add_column("transport", no_wrap=True)
    for heading in ("GB/s", "million rows/s", "time", "× Flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    flight_seconds = times.get(_FLIGHT)
    for backend, seconds in times.items():
        table.add_row(
            _LABELS[backend],
            f"{nbytes / seconds / 1e9:.2f}",
            f"{rows / seconds / 1e6:.1f}",
            format_duration(seconds),
            "" if flight_seconds is None else f"{flight_seconds / seconds:.2f}",
            style="bold" if backend == _TCP else None,
        )
    with standard_output():
        Console(highlight=False).print(table)


class Comparison(Consumer):
    """Compares each record batch with that of the file, value by value."""

    def consume_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raise `InvalidDataError` if a batch differs, or the number of batches does."""
        with pa.memory_map(self.dataset.path) as source:
            file = pa.ipc.open_file(source)
            for batch in batches:
                if self.batches >= file.num_record_batches:
                    raise InvalidDataError(f"received more than {self.batches} batches")
                if not batch.equals(file.get_batch(self.batches), check_metadata=True):
                    raise InvalidDataError(f"batch {self.batches} differs from the file's")
                self.batches += 1
                self.rows += batch.num_rows
            if self.batches != file.num_record_batches:
                raise InvalidDataError(
                    f"received {self.batches} batches; the file has {file.num_record_batches}"
                )


def read(backend: Backend, address: str, path: str, *, compare: bool) -> dict[str, Any]:
    """Read the dataset once, and return the numbers of rows and batches and the seconds."""
    dataset = BatchFile(path, 0, 0)
    consumer = Comparison(dataset) if compare else Consumer(dataset)
    started = time.perf_counter()
    backend.read(address, consumer)
    seconds = time.perf_counter() - started
    return {"rows": consumer.rows, "batches": consumer.batches, "seconds": seconds}


def _setup(job: dict[str, Any], stack: ExitStack) -> tuple[dict[str, Any], Handler]:
    backend, path = find_backend(job["backend"]), job["path"]
    address = job.get("address")
    if address is None:
        address = stack.enter_context(backend.serve(BatchFile(path, 0, 0)))

    def handle(command: dict[str, Any]) -> dict[str, Any]:
        return read(backend, address, path, compare=command["compare"])

    return {"address": address}, handle


if __name__ == "__main__":
    run_worker(_setup)
