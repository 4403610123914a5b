"""Publications with replicas while daemons die."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

import splitarrow
from helpers.batteries import Battery, checksum_of, numbered_batches
from helpers.cluster import StartDaemons, join_uris
from helpers.files import write_file
from helpers.reader_process import Checksum
from helpers.readers import ReaderPool, run_together
from splitarrow.client.cluster.publication import publish_shards
from splitarrow.client.rpc.info import ShardUploadResult
from splitarrow.errors import SplitArrowError
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

SHARDS, BATCHES, ROWS = 6, 192, 1024


class Killer:
    """Kills a daemon some time after so many copies of shards are uploaded."""

    def __init__(self, victim: Daemon, copies: int, delay: float) -> None:
        self._timer = threading.Timer(delay, victim.kill)
        self._copies = copies
        if not copies:
            self._timer.start()

    def count(self, _: ShardUploadResult) -> None:
        self._copies -= 1
        if not self._copies:
            self._timer.start()

    def join(self) -> None:
        self._timer.join()


def test_publications_while_daemons_die(
    battery: Battery, daemons: StartDaemons, readers: ReaderPool, tmp_path: Path
) -> None:
    """Readers get one whole version, or an error; a publication that failed can be repeated."""
    three = daemons(3, timeout=120.0)
    everywhere = join_uris(*three)
    right: dict[int, str] = {}

    def write_version(version: int) -> list[Path]:
        batches = numbered_batches(version, BATCHES, ROWS)
        right[version] = checksum_of(batches)
        size = BATCHES // SHARDS
        return [
            write_file(tmp_path / "shards" / f"{n}.arrow", batches[n * size : (n + 1) * size])
            for n in range(SHARDS)
        ]

    def read() -> str:
        """Return the checksum of a read, or the class of its error."""
        checksum = Checksum()
        try:
            with splitarrow.connect(everywhere) as client, client.read("data") as stream:
                for batch in stream:
                    checksum.add(batch)
        except SplitArrowError as error:
            return type(error).__name__
        return str(checksum)

    publish_shards("data", write_version(0), everywhere, replicas=2)
    until = tmp_path / "until"
    loops = [
        readers.start(
            "repeat",
            control=everywhere,
            name="data",
            options={"transport": transport},
            until=str(until),
        )
        for transport in ("tcp", "flight")
    ]
    draw = random.Random(9)
    rounds, results, first_reads = battery.count(60, 2), Counter[str](), Counter[str]()
    for version in range(1, rounds + 1):
        shards, job = write_version(version), f"job-{version}"
        victim = draw.choice(three)
        # After the last copy, the commits begin.
        killer = Killer(victim, draw.randrange(2 * SHARDS + 1), draw.uniform(0, 0.05))
        try:
            publish_shards("data", shards, everywhere, replicas=2, job=job, progress=killer.count)
            error = None
        except SplitArrowError as raised:
            error = raised
        killer.join()
        results["published" if error is None else type(error).__name__] += 1
        # One daemon is down: what it held is read from the other copies.
        found = read()
        first_reads[found if found not in right.values() else "complete"] += 1
        if error is None:
            assert found == right[version]
        victim.start()
        if error is not None:
            publish_shards("data", shards, everywhere, replicas=2, job=job)
        assert read() == right[version]
    until.touch()
    outcomes = Counter[str]()
    for result in run_together(loops, 120):
        outcomes.update(result["outcomes"])
        assert set(result["checksums"]) <= set(right.values())
    battery.record(
        publications=rounds, results=results, reads_with_a_dead_daemon=first_reads, reads=outcomes
    )
    assert outcomes["complete"] > rounds
    assert all(found == "complete" or found.endswith("Error") for found in first_reads)
