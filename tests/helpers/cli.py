"""Helpers for tests of the command line: a daemon, misbehaving peers and terminals."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import feather, parquet

COMMAND = [sys.executable, "-m", "splitarrow"]
PATIENCE = 60.0
"""How long anything may take, in seconds."""

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., subprocess.Popen[str]]


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


def read(path: Path) -> pa.Table:
    """Read a file in any format that `fetch` writes."""
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    if path.suffix == ".feather":
        return feather.read_table(path)
    opened = pa.ipc.open_stream if path.suffix == ".arrows" else pa.ipc.open_file
    with pa.OSFile(str(path), "rb") as file, opened(file) as reader:
        return reader.read_all()


class Served:
    """A daemon that all tests share."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self._ready = ready
        self.port = int(ready["listen"][0].partition("?")[0].rpartition(":")[2])

    def uri(self, name: str, port: int | None = None) -> str:
        """Return the URI of a dataset, with another port if one is given."""
        uri = self._ready["datasets"][name]["tcp"]
        return uri if port is None else uri.replace(f":{self.port}?", f":{port}?")

    def halves(self) -> list[str]:
        """Return the addresses that serve one stream each."""
        return self._ready["listen"][1:]


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
    """A proxy that passes on only the first bytes of the server's response."""

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


@contextmanager
def open_listener(backlog: int = 8) -> Generator[socket.socket]:
    """A listening socket that accepts no connection by itself."""
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
