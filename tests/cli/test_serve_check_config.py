"""``splitarrow check-config``, and variables that no command knows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from helpers.cli import Run
from helpers.files import write_file


def test_a_valid_configuration(run: Run, tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.arrow", pa.table({"n": [1]}))
    (tmp_path / "good.toml").write_text(
        f'listen = ["tcp://h:1"]\ninsecure = true\n[datasets]\na = "{path}"\n'
    )
    done = run("check-config", "good.toml")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "good.toml: valid, with 1 dataset\n",
        "",
    )


def test_every_problem_is_named_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("[[tokens]]\n")
    (tmp_path / "bad.toml").write_text(
        'token_file = "tokens.toml"\n[datasets]\na = "a.arrow"\nb = "b.arrow"\n'
    )
    done = run("check-config", "bad.toml")
    assert (done.returncode, done.stdout) == (1, "")
    tokens, *lines = done.stderr.splitlines()
    assert tokens.startswith("splitarrow: error: tokens.toml")
    for line, name, number in zip(lines, "ab", (3, 4), strict=True):
        assert line.startswith(f"splitarrow: error: bad.toml, line {number}: datasets.{name}: ")


def test_a_server_needs_something_to_serve(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text('listen = ["tcp://127.0.0.1:1"]\n')
    done = run("check-config", "empty.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "splitarrow: error: empty.toml: nothing to serve: name a dataset under [datasets]\n"
    )
    (tmp_path / "uploads.toml").write_text(
        f'control = "grpc://127.0.0.1:1"\nwritable = "{tmp_path}"\n'
    )
    assert run("check-config", "uploads.toml").returncode == 0


def test_a_misspelled_setting(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('lissen = ["tcp://h:1"]\n')
    done = run("check-config", "bad.toml")
    assert done.returncode == 1
    assert done.stderr == (
        "splitarrow: error: bad.toml, line 1: lissen: no such setting; did you mean 'listen'?\n"
    )
    (tmp_path / "bad.toml").write_text("\nlisten = [\n")
    done = run("check-config", "bad.toml")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "bad.toml" in done.stderr


def test_every_command_refuses_a_misspelled_variable(run: Run) -> None:
    done = run("ls", "grpc://127.0.0.1:1", env={"SPLITARROW_TOKN": "x"})
    assert done.returncode == 2
    assert done.stderr == (
        "splitarrow: error: SPLITARROW_TOKN: no such variable; did you mean 'SPLITARROW_TOKEN'?\n"
    )
