"""A scaled-down day of relays: all parts fail in turn, while readers read."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.batteries import Battery, checksum_of, numbered_batches
from helpers.daemons import StartDaemon
from helpers.proxy import link_to
from helpers.publication import publish
from helpers.readers import ReaderPool, run_together
from helpers.relays import CONTROL
from helpers.waiting import wait_until
from splitarrow import testing as daemon_module
from splitarrow.errors import SplitArrowError
from splitarrow.publication.shard_files import hash_file
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]

MIB = 1 << 20
SHARDS, BATCHES, ROWS = 6, 768, 1024  # 2 MiB for each shard
SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size=7m none "$0" && exec "$@"'
LINK = "127.0.0.2"
"""The address of the upstream at the other end of the link."""
EVENTS = 120
TRANSPORTS = ["tcp", "shm", "flight"]


class Day:
    """An upstream behind a link, three relays, and the versions of a dataset."""

    def __init__(self, folder: Path, daemon: StartDaemon, stack: ExitStack) -> None:
        self.folder = folder
        self.right: dict[str, int] = {}
        """The number of each version by the checksum of its rows."""
        self.publish()
        self.upstream = daemon(
            {"data": folder / "data"}, control=CONTROL, keep_versions=3, advertise=LINK
        )
        uris = (self.upstream.control_uri, self.upstream.uri("data"))
        self.links = [stack.enter_context(link_to(uri, LINK)) for uri in uris]
        self._daemon = daemon
        across = f"grpc://{LINK}:{self.links[0].target}"
        self.relays = [self._start_relay("evicting", across, "--cache-bytes", "8MiB")]
        with pytest.MonkeyPatch.context() as patch:
            command = (*SMALL_DISK, MOUNT, str(folder / "full"), *daemon_module._COMMAND)  # pyright: ignore[reportPrivateUsage]
            patch.setattr(daemon_module, "_COMMAND", command)
            peers = ["--peers", self.relays[0].control_uri]
            self.relays.append(self._start_relay("full", across, *peers))
        self._full = command
        below = self._start_relay("below", self.relays[0].control_uri, "--cache-bytes", "64MiB")
        self.relays.append(below)

    def _start_relay(self, name: str, upstream: str, *arguments: str) -> Daemon:
        """Start a relay; the one that is called full has a disk that is smaller than the data."""
        return self._daemon(
            upstream=upstream,
            control=CONTROL,
            listen=["tcp://127.0.0.1:0", f"shm://{self.folder}/{name}.sock"],
            arguments=["--cache", str(self.folder / name), *arguments],
            poll_seconds=0.5,
            log_level="error",
        )

    def publish(self) -> None:
        """Publish a version whose rows no other version has."""
        number = len(self.right) + 1
        batches = numbered_batches(number, BATCHES, ROWS)
        size = BATCHES // SHARDS
        tables = [pa.Table.from_batches(batches[at : at + size]) for at in range(0, BATCHES, size)]
        self.right[checksum_of(batches)] = number
        publish(VersionStore(self.folder / "data"), f"job-{number}", *tables)

    def restart(self, daemon: Daemon) -> None:
        """Start a daemon that was killed, on the disk that it had."""
        with pytest.MonkeyPatch.context() as patch:
            if daemon is self.relays[1]:
                patch.setattr(daemon_module, "_COMMAND", self._full)
            daemon.start()

    def cut(self, seconds: float) -> None:
        """Cut the link for a time."""
        for link in self.links:
            link.is_cut = True
        time.sleep(seconds)
        for link in self.links:
            link.is_cut = False

    def damage(self, draw: random.Random) -> int:
        """Kill a relay, and change one byte of a shard in its cache; return the shards damaged."""
        self.relays[0].kill()
        shards = [p for p in (self.folder / "evicting" / "objects").iterdir() if len(p.name) == 64]
        for path in shards[:1]:
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1
            damaged = self.folder / "damaged"
            damaged.write_bytes(data)
            damaged.replace(path)  # readers may still map the file that was there
        self.restart(self.relays[0])
        return len(shards[:1])

    def list_shards(self) -> list[Path]:
        """Return the files of all caches."""
        roots = [self.folder / "evicting", self.folder / "below"]
        roots.append(Path(f"/proc/{self.relays[1].pid}/root{self.folder}/full"))
        return [path for root in roots for path in (root / "objects").iterdir()]


def test_a_day(battery: Battery, daemon: StartDaemon, readers: ReaderPool, tmp_path: Path) -> None:
    """Each read has exactly the rows of one version, or fails; nothing is left behind."""
    draw, done, until = random.Random(7), Counter[str](), tmp_path / "until"
    with ExitStack() as stack:
        day = Day(tmp_path, daemon, stack)
        jobs: list[Any] = [
            {"control": relay.control_uri, "name": "data", "options": {"transport": transport}}
            for relay in day.relays
            for transport in TRANSPORTS
        ]
        loops = [readers.start("repeat", until=str(until), **job) for job in jobs]
        for loop in loops:
            loop.wait("reading")
        calm = [count_descriptors(relay.pid) for relay in day.relays]
        for _ in range(battery.count(EVENTS, 8)):
            event = draw.choice(["publish", "cut", "upstream", "relay", "reader", "damage"])
            done[event] += 1
            if event == "publish":
                day.publish()
            elif event == "cut":
                day.cut(draw.uniform(0.1, 2))
            elif event == "upstream":
                day.upstream.kill()
                time.sleep(draw.uniform(0, 1))
                day.upstream.start()
            elif event == "relay":
                relay = draw.choice(day.relays)
                relay.kill()
                day.restart(relay)
            elif event == "reader":
                job = draw.choice(jobs)
                reader = readers.start("read", **job, hold=True, pause=0.002)
                time.sleep(draw.uniform(0, 1))
                reader.kill()
                readers.forget([reader])
            else:
                done["damaged shards"] += day.damage(draw)
            time.sleep(draw.uniform(0, 1))
        until.touch()
        outcomes, versions = Counter[str](), Counter[int]()
        for result in run_together(loops, 120):
            outcomes.update(result["outcomes"])
            assert set(result["checksums"]) <= day.right.keys(), result
            for checksum, count in result["checksums"].items():
                versions[day.right[checksum]] += count
        newest = max(day.right, key=lambda checksum: day.right[checksum])
        for job, relay in zip(jobs, [each for each in day.relays for _ in TRANSPORTS], strict=True):
            wait_until(lambda job=job: read(readers, job) == newest, "the newest version")
            wait_until(lambda relay=relay: is_idle(relay), "the end of streams and leases")
        for relay, before in zip(day.relays, calm, strict=True):
            wait_until(
                lambda relay=relay, before=before: count_descriptors(relay.pid) <= before,
                "the descriptors",
            )
        shards = day.list_shards()
        assert all(hash_file(path) == path.name for path in shards)
    battery.record(
        events=done, outcomes=outcomes, versions=len(versions), reads=versions.total(),
        shards=len(shards),
    )  # fmt: skip
    assert outcomes["complete"] > len(jobs)


def read(readers: ReaderPool, job: Any) -> str:
    """Return the checksum of a read, or the class of its error."""
    reader = readers.start("read", **job)
    result = reader.result(120)
    readers.forget([reader])
    return result["checksum"] if result["outcome"] == "complete" else result["message"]


def count_descriptors(pid: int) -> int:
    """Return the descriptors of a process, without the regions that it keeps for other streams."""
    names: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(os.readlink(path))
    return sum(not name.startswith("/memfd:splitarrow") for name in names)


def is_idle(relay: Daemon) -> bool:
    """Return whether nobody uses a relay."""
    try:
        with splitarrow.connect(relay.control_uri) as client:
            found = client.status()["stats"]
    except SplitArrowError:
        return False
    return not (found["connections"] or found["leases"] or found["leased_bytes"])
