"""Daemons in processes of their own, as users start them."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.client import placement
from splitarrow.client.control import Client, connect

PATIENCE = 60.0


class Daemon:
    """A writable ``splitarrow serve``; started again it has the same control port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        self.writable = folder / "writable"
        self.writable.mkdir(parents=True)
        self.uri = "grpc://127.0.0.1:0"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        ready = self.folder / f"ready-{self.starts}.json"
        command = [sys.executable, "-m", "splitarrow", "serve", *self.arguments]
        command += ["--control", self.uri, "--listen", "tcp://127.0.0.1:0"]
        command += ["--writable", str(self.writable), "--ready-file", str(ready)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while not ready.exists():
            assert self.process.poll() is None, f"the daemon ended: {self.log()}"
            assert time.monotonic() < deadline, f"the daemon is not ready: {self.log()}"
            time.sleep(0.01)
        self.uri = json.loads(ready.read_text())["control"]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """As by ``kill -9``."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def client(self) -> Client:
        return connect(self.uri)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., list[Daemon]]]:
    """Start daemons; those that still run at the end are killed."""
    started: list[Daemon] = []

    def start(count: int, *arguments: str) -> list[Daemon]:
        for _ in range(count):
            started.append(Daemon(tmp_path / f"daemon-{len(started)}", *arguments))
        return started[-count:]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.kill()


def uris(*daemons: Daemon) -> str:
    """One URI for all of them."""
    return "grpc://" + ",".join(daemon.uri.removeprefix("grpc://") for daemon in daemons)


def shared_name(shards: int, daemons: Sequence[Daemon], replicas: int = 1) -> str:
    """A name under which each daemon gets some of the shards, and none gets all.

    The places of shards follow from the names of daemons, which have other ports each time.
    """
    nodes = [daemon.uri for daemon in daemons]
    for number in range(1000):
        name = f"trips-{number}"
        held = Counter(chain(*placement.spread(name, shards, nodes, replicas)))
        if all(0 < held[node] < shards for node in nodes):
            return name
    raise AssertionError(f"{shards} shards always lie together")


def numbered(shards: int, rows: int, batch_rows: int = 1000, pad: int = 0) -> list[pa.Table]:
    """Shards whose rows say where they belong; each has `pad` bytes beside that."""
    found: list[pa.Table] = []
    for shard in range(shards):
        first = shard * rows
        numbers = pa.array(range(first, first + rows), pa.int64())
        words = pa.array([f"row {n}" for n in range(first, first + rows)])
        columns = {"n": numbers, "shard": pa.repeat(shard, rows), "text": words}
        if pad:
            columns["pad"] = pa.repeat("." * pad, rows)
        table = pa.table(columns)
        found.append(pa.Table.from_batches(table.to_batches(batch_rows), table.schema))
    return found


def write_shards(folder: Path, tables: list[pa.Table], **options: Any) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for index, table in enumerate(tables):
        path = folder / f"part-{index:03d}.arrow"
        chosen = pa.ipc.IpcWriteOptions(**options)
        with pa.ipc.new_file(str(path), table.schema, options=chosen) as writer:
            writer.write_table(table)
        paths.append(path)
    return paths


def checksum(table: pa.Table) -> str:
    """What tells values and their order, and not how they lie in batches."""
    digest = hashlib.sha256()
    for column in table.columns:
        for value in column.to_pylist():
            digest.update(repr(value).encode())
    return digest.hexdigest()
