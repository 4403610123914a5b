"""Slow readers do not hurt fast ones."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

from helpers.batteries import Battery, checksum_of, numbered_batches, watch_memory
from helpers.files import write_file
from helpers.readers import ReaderPool, run_together, source

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

SLOW, FAST, PAIRS = 50, 10, 6
PACE = 1 << 20
"""The rate of a slow reader, in bytes per second."""


def test_slow_readers_beside_fast_ones(
    battery: Battery, server, readers: ReaderPool, tmp_path: Path
) -> None:
    """Fast readers keep their share of the processor, and the server's memory stays bounded."""
    batches = numbered_batches(1, 64, 65_536)
    path, checksum = write_file(tmp_path / "numbers.arrow", batches), checksum_of(batches)
    running = server({"numbers": path})
    seconds = battery.seconds(600, least=6)
    tcp = source(running, "numbers", "tcp", stall_timeout=120)

    def measure(until: Path, seconds: float) -> float:
        """Return the total rate of the fast readers, in bytes per second."""
        fast = [readers.start("repeat", **tcp, until=str(until)) for _ in range(FAST)]
        for reader in fast:
            reader.wait("reading")
        time.sleep(seconds)
        until.touch()
        results = run_together(fast)
        for result in results:
            assert result["outcomes"] == {"complete": sum(result["checksums"].values())}
            assert set(result["checksums"]) == {checksum}
        readers.forget(fast)
        return sum(result["bytes"] / result["seconds"] for result in results)

    def measure_beside(until: Path, seconds: float) -> float:
        """Return the same rate while slow readers read."""
        slow = [readers.start("repeat", **tcp, until=str(until), pace=PACE) for _ in range(SLOW)]
        for reader in slow:
            reader.wait("reading")
        rate = measure(until, seconds)
        for result in run_together(slow):
            assert set(result["outcomes"]) <= {"complete", "stopped"}
            assert set(result["checksums"]) <= {checksum}
        readers.forget(slow)
        return rate

    # In pairs, because other work on the machine changes the rates, too.
    alone: list[float] = []
    beside: list[float] = []
    with watch_memory(running.pid) as peak:
        for pair in range(PAIRS):
            alone.append(measure(tmp_path / f"alone-{pair}", min(10, seconds / PAIRS)))
            beside.append(measure_beside(tmp_path / f"beside-{pair}", seconds / PAIRS))
    kept = median(with_slow / without for with_slow, without in zip(beside, alone, strict=True))
    battery.record(
        slow=SLOW,
        fast=FAST,
        measured_seconds=seconds,
        alone_mb_per_second=round(median(alone) / 1e6),
        beside_mb_per_second=round(median(beside) / 1e6),
        kept=round(kept, 2),
        server_peak_mib=peak.kib >> 10,
    )
    assert peak.kib < 512 << 10
    if seconds >= 60:
        # On a slow machine, the rate of the slow readers is not small beside that of the fast ones.
        assert kept > 0.8 - SLOW * PACE / median(alone)
