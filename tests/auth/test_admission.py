"""A server takes signed tickets and nothing else, once it has tokens or keys for tickets."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import (
    ConfigError,
    DeniedError,
    NotFoundError,
    UsageError,
)
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.keys import TicketKeys
from splitarrow.server.auth.tickets import TicketOffice
from splitarrow.transport.certificates import TlsOptions

from ..transport.pki import Pki

TABLE = pa.table({"n": list(range(1000)), "s": [f"row {n}" for n in range(1000)]})
CANARY = "canary-0123456789"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture
def office(key_file: Path) -> Iterator[TicketOffice]:
    """An office with the server's keys, and no memory of what the server took."""
    made = TicketOffice(TicketKeys(path=key_file))
    yield made
    made.close()


LISTEN = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"]


@pytest.fixture
def server(key_file: Path) -> Iterator[splitarrow.Server]:
    with splitarrow.serve({"data": TABLE}, listen=LISTEN, ticket_key_file=key_file) as running:
        yield running


def with_ticket(uri: str, ticket: bytes) -> str:
    return str(DataUri.parse(uri).replace(ticket=ticket))


def test_a_server_s_own_uri_is_good_once(server: splitarrow.Server) -> None:
    uri = server.uri("data")
    assert DataUri.parse(uri).ticket is not None
    with splitarrow.open(uri) as stream:
        assert stream.read_all().equals(TABLE)
    with pytest.raises(DeniedError, match="used already") as caught:
        splitarrow.open(uri)
    assert caught.value.code == "UNAUTHENTICATED"
    assert "sa1." not in str(caught.value) + repr(caught.value.__dict__)


def test_a_ticket_says_what_is_read(server: splitarrow.Server, office: TicketOffice) -> None:
    ticket = office.seal(Request("data", columns=("s",), limit=7), "x")
    with splitarrow.open(with_ticket(server.uri("data"), ticket)) as stream:
        assert stream.read_all().equals(TABLE.select(["s"]).slice(0, 7))


def test_a_pair_of_connections_takes_one_ticket(
    server: splitarrow.Server, office: TicketOffice
) -> None:
    ticket = office.seal(Request("data"), "x")
    pair = [with_ticket(server.uri("data", stream=kind), ticket) for kind in ("metadata", "body")]
    with splitarrow.open(pair) as stream:
        assert stream.read_all().equals(TABLE)
    for uris in (pair, with_ticket(server.uri("data"), ticket)):
        with pytest.raises(DeniedError, match="used already"):
            splitarrow.open(uris)


def test_a_selection_beside_a_signed_ticket_is_a_mistake(server: splitarrow.Server) -> None:
    with pytest.raises(UsageError, match="is signed") as caught:
        splitarrow.open(server.uri("data"), columns=["s"])
    assert "sa1." not in str(caught.value)


def test_everything_else_is_refused(
    server: splitarrow.Server, office: TicketOffice, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "splitarrow")
    good = office.seal(Request("data"), CANARY)
    foreign = TicketOffice()
    bad = [
        b"data",
        b'{"dataset": "data"}',
        good[:-1],
        good[:-1] + (b"A" if good[-1:] != b"A" else b"B"),
        b"sa2." + good[4:],
        foreign.seal(Request("data"), "x"),
        b"\xff\xfe",
        b"sa1." + b"A" * 50_000,
        CANARY.encode(),
    ]
    foreign.close()
    for ticket in bad:
        with pytest.raises(DeniedError) as caught:
            splitarrow.open(with_ticket(server.uri("data"), ticket))
        assert caught.value.code == "UNAUTHENTICATED"
        assert CANARY not in str(caught.value)
        assert "sa1." not in str(caught.value)
    with splitarrow.open(with_ticket(server.uri("data"), good)) as stream:
        assert stream.read_all().equals(TABLE)
    logged = str([record.__dict__ for record in caplog.records])
    assert "sa1." not in logged
    assert CANARY not in logged


def test_a_signed_ticket_does_not_come_back_from_an_open_server(office: TicketOffice) -> None:
    ticket = office.seal(Request("data"), "x")
    with (
        splitarrow.serve({"data": TABLE}) as server,
        pytest.raises(DeniedError, match="no signed tickets") as caught,
    ):
        splitarrow.open(with_ticket(server.uri("data"), ticket))
    assert "sa1." not in str(caught.value) + repr(caught.value.__dict__)


def test_a_dataset_that_is_gone_is_named(server: splitarrow.Server, office: TicketOffice) -> None:
    ticket = office.seal(Request("gone"), "x")
    with pytest.raises(NotFoundError, match="'gone'"):
        splitarrow.open(with_ticket(server.uri("data"), ticket))


def test_open_to_the_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="everybody on the network"):
        splitarrow.serve({"data": TABLE}, listen=["tcp://0.0.0.0:0"])
    with splitarrow.serve({"data": TABLE}, listen=["tcp://0.0.0.0:0"], insecure=True):
        pass


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_traceback_in_the_log_holds_no_variables(style: str) -> None:
    script = f"""if True:
        from splitarrow.server.logs import configure_logs, get_logger
        configure_logs("debug", "{style}")
        def stream(ticket):
            raise ValueError("it failed")
        try:
            stream("".join(reversed("{CANARY[::-1]}")))
        except ValueError:
            get_logger("session").exception("stream failed")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "it failed" in done.stderr
    assert CANARY not in done.stderr


def test_workers_share_what_was_used_and_tls_works_for_them(
    tmp_path: Path, key_file: Path, office: TicketOffice
) -> None:
    pki = Pki(tmp_path)
    with pa.ipc.new_file(str(tmp_path / "data.arrow"), TABLE.schema) as writer:
        writer.write_table(TABLE)
    ready = tmp_path / "ready.json"
    arguments = ["--listen", "tcp+tls://127.0.0.1:0", "--workers", "2", "--ready-file", str(ready)]
    environment = {
        "SPLITARROW_TICKET_KEY_FILE": str(key_file),
        "SPLITARROW_TLS_CERT": str(pki.path("server-cert")),
        "SPLITARROW_TLS_KEY": str(pki.path("server-key")),
        "SPLITARROW_TLS_CLIENT_CA": str(pki.path("ca")),
    }
    command = [sys.executable, "-m", "splitarrow", "serve", f"data={tmp_path / 'data.arrow'}"]
    with (tmp_path / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [*command, *arguments], stdout=log, stderr=log, env={**os.environ, **environment}
        )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert daemon.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told: dict[str, Any] = json.loads(ready.read_text())
        uri = told["datasets"]["data"]["tcp+tls"]
        assert "ticket=" not in uri
        tls = TlsOptions(pki.path("ca"), pki.path("client"))
        ticket = office.seal(Request("data"), "x")
        with splitarrow.open(uri, ticket, tls=tls) as stream:
            assert stream.read_all().equals(TABLE)
        for _ in range(12):  # whichever of the two answers
            with pytest.raises(DeniedError, match="used already"):
                splitarrow.open(uri, ticket, tls=tls)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(20) == 0
    finally:
        daemon.kill()
        daemon.wait()
    logged = (tmp_path / "log").read_text()
    assert "sa1." not in logged
