"""Relays above relays, and relays that are their own upstream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.publication import publish
from helpers.relays import CONTROL, find_addresses, start_relay
from splitarrow.errors import SplitArrowError
from splitarrow.publication.version_store import VersionStore
from splitarrow.testing import Daemon

TABLE = pa.table({"n": list(range(100))})


@pytest.fixture
def upstream(tmp_path: Path, daemon: StartDaemon) -> Daemon:
    location = str(tmp_path / "published")
    publish(VersionStore(location), "first", TABLE)
    return daemon({"trips": location}, control=CONTROL)


def test_a_tree_has_levels(tmp_path: Path, upstream: Daemon, daemon: StartDaemon) -> None:
    upper = start_relay(tmp_path / "upper", upstream, daemon)
    lower = start_relay(tmp_path / "lower", upper, daemon)
    found: list[dict[str, object]] = []
    for relay in (upper, lower):
        with splitarrow.connect(str(relay.control_uri)) as client:
            assert client.read("trips").read_all() == TABLE
            found.append(json.loads(client.act("relay")))
    assert [each["level"] for each in found] == [1, 2]
    assert [each["upstreams"] for each in found] == [[], [found[0]["id"]]]


def test_a_relay_is_not_its_own_upstream(tmp_path: Path) -> None:
    (address,) = find_addresses(1)
    command = [sys.executable, "-P", "-m", "splitarrow", "relay", address, "--control", address]
    command += ["--cache", str(tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"splitarrow: error: the upstream {address} is this relay itself" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_loop_is_found_at_the_start(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    first_address, second_address = find_addresses(2)
    first = start_relay(tmp_path / "a", upstream, daemon, control=first_address)
    second = start_relay(tmp_path / "b", first, daemon, control=second_address)
    first.stop()
    with pytest.raises(SplitArrowError, match="relays the datasets of this relay: a loop"):
        start_relay(tmp_path / "a", second, daemon, control=first_address)
    assert second.is_running
    with splitarrow.connect(second_address) as client:
        assert list(client) == ["trips"]


def test_a_loop_is_found_when_the_upstream_is_asked(
    tmp_path: Path, upstream: Daemon, daemon: StartDaemon
) -> None:
    """Both relays begin with what they have stored, while neither can reach the other."""
    addresses = find_addresses(2)
    for folder in ("a", "b"):
        relay = start_relay(tmp_path / folder, upstream, daemon)
        with splitarrow.connect(str(relay.control_uri)) as client:
            assert client.read("trips").read_all() == TABLE
        relay.stop()
    first = start_relay(tmp_path / "a", addresses[1], daemon, control=addresses[0], poll_seconds=3)
    second = start_relay(
        tmp_path / "b", addresses[0], daemon, control=addresses[1], poll_seconds=600
    )
    assert first.wait(30) == 1
    assert "a loop" in first.log_file.read_text()
    assert second.is_running
    with splitarrow.connect(addresses[1]) as client:
        assert client.read("trips").read_all() == TABLE
