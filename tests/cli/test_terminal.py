"""What is shown on a terminal, and not in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from helpers.cli import COMMAND, PATIENCE, ROWS, Run, Served, read, read_terminal


def on_terminal(*arguments: str, folder: Path, stdout: bool = False) -> tuple[int, str, str]:
    """Run a command whose standard error, or output too, is a terminal of 100 columns.

    Returns the exit status, what the terminal got, and what went to a pipe.
    """
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=slave if stdout else subprocess.PIPE,
        stderr=slave,
        env=environment,
        cwd=folder,
    )
    os.close(slave)
    try:
        shown = read_terminal(master)
        piped = b"" if process.stdout is None else process.stdout.read()
        return process.wait(PATIENCE), shown, piped.decode()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.close(master)


def plain(shown: str) -> str:
    """What a terminal got, without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_progress_on_a_terminal(served: Served, tmp_path: Path) -> None:
    arguments = ("fetch", served.uri("table"), "-o", "out.arrow")
    status, shown, piped = on_terminal(*arguments, folder=tmp_path)
    assert status == 0
    assert piped == ""
    assert "\x1b[" in shown
    figures = r"table [━╸╺ ]+ [\d,]+ rows  [\d.]+ [kMG]?B  [\d.]+ [kMG]?B/s +0:00:\d\d"
    assert re.search(figures, plain(shown))
    assert re.search(r"table: 200,000 rows, [\d.]+ MB in .* -> out.arrow\r\n$", shown)
    assert read(tmp_path / "out.arrow").num_rows == ROWS


def test_no_progress_if_quiet(served: Served, tmp_path: Path) -> None:
    arguments = ("fetch", served.uri("table"), "--quiet", "-o", "out.arrow")
    assert on_terminal(*arguments, folder=tmp_path) == (0, "", "")


@pytest.mark.parametrize("forced", [{}, {"FORCE_COLOR": "1"}])
def test_no_progress_in_a_pipe(run: Run, served: Served, forced: dict[str, str]) -> None:
    environment = {**os.environ, **forced}
    done = run("fetch", served.uri("table"), "-o", "out.arrow", env=environment)
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.count("\n") == 1


def test_a_failure_leaves_the_terminal_as_it_was(served: Served, tmp_path: Path) -> None:
    uri = served.uri("table").replace("ticket=table", "ticket=tabel")
    status, shown, _ = on_terminal("fetch", uri, folder=tmp_path)
    assert status == 1
    assert shown.rindex("\x1b[?25h") < shown.rindex("splitarrow: error: NOT_FOUND")


def test_no_binary_data_on_a_terminal(served: Served, tmp_path: Path) -> None:
    arguments = ("fetch", served.uri("table"), "-o", "-")
    status, shown, _ = on_terminal(*arguments, folder=tmp_path, stdout=True)
    assert status == 2
    assert shown.startswith("splitarrow: error: -o - writes binary data")


def test_a_look_fits_the_terminal(served: Served, tmp_path: Path) -> None:
    status, shown, _ = on_terminal("fetch", served.uri("table"), folder=tmp_path, stdout=True)
    assert status == 0
    text = plain(shown)
    table = text[text.index("first values") :].splitlines()
    assert all(len(line) <= 100 for line in table)
