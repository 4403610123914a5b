"""Many files, readers and reads at one daemon: ``python -m splitarrow.benchmarks.studies.serving``.

- *Files*: a folder of small Arrow files. How long until the daemon is ready, and what does
  ``splitarrow ls`` take? The modules of splitarrow are compiled before.
- *Readers*: the anonymous memory of the daemon for each idle reader over ``tcp``. One kind has read
  four batches and waits, in the middle of its stream. The other has read its stream to the end, and
  keeps its connection.
- *Reads*: one client process reads 10 KB again and again. Each read has its time in a schedule, and
  its latency counts from then, so that waiting for other reads counts. The clients keep their
  connections to the control plane; one of splitarrow also keeps its plan, and connects to the data
  listener for each read, as it does within a host. Clients and servers take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyarrow as pa

from ...testing import Daemon
from ..datasets import make_dataset
from ..machine import process_seconds, read_memory
from ..statistics import format_interval, median_interval
from .paired import Side
from .stream_memory import CLIENT, measure

_ROOT = Path(__file__).resolve().parents[2]
_CONTROL = "grpc://127.0.0.1:0"
_READ_ROWS = 1280
"""The rows of a read: 10 KB of one column of int64."""
_FILE_BYTES = 64 << 20
_WAITING_SHARE = 5
"""A fifth of the readers wait in their streams: the sockets of more would exceed the memory that
the kernel has for TCP (``tcp_mem``), so that streams stall."""
_BATCHES = (10 << 10, 64 << 10, 1 << 20)
_IMPORTS = """
import gc
gc.disable()
from splitarrow.cli.app import load_command
load_command("ls")
import splitarrow.client.connect
"""
_KEEPER = """
import sys, time
from splitarrow.protocol.frames import TaggedFrame
from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import ConnectOptions
from splitarrow.transport.tcp import TRANSPORT

uri = DataUri.parse(sys.argv[1])
channels = []
for line in sys.stdin:
    while len(channels) < int(line):
        channel = TRANSPORT.connect(uri, ConnectOptions())
        channel.queue([TaggedFrame(uri.want_data, len(uri.ticket), (uri.ticket,))])
        channels.append(channel)
        while not channel.send_some() or not channel.receive_some():
            time.sleep(0.001)
    time.sleep(1)
    print(sum(channel.bytes_received for channel in channels), flush=True)
"""
_READER = """
import itertools, json, sys, threading, time

kind, address, rate, seconds, threads = sys.argv[1:]
rate, count = float(rate), int(float(rate) * float(seconds))
if kind == "splitarrow":
    import splitarrow
    dataset = splitarrow.connect(address)["data"]
    def read():
        return dataset.to_arrow().num_rows
else:
    from pyarrow import flight
    client = flight.connect(address)
    ticket = flight.Ticket(json.dumps({"dataset": "data"}))
    def read():
        return client.do_get(ticket).read_all().num_rows

waits, numbers, rows = [0.0] * count, itertools.count(), set()
def run():
    while (number := next(numbers)) < count:
        due = start + number / rate
        time.sleep(max(0, due - time.perf_counter()))
        rows.add(read())
        waits[number] = time.perf_counter() - due

for _ in range(50):
    read()
start, used = time.perf_counter() + 0.1, time.process_time()
workers = [threading.Thread(target=run) for _ in range(int(threads))]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
used, waits = time.process_time() - used, sorted(waits)
middle, tail = waits[count // 2], waits[count * 99 // 100]
print(json.dumps([list(rows), middle, tail, used / count]))
"""
_FLIGHT_SERVER = """
import sys
import pyarrow as pa
from pyarrow import flight

class Server(flight.FlightServerBase):
    def do_get(self, context, ticket):
        return flight.RecordBatchStream(table)

with pa.memory_map(sys.argv[1]) as file:
    table = pa.ipc.open_file(file).read_all()
server = Server("grpc://127.0.0.1:0")
print(server.port, flush=True)
server.serve()
"""


def write_folder(folder: Path, files: int) -> None:
    """Write small files, of which every hundredth has the same size."""
    folder.mkdir()
    for number in range(files):
        rows = range(1 + number % 100)
        table = pa.table({"n": pa.array(rows), "x": pa.array([float(row) for row in rows])})
        path = str(folder / f"{number:05}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


class Duration(NamedTuple):
    """What a process took, in seconds."""

    wall: float
    """By the clock."""
    used: float
    """Of processor time."""


def time_command(arguments: Sequence[str], environment: dict[str, str]) -> Duration:
    """Return what a run of Python takes; raise an error if it fails."""
    command, before, started = [sys.executable, "-P", *arguments], os.times(), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system
    return Duration(wall, used - before.children_user - before.children_system)


def measure_files(folder: Path, rounds: int) -> dict[str, list[Duration]]:
    """Return what starting a daemon of a folder takes, and ``ls`` with it and with one file."""
    with TemporaryDirectory(prefix="splitarrow-compiled-") as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        found: dict[str, list[Duration]] = {"ready": [], "ls": [], "one file": [], "imports": []}
        single = {"data": folder / "00000.arrow"}
        with Daemon(single, control=_CONTROL, environment=environment) as other:
            for _ in range(rounds + 1):
                began = time.perf_counter()
                with Daemon({"data": folder}, control=_CONTROL, environment=environment) as daemon:
                    wall = time.perf_counter() - began
                    found["ready"].append(Duration(wall, process_seconds(daemon.pid)))
                    for case, uri in (("ls", daemon.control_uri), ("one file", other.control_uri)):
                        ls = ["-m", "splitarrow", "ls", uri]
                        found[case].append(time_command(ls, environment))
                    found["imports"].append(time_command(["-c", _IMPORTS], environment))
    return {case: durations[1:] for case, durations in found.items()}  # the first one compiles


def measure_waiting(batch_bytes: int, readers: int) -> float:
    """Return the memory of the daemon for each further reader within a stream, in bytes."""
    with TemporaryDirectory(prefix="splitarrow-readers-") as name, ExitStack() as stack:
        folder = Path(name)
        data = make_dataset(folder / "data.arrow", batch_bytes, _FILE_BYTES // batch_bytes)
        side = Side(stack, _ROOT, folder / "side", Path(data.path), CLIENT)
        return measure(side, "tcp", readers).server


def measure_kept(data: Path, readers: int) -> float:
    """Return the memory of the daemon for each further connection whose stream has ended."""
    with Daemon({"data": data}) as daemon, _run(_KEEPER, daemon.uri("data")) as ask:
        memory: list[int] = []
        for count in (readers // 10, readers):
            ask(str(count))
            memory.append(read_memory(daemon.pid).anonymous or 0)
    return (memory[1] - memory[0]) / (readers - readers // 10)


class Latency(NamedTuple):
    """The latencies of reads in a round, and their processor time."""

    middle: float
    """The median in seconds."""
    tail: float
    """The 99th percentile in seconds."""
    client: float
    """The processor time of the client for a read, in seconds."""
    server: float
    """The processor time of the server for a read, in seconds."""


def measure_reads(
    data: Path, rate: float, seconds: float, threads: int, rounds: int
) -> dict[str, list[Latency]]:
    """Return the latencies of clients that read the data at a rate, in turns."""
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon({"data": data}, control=_CONTROL))
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", _FLIGHT_SERVER, str(data)], stdout=subprocess.PIPE
        )
        stack.enter_context(server)
        stack.callback(server.kill)
        assert server.stdout is not None
        flight = f"grpc://127.0.0.1:{int(server.stdout.readline())}"
        cases = {
            "splitarrow": ("splitarrow", daemon.control_uri, daemon.pid),
            "DoGet of the daemon": ("flight", daemon.control_uri, daemon.pid),
            "pyarrow.flight": ("flight", flight, server.pid),
        }
        found: dict[str, list[Latency]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case, (kind, address, pid) in cases.items():
                arguments = [kind, address, str(rate), str(seconds), str(threads)]
                before = process_seconds(pid)
                command = [sys.executable, "-P", "-c", _READER, *arguments]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                rows, middle, tail, used = json.loads(printed)
                if rows != [_READ_ROWS]:
                    raise RuntimeError(f"reads returned {rows} rows instead of {_READ_ROWS}")
                served = (process_seconds(pid) - before) / (rate * seconds)
                found[case].append(Latency(middle, tail, used, served))
    return found


@contextmanager
def _run(script: str, *arguments: str) -> Generator[Callable[[str], str]]:
    """Run a script, and yield what sends it a line and returns its answer."""
    command = [sys.executable, "-P", "-c", script, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(line: str) -> str:
            stdin.write(f"{line}\n")
            stdin.flush()
            answer = stdout.readline()
            if not answer:
                raise RuntimeError("a process of the study failed")
            return answer

        yield ask


def _print(label: str, values: Sequence[float], unit: str, goal: str = "", note: str = "") -> None:
    """Print the median of some values, and its 95 % interval."""
    interval = format_interval(median_interval(values))
    line = f"{label:<42}{median(values):8.2f} {unit:<4}({interval})  {goal:<12}{note}"
    print(line.rstrip(), flush=True)


def _print_files(folder: Path, files: int, rounds: int) -> None:
    write_folder(folder, files)
    found = measure_files(folder, rounds)
    labels = {
        "ready": (f"{files:,} files: ready", "goal 2"),
        "ls": (f"{files:,} files: ls", "goal 0.3"),
        "one file": ("  one file: ls", ""),
        "imports": ("  Python and the imports of ls", ""),
    }
    for case, (label, goal) in labels.items():
        used = median(each.used for each in found[case])
        walls = [each.wall for each in found[case]]
        _print(label, walls, "s", goal, f"processor {used:.2f} s")


def _print_readers(data: Path, readers: int, rounds: int) -> None:
    few = readers // _WAITING_SHARE
    for size in _BATCHES:
        waiting = [measure_waiting(size, few) / 1024 for _ in range(rounds)]
        _print(f"{few:,} readers wait, {size >> 10:,} KiB batches", waiting, "KiB", "goal 40")
    kept = [measure_kept(data, readers) / 1024 for _ in range(rounds)]
    _print(f"{readers:,} readers keep a connection", kept, "KiB", "goal 40")


def main() -> None:
    """Print a row for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["files", "readers", "reads"])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=1000, help="reads per second")
    parser.add_argument("--seconds", type=float, default=10, help="time for each round of reads")
    parser.add_argument("--threads", type=int, default=8, help="threads of the client")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="splitarrow-serving-") as name:
        folder, data = Path(name), Path(name) / "data.arrow"
        table = pa.table({"n": pa.array(range(_READ_ROWS))})
        with pa.OSFile(str(data), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        if "files" in options.parts:
            _print_files(folder / "files", options.files, options.rounds)
        if "readers" in options.parts:
            _print_readers(data, options.readers, min(options.rounds, 3))
        if "reads" in options.parts:
            found = measure_reads(
                data, options.rate, options.seconds, options.threads, options.rounds
            )
            for case, rounds in found.items():
                middle, tail, client, server = (
                    1000 * median(each[column] for each in rounds) for column in range(4)
                )
                note = f"p50 {middle:.2f} ms, p99 {tail:.2f} ms, "
                note += f"processor {client:.2f} + {server:.2f} ms"
                ratios = [each.tail / each.middle for each in rounds]
                goal = "goal 5" if case == "splitarrow" else ""
                _print(f"{options.rate:,.0f} reads/s: {case}, p99 / p50", ratios, "", goal, note)


if __name__ == "__main__":
    main()
