"""``splitarrow serve``: what it takes, what it says, how it ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from helpers.cli import PATIENCE, Run, Served, Start, open_listener, read
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.cli.serve import parse_datasets
from splitarrow.errors import UsageError
from splitarrow.server.config import Settings


@pytest.fixture
def words(tmp_path: Path) -> pa.Table:
    """A table, that lies in words.arrow."""
    table = pa.table({"n": [1, 2, 3], "word": ["one", "two", None]})
    write_file(tmp_path / "words.arrow", table)
    return table


def first_lines(process: subprocess.Popen[str], last: str) -> list[str]:
    """Read standard output up to a line that begins with `last`."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(last):
            return lines
    raise AssertionError(f"it ended: {lines}")


def test_it_says_what_it_serves_and_how_to_fetch_it(
    start: Start, run: Run, words: pa.Table, tmp_path: Path
) -> None:
    arguments = ("--listen", "tcp://127.0.0.1:0", "--log-format", "console")
    process = start("serve", "words.arrow", "again=words.arrow", *arguments)
    lines = first_lines(process, "Serving on ")
    assert lines[1].split() == ["dataset", "kind", "rows", "size", "columns"]
    assert re.fullmatch(r"words +arrow file +3 +\d+ B +2", lines[2])
    assert re.fullmatch(r"again +arrow file +3 +\d+ B +2", lines[3])
    commands = [line for line in lines if line.startswith("  splitarrow fetch ")]
    program, *command = shlex.split(commands[0])
    assert program == "splitarrow"
    assert command[-2:] == ["-o", "words-copy.arrow"]  # words.arrow is what is served
    assert commands[1].endswith("/again -o again.arrow")
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "words-copy.arrow").equals(words)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0


def test_it_tells_both_halves(start: Start, run: Run, words: pa.Table) -> None:
    halves = ("--listen", "tcp://127.0.0.1:0?stream=metadata")
    halves += ("--listen", "tcp://127.0.0.1:0?stream=body")
    process = start("serve", "words.arrow", *halves, "--log-format", "console")
    lines = first_lines(process, "Serving on ")
    commands = [line for line in lines if line.startswith("  splitarrow fetch ")]
    command = shlex.split(commands[0])[1:-2]
    assert ["stream=metadata" in part for part in command] == [False, True, False]
    assert "word" in run(*command).stdout


def test_in_a_pipe_the_log_is_json_and_all_there_is(
    start: Start, words: pa.Table, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    process = start("serve", "words.arrow", "--listen", "tcp://127.0.0.1:0", "--ready-file", ready)
    wait_until(lambda: ready.exists() or process.poll() is not None, "the ready file")
    assert set(json.loads(ready.read_text())["datasets"]) == {"words"}
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (0, "")
    events = [json.loads(line) for line in stderr.splitlines()]
    assert events[0]["event"] == "serving"
    assert not ready.exists()


def test_settings_come_from_a_file_and_options_win(
    start: Start, words: pa.Table, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    (tmp_path / "serve.toml").write_text(
        'listen = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0"]\nlog_level = "debug"\n'
        f'ready_file = "{ready}"\n[datasets]\nfiled = "words.arrow"\n'
    )
    arguments = ("--config", "serve.toml", "--listen", "tcp://127.0.0.1:0", "given=words.arrow")
    process = start("serve", *arguments)
    wait_until(lambda: ready.exists() or process.poll() is not None, "the ready file")
    ready_info = json.loads(ready.read_text())
    assert set(ready_info["datasets"]) == {"filed", "given"}
    assert len(ready_info["listen"]) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


FAILURES: list[tuple[int, list[str], str]] = [
    (1, ["lost.arrow"], "lost.arrow"),
    (1, ["bad.arrow"], "bad.arrow"),
    (1, ["cut.arrow"], "cut.arrow"),
    (1, ["words.arrow", "--ready-file", "missing/ready"], "cannot write the ready file"),
    (
        1,
        ["words.arrow", "--listen", "tcp://192.0.2.1:0", "--insecure"],
        "cannot listen on tcp://192.0.2.1:0",
    ),
    (1, ["words.arrow", "--listen", "tcp://0.0.0.0:0"], "everyone on the network could read"),
    (
        1,
        ["words.arrow", "--listen", "tcp://0.0.0.0:0", "--workers", "2"],
        "everyone on the network could read",
    ),
    (2, ["words.arrow", "--listen", "carrier://pigeon"], "unknown scheme 'carrier'"),
    (
        2,
        ["words.arrow", "--config", "missing.toml"],
        "missing.toml: the configuration file does not exist",
    ),
    (2, ["words.arrow", "--config", "bad.toml"], "bad.toml"),
    (2, ["words.arrow", "--config", "odd.toml"], "colour"),
    (1, ["words.arrow", "--control", "http://127.0.0.1:0"], "'http'"),
    (1, ["words.arrow", "--control", "grpc+tls://127.0.0.1:0"], "needs tls_cert"),
    (2, ["words.arrow", "--workers", "0"], "'--workers'"),
    (
        1,
        ["words.arrow", "--listen", "shm://", "--workers", "2"],
        "workers: 2 workers have no listener to share",
    ),
    (2, ["words.arrow", "--compression", "gzip"], "'gzip' is not one of"),
    (2, [], "nothing to serve: name a dataset"),
]


@pytest.mark.parametrize(("status", "arguments", "said"), FAILURES)
def test_a_start_that_fails(
    run: Run, words: pa.Table, tmp_path: Path, status: int, arguments: list[str], said: str
) -> None:
    (tmp_path / "bad.arrow").write_text("no Arrow at all")
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "words.arrow").read_bytes()[:-40])
    (tmp_path / "bad.toml").write_text("listen = [")
    (tmp_path / "odd.toml").write_text("colour = 1\n")
    listen = [] if "--listen" in arguments else ["--listen", "tcp://127.0.0.1:0"]
    done = run("serve", *arguments, *listen)
    assert done.stdout == ""
    assert done.stderr.startswith("splitarrow: error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr
    assert done.returncode == status


def test_an_address_that_is_taken(run: Run, words: pa.Table) -> None:
    with open_listener() as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        # The other program accepts no connection, or ends each at once.
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        done = run("serve", "words.arrow", "--listen", address)
        thread.join()
    advice = "choose another port, or any free one with --listen tcp://127.0.0.1:0"
    said = f"cannot listen on {address}: Address already in use by another program; {advice}\n"
    assert (done.returncode, done.stderr) == (1, f"splitarrow: error: {said}")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_address_that_another_server_has(
    run: Run, words: pa.Table, served: Served, workers: str
) -> None:
    address = f"tcp://127.0.0.1:{served.port}"
    done = run("serve", "words.arrow", "--listen", address, "--workers", workers)
    advice = "choose another port, or any free one with --listen tcp://127.0.0.1:0"
    problem = f"cannot listen on {address}: Address already in use by another splitarrow server"
    assert (done.returncode, done.stderr) == (1, f"splitarrow: error: {problem}; {advice}\n")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:8835", "'127.0.0.1:8835' is not a URI; expected grpc://host:port or "),
        ("127.0.0.1:8835", "grpc+tls://host:port, as in grpc://127.0.0.1:8835\n"),
        ("grpc://127.0.0.1:99999", "malformed URI 'grpc://127.0.0.1:99999'"),
        ("http://127.0.0.1:0", "http://127.0.0.1:0 has the scheme 'http'; expected grpc://"),
        ("grpc+tls://127.0.0.1:0", "grpc+tls:// needs tls_cert"),
    ],
)
def test_a_malformed_control_address_is_reported_before_a_used_port(
    run: Run, words: pa.Table, served: Served, address: str, said: str
) -> None:
    listen = f"tcp://127.0.0.1:{served.port}"
    done = run("serve", "words.arrow", "--listen", listen, "--control", address)
    assert done.returncode in (1, 2)
    assert re.match("splitarrow: error: (--)?control: ", done.stderr)
    assert said in done.stderr


@pytest.mark.parametrize(
    "harm",
    [
        "vanished",
        *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("truncated", "forbidden")),
    ],
)
def test_a_file_that_goes_bad_while_it_is_served(
    start: Start, run: Run, words: pa.Table, tmp_path: Path, harm: str
) -> None:
    path, ready = tmp_path / "words.arrow", tmp_path / "ready.json"
    process = start("serve", path, "--listen", "tcp://127.0.0.1:0", "--ready-file", ready)
    wait_until(lambda: ready.exists() or process.poll() is not None, "the ready file")
    uri = json.loads(ready.read_text())["datasets"]["words"]["tcp"]
    assert run("fetch", uri, "-q").returncode == 0
    if harm == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    else:
        path.unlink()
    if harm == "forbidden":
        path.mkdir()
    done = run("fetch", uri, "-o", "copy.arrow")
    assert done.returncode == 1
    assert done.stderr.startswith("splitarrow: error: DATA_LOSS: ")
    assert done.stderr.count("\n") == 1
    assert "'words'" in done.stderr
    assert "words.arrow" not in done.stderr
    assert not (tmp_path / "copy.arrow").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_names_of_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "year=2026").mkdir()
    (tmp_path / "trips").mkdir()
    given = ["a=x.arrow", "data/b.parquet", "c=d=e", "trips/", "year=2026", "both=trips"]
    assert parse_datasets(given) == {
        "a": "x.arrow",
        "b": "data/b.parquet",
        "c": "d=e",
        "trips": "trips/",
        "year=2026": "year=2026",
        "both": "trips",
    }
    assert parse_datasets(["."]) == {tmp_path.name: "."}
    assert parse_datasets(["x.arrow", "x=x.arrow"]) == {"x": "x.arrow"}
    for wrong in (["=x.arrow"], ["x="], [""], ["/"], ["x.arrow", "y/x.arrow"]):
        with pytest.raises(UsageError):
            parse_datasets(wrong)


def test_help_shows_the_defaults(run: Run) -> None:
    defaults = Settings.model_fields
    shown: dict[str, Any] = {
        "--listen": f"{defaults['listen'].default[0]}, and shared memory for readers on this host",
        "--drain-seconds": defaults["drain_seconds"].default,
        "--idle-seconds": defaults["idle_seconds"].default,
        "--max-connections": defaults["max_connections"].default,
        "--workers": defaults["workers"].default,
        "--log-level": defaults["log_level"].default,
        "--log-format": defaults["log_format"].default,
    }
    plain = " ".join(re.sub(r"[│╭╰─╮╯]", " ", run("serve", "--help").stdout).split())
    for option, value in shown.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        assert re.search(rf"{option} .*?\[default: {re.escape(text)}[\]:]", plain), option
