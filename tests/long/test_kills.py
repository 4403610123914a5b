"""Servers and readers are killed at random points."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

import splitarrow
from helpers.batteries import Battery, anonymous_kib, descriptors
from helpers.readers import ReaderPool, reader_pool, source
from helpers.waiting import wait_until
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TRANSPORTS = ["tcp", "shm", "ucx", "flight"]
SLOW = {"pause": 0.005, "pause_every": 16}
"""Lets a read take more than a second, so that its server cannot run far ahead of it."""
SERVERS = 3
"""The servers of which one is killed while the others start."""
PER_ROUND = 2
"""The readers that are killed in one round, over each transport."""


@dataclass
class ServerKills:
    """What readers got from servers that were killed."""

    kills: int = 0
    outcomes: dict[str, Counter[str]] = field(
        default_factory=lambda: {transport: Counter[str]() for transport in TRANSPORTS}
    )
    slowest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TRANSPORTS, 0.0))

    def add(self, other: ServerKills) -> None:
        self.kills += other.kills
        for transport in TRANSPORTS:
            self.outcomes[transport] += other.outcomes[transport]
            self.slowest[transport] = max(self.slowest[transport], other.slowest[transport])


def kill_server(running: Daemon, kills: int, seed: int, checksum: str) -> ServerKills:
    """Kill a server again and again while readers connect to it or read from it."""
    draw, found = random.Random(seed), ServerKills()
    with reader_pool() as readers:
        for number in range(kills):
            # A reader that resumes would wait for the server to come back.
            reading = {
                transport: readers.start(
                    "read", **source(running, "numbers", transport, resume_attempts=0), **SLOW
                )
                for transport in TRANSPORTS
            }
            if number % 4:  # the others are killed while readers connect
                for reader in reading.values():
                    reader.wait("reading")
            time.sleep(draw.uniform(0, 1))
            running.kill()
            killed = time.monotonic()
            for transport, reader in reading.items():
                result = reader.result(30)
                found.outcomes[transport][result["outcome"]] += 1
                if result["outcome"] == "complete":
                    assert result["checksum"] == checksum
                else:
                    seconds = time.monotonic() - killed
                    found.slowest[transport] = max(found.slowest[transport], seconds)
            readers.forget(reading.values())
            running.start()
            found.kills += 1
    return found


def test_killed_servers(battery: Battery, server, numbers) -> None:
    """Each read ends complete and right, or raises at once."""
    path, checksum = numbers
    kills, found = -(-battery.count(200, SERVERS) // SERVERS), ServerKills()
    daemons = [server({"numbers": path}) for _ in range(SERVERS)]
    with ThreadPoolExecutor(SERVERS) as threads:
        for each in threads.map(
            lambda seed: kill_server(daemons[seed], kills, seed, checksum), range(SERVERS)
        ):
            found.add(each)
    battery.record(kills=found.kills, outcomes=found.outcomes, slowest_error_seconds=found.slowest)
    if found.kills >= 50:
        assert all(len(counts) > 1 for counts in found.outcomes.values())


def test_killed_readers(battery: Battery, server, readers: ReaderPool, numbers) -> None:
    """Connections, files and leases of killed readers come back."""
    path, checksum = numbers
    running: Daemon = server({"numbers": path})
    rounds, draw = battery.count(200 // PER_ROUND, 4), random.Random(2)
    killed = Counter[str]()
    slowest, before = 0.0, (0, 0)
    with splitarrow.connect(running.control_uri) as client:

        def is_idle() -> bool:
            found = client.status()["stats"]
            return not (found["connections"] or found["leases"] or found["leased_bytes"])

        for number in range(rounds):
            reading = [
                (
                    transport,
                    readers.start(
                        "read", **source(running, "numbers", transport), hold=True, **SLOW
                    ),
                )
                for transport in TRANSPORTS * PER_ROUND
            ]
            if number % 4:
                for _, reader in reading:
                    reader.wait("reading")
            time.sleep(draw.uniform(0, 1))
            for transport, reader in reading:
                if reader.kill():
                    killed[transport] += 1
                else:
                    assert reader.result()["checksum"] == checksum
            readers.forget(reader for _, reader in reading)
            begin = time.monotonic()
            wait_until(is_idle, "the end of the killed readers", 10)
            slowest = max(slowest, time.monotonic() - begin)
            if number == max(1, min(10, rounds // 4)):
                before = descriptors(running.pid), anonymous_kib(running.pid)
        wait_until(lambda: descriptors(running.pid) <= before[0], "the descriptors", 10)
        growth = anonymous_kib(running.pid) - before[1]
    battery.record(
        readers=rounds * PER_ROUND * len(TRANSPORTS),
        killed=killed,
        slowest_release_seconds=slowest,
        server_growth_kib=growth,
    )
    assert growth < max(16 << 10, 4 * killed.total())
