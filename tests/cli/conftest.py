"""The command line in processes of its own: a daemon, peers that misbehave, terminals."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

COMMAND = [sys.executable, "-m", "splitarrow"]
PATIENCE = 60.0
"""How long anything may take, in seconds."""

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


def eventually(happened: Callable[[], object], what: str) -> None:
    """Wait until something has happened; fail when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        threading.Event().wait(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in `tmp_path` to its end."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
        settings |= {"timeout": PATIENCE, **options}
        return subprocess.run([*COMMAND, *map(str, arguments)], **settings)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in `tmp_path`; those that still run at the end are killed."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        settings: dict[str, Any] = {"text": True, "cwd": tmp_path}
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        running.append(subprocess.Popen([*COMMAND, *map(str, arguments)], **settings))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


ROWS = 200_000
_BATCH_ROWS = 10_000


def make_table() -> pa.Table:
    """A table of 20 batches, some 6 MB."""
    numbers = pa.array(range(ROWS), pa.int64())
    names = pa.array([None if n % 7 == 0 else f"name {n % 1000}" for n in range(ROWS)])
    kinds = pa.DictionaryArray.from_arrays(
        pa.array([n % 3 for n in range(ROWS)], pa.int8()), pa.array(["a", "b", "c"])
    )
    table = pa.table({"number": numbers, "name": names, "kind": kinds, "a, b": numbers})
    return pa.Table.from_batches(table.to_batches(_BATCH_ROWS), table.schema)


def encoded(values: pa.Array, *indices: int | None) -> pa.RecordBatch:
    """A batch with one dictionary column."""
    column = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), values)
    return pa.record_batch([column, pa.array(range(len(indices)), pa.int64())], names=["word", "n"])


def write_file(path: Path, table: pa.Table) -> None:
    """Write an Arrow IPC file."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_stream(path: Path, batches: list[pa.RecordBatch]) -> None:
    """Write an Arrow IPC stream, whose dictionaries may replace each other."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read(path: Path) -> pa.Table:
    """Read a file of any kind that a fetch writes."""
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    if path.suffix == ".feather":
        return feather.read_table(path)
    opened = pa.ipc.open_stream if path.suffix == ".arrows" else pa.ipc.open_file
    with pa.OSFile(str(path), "rb") as file, opened(file) as reader:
        return reader.read_all()


@pytest.fixture(scope="session")
def table() -> pa.Table:
    """What is served as `table`."""
    return make_table()


class Served:
    """A daemon that all tests share."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self._ready = ready
        self.port = int(ready["listen"][0].partition("?")[0].rpartition(":")[2])

    def uri(self, name: str, port: int | None = None) -> str:
        """The URI of a dataset; with another port, as if it came by there."""
        uri = self._ready["datasets"][name]["tcp"]
        return uri if port is None else uri.replace(f":{self.port}?", f":{port}?")

    def halves(self) -> list[str]:
        """The addresses that serve one stream each."""
        return self._ready["listen"][1:]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> Iterator[Served]:
    """Start the daemon."""
    folder = tmp_path_factory.mktemp("served")
    write_file(folder / "table.arrow", table)
    write_file(folder / "empty.arrow", table.schema.empty_table())
    write_stream(folder / "replaced.arrows", REPLACED)
    write_stream(folder / "unmergeable.arrows", UNMERGEABLE)
    interval = pa.record_batch({"span": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    write_stream(folder / "interval.arrows", [interval])
    ready = folder / "ready.json"
    command = [*COMMAND, "serve", *map(str, sorted(folder.iterdir())), "--ready-file", str(ready)]
    for listen in ("", "?stream=metadata", "?stream=body"):
        command += ["--listen", f"tcp://127.0.0.1:0{listen}"]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, "the daemon")
            assert ready.exists(), (folder / "log").read_text()
            yield Served(json.loads(ready.read_text()))
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


REPLACED = [
    encoded(pa.array(["a", "b"]), 0, 1, None),
    encoded(pa.array(["a", "b", "c"]), 2, 1, 0),
    encoded(pa.array(["x", "a"]), 0, 1, 1),
    encoded(pa.array(["q"])),
    encoded(pa.array(["a", "b"]), 1, 0),
]
WORDS = ["a", "b", None, "c", "b", "a", "x", "a", "a", "b", "a"]
_ITEM = pa.struct([("x", pa.int8())])
UNMERGEABLE = [
    encoded(pa.array([{"x": 1}], _ITEM), 0),
    encoded(pa.array([{"x": 2}], _ITEM), 0),
]


class Relay:
    """Stands between client and server, and passes on only so many bytes of the answer."""

    def __init__(self, upstream: int, limit: int, cut: bool) -> None:
        self._upstream = upstream
        self._limit = limit
        self._cut = cut
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        with client, socket.create_connection(("127.0.0.1", self._upstream)) as server:
            with suppress(ConnectionError):  # the client may leave
                self._pass_on(client, server)
            if not self._cut:
                self._over.wait()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        left = self._limit
        while left and not self._over.is_set():
            for side in select.select([client, server], [], [], 0.1)[0]:
                data = side.recv(min(left, 1 << 16))
                if not data:
                    return
                (server if side is client else client).sendall(data)
                left -= len(data) if side is server else 0

    def close(self) -> None:
        self._over.set()
        # A thread in accept() is woken by shutdown, not by close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)


@pytest.fixture
def relay(served: Served) -> Iterator[Callable[..., int]]:
    """Return the port of a relay that cuts the answer, or goes silent, after `limit` bytes."""
    relays: list[Relay] = []

    def relay(limit: int, *, cut: bool) -> int:
        relays.append(Relay(served.port, limit, cut))
        return relays[-1].port

    yield relay
    for each in relays:
        each.close()


@contextmanager
def listening(backlog: int = 8) -> Generator[socket.socket]:
    """A socket that listens, and accepts nobody by itself."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        yield listener


def read_terminal(master: int) -> str:
    """Return all that is written to a terminal until its other end is closed."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)
