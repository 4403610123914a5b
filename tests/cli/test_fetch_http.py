"""Commands read a dataset over HTTP by its URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import Run, read
from splitarrow.cli.checks import check_uri

TOKEN = "secret-of-a-reader-0123456789"
TABLE = pa.table({"n": [1, 2, 3], "s": ["a", "b", None]})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    tokens.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["*"]\n')
    with splitarrow.serve({"t": TABLE}, http="http://127.0.0.1:0", token_file=tokens) as server:
        yield server.http_uri or ""


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITARROW_TOKEN", TOKEN)


def test_fetch_into_a_file(run: Run, url: str, tmp_path: Path) -> None:
    done = run("fetch", f"{url}/t", "--filter", "n > 1", "--json", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transport"] == "http"
    assert read(tmp_path / "out.arrow").equals(TABLE.slice(1))


def test_the_name_may_follow_the_server(run: Run, url: str, tmp_path: Path) -> None:
    done = run("fetch", url, "t", "-q", "--transport", "http", "-o", "out.arrow")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.arrow").equals(TABLE)


def test_other_commands(run: Run, url: str) -> None:
    done = run("head", f"{url}/t", "-n", "2")
    assert done.stdout.split()[-4:] == ["1", "a", "2", "b"], done.stderr
    done = run("schema", f"{url}/t", "--json")
    assert [field["name"] for field in json.loads(done.stdout)["fields"]] == ["n", "s"], done.stderr


def test_check(url: str) -> None:
    (report,) = check_uri(
        f"{url}/t", full=True, progress=lambda rows, nbytes: None, token=None, connect_timeout=10
    )
    assert (report.is_sound, report.rows, report.columns) == (True, 3, 2)


@pytest.mark.parametrize(
    ("arguments", "problem", "status"),
    [
        (["--shards", "0"], "shards needs a control plane", 2),
        (["--transport", "tcp"], "transport is 'tcp', and http://", 2),
        (["--token", "another-token-0123456789"], "check the token", 1),
    ],
)
def test_failures(run: Run, url: str, arguments: list[str], problem: str, status: int) -> None:
    done = run("fetch", f"{url}/t", *arguments, "-o", "out.arrow")
    assert done.returncode == status
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
