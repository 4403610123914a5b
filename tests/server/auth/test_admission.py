"""A server with tokens or ticket keys accepts signed tickets only."""

from __future__ import annotations

import logging
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file
from helpers.pki import Pki
from splitarrow.errors import (
    ConfigError,
    DeniedError,
    NotFoundError,
    UsageError,
)
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.tickets import TicketKeys, TicketSigner
from splitarrow.transport.tls_options import TlsOptions

TABLE = pa.table({"n": list(range(1000)), "s": [f"row {n}" for n in range(1000)]})
CANARY = "canary-0123456789"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture
def signer(key_file: Path) -> Iterator[TicketSigner]:
    """A signer with the keys of the server. It does not share the server's replay cache."""
    new_signer = TicketSigner(TicketKeys(path=key_file))
    yield new_signer
    new_signer.close()


LISTEN = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"]


@pytest.fixture
def server(key_file: Path) -> Iterator[splitarrow.Server]:
    with splitarrow.serve({"data": TABLE}, listen=LISTEN, ticket_key_file=key_file) as running:
        yield running


def with_ticket(uri: str, ticket: bytes) -> str:
    return str(DataUri.parse(uri).replace(ticket=ticket))


def test_the_uri_of_a_server_is_good_once(server: splitarrow.Server) -> None:
    uri = server.uri("data")
    assert DataUri.parse(uri).ticket is not None
    with splitarrow.open(uri) as stream:
        assert stream.read_all().equals(TABLE)
    with pytest.raises(DeniedError, match="already used") as caught:
        splitarrow.open(uri)
    assert caught.value.code == "UNAUTHENTICATED"
    assert "sa1." not in str(caught.value) + repr(caught.value.__dict__)


def test_a_ticket_determines_the_request(server: splitarrow.Server, signer: TicketSigner) -> None:
    ticket = signer.sign(Request("data", columns=("s",), limit=7), "x")
    with splitarrow.open(with_ticket(server.uri("data"), ticket)) as stream:
        assert stream.read_all().equals(TABLE.select(["s"]).slice(0, 7))


def test_a_pair_of_connections_uses_one_ticket(
    server: splitarrow.Server, signer: TicketSigner
) -> None:
    ticket = signer.sign(Request("data"), "x")
    pair = [
        with_ticket(server.uri("data", stream=stream), ticket) for stream in ("metadata", "body")
    ]
    with splitarrow.open(pair) as stream:
        assert stream.read_all().equals(TABLE)
    for uris in (pair, with_ticket(server.uri("data"), ticket)):
        with pytest.raises(DeniedError, match="already used"):
            splitarrow.open(uris)


def test_a_signed_ticket_excludes_other_selections(server: splitarrow.Server) -> None:
    with pytest.raises(UsageError, match="is signed") as caught:
        splitarrow.open(server.uri("data"), columns=["s"])
    assert "sa1." not in str(caught.value)


def test_other_tickets_are_refused_without_quoting_them(
    server: splitarrow.Server, signer: TicketSigner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "splitarrow")
    good = signer.sign(Request("data"), CANARY)
    foreign = TicketSigner()
    bad = [
        b"data",
        b'{"dataset": "data"}',
        good[:-1],
        good[:-1] + (b"A" if good[-1:] != b"A" else b"B"),
        b"sa2." + good[4:],
        foreign.sign(Request("data"), "x"),
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


def test_a_server_with_unsigned_tickets_does_not_quote_a_signed_one(signer: TicketSigner) -> None:
    ticket = signer.sign(Request("data"), "x")
    with (
        splitarrow.serve({"data": TABLE}) as server,
        pytest.raises(DeniedError, match="does not accept signed tickets") as caught,
    ):
        splitarrow.open(with_ticket(server.uri("data"), ticket))
    assert "sa1." not in str(caught.value) + repr(caught.value.__dict__)


def test_a_removed_dataset_is_named_in_the_error(
    server: splitarrow.Server, signer: TicketSigner
) -> None:
    ticket = signer.sign(Request("gone"), "x")
    with pytest.raises(NotFoundError, match="'gone'"):
        splitarrow.open(with_ticket(server.uri("data"), ticket))


def test_an_unprotected_listener_on_the_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="everyone on the network"):
        splitarrow.serve({"data": TABLE}, listen=["tcp://0.0.0.0:0"])
    with splitarrow.serve({"data": TABLE}, listen=["tcp://0.0.0.0:0"], insecure=True):
        pass


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_logged_traceback_has_no_variables_and_no_escape_sequences(style: str) -> None:
    script = f"""if True:
        from splitarrow.server.logs import configure_logs, get_logger
        configure_logs("debug", "{style}")
        def stream(ticket):
            raise ValueError("it failed \\x1b[31m")
        try:
            stream("".join(reversed("{CANARY[::-1]}")))
        except ValueError:
            controls = "a\\x1b]0;x\\x07\\x9b\\x7f\\u202e\\u2066b"
            get_logger("session").exception("stream failed " + controls, dataset=controls)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "it failed" in done.stderr
    assert CANARY not in done.stderr
    assert "\\x9b" in done.stderr or "\\u009b" in done.stderr
    assert all(line.isprintable() for line in done.stderr.split("\n"))


@pytest.mark.slow
def test_workers_share_the_used_tickets_over_tls(
    daemon: StartDaemon, tmp_path: Path, key_file: Path, signer: TicketSigner
) -> None:
    pki = Pki(tmp_path)
    write_file(tmp_path / "data.arrow", TABLE)
    served = daemon(
        {"data": tmp_path / "data.arrow"},
        listen=["tcp+tls://127.0.0.1:0"],
        workers=2,
        environment={
            "SPLITARROW_TICKET_KEY_FILE": str(key_file),
            "SPLITARROW_TLS_CERT": str(pki.path("server-cert")),
            "SPLITARROW_TLS_KEY": str(pki.path("server-key")),
            "SPLITARROW_TLS_CLIENT_CA": str(pki.path("ca")),
        },
    )
    uri = served.uri("data")
    assert "ticket=" not in uri
    tls = TlsOptions(pki.path("ca"), pki.path("client"))
    ticket = signer.sign(Request("data"), "x")
    with splitarrow.open(uri, ticket, tls=tls) as stream:
        assert stream.read_all().equals(TABLE)
    for _ in range(12):  # either worker may answer
        with pytest.raises(DeniedError, match="already used"):
            splitarrow.open(uri, ticket, tls=tls)
    assert served.stop() == 0
    logged = served.log()
    assert "sa1." not in logged
