"""``splitarrow token``: tokens that a server accepts, and that only their owner learns."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.cli import Run
from splitarrow.errors import ConfigError
from splitarrow.server.auth.principal import Grants
from splitarrow.server.auth.token_file import TokenFile, add_token, read_tokens

GRANT = ("--datasets", "*", "--write", "*")


def test_a_server_accepts_a_new_token_and_the_file_does_not_contain_it(
    run: Run, tmp_path: Path
) -> None:
    first = run("token", "new", "tokens.toml", "root", *GRANT)
    assert first.returncode == 0
    assert first.stderr.splitlines() == [
        "splitarrow: created tokens.toml; the user of the server must be able to read it",
        "splitarrow: added a token of root to tokens.toml",
    ]
    root = first.stdout.rstrip("\n")
    with splitarrow.serve(
        {"a": pa.table({"x": [1]}), "b": pa.table({"x": [1]})},
        control="grpc://127.0.0.1:0",
        token_file=tmp_path / "tokens.toml",
    ) as server:
        second = run("token", "new", "tokens.toml", "anna", "--datasets", "a", "--json")
        anna = json.loads(second.stdout)
        assert anna["name"] == "anna"
        assert run("reload", server.control_uri, "--token", root).returncode == 0
        done = run("ls", server.control_uri, "--json", "--token", anna["token"])
        assert [each["name"] for each in json.loads(done.stdout)] == ["a"]
    text = (tmp_path / "tokens.toml").read_text()
    assert root not in text
    assert anna["token"] not in text
    assert stat.S_IMODE((tmp_path / "tokens.toml").stat().st_mode) == 0o600


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_a_token_may_end_with_a_newline(run: Run, tmp_path: Path, end: str) -> None:
    token = "canary-token-of-anna"
    text = json.dumps(f"{token}{end}")
    path = tmp_path / "tokens.toml"
    path.write_text(f"[[tokens]]\nname = 'anna'\ntoken = {text}\ndatasets = ['*']\n")
    datasets = {"a": pa.table({"x": [1]})}
    with splitarrow.serve(datasets, control="grpc://127.0.0.1:0", token_file=path) as server:
        uri = server.control_uri
        for given in (f"{token}{end}", token):
            assert run("ls", uri, "--token", given).returncode == 0
            done = run("ls", uri, "--json", env={"SPLITARROW_TOKEN": given})
            assert (done.returncode, done.stderr) == (0, "")


def test_the_order_of_tokens_is_option_file_environment(run: Run, tmp_path: Path) -> None:
    add_token(tmp_path / "tokens.toml", "root", ["*"], [])
    for name in ("anna", "berta"):
        token = add_token(tmp_path / "tokens.toml", name, [name], [])
        (tmp_path / name).write_text(token + "\n")
    anna, berta = ((tmp_path / name).read_text().strip() for name in ("anna", "berta"))
    table = pa.table({"x": [1]})
    with splitarrow.serve(
        {"anna": table, "berta": table},
        control="grpc://127.0.0.1:0",
        token_file=tmp_path / "tokens.toml",
    ) as server:

        def find_caller(*options: str, **variables: str) -> str:
            env = {f"SPLITARROW_{name}": value for name, value in variables.items()}
            done = run("ls", server.control_uri, "--json", *options, env=env)
            (found,) = json.loads(done.stdout)
            return found["name"]

        file = str(tmp_path / "anna")
        assert find_caller("--token", anna, TOKEN=berta) == "anna"
        assert find_caller("--token-file", file) == "anna"
        assert find_caller("--token-file", file, TOKEN=berta) == "anna"
        assert find_caller(CLIENT_TOKEN_FILE=file) == "anna"
        assert find_caller(CLIENT_TOKEN_FILE=file, TOKEN=berta) == "berta"
        # The setting of servers.
        assert find_caller(CLIENT_TOKEN_FILE=file, TOKEN_FILE="tokens.toml") == "anna"


def test_a_newline_in_the_middle_of_a_token_is_named(run: Run) -> None:
    done = run("ls", "grpc://127.0.0.1:1", env={"SPLITARROW_TOKEN": "canary\ntoken\n"})
    said = "the token has a newline in the middle; give one token, on one line"
    assert (done.returncode, done.stderr) == (2, f"splitarrow: error: {said}\n")


def test_ls_shows_rights_and_no_secret(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text('[[tokens]]\nname = "old"\ntoken = "canary-token-of-old"\nwrite = ["s"]\n')
    path.chmod(0o644)
    added = run("token", "new", path, "new", "--datasets", "trips/*", "--datasets", "b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    done = run("token", "ls", path)
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["name", "reads", "writes", "stored", "as"],
        ["old", "s", "text"],
        ["new", "trips/*,", "b", "digest"],
    ]
    assert "every user of this machine can read the tokens" in done.stderr
    listed = run("token", "ls", path, "--json")
    assert json.loads(listed.stdout)[1]["datasets"] == ["trips/*", "b"]
    for secret in ("canary", added.stdout.strip(), "sha256"):
        assert secret not in done.stdout + done.stderr + listed.stdout


def test_a_token_without_datasets_is_for_metrics(run: Run, tmp_path: Path) -> None:
    done = run("token", "new", "tokens.toml", "prometheus")
    assert done.returncode == 0
    assert "it permits no dataset, only metrics and the state of the server" in done.stderr
    (entry,) = read_tokens(tmp_path / "tokens.toml")
    assert entry.principal.grants == Grants()


def test_a_link_and_comments_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "tokens.toml"
    path.write_text("# Ask the operators.\n[[tokens]]\nname = 'a'\nsha256 = '" + 64 * "0" + "'")
    link.symlink_to(path)
    token = add_token(link, 'b "quoted" ü', [], ["s"])
    assert link.is_symlink()
    assert path.read_text().startswith("# Ask the operators.\n")
    principal = TokenFile(path).find_principal(token)
    assert principal is not None
    assert principal.name == 'b "quoted" ü'


def test_no_token_is_lost_when_several_are_added_at_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda n: add_token(path, f"p{n}", ["a"], []), range(16)))
    assert len(read_tokens(path)) == 16
    assert all(TokenFile(path).find_principal(token) for token in tokens)
    assert os.listdir(tmp_path) == ["tokens.toml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", "--write", "a"), "'' is not a name"),
        (("anna", "--write", "a\x7f"), "is not the name or glob of a dataset"),
    ],
)
def test_an_invalid_token_is_not_created(run: Run, arguments: tuple[str, ...], words: str) -> None:
    done = run("token", "new", "tokens.toml", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert run("token", "ls", "tokens.toml").returncode == 1


@pytest.mark.parametrize(
    "content", ["no TOML", "[[tokens]]\n", "tokens = [{name='a', token='canary-of-the-file'}]\n"]
)
def test_a_file_that_cannot_be_extended_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"tokens\.toml") as caught:
        add_token(path, "anna", ["a"], [])
    assert "canary" not in str(caught.value)
    assert path.read_text() == content
