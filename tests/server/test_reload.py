"""Reloading: SIGHUP, the action, and configurations that are broken."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.pki import Pki
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError, DeniedError, NotFoundError, UnavailableError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.catalog.catalog import Catalog
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.server.config import Settings, load_settings
from splitarrow.server.daemon import Daemon
from splitarrow.testing import Daemon as DaemonProcess

OLD, NEW = "the-old-token-of-anna", "the-new-token-of-anna"


def table(rows: int) -> pa.Table:
    return pa.table({"n": list(range(rows))})


def write_tokens(path: Path, token: str) -> None:
    path.write_text(
        f'[[tokens]]\nname = "anna"\ntoken = "{token}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)


def reload_and_wait(daemon: DaemonProcess, event: str) -> str:
    """Send SIGHUP, and return what the daemon logs up to an event."""
    before = len(daemon.log())
    daemon.send_signal(signal.SIGHUP)
    wait_until(lambda: f'"{event}"' in daemon.log()[before:], event)
    return daemon.log()[before:]


@pytest.mark.slow
def test_a_hangup_reloads_datasets_tokens_and_the_log_level(
    daemon: StartDaemon, tmp_path: Path
) -> None:
    config, tokens = tmp_path / "splitarrow.toml", tmp_path / "tokens.toml"
    a, b = (write_file(tmp_path / f"{name}.arrow", table(5)) for name in "ab")
    write_tokens(tokens, OLD)
    start = f'token_file = "{tokens}"\n'
    config.write_text(f'{start}[datasets]\na = "{a}"\n')
    server = daemon(arguments=["--config", str(config)], control="grpc://127.0.0.1:0")

    write_tokens(tokens, NEW)
    config.write_text(f'{start}log_level = "debug"\nbatch_rows = 2\n[datasets]\nb = "{b}"\n')
    log = reload_and_wait(server, "reloaded")
    assert '"changed": ["log_level"]' in log
    wait_until(lambda: '"settings": ["batch_rows"]' in server.log(), "what needs a restart")
    wait_until(lambda: list(json.loads(server.ready_file.read_text())["datasets"]) == ["b"], "b")
    with pytest.raises(DeniedError), splitarrow.connect(server.control_uri, OLD) as client:
        client.datasets()
    with splitarrow.connect(server.control_uri, NEW) as client:
        assert [info.name for info in client.datasets()] == ["b"]
        with client.read("b", transport="tcp") as stream:
            assert stream.read_all().num_rows == 5
    assert '"level": "debug"' in server.log()

    config.write_text(f'{start}\nlog_levl = "info"\n[datasets]\na = "{a}"\n')
    log = reload_and_wait(server, "cannot reload; keeping the old configuration")
    assert f"{config}, line 3: log_levl: no such setting; did you mean 'log_level'?" in log
    config.write_text(f'{start}[datasets]\na = "{a}"\n# lost:\nc = "{tmp_path}/lost.arrow"\n')
    command = [sys.executable, "-m", "splitarrow", "reload", server.control_uri, "--token", NEW]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{config}, line 5: datasets.c: " in done.stderr
    with splitarrow.connect(server.control_uri, NEW) as client:
        assert [info.name for info in client.datasets()] == ["b"]

    others = tmp_path / "others.toml"
    write_tokens(others, OLD)
    config.write_text(f'token_file = "{others}"\n[datasets]\na = "{a}"\nb = "{b}"\n')
    done = subprocess.run(command, capture_output=True, text=True)
    expected = "reloaded: added a; changed token_file, log_level\n"
    assert (done.returncode, done.stdout) == (0, expected)
    with splitarrow.connect(server.control_uri, OLD) as client:
        assert {info.name for info in client.datasets()} == {"a", "b"}
    assert server.stop() == 0


def test_a_reload_drops_no_stream(daemon: StartDaemon, tmp_path: Path) -> None:
    config = tmp_path / "splitarrow.toml"
    big = write_file(tmp_path / "big.arrow", table(2_000_000), batch_rows=1000)
    config.write_text(f'[datasets]\nbig = "{big}"\n')
    server = daemon(arguments=["--config", str(config)])
    uri = server.uri("big")
    with splitarrow.open(uri) as stream:
        rows = next(iter(stream)).num_rows
        config.write_text(f'[datasets]\nother = "{big}"\n')
        for _ in range(5):
            reload_and_wait(server, "reloaded")
        with pytest.raises(NotFoundError):
            splitarrow.open(uri)
        assert rows + stream.read_all().num_rows == 2_000_000


def test_a_new_certificate_is_shown_at_once(daemon: StartDaemon, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    path = write_file(tmp_path / "a.arrow", table(5))
    listen = ["tcp+tls://127.0.0.1:0"]
    server = daemon({"a": path}, listen=listen, tls_cert=pki.path("server"))
    port = DataUri.parse(server.listen[0]).port
    before = shown_certificate(port)
    pki.path("server").write_bytes(pki.path("elsewhere").read_bytes())
    reload_and_wait(server, "reloaded")
    assert shown_certificate(port) != before
    pki.path("server").write_text("no certificate")
    log = reload_and_wait(server, "cannot reload; keeping the old configuration")
    assert str(pki.path("server")) in log


def shown_certificate(port: int | None) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port or 0)) as raw, context.wrap_socket(raw) as tls:
        return tls.getpeercert(binary_form=True)


def test_a_daemon_ends_with_its_terminal(tmp_path: Path) -> None:
    path, ready = write_file(tmp_path / "a.arrow", table(5)), tmp_path / "ready.json"
    command = [sys.executable, "-m", "splitarrow", "serve", str(path), "--ready-file", str(ready)]
    command += ["--listen", "tcp://127.0.0.1:0"]
    ours, theirs = pty.openpty()
    # setsid makes the terminal the controlling one of the daemon.
    process = subprocess.Popen(
        ["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    with process:
        try:
            wait_until(ready.exists, "the ready file")
            process.send_signal(signal.SIGHUP)
            shown = b""
            while b"reloaded" not in shown:
                shown += os.read(ours, 1 << 16)
            os.close(ours)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_reload_finds_new_shards_and_keeps_what_works(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    write_file(folder / "a.arrow", table(3))
    settings = load_settings(datasets={"data": str(folder)}, listen=("tcp://127.0.0.1:0",))
    with Catalog(settings.datasets) as catalog:
        daemon = Daemon(catalog, settings)
        assert catalog.lookup("data").rows == 3
        write_file(folder / "b.arrow", table(4))
        source = catalog.lookup("data").open(Request("data"), Encoding())
        daemon.reloader.reload()
        assert catalog.lookup("data").rows == 7
        groups = [message for group in source for message in group]
        source.close()
        assert sum(message.rows for message in groups) in (3, 7)
        (folder / "c.arrow").write_bytes(b"ARROW1 but no more")
        with pytest.raises(ConfigError, match=r"datasets\.data: .*c\.arrow"):
            daemon.reloader.reload()
        assert catalog.lookup("data").rows == 7


async def test_a_reload_that_another_process_refuses_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens, others = tmp_path / "tokens.toml", tmp_path / "others.toml"
    write_tokens(tokens, OLD)
    write_tokens(others, NEW)
    a, b = (str(write_file(tmp_path / f"{name}.arrow", table(5))) for name in "ab")
    settings = load_settings(
        datasets={"a": a}, token_file=tokens, listen=("tcp://127.0.0.1:0",), log_level="warning"
    )
    changes = {"datasets": {"b": b}, "token_file": others, "log_level": "error"}
    changed = settings.model_copy(update=changes)

    def refuse(_: Settings) -> None:
        raise UnavailableError("another process refuses")

    async def find_state() -> tuple[list[str], list[str], Settings, int]:
        accepted: list[str] = []
        for token in (OLD, NEW):
            with suppress(DeniedError):
                await daemon.access.authenticate({"authorization": f"Bearer {token}"})
                accepted.append(token)
        level = logging.getLogger("splitarrow").level
        return catalog.names(), accepted, daemon.settings, level

    with caplog.at_level("WARNING", "splitarrow"), Catalog(settings.datasets) as catalog:
        daemon = Daemon(catalog, settings)
        before = await find_state()
        daemon.reloader.followers.append(refuse)
        with pytest.raises(UnavailableError), daemon.reloader.prepare(changed) as apply:
            apply()
        assert await find_state() == before == (["a"], [OLD], settings, logging.WARNING)
        daemon.reloader.followers.clear()
        with daemon.reloader.prepare(changed) as apply:
            assert await find_state() == before
            apply()
        assert await find_state() == (["b"], [NEW], changed, logging.ERROR)
        daemon.access.close()


def test_an_update_of_the_catalog_changes_all_or_nothing(tmp_path: Path) -> None:
    with Catalog({"a": table(1), "b": table(2), "kept": table(3)}) as catalog:
        lost = catalog.prepare_update({"a": table(4), "c": str(tmp_path / "lost")}, removed=["b"])
        with pytest.raises(splitarrow.errors.DatasetError) as raised, lost:
            pytest.fail("a dataset that does not exist was opened")
        assert raised.value.stream == "c"
        with catalog.prepare_update({"a": table(4)}, removed=["b"]):
            pass  # another process refuses
        assert {name: catalog.lookup(name).rows for name in catalog.names()} == {
            "a": 1,
            "b": 2,
            "kept": 3,
        }
        changes = {"a": table(4), "c": table(5)}
        with catalog.prepare_update(changes, removed=["b", "absent"]) as serve:
            serve()
        assert {name: catalog.lookup(name).rows for name in catalog.names()} == {
            "a": 4,
            "kept": 3,
            "c": 5,
        }
