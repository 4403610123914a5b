"""Relays of one level, which ask each other for shards before the upstream."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.publication import publish
from helpers.relays import CONTROL, find_addresses, sent_bytes, start_relay
from helpers.waiting import wait_until
from splitarrow.client.cluster.publication import choose_nodes
from splitarrow.errors import RemoteError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

SHARDS, ROWS = 8, 20_000


def make_shards(number: int = SHARDS) -> list[pa.Table]:
    random = np.random.default_rng(7)
    return [pa.table({"n": pa.array(random.integers(0, 1 << 60, ROWS))}) for _ in range(number)]


TABLE = pa.concat_tables(make_shards())
STORED = SHARDS * ROWS * 8


@pytest.fixture
def published(tmp_path: Path) -> str:
    location = str(tmp_path / "published")
    publish(VersionStore(location), "first", *make_shards())
    return location


@pytest.fixture
def upstream(published: str, daemon: StartDaemon) -> Daemon:
    return daemon({"trips": published}, control=CONTROL)


def start_peers(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon, number: int, absent: int = 0
) -> list[Daemon]:
    """Start relays that are peers, of which the last ones do not run."""
    addresses = find_addresses(number + absent)
    peers = ["--peers", ",".join(addresses)]
    with ThreadPoolExecutor(2) as threads:
        return list(
            threads.map(
                lambda index: start_relay(
                    tmp_path / str(index), upstream, daemon, *peers, control=addresses[index]
                ),
                range(number),
            )
        )


def read_all(relay: Daemon, **selection: Any) -> pa.Table:
    with splitarrow.connect(str(relay.control_uri)) as client:
        return client.read("trips", **selection).read_all()


def test_the_upstream_sends_each_shard_once(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relays = start_peers(tmp_path, upstream, daemon, 3)
    for relay in relays:
        assert read_all(relay) == TABLE
    assert STORED <= sent_bytes(upstream, "trips") < 1.1 * STORED
    assert sum(sent_bytes(relay, "trips") for relay in relays) > 4 * STORED


def test_relays_that_read_at_the_same_time_do_not_wait_for_each_other(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relays = start_peers(tmp_path, upstream, daemon, 2)
    jobs = [(relay, shard) for shard in range(SHARDS) for relay in relays for _ in range(4)]
    with ThreadPoolExecutor(len(jobs)) as threads:
        tables = list(threads.map(lambda job: read_all(job[0], shards=[job[1]]), jobs))
    expected = make_shards()
    assert all(table == expected[shard] for table, (_, shard) in zip(tables, jobs, strict=True))
    assert sent_bytes(upstream, "trips") < 1.2 * STORED


def test_a_peer_that_does_not_run_is_left_out(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relays = start_peers(tmp_path, upstream, daemon, 2, absent=2)
    assert [read_all(relay) for relay in relays] == [TABLE, TABLE]
    assert sent_bytes(upstream, "trips") < 1.2 * STORED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_peer_that_fails_is_skipped(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon, number: int
) -> None:
    first, second, third = start_peers(tmp_path, upstream, daemon, 3)
    assert read_all(first, shards=[0]) == read_all(second, shards=[0]) == make_shards()[0]
    os.kill(first.pid, number)
    assert read_all(second) == TABLE
    assert read_all(third) == TABLE


def test_a_peer_without_the_dataset_is_skipped(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    other = daemon({"other": str(tmp_path / "published")}, control=CONTROL)
    addresses = find_addresses(2)
    peers = ["--peers", ",".join(addresses)]
    start_relay(tmp_path / "a", other, daemon, *peers, control=addresses[0])
    relay = start_relay(tmp_path / "b", upstream, daemon, *peers, control=addresses[1])
    assert read_all(relay) == TABLE


def test_a_peer_learns_of_a_version_when_it_is_asked(
    tmp_path: Path, published: str, upstream: Daemon, daemon: StartDaemon
) -> None:
    addresses = find_addresses(3)
    peers = ["--peers", ",".join(addresses)]
    slow = [
        start_relay(
            tmp_path / str(i), upstream, daemon, *peers, control=addresses[i], poll_seconds=600
        )
        for i in range(2)
    ]
    fresh = make_shards(2 * SHARDS)[SHARDS:]
    publish(VersionStore(published), "second", *fresh)
    relay = start_relay(tmp_path / "2", upstream, daemon, *peers, control=addresses[2])
    assert read_all(relay) == pa.concat_tables(fresh)
    with splitarrow.connect(str(relay.control_uri)) as client:
        version = client.info("trips").version
    assert sum(sent_bytes(each, "trips") for each in slow) > 0
    assert read_all(slow[0], version=version) == pa.concat_tables(fresh)
    assert sent_bytes(upstream, "trips") < 1.2 * STORED


def test_a_plain_daemon_as_a_peer_is_not_asked(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relay = start_relay(tmp_path, upstream, daemon, "--peers", str(upstream.control_uri))
    assert read_all(relay) == TABLE
    assert sent_bytes(upstream, "trips") < 1.1 * STORED
    assert relay.log_file.read_text().count("peer is not a relay") == 1


def test_a_relay_of_another_level_is_not_asked(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    """The upper relay has the lower one as a peer, and would wait for it."""
    addresses = find_addresses(2)
    upper = start_relay(
        tmp_path / "u", upstream, daemon, "--peers", addresses[1], control=addresses[0]
    )
    lower = start_relay(
        tmp_path / "l", upper, daemon, "--peers", addresses[0], control=addresses[1]
    )
    assert read_all(lower) == TABLE
    assert sent_bytes(lower, "trips") < 1.1 * STORED
    assert sent_bytes(upstream, "trips") < 1.1 * STORED


def test_a_damaged_shard_of_a_peer_is_refused(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    relays = start_peers(tmp_path, upstream, daemon, 2)
    assert read_all(relays[0]) == TABLE
    for path in (tmp_path / "0" / "cache" / "objects").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)  # after the check at its first use
    # A reader that has received some of it gets an error. The next one gets the right data.
    with suppress(RemoteError):
        assert read_all(relays[1]) == TABLE
    assert read_all(relays[1]) == TABLE


def test_a_relay_describes_itself(tmp_path: Path, upstream: Daemon, daemon: StartDaemon) -> None:
    relay = start_relay(tmp_path, upstream, daemon)
    with splitarrow.connect(str(relay.control_uri)) as client:
        first = json.loads(client.act("relay"))
    assert (first["level"], first["upstreams"]) == (1, [])
    relay.stop()
    relay.start()
    with splitarrow.connect(str(relay.control_uri)) as client:
        assert json.loads(client.act("relay")) == first


@pytest.mark.slow
@pytest.mark.long
def test_eight_relays_share_one_upstream(
    tmp_path: Path, daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    location = str(tmp_path / "large")
    random = np.random.default_rng(1)
    shards = [pa.table({"n": pa.array(random.integers(0, 1 << 60, 200_000))}) for _ in range(64)]
    publish(VersionStore(location), "first", *shards)
    stored = sum(path.stat().st_size for path in Path(location).rglob("*.arrow"))
    upstream = daemon({"trips": location}, control=CONTROL)
    relays = start_peers(tmp_path, upstream, daemon, 8)
    expected = pa.concat_tables(shards)
    begin = threading.Barrier(len(relays))

    def read(relay: Daemon) -> bool:
        begin.wait()
        return read_all(relay) == expected

    with ThreadPoolExecutor(len(relays)) as threads:
        assert all(threads.map(read, relays))
    ratio = sent_bytes(upstream, "trips") / stored
    with capsys.disabled():
        print(f"\n8 relays: the upstream sends each byte {ratio:.3f} times")
    assert ratio < 1.2


def test_readers_that_wait_leave_threads_for_peers(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    """Many readers of each relay wait for a shard of the other one."""
    relays = start_peers(tmp_path, upstream, daemon, 2)
    jobs: list[tuple[Daemon, int]] = []
    ids: list[str] = []
    for relay in relays:
        with splitarrow.connect(str(relay.control_uri)) as client:
            ids.append(json.loads(client.act("relay"))["id"])
    with splitarrow.connect(str(relays[0].control_uri)) as client:
        endpoints = client.info("trips").endpoints
    for endpoint in endpoints:
        first = ids.index(choose_nodes(endpoint.sha256, ids)[0])
        jobs += [(relays[1 - first], endpoint.ordinal or 0)] * 10
    os.kill(upstream.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(len(jobs)) as threads:
        reads = [threads.submit(read_all, relay, shards=[shard]) for relay, shard in jobs]
        wait_until(lambda: sum(count_streams(relay) for relay in relays) >= len(jobs))
        os.kill(upstream.pid, signal.SIGCONT)
        shards = make_shards()
        for (_, shard), read in zip(jobs, reads, strict=True):
            assert read.result(8) == shards[shard]  # before a read from a peer gives up


def count_streams(relay: Daemon) -> int:
    with splitarrow.connect(str(relay.control_uri)) as client:
        return len(client.status()["streams"])
