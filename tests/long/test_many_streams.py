"""Many streams: at the same time, and one after another."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import splitarrow
from helpers.batteries import (
    Battery,
    checksum_of,
    descriptors,
    numbered_batches,
    watch_memory,
)
from helpers.files import write_file
from helpers.memory import Growth, MemoryProbe
from helpers.readers import ReaderPool, reader_pool, run_together, source
from helpers.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TRANSPORTS = ["tcp", "shm", "ucx", "flight"]
PROCESSES = 4
ROUNDS = 5
UCX_DESCRIPTORS = 28
"""The descriptors for each connection over ucx: it counts as 18, and the server keeps some for its
files and for the control plane."""
KILLED_TOGETHER = 4
"""The streams of one reader that is killed."""
NEVER = "/nonexistent"
"""The gate of readers that are killed: no such file exists."""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_concurrent_streams(
    battery: Battery, server, readers: ReaderPool, tmp_path: Path, transport: str
) -> None:
    """All streams are open at the same time, and each is complete and right.

    A reader takes the first batch of a stream, and the rest once all streams are open.
    """
    batches = numbered_batches(1, 256, 4096)
    path, checksum = write_file(tmp_path / "numbers.arrow", batches), checksum_of(batches)
    streams, settings, options = 1000, {}, {}
    if transport == "ucx":
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        streams = min(streams, limit // UCX_DESCRIPTORS)
        # A connection takes UCX 40 ms or more, so that hundreds at once take longer than 10 s.
        settings = {"listen": ["ucx://127.0.0.1:0"], "handshake_seconds": 300}
        options = {"connect_timeout": 300}
    running = server({"numbers": path}, **settings)
    each = battery.count(streams // PROCESSES, 2)
    gate = tmp_path / "gate"
    job = source(running, "numbers", transport, stall_timeout=300, **options)
    with splitarrow.connect(running.control_uri) as client, watch_memory(running.pid) as peak:
        begin = time.monotonic()
        crowds = [
            readers.start("crowd", **job, streams=each, gate=str(gate)) for _ in range(PROCESSES)
        ]
        for crowd in crowds:
            crowd.wait("reading", 300)
        opened = time.monotonic()
        stats = client.status()["stats"]
        gate.touch()
        results = run_together(crowds, 600)
        ended = time.monotonic()
        wait_until(lambda: client.status()["stats"]["connections"] == 0, "the end of connections")
    outcomes = sum((Counter(result["outcomes"]) for result in results), Counter[str]())
    checksums = sum((Counter(result["checksums"]) for result in results), Counter[str]())
    battery.record(
        streams=each * PROCESSES,
        open_at_server=max(stats["streams"], stats["connections"]),
        outcomes=outcomes,
        open_seconds=round(opened - begin, 1),
        read_seconds=round(ended - opened, 1),
        server_peak_mib=peak.kib >> 10,
    )
    assert outcomes == {"complete": each * PROCESSES}
    assert checksums == {checksum: each * PROCESSES}
    if transport != "flight":  # gRPC may receive a whole stream before the reader asks for it.
        assert stats["connections"] == each * PROCESSES
    assert peak.kib < (256 + 4 * each * PROCESSES) << 10


def kill_crowd(readers: ReaderPool, job: dict[str, Any], draw: random.Random) -> None:
    """Start a reader of some streams, and kill it while it connects or reads."""
    crowd = readers.start("crowd", **job, streams=KILLED_TOGETHER, gate=NEVER)
    if draw.random() < 0.8:
        crowd.wait("reading")
    else:
        _ = crowd.pid
        time.sleep(draw.uniform(0, 0.1))
    crowd.kill()
    readers.forget([crowd])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_streams_one_after_another(
    battery: Battery, server, tmp_path: Path, transport: str
) -> None:
    """A third of the streams is read, a third cancelled, and a third killed; nothing leaks.

    One process reads and cancels throughout. It and the server are measured after each round, when
    no stream runs. The first round warms up.
    """
    batches = numbered_batches(1, 256, 256)
    path, checksum = write_file(tmp_path / "numbers.arrow", batches), checksum_of(batches)
    (tmp_path / "figures").mkdir()
    probe = MemoryProbe(tmp_path / "figures")
    running = server({"numbers": path}, environment=probe.environment)
    third = battery.count(10_000 // ROUNDS, 12) // 3
    crowds, draw = -(-third // KILLED_TOGETHER), random.Random(3)
    job, go_on = source(running, "numbers", transport), tmp_path / "next"
    with (
        splitarrow.connect(running.control_uri) as control,
        reader_pool(probe.environment) as readers,
    ):

        def is_idle() -> bool:
            found = control.status()["stats"]
            return not (found["connections"] or found["leases"] or found["streams"])

        churn = readers.start("churn", **job, streams=2 * third, rounds=ROUNDS, next=str(go_on))
        of_server, of_client = Growth(probe, running.pid), Growth(probe, churn.pid)
        for number in range(ROUNDS):
            for _ in range(crowds):
                kill_crowd(readers, job, draw)
            churn.wait(f"round {number}", 3600)
            wait_until(is_idle, "the end of all streams", 30)
            of_server.measure(control.status()["stats"]["streams_total"])
            of_client.measure((number + 1) * 2 * third)
            go_on.with_suffix(f".{number}").touch()
        result = churn.result(60)
        fewest = of_server.fewest_descriptors
        wait_until(lambda: descriptors(running.pid) <= fewest, "the end of all descriptors", 30)
    killed = ROUNDS * crowds * KILLED_TOGETHER
    battery.record(
        streams=ROUNDS * 2 * third + killed,
        outcomes=result["outcomes"] | {"killed": killed},
        **of_server.summarize("server"),
        **of_client.summarize("client"),
    )
    assert result["checksums"].keys() == {checksum}
    assert result["outcomes"].keys() == {"complete", "cancelled"}
    assert of_client.last_descriptors <= of_client.fewest_descriptors
    if ROUNDS * third > 1000:  # Below that, one page of each allocator counts for too much.
        assert of_server.bytes_per_stream < 1024
        assert of_client.bytes_per_stream < 1024
