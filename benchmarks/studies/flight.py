"""DoGet and DoPut beside pyarrow.flight: ``python -m splitarrow.benchmarks.studies.flight``.

Stock clients read an Arrow file from the daemon's control plane, and from a Flight server in C++
that has mapped the file. They write one to the daemon, and to a Flight server that writes an Arrow
file durably. Both sides take turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ...testing import Daemon
from ..statistics import format_interval, format_size, median_interval
from .http import compare

_COLUMNS = 4
_SIZES = (64 << 10, 8 << 20)
_CLIENTS = (1, 8, 64)


def _make_batch(nbytes: int) -> pa.RecordBatch:
    random = np.random.default_rng(1)
    return pa.record_batch(
        {f"c{n}": pa.array(random.random(nbytes // (8 * _COLUMNS))) for n in range(_COLUMNS)}
    )


def _write(path: Path, size: int, nbytes: int) -> None:
    batch = _make_batch(size)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        for _ in range(max(1, nbytes // size)):
            writer.write_batch(batch)


class _Peer(flight.FlightServerBase):
    """Serves mapped files, and writes what it receives to a file."""

    def __init__(self, folder: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._folder = Path(folder)
        self._tables: dict[str, pa.Table] = {}

    def do_get(self, context: Any, ticket: flight.Ticket) -> Any:
        name = ticket.ticket.decode()
        if name not in self._tables:
            source = pa.memory_map(str(self._folder / f"{name}.arrow"))
            self._tables[name] = pa.ipc.open_file(source).read_all()
        return flight.RecordBatchStream(self._tables[name])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        path = self._folder / "put.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, reader.schema) as output:
            for chunk in reader:
                output.write_batch(chunk.data)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _serve(connection: Any, folder: str) -> None:
    server = _Peer(folder)
    connection.send(server.port)
    server.serve()


@contextmanager
def _run_peer(folder: Path) -> Generator[str]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, str(folder)), daemon=True)
    process.start()
    try:
        yield f"grpc://127.0.0.1:{receiver.recv()}"
    finally:
        process.kill()
        process.join()


def _count(client: flight.FlightClient, ticket: flight.Ticket) -> int:
    return sum(0 if chunk.data is None else chunk.data.num_rows for chunk in client.do_get(ticket))


def _read(clients: list[flight.FlightClient], ticket: flight.Ticket) -> Callable[[], int]:
    def read() -> int:
        with ThreadPoolExecutor(len(clients)) as threads:
            return sum(threads.map(lambda client: _count(client, ticket), clients))

    return read


def _put(client: flight.FlightClient, batch: pa.RecordBatch, count: int) -> Callable[[], None]:
    def put() -> None:
        command = b'{"dataset": "put", "if_exists": "replace"}'
        writer, answers = client.do_put(flight.FlightDescriptor.for_command(command), batch.schema)
        with writer:
            for _ in range(count):
                writer.write_batch(batch)
            writer.done_writing()
            answers.read()  # pyright: ignore[reportAttributeAccessIssue]

    return put


def main() -> None:
    """Print the ratios; more than 1 means that splitarrow is faster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--total", type=int, default=1 << 30, help="bytes of each read or write")
    options = parser.parse_args()
    total: int = options.total
    with TemporaryDirectory(prefix="splitarrow-flight-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "uploads").mkdir()
        paths = {
            f"{size}-{clients}": folder / f"{size}-{clients}.arrow"
            for size in _SIZES
            for clients in _CLIENTS
        }
        for key, path in paths.items():
            size, clients = map(int, key.split("-"))
            _write(path, size, total // clients)
        daemon = stack.enter_context(
            Daemon(
                paths,
                control="grpc://127.0.0.1:0",
                writable=folder / "uploads",
                writable_bytes=1 << 40,
                upload_bytes=1 << 38,
            )
        )
        peer = stack.enter_context(_run_peer(folder))
        for clients in _CLIENTS:
            ours, theirs = (
                [stack.enter_context(flight.connect(uri)) for _ in range(clients)]
                for uri in (daemon.control_uri, peer)
            )
            for size in _SIZES:
                key = f"{size}-{clients}"
                descriptor = flight.FlightDescriptor.for_path(key)
                ticket = ours[0].get_flight_info(descriptor).endpoints[0].ticket
                sides = (_read(ours, ticket), _read(theirs, flight.Ticket(key.encode())))
                if sides[0]() != sides[1]():
                    raise RuntimeError("the clients read different numbers of rows")
                label = f"DoGet, {format_size(size)}, {clients} client{'s' * (clients > 1)}"
                _print(label, compare(*sides, options.rounds))
            if clients > 1:
                continue
            for size in _SIZES:
                batch = _make_batch(size)
                put, their_put = (_put(side[0], batch, total // size) for side in (ours, theirs))
                _print(f"DoPut, {format_size(size)}", compare(put, their_put, options.rounds))


def _print(label: str, ratios: list[float]) -> None:
    interval = format_interval(median_interval(ratios))
    print(f"{label:<28}{median(ratios):.2f}  ({interval})", flush=True)


if __name__ == "__main__":
    main()
