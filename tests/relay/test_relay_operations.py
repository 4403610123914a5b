"""What a relay reports to its operators, and what they may pin."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.http_requests import request, scrape
from helpers.publication import numbers, publish
from helpers.relays import CONTROL, start_relay
from helpers.waiting import wait_until
from splitarrow.cli.app import run as run_here
from splitarrow.errors import RemoteError, SplitArrowError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

SHARDS = 4
OBJECTS = ("objects",)


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(str(tmp_path / "published"))
    publish(store, "one", *(numbers(1000 * shard, 1000) for shard in range(SHARDS)))
    return store


@pytest.fixture
def upstream(tmp_path: Path, store: VersionStore, daemon: StartDaemon) -> Daemon:
    plain = write_file(tmp_path / "plain.arrow", numbers(0, 100))
    return daemon({"trips": store.location, "plain": plain}, control=CONTROL)


def list_sizes(store: VersionStore) -> list[int]:
    manifest = store.load()
    assert manifest is not None
    return [shard.nbytes for shard in manifest.shards]


def measure(relay: Daemon, name: str, *labels: str) -> float:
    return scrape(str(relay.http_uri)).get((name, *labels), 0.0)


def test_metrics_describe_the_cache_and_the_upstream(
    tmp_path: Path, store: VersionStore, upstream: Daemon, daemon: StartDaemon
) -> None:
    sizes = list_sizes(store)
    limit = 2 * max(sizes) + 1
    options = ["--cache-bytes", str(limit)]
    relay = start_relay(tmp_path, upstream, daemon, *options, http="http://127.0.0.1:0")
    with splitarrow.connect(str(relay.control_uri)) as client:
        for shard in (0, 0, 1, 2):
            client.read("trips", shards=[shard]).read_all()
        found = scrape(str(relay.http_uri))
        assert found["cache_hits_total", "objects"] == 1
        assert found["cache_misses_total", "objects"] == 3
        assert found["cache_evictions_total", "objects"] == 1
        assert found["cache_bytes", "objects"] == sum(sizes[1:3])
        assert found["cache_limit_bytes", "objects"] == limit
        assert found["cache_rejections_total", "objects"] == 0
        assert found["cache_waiting_readers", "objects"] == 0
        assert found["relay_fetched_bytes_total", "upstream"] == sum(sizes[:3])
        assert found["relay_fetched_bytes_total", "peer"] == 0
        assert (found["relay_upstream_errors_total",], found["relay_offline",]) == (0, 0)
        assert client.read("plain").read_all().num_rows == 100
        assert measure(relay, "relay_fetched_bytes_total", "upstream") > sum(sizes[:3])


@pytest.mark.slow
def test_an_offline_relay_says_so(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = start_relay(tmp_path, upstream, daemon, http="http://127.0.0.1:0")
    control = str(relay.control_uri)

    def show(*command: str) -> str:
        assert run_here([*command]) == 0
        return capsys.readouterr().out

    with splitarrow.connect(control) as client:
        client.read("trips").read_all()
        client.read("trips").read_all()
        status = client.status()
        assert not status["relay"]["offline"]
        assert status["relay"]["saved_bytes"] > 0.9 * status["relay"]["fetched_bytes"]["upstream"]
        assert status["caches"]["objects"]["bytes"] > 0
        assert not client.info("trips").offline
        assert "No upstream" not in request(str(relay.http_uri)).text
        upstream.stop()
        wait_until(lambda: client.status()["relay"]["offline"])
        assert client.info("trips").offline
        assert measure(relay, "relay_offline") == 1
        assert measure(relay, "relay_upstream_errors_total") > 0
    commands = [("status", control), ("top", control, "--interval", "0.1"), ("info", control)]
    for command in commands:
        name = ["trips"] if command[0] == "info" else []
        shown = show(*command, *name)
        assert re.search(r"\nupstream +cannot be reached", shown)
        if command[0] != "info":
            assert re.search(
                r"\nrelay cache +[\d.]+ kB of 10.7 GB, 4 hits in 8 uses, [\d.]+ kB saved", shown
            )
    assert "No upstream of this relay can be reached" in request(str(relay.http_uri)).text


def list_cached(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache" / "objects").glob("[0-9a-f]*")}


def list_keys(store: VersionStore) -> set[str]:
    manifest = store.load()
    assert manifest is not None
    return {shard.sha256 for shard in manifest.shards}


@pytest.mark.slow
def test_pinned_datasets_stay_in_the_cache(
    tmp_path: Path, store: VersionStore, upstream: Daemon, daemon: StartDaemon
) -> None:
    options = ["--cache-bytes", "200kB"]
    relay = start_relay(tmp_path, upstream, daemon, *options)
    assert pin(relay, "trips")["pins"] == {"trips": sum(list_sizes(store))}
    wait_until(lambda: list_keys(store) == list_cached(tmp_path))
    relay.stop()
    again = start_relay(tmp_path, upstream, daemon, *options)
    publish(store, "two", *(numbers(7000 * shard, 1000) for shard in range(SHARDS)))
    wait_until(lambda: list_keys(store) <= list_cached(tmp_path))
    assert pin(again) == {
        "pins": {"trips": sum(list_sizes(store))},
        "bytes": sum(list_sizes(store)),
        "max_bytes": 175_000,
    }
    assert pin(again, "trips", pinned=False)["pins"] == {}


def pin(relay: Daemon, *names: str, pinned: bool = True) -> dict[str, Any]:
    with splitarrow.connect(str(relay.control_uri)) as client:
        body = json.dumps({"datasets": names, "pinned": pinned})
        return json.loads(client.act("pin", body.encode()))


def test_the_command_pin(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = start_relay(tmp_path, upstream, daemon, "--cache-bytes", "80kB")

    def say(*arguments: str) -> tuple[int, str]:
        status = run_here(["relay", "pin", *arguments])
        return status, capsys.readouterr().err

    control = str(relay.control_uri)
    assert say(control) == (0, "no dataset is pinned\n")
    status, text = say(control, "trips")
    assert status == 0
    assert re.match(r"trips: [\d.]+ kB pinned\n", text)
    assert "\nsplitarrow: warning: the pinned datasets have 8" in text
    assert "keeps at most 70.0 kB" in text.replace("\n", " ")
    status, text = say(control, "plain")
    assert (status, "'plain' is not a published dataset" in text) == (1, True)
    assert say(control, "absent")[0] == 1
    assert say(control, "trips", "--unpin") == (0, "no dataset is pinned\n")
    with (
        splitarrow.connect(str(upstream.control_uri)) as client,
        pytest.raises(RemoteError, match="not a relay"),
    ):
        client.act("pin", b"{}")
    with splitarrow.connect(control) as client, pytest.raises(SplitArrowError, match="must be"):
        client.act("pin", b'{"datasets": [1]}')
