"""The command line with several daemons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cluster import StartDaemons, find_shared_name, join_uris, make_numbered_shards
from helpers.files import write_shards
from splitarrow.cli.app import run as run_here
from splitarrow.client.cluster.publication import publish_shards

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process."""

    def say(*arguments: object) -> tuple[int, str, str]:
        status = run_here([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return say


def test_commands(daemons: StartDaemons, say: Say, tmp_path: Path) -> None:
    tables = make_numbered_shards(4, 1000)
    files = write_shards(tmp_path / "shards", tables)
    two = daemons(2)
    both = join_uris(*two)
    publish_shards("trips", files, both, replicas=2)

    status, out, err = say("ls", both)
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["trips", "4,000"]]
    found: Any = json.loads(say("ls", both, "--json")[1])
    assert [each["rows"] for each in found] == [4000]

    status, out, _ = say("info", both, "trips")
    assert status == 0
    for daemon in two:
        assert f"{daemon.control_uri}: 4" in out
    found = json.loads(say("info", both, "trips", "--json")[1])
    assert [each["ordinal"] for each in found["endpoints"]] == [0, 1, 2, 3]
    assert found["endpoints"][0]["held_by"] == [daemon.control_uri for daemon in two]

    path = tmp_path / "got.arrow"
    status, out, err = say("fetch", both, "trips", "-o", path, "--limit", 2500, "--json")
    assert status == 0, err
    assert json.loads(out)["rows"] == 2500
    with pa.ipc.open_file(str(path)) as got:
        assert got.read_all()["n"].to_pylist() == list(range(2500))

    status, out, _ = say("status", both)
    assert status == 0
    assert all(daemon.control_uri in out for daemon in two)
    assert out.count("serving") == 2

    two[0].kill()
    status, out, err = say("ls", both)
    assert status == 0
    assert "trips" in out
    assert f"warning: {two[0].control_uri}" in err
    status, out, err = say("fetch", both, "trips", "-o", path)
    assert status == 0, err
    with pa.ipc.open_file(str(path)) as got:
        assert got.read_all() == pa.concat_tables(tables)
    found = json.loads(say("status", both, "--json")[1])["daemons"]
    assert "error" in found[two[0].control_uri]
    assert found[two[1].control_uri]["draining"] is False
    status, out, _ = say("status", both)
    assert "cannot connect" in out


def test_what_fails(daemons: StartDaemons, say: Say, tmp_path: Path) -> None:
    tables = make_numbered_shards(6, 100)
    files = write_shards(tmp_path / "shards", tables)
    two = daemons(2)
    name = find_shared_name(len(files), two)
    publish_shards(name, files, join_uris(*two))
    two[1].kill()
    path = tmp_path / "got.arrow"
    status, _, err = say("fetch", join_uris(*two), name, "-o", path)
    assert status == 1
    assert "missing" in err
    assert two[1].control_uri in err
    assert not path.exists()
    status, out, _ = say("ls", join_uris(*two))
    assert "incomplete" in out
    status, _, err = say("put", join_uris(*two), "x", files[0])
    assert status != 0
    assert "one daemon" in err
    status, _, err = say("ls", "grpc://127.0.0.1:1,")
    assert status == 2
    assert "missing next to a comma" in err
    two[0].kill()
    status, _, err = say("ls", join_uris(*two))
    assert status == 1
    assert "no daemon responds" in err
