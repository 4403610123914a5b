"""The memory of streams that nobody reads: what they take, and that it is returned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.batteries import anonymous_kib
from helpers.daemons import StartDaemon
from helpers.files import write_parquet
from helpers.waiting import wait_until

STREAMS = 40
MIB = 1024


@pytest.mark.slow
def test_streams_that_nobody_reads_return_their_memory(daemon: StartDaemon, tmp_path: Path) -> None:
    """A stream took 20 MiB, and the server kept it for ever."""
    values = np.random.default_rng(1)
    table = pa.table({name: pa.array(values.normal(size=1_000_000)) for name in "abcd"})
    path = write_parquet(tmp_path / "data.parquet", table)
    server = daemon({"data": path}, stream_memory="64MiB")
    with splitarrow.open(server.uri("data"), limit=1) as stream:
        stream.read_all()
    before = anonymous_kib(server.pid)
    streams = [
        splitarrow.open(server.uri("data"), limit=900_000 - number) for number in range(STREAMS)
    ]
    growth = anonymous_kib(server.pid) - before
    for stream in streams:
        stream.close()
    assert growth < STREAMS * 14 * MIB
    wait_until(
        lambda: anonymous_kib(server.pid) - before < 100 * MIB, "the return of the memory", 60
    )
