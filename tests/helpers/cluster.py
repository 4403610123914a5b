"""A cluster of daemon processes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.daemons import StartDaemon
from splitarrow.client.cluster import publication
from splitarrow.testing import Daemon

StartDaemons = Callable[..., list[Daemon]]


@pytest.fixture
def daemons(tmp_path: Path, daemon: StartDaemon) -> StartDaemons:
    """Start writable daemons with control planes. Kill them at the end of the test."""
    folders = (tmp_path / f"daemon-{number}" for number in count())

    def start(number: int, **settings: Any) -> list[Daemon]:
        started: list[Daemon] = []
        for folder in islice(folders, number):
            folder.mkdir()
            started.append(daemon(control="grpc://127.0.0.1:0", writable=folder, **settings))
        return started

    return start


def join_uris(*daemons: Daemon) -> str:
    """Return one URI for all daemons."""
    return "grpc://" + ",".join(daemon.control_uri.removeprefix("grpc://") for daemon in daemons)


def find_shared_name(shards: int, daemons: Sequence[Daemon], replicas: int = 1) -> str:
    """Return a name that assigns some shards to each daemon, but not all to one.

    The assignment depends on the names of daemons, whose ports differ in each run.
    """
    nodes = [daemon.control_uri for daemon in daemons]
    for number in range(1000):
        name = f"trips-{number}"
        held = Counter(chain(*publication.assign_shards(name, shards, nodes, replicas)))
        if all(0 < held[node] < shards for node in nodes):
            return name
    raise AssertionError(f"one daemon always gets all {shards} shards")


def make_numbered_shards(
    shards: int, rows: int, batch_rows: int = 1000, pad: int = 0
) -> list[pa.Table]:
    """Return shards whose rows contain their ordinal and position, and `pad` more bytes each."""
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


def compute_checksum(table: pa.Table) -> str:
    """Return a checksum of the values in order, whatever their batches."""
    digest = hashlib.sha256()
    for column in table.columns:
        for value in column.to_pylist():
            digest.update(repr(value).encode())
    return digest.hexdigest()
