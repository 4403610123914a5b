"""Servers and readers that SIGSTOP stops, and drains."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

import splitarrow
from helpers.batteries import Battery, descriptors
from helpers.readers import Reader, ReaderPool, run_together, source
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TRANSPORTS = ["tcp", "shm", "ucx", "flight"]
STALL = 1.0
EACH = 25
"""The streams of a drain over each of four transports."""
SLOW = {"pause": 0.005, "pause_every": 16}


def is_idle(running: Daemon) -> bool:
    with splitarrow.connect(running.control_uri) as client:
        found = client.status()["stats"]
        return not (found["connections"] or found["leases"] or found["streams"])


def test_stopped_servers(battery: Battery, server, readers: ReaderPool, numbers) -> None:
    """The readers of a stopped server raise after the stall timeout; then it frees everything."""
    path, checksum = numbers
    running: Daemon = server({"numbers": path})
    rounds, draw = battery.count(20, 1), random.Random(1)
    outcomes = {transport: Counter[str]() for transport in TRANSPORTS}
    waits = {transport: [] for transport in TRANSPORTS}
    before = descriptors(running.pid)
    for _ in range(rounds):
        reading = {
            transport: readers.start(
                "read",
                **source(running, "numbers", transport, resume_attempts=0, stall_timeout=STALL),
                **SLOW,
            )
            for transport in TRANSPORTS
        }
        for reader in reading.values():
            reader.wait("reading")
        time.sleep(draw.uniform(0, 0.5))
        running.send_signal(signal.SIGSTOP)
        for transport, reader in reading.items():
            result = reader.result()
            outcomes[transport][result["outcome"]] += 1
            if result["outcome"] == "complete":
                assert result["checksum"] == checksum
            else:
                assert result["outcome"] == "StallError", result
                waits[transport].append(result["last_wait"])
        running.send_signal(signal.SIGCONT)
        readers.forget(reading.values())
        wait_until(lambda: is_idle(running), "the end of the streams", 30)
    wait_until(lambda: descriptors(running.pid) <= before + 8, "the end of the files", 30)
    battery.record(
        rounds=rounds,
        outcomes=outcomes,
        stall_timeout=STALL,
        shortest_wait={t: round(min(w), 2) for t, w in waits.items() if w},
        longest_wait={t: round(max(w), 2) for t, w in waits.items() if w},
    )
    for found in waits.values():
        assert all(0.8 * STALL <= wait < 5 * STALL for wait in found)
    if rounds >= 10:
        assert all(waits.values())


def test_stopped_readers(battery: Battery, server, readers: ReaderPool, numbers) -> None:
    """Other readers read on beside stopped ones, and what those held comes back."""
    path, checksum = numbers
    running: Daemon = server({"numbers": path})
    rounds = battery.count(20, 1)
    slowest = 0.0
    for _ in range(rounds):
        stopped = [
            readers.start("read", **source(running, "numbers", transport), hold=True, **SLOW)
            for transport in TRANSPORTS
        ]
        for reader in stopped:
            reader.wait("reading")
            reader.send_signal(signal.SIGSTOP)
        others = [
            readers.start("read", **source(running, "numbers", transport))
            for transport in TRANSPORTS
        ]
        for result in run_together(others):
            assert (result["outcome"], result["checksum"]) == ("complete", checksum)
        for reader in stopped:
            reader.kill()
        begin = time.monotonic()
        wait_until(lambda: is_idle(running), "the end of the stopped readers", 10)
        slowest = max(slowest, time.monotonic() - begin)
        readers.forget([*stopped, *others])
    battery.record(rounds=rounds, slowest_release_seconds=round(slowest, 2))


def start_crowds(readers: ReaderPool, running: Daemon, gate: Path) -> list[Reader]:
    """Open streams over every transport; they wait for the gate after their first batch."""
    crowds = [
        readers.start(
            "crowd",
            **source(running, "numbers", transport, resume_attempts=0, stall_timeout=120),
            streams=EACH,
            gate=str(gate),
        )
        for transport in TRANSPORTS
    ]
    for crowd in crowds:
        crowd.wait("reading", 120)
    return crowds


@pytest.mark.parametrize("end", ["in time", "late", "second signal"])
def test_drains(
    battery: Battery, server, readers: ReaderPool, numbers, tmp_path: Path, end: str
) -> None:
    """Within the drain, 100 streams end complete; after it, they raise."""
    path, checksum = numbers
    rounds = battery.count(10, 1)
    outcomes = Counter[str]()
    exits: list[float] = []
    for number in range(rounds):
        drain = 1 if end == "late" else 120
        running: Daemon = server({"numbers": path}, drain_seconds=drain)
        gate = tmp_path / f"gate-{number}"
        crowds = start_crowds(readers, running, gate)
        running.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        if end == "in time":
            gate.touch()
        elif end == "second signal":
            time.sleep(0.5)
            running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 0
        exits.append(time.monotonic() - signalled)
        gate.touch()
        for result in run_together(crowds, 120):
            outcomes.update(outcome.partition(":")[0] for outcome in list_all(result["outcomes"]))
            assert set(result["checksums"]) <= {checksum}
        running.close()
    battery.record(
        rounds=rounds,
        streams=4 * EACH,
        outcomes=outcomes,
        slowest_exit_seconds=round(max(exits), 1),
    )
    if end == "in time":
        assert set(outcomes) == {"complete"}
    else:
        assert max(exits) < 15
        assert outcomes["complete"] < sum(outcomes.values())


def list_all(counted: dict[str, int]) -> list[str]:
    return list(Counter(counted).elements())
