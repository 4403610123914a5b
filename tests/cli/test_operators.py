"""The commands for operators: `top`, `cancel`, `drop` and `reload`."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

import splitarrow
from helpers.cli import COMMAND, PATIENCE, Run, read_terminal
from helpers.pki import Pki
from helpers.signals import default_dispositions
from splitarrow.cli.app import COMMANDS, load_command
from splitarrow.cli.status import Rates, StatusSample, _pairs, compute_rates, render_server
from splitarrow.errors import SplitArrowError


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[splitarrow.Server]:
    """A server that all tests of the module share."""
    with splitarrow.serve(
        {"big": pa.table({"x": pa.array(np.arange(8_000_000))}), "small": pa.table({"x": [1]})},
        listen=["tcp://127.0.0.1:0"],
        control="grpc://127.0.0.1:0",
        writable=tmp_path_factory.mktemp("uploads"),
    ) as server:
        yield server


@pytest.fixture
def stream(server: splitarrow.Server) -> Iterator[Iterable[pa.RecordBatch]]:
    """A stream of which the reader has taken one batch."""
    with (
        splitarrow.connect(server.control_uri or "") as client,
        client.read("big", batch_rows=1000) as stream,
    ):
        next(iter(stream))
        yield stream


def look(run: Run, server: splitarrow.Server) -> dict[str, Any]:
    done = run("top", server.control_uri, "--json", "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_an_idle_server(run: Run, server: splitarrow.Server) -> None:
    done = run("top", server.control_uri, "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{server.control_uri}  splitarrow {splitarrow.__version__}  serving" in done.stdout
    assert "nothing is being sent" in done.stdout


def test_a_running_stream_is_shown_and_cancelled(
    run: Run, server: splitarrow.Server, stream: Iterable[pa.RecordBatch]
) -> None:
    report = look(run, server)
    (shown,) = report["streams"]
    assert shown["dataset"] == "big"
    assert report["rates"]["streams"] == 1
    assert [each["dataset"] for each in report["rates"]["datasets"]] == ["big"]
    done = run("top", server.control_uri, "--once", "--interval", "0.1")
    assert re.search(rf"\n{shown['stream']} +big +tcp +[\d,]+ ", done.stdout)
    done = run("cancel", server.control_uri, shown["stream"])
    assert (done.returncode, done.stderr) == (0, "cancelled 1 stream\n")
    with pytest.raises(SplitArrowError, match="cancelled"):
        list(stream)
    assert look(run, server)["streams"] == []


def test_the_rates_of_a_dataset_include_streams_that_have_ended(
    server: splitarrow.Server,
) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        before = StatusSample(0, client.status())
        client.read("small").read_all()
        client.read("small", transport="flight").read_all()
        after = client.status()
    assert after["streams"] == []
    assert (
        after["sent"]["small"]["streams"] - before.report["sent"].get("small", {}).get("streams", 0)
        == 2
    )
    assert compute_rates(before, StatusSample(2, after)).datasets["small"].rows_per_second == 1


def test_a_server_that_responds_again_has_no_rates_yet() -> None:
    report = {"stats": {"bytes_sent": 1 << 40}, "sent": {"big": {"bytes": 1 << 40}}}
    before = {"grpc://a": StatusSample(0, {"error": "no response"})}
    ((_, _, rates),) = _pairs(before, {"grpc://a": StatusSample(1, report)})
    assert rates == Rates()


def test_the_hits_of_caches_are_shown() -> None:
    report = {
        "uptime_seconds": 1,
        "caches": {"shared_memory": {"hits": 3, "misses": 1}, "unused": {"hits": 0, "misses": 0}},
    }
    shown = io.StringIO()
    Console(file=shown, width=100).print(render_server("grpc://a", report, Rates()))
    assert re.search(r"\ncaches +shared memory 75% of 4 uses *\n", shown.getvalue())


def test_a_stream_that_does_not_run(run: Run, server: splitarrow.Server) -> None:
    done = run("cancel", server.control_uri, "12345")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "splitarrow: error: NOT_FOUND: no stream 12345 is running\n"
    assert run("cancel", server.control_uri, "first").returncode == 2


def test_drop(run: Run, server: splitarrow.Server) -> None:
    with splitarrow.connect(server.control_uri or "") as client:
        for name in ("one", "two"):
            client.put(name, pa.table({"x": [1]}))
    done = run("drop", server.control_uri, "one", "--json")
    assert (json.loads(done.stdout), done.stderr) == ({"dropped": "one"}, "")
    done = run("drop", f"{server.control_uri}/two")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "dropped two\n")
    for name, reason in (("one", "no uploaded dataset"), ("small", "belongs to the configuration")):
        done = run("drop", server.control_uri, name)
        assert done.returncode == 1
        assert reason in done.stderr
    done = run("drop", server.control_uri)
    assert done.returncode == 2
    assert "name a dataset" in done.stderr


def test_reload(run: Run, server: splitarrow.Server) -> None:
    done = run("reload", server.control_uri)
    assert (done.returncode, done.stdout, done.stderr) == (0, "reloaded\n", "")


def test_several_servers(run: Run, server: splitarrow.Server) -> None:
    address = (server.control_uri or "").removeprefix("grpc://")
    done = run("top", f"grpc://{address},127.0.0.1:1", "--interval", "0.1")
    assert done.returncode == 0
    assert f"{address}  splitarrow" in done.stdout
    assert "127.0.0.1:1  no response" in done.stdout


def test_the_live_view_ends_with_ctrl_c(server: splitarrow.Server) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with default_dispositions():
        process = subprocess.Popen(
            [*COMMAND, "top", server.control_uri or "", "--interval", "0.1"],
            stdout=slave,
            stderr=slave,
            env=environment,
        )
    os.close(slave)
    try:
        shown = b""
        while shown.count(b"serving") < 2:
            shown += os.read(master, 1 << 16)
        process.send_signal(signal.SIGINT)
        rest = read_terminal(master)
        assert process.wait(PATIENCE) == 0
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_wrong_usage(run: Run) -> None:
    done = run("top", "grpc://127.0.0.1:1", "--interval", "0")
    assert done.returncode == 2
    assert "--interval 0 must be at least 0.1 seconds" in done.stderr
    assert run("top", "grpc://127.0.0.1:1", "--once").returncode == 1


def test_rates_of_a_server_that_has_restarted() -> None:
    stream = {"stream": 1, "dataset": "a", "rows": 10, "bytes": 80}
    before = {"uptime_seconds": 99, "stats": {"bytes_sent": 1000}, "streams": [stream]}
    after = {"uptime_seconds": 1, "stats": {"bytes_sent": 80}, "streams": [stream]}
    rates = compute_rates(StatusSample(0, before), StatusSample(2, after))
    assert rates.total.bytes_per_second == rates.datasets["a"].bytes_per_second == 40


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_connects_has_the_options_of_tls(name: str) -> None:
    command = load_command(name)
    for each in getattr(command, "commands", {"": command}).values():
        options = {option for parameter in each.params for option in parameter.opts}
        if "--token" in options or "--connect-timeout" in options:
            assert {"--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name"} <= options
        if "--token" in options:
            assert "--token-file" in options


def test_tls_options_are_those_of_every_connection(run: Run, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    files = {name: pki.path(name) for name in ("ca", "client-cert", "client-key", "server")}
    with splitarrow.serve(
        {"a": pa.table({"x": [1, 2]})},
        listen=["tcp+tls://127.0.0.1:0"],
        control="grpc+tls://127.0.0.1:0",
        tls_cert=files["server"],
        tls_client_ca=files["ca"],
    ) as server:
        given = [
            word
            for name, file in (("ca", "ca"), ("cert", "client-cert"), ("key", "client-key"))
            for word in (f"--tls-{name}", str(files[file]))
        ]
        for command in (["ls"], ["status"], ["top", "--interval", "0.1"], ["reload"]):
            done = run(*command, server.control_uri, *given)
            assert (done.returncode, done.stderr) == (0, "")
        for command in ("fetch", "head"):  # these read over tcp+tls
            done = run(command, f"{server.control_uri}/a", *given)
            assert done.returncode == 0, done.stderr
        assert run("ls", server.control_uri, *given[:2], "--connect-timeout", 5).returncode == 1
        assert run("ls", server.control_uri).returncode == 1  # nothing is left of the options
        done = run("ls", server.control_uri, "--tls-ca", tmp_path / "absent.pem")
        assert "absent.pem" in done.stderr
        done = run("ls", server.control_uri, "--tls-key", files["client-key"])
        assert (done.returncode, done.stderr) == (
            2,
            "splitarrow: error: --tls-key needs --tls-cert\n",
        )
        # The key of the environment does not belong to the certificate of the command line.
        environment = {**os.environ, "SPLITARROW_TLS_KEY": str(files["ca"])}
        both = tmp_path / "client.pem"
        done = run("ls", server.control_uri, *given[:2], "--tls-cert", both, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
