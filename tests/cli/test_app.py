"""What is common to all commands: version, help, completion, wrong usage."""

from __future__ import annotations

import gc
import os

import pytest

import splitarrow
from helpers.cli import Run
from splitarrow.cli.app import COMMANDS, load_command
from splitarrow.cli.app import run as run_here

PEER = "tcp://127.0.0.1:1?want_data=0x10000000001&ticket=table"


def test_version(run_process: Run) -> None:
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"splitarrow {splitarrow.__version__}\n"


@pytest.mark.parametrize("command", [[], ["serve"], ["fetch"], ["token"], ["bench"], ["demo"]])
def test_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run_here([*command, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"Usage: splitarrow {' '.join(command)}".strip() in shown.out
    assert shown.err == ""
    assert "\\[" not in shown.out
    assert "<bool>" not in shown.out


def test_without_a_command_help_is_shown(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: splitarrow" in done.stdout


WRONG: list[tuple[list[str], str]] = [
    (["fly"], "No such command 'fly' (see: splitarrow --help)"),
    (["fetchh"], "No such command 'fetchh'; did you mean 'fetch'? (see: splitarrow --help)"),
    (["chec"], "No such command 'chec'; did you mean 'check'? (see"),
    (["token", "news"], "No such command 'news'; did you mean 'new'? (see: splitarrow token"),
    (["fetch", PEER, "--limt", "3"], "No such option: --limt; did you mean '--limit'? (see: "),
    (["fetch", PEER, "--row", "3"], "No such option: --row; did you mean '--rows'? (see: "),
    (["fetch", PEER, "--zzz"], "No such option: --zzz (see: splitarrow fetch --help)"),
    (["fetch", PEER, "--filter", "a", "<", "1"], "(1); put an argument with spaces in quotes (see"),
    (["fetch"], "Missing argument 'URI' (see: splitarrow fetch --help)"),
    (["fetch", PEER, "--limits", "3"], "No such option: --limits"),
    (["fetch", PEER, "--limit", "many"], "Invalid value for '--limit'"),
    (["fetch", PEER, "--limit", "-1"], "Invalid value for '--limit'"),
    (["fetch", PEER, "--validate", "no"], "Invalid value for '--validate': 'no' is not one of"),
    (["fetch", PEER, "--connect-timeout", "0"], "expected more than 0"),
    (["fetch", PEER, "--columns", "a,,b"], "--columns: a name is missing"),
    (
        ["fetch", PEER, "-o", "out.txt"],
        "out.txt: the suffix selects the format; use one of .arrow",
    ),
    (["fetch", PEER, "-o", "out"], "the suffix selects the format"),
    (["fetch", PEER, "-o", "-", "--json"], "--json and -o -"),
    (["fetch", PEER, "--ticket", "other"], "the URI already has a ticket"),
    (["fetch", PEER, PEER], "stream=metadata and one with stream=body"),
    (["fetch", f"{PEER}&stream=body"], "stream=metadata"),
    (["fetch", "table"], "'table' is not a URI"),
    (
        ["fetch", "ftp://127.0.0.1:1/table"],
        "unknown scheme 'ftp' in ftp://127.0.0.1:1/table; known are grpc, grpc+tcp, grpc+tls, "
        "http, https, inproc, tcp, tcp+tls, shm, ucx",
    ),
    (["fetch", "tcp://127.0.0.1:1?ticket=table"], "has no want_data"),
    (
        ["fetch", PEER.replace("0x10000000001", "0xZZ")],
        "want_data='0xZZ' is not a decimal or 0x number",
    ),
    (["fetch", PEER.replace("0x10000000001", "0x1" + 16 * "0")], "does not fit in 64 bits"),
    (["fetch", PEER.partition("&")[0]], "has no ticket: add &ticket=NAME"),
    (["fetch", PEER.replace(":1?", ":99999?")], "Port out of range"),
    (["bench", "--sizes", "huge"], "'huge' is not a size"),
    (["bench", "--sizes", "5"], "the batch size is 5 bytes"),
    (["bench", "--backends", "pigeons"], "no backend 'pigeons'"),
    (["bench", "--clients", "many"], "'many' is not a number of clients"),
    (["bench", "--plot", "plot.gif"], "plot.gif"),
    (["bench", "--json", "/missing/figures.json"], "the folder does not exist"),
    (["demo", "--rows", "0"], "Invalid value for '--rows'"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert run_here(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("splitarrow: error: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    words = {
        "_SPLITARROW_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "splitarrow fe",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "splitarrow fe",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = run(env={**os.environ, **words})
    assert "fetch" in done.stdout
    assert "serve" not in done.stdout


def test_completion_can_be_shown(run: Run) -> None:
    # Typer asks for the shell's name where it may not look which shell it was called from.
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run("--show-completion", "bash", env=environment)
    assert done.returncode == 0
    assert "_SPLITARROW_COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_lists_the_first_line_of_each_command(name: str) -> None:
    first = load_command(name).help.partition("\n")[0]
    assert COMMANDS[name].help == first


@pytest.mark.parametrize(("name", "collects"), [("ls", False), ("serve", False), ("fetch", True)])
def test_only_commands_with_much_data_collect_garbage_at_once(name: str, collects: bool) -> None:
    gc.disable()
    try:
        load_command(name)
        assert gc.isenabled() is collects
    finally:
        gc.enable()
