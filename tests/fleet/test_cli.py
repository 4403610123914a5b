"""The command line with several daemons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.cli.app import run as run_here
from splitarrow.client.spreading import spread

from .conftest import Daemon, numbered, shared_name, uris, write_shards

Start = Callable[..., list[Daemon]]
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command in this process."""

    def say(*arguments: object) -> tuple[int, str, str]:
        status = run_here([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return status, told.out, told.err

    return say


def test_commands(daemons: Start, say: Say, tmp_path: Path) -> None:
    tables = numbered(4, 1000)
    files = write_shards(tmp_path / "shards", tables)
    two = daemons(2)
    both = uris(*two)
    spread("trips", files, both, replicas=2)

    status, out, err = say("ls", both)
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["trips", "4,000"]]
    found: Any = json.loads(say("ls", both, "--json")[1])
    assert [each["rows"] for each in found] == [4000]

    status, out, _ = say("info", both, "trips")
    assert status == 0
    for daemon in two:
        assert f"{daemon.uri}: 4" in out
    found = json.loads(say("info", both, "trips", "--json")[1])
    assert [each["ordinal"] for each in found["endpoints"]] == [0, 1, 2, 3]
    assert found["endpoints"][0]["held_by"] == [daemon.uri for daemon in two]

    path = tmp_path / "got.arrow"
    status, out, err = say("fetch", both, "trips", "-o", path, "--limit", 2500, "--json")
    assert status == 0, err
    assert json.loads(out)["rows"] == 2500
    with pa.ipc.open_file(str(path)) as got:
        assert got.read_all()["n"].to_pylist() == list(range(2500))

    status, out, _ = say("status", both)
    assert status == 0
    assert all(daemon.uri in out for daemon in two)
    assert out.count("serving") == 2

    two[0].kill()
    status, out, err = say("ls", both)
    assert status == 0
    assert "trips" in out
    assert f"nothing from {two[0].uri}" in err
    status, out, err = say("fetch", both, "trips", "-o", path)
    assert status == 0, err
    with pa.ipc.open_file(str(path)) as got:
        assert got.read_all() == pa.concat_tables(tables)
    found = json.loads(say("status", both, "--json")[1])["daemons"]
    assert "error" in found[two[0].uri]
    assert found[two[1].uri]["draining"] is False
    status, out, _ = say("status", both)
    assert "cannot connect" in out


def test_what_fails(daemons: Start, say: Say, tmp_path: Path) -> None:
    tables = numbered(6, 100)
    files = write_shards(tmp_path / "shards", tables)
    two = daemons(2)
    name = shared_name(len(files), two)
    spread(name, files, uris(*two))
    two[1].kill()
    path = tmp_path / "got.arrow"
    status, _, err = say("fetch", uris(*two), name, "-o", path)
    assert status == 1
    assert "missing" in err
    assert two[1].uri in err
    assert not path.exists()
    status, out, _ = say("ls", uris(*two))
    assert "incomplete" in out
    status, _, err = say("put", uris(*two), "x", files[0])
    assert status != 0
    assert "one daemon" in err
    status, _, err = say("ls", "grpc://127.0.0.1:1,")
    assert status == 2
    assert "between two commas" in err
    two[0].kill()
    status, _, err = say("ls", uris(*two))
    assert status == 1
    assert "no daemon answers" in err
