"""A reader imports only what it uses."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest

import splitarrow

SERVER = {"splitarrow.server", "structlog", "watchfiles", "pydantic_settings"}
COMMANDS = {"splitarrow.cli", "typer", "rich", "pydantic"}
CONTROL = {"grpc", "google.protobuf", "splitarrow.client.dataset", "splitarrow.client.cluster"}
FILTERS = {"sqlglot", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"}
OTHERS = {"pandas", "polars", "duckdb", "torch", "obstore", "importlib.metadata"}
READING = {
    "splitarrow.client.cluster.client",
    "splitarrow.client.dataset.dataset",
    "splitarrow.client.stream.reader",
}
EVERYTHING = SERVER | COMMANDS | CONTROL | FILTERS | OTHERS


def loaded(script: str, *arguments: str) -> set[str]:
    """Return the modules that a new process has loaded after a script."""
    script += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_reader_of_a_data_stream() -> None:
    with splitarrow.serve({"a": pa.table({"n": [1]})}) as server:
        script = "import splitarrow, sys; splitarrow.open(sys.argv[1]).read_all()"
        assert loaded(script, server.uri("a")) & EVERYTHING == set()


def test_a_reader_of_a_control_plane() -> None:
    with splitarrow.serve({"a": pa.table({"n": [1]})}, control="grpc://127.0.0.1:0") as server:
        script = "import splitarrow, sys; splitarrow.open(sys.argv[1] + '/a').read_all()"
        assert loaded(script, server.control_uri or "") & (SERVER | COMMANDS | FILTERS) == set()


def test_the_package_alone() -> None:
    assert loaded("import splitarrow") & (EVERYTHING | {"pyarrow", "anyio"}) == set()


@pytest.mark.parametrize("arguments", ["['--help']", "['--version']"])
def test_help_loads_no_command(arguments: str) -> None:
    script = f"from splitarrow.cli.app import run\ntry: run({arguments})\nexcept SystemExit: pass"
    commands = {f"splitarrow.cli.{name}" for name in ("serve", "fetch", "bench", "publish")}
    unneeded = SERVER | CONTROL | FILTERS | OTHERS | commands | {"pyarrow", "pydantic"}
    assert loaded(script) & unneeded == set()


def test_a_fetch_that_cannot_connect() -> None:
    """It loads neither what reads data nor pydantic, which typer loads to convert values."""
    arguments = "['fetch', 'grpc://127.0.0.1:1/a']"
    script = f"from splitarrow.cli.app import run\nassert run({arguments}) == 1"
    unneeded = SERVER | FILTERS | READING | {"rich", "pydantic", "pandas", "polars", "duckdb"}
    assert loaded(script) & unneeded == set()


def test_completion_offers_only_public_names() -> None:
    script = """
        import json, rlcompleter, splitarrow, splitarrow.testing
        splitarrow.open  # imports modules that are not public
        names = dir(splitarrow)
        completer = rlcompleter.Completer({"splitarrow": splitarrow})
        offered = completer.attr_matches("splitarrow.")
        print(json.dumps([names, [name.rstrip("()") for name in offered]]))
    """
    names, offered = json.loads(
        subprocess.check_output([sys.executable, "-c", textwrap.dedent(script)], text=True)
    )
    assert {*names} - {"memory"} == {*splitarrow.__all__, "testing"}
    public = {f"splitarrow.{name}" for name in names if not name.startswith("_")}
    assert {name for name in offered if "._" not in name} == public
