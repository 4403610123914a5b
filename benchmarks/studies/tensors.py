"""Measure a tensor of 1 GiB over TCP and shared memory, beside NumPy over a socket and Flight.

    python -m splitarrow.benchmarks.studies.tensors [--rounds 3] [--gib 1]

All of them read one ``.npy`` file, which is in the page cache, and take turns in each round.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from ...client.open import open as open_stream
from ...testing import Daemon

_COLUMNS = 1024
_FLIGHT_ROWS = 1024
_SOCKET_BUFFER = 1 << 20


def read_tensor(uri: str) -> Any:
    """Return the array of a data stream."""
    with open_stream(uri) as stream:
        tensor: Any = stream.read_tensor()
        return tensor.to_numpy()


def read_saved(path: Path) -> Any:
    """Return an array that ``numpy.save`` writes to a socket."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("wb", buffering=_SOCKET_BUFFER) as file:
            # Only an object without a descriptor is written to by its own method.
            target: Any = SimpleNamespace(write=file.write)
            np.save(target, np.load(path, mmap_mode="r"))

    thread = threading.Thread(target=send)
    thread.start()
    with listener, socket.create_connection(listener.getsockname()) as connection:
        reader: Any = connection.makefile("rb", buffering=_SOCKET_BUFFER)
        with reader as file:
            # `numpy.load` needs a file that can seek.
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            array: Any = np.empty(shape, dtype)
            view, done = memoryview(array).cast("B"), 0
            while done < view.nbytes and (count := file.readinto(view[done:])):
                done += count
            assert done == view.nbytes
        thread.join()
    return array


class FlightServer(flight.FlightServerBase):
    """A Flight server in C++ that sends the rows of an array as lists of a fixed size."""

    def __init__(self, path: Path) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._path = path

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Send the array, 8 MiB at a time."""
        del context, ticket
        array = np.load(self._path, mmap_mode="r")
        schema = pa.schema([("row", pa.list_(pa.float64(), _COLUMNS))])

        def batches() -> Iterator[pa.RecordBatch]:
            for begin in range(0, len(array), _FLIGHT_ROWS):
                values = pa.array(array[begin : begin + _FLIGHT_ROWS].reshape(-1))
                rows: Any = pa.FixedSizeListArray.from_arrays(values, _COLUMNS)
                yield pa.record_batch([rows], schema=schema)

        return flight.GeneratorStream(schema, batches())


def read_flight(port: int) -> Any:
    """Return the rows of the array as a table; an array of them would be another copy."""
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        return client.do_get(flight.Ticket(b"m")).read_all()


def main() -> None:
    """Measure and print the rates."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--gib", type=float, default=1)
    options = arguments.parse_args()
    rows = int(options.gib * (1 << 30)) // (8 * _COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.npy"
        np.save(path, np.arange(rows * _COLUMNS, dtype="f8").reshape(rows, _COLUMNS))
        listen = ["tcp://127.0.0.1:0", f"shm://{folder}/shm"]
        with FlightServer(path) as server, Daemon({"m": path}, listen=listen) as daemon:
            tcp, shm = daemon.uri("m", "tcp"), daemon.uri("m", "shm")
            ways: dict[str, Callable[[], Any]] = {
                "tcp": lambda: read_tensor(tcp),
                "shm": lambda: read_tensor(shm),
                "shm, summed": lambda: read_tensor(shm).sum(),
                "tcp, summed": lambda: read_tensor(tcp).sum(),
                "np.save over a socket": lambda: read_saved(path),
                "Flight": lambda: read_flight(server.port),
            }
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(options.rounds):
                for name, read in ways.items():
                    started = time.perf_counter()
                    result = read()
                    rates[name].append(path.stat().st_size / (time.perf_counter() - started) / 1e9)
                    del result
    for name, values in rates.items():
        print(f"{name:24}{median(values):10.2f} GB/s  ({', '.join(f'{v:.2f}' for v in values)})")


if __name__ == "__main__":
    main()
