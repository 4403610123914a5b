"""Listing, describing, uploading, dropping; errors and tokens."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
import trustme

from splitarrow import errors
from splitarrow.client.control import Client, connect
from splitarrow.client.refusals import failure
from splitarrow.server.auth.guard import Guard
from splitarrow.server.auth.tickets import TicketOffice
from splitarrow.server.auth.tokens import TokenFile
from splitarrow.transport.certificates import TlsOptions

from .conftest import SHARDS, Running, running

CANARY = "canary-token-of-anna"
TOKENS = f"""
[[tokens]]
name = "anna"
token = "{CANARY}"
datasets = ["many", "mine"]
write = ["mine"]
"""


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with connect(server.uri) as client:
        yield client


def test_datasets(client: Client, table: pa.Table) -> None:
    found = {info.name: info for info in client.datasets()}
    assert found.keys() == {"table", "many"}
    assert (found["table"].rows, found["table"].kind) == (table.num_rows, "table")
    assert found["many"].schema == table.schema
    assert [info.name for info in client.datasets("ma*")] == ["many"]


def test_info(client: Client, table: pa.Table) -> None:
    info = client.info("many")
    assert (info.name, info.rows, len(info.endpoints)) == ("many", table.num_rows, SHARDS)
    assert info.bytes
    assert info.version
    assert info.endpoints[0].locations[0].startswith("tcp://127.0.0.1:")
    assert client.schema("many") == table.schema


def test_status(client: Client) -> None:
    status = client.status()
    assert status["draining"] is False
    assert "streams_total" in status["stats"]


def test_put_and_drop(client: Client, table: pa.Table) -> None:
    told: list[tuple[int, int]] = []
    stored = client.put("new", table, progress=lambda rows, nbytes: told.append((rows, nbytes)))
    assert (stored.name, stored.rows) == ("new", table.num_rows)
    assert told[-1][0] == table.num_rows
    assert told[-1][1] > 0
    with client.read("new") as stream:
        assert stream.read_all() == table
    client.drop("new")
    with pytest.raises(errors.NotFoundError, match="'new'"):
        client.info("new")


@pytest.mark.parametrize("kind", ["reader", "batches", "batch", "capsule", "empty", "none"])
def test_put_takes(client: Client, table: pa.Table, kind: str) -> None:
    class Capsule:
        def __arrow_c_stream__(self, schema: Any = None) -> Any:
            return table.__arrow_c_stream__(schema)

    batch = table.to_batches()[0]
    data, schema, expected = {
        "reader": (table.to_reader(), None, table),
        "batches": (iter(table.to_batches()), None, table),
        "batch": (batch, None, pa.table(batch)),
        "capsule": (Capsule(), None, table),
        "empty": (table.schema.empty_table(), None, table.schema.empty_table()),
        "none": ([], table.schema, table.schema.empty_table()),
    }[kind]
    client.put(kind, data, schema=schema)
    try:
        with client.read(kind) as stream:
            assert stream.read_all() == expected
    finally:
        client.drop(kind)


def test_dictionaries_are_uploaded(client: Client) -> None:
    words: Any = pa.chunked_array(
        [pa.array(["a", "b"]), pa.array(["c", "a", "d"])]
    ).dictionary_encode()
    client.put("words", pa.table({"word": words}))
    with client.read("words") as stream:
        assert stream.read_all()["word"].to_pylist() == ["a", "b", "c", "a", "d"]
    client.drop("words")


def test_an_upload_that_fails_here_leaves_nothing(client: Client, table: pa.Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches()[:3]
        raise ZeroDivisionError

    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            client.put("broken", batches())
        assert "broken" not in {info.name for info in client.datasets()}
    other = pa.record_batch({"x": [1]})
    with pytest.raises(errors.UsageError, match="different schemas"):
        client.put("broken", [table.to_batches()[0], other])
    with pytest.raises(errors.UsageError, match="no batches"):
        client.put("broken", [])
    with pytest.raises(errors.UsageError, match="int"):
        client.put("broken", [1])
    with pytest.raises(errors.UsageError, match="int"):
        client.put("broken", 1)


def test_refusals_are_ours_and_name_the_dataset(client: Client, table: pa.Table) -> None:
    with pytest.raises(errors.NotFoundError, match="'nope'"):
        client.info("nope")
    with pytest.raises(errors.NotFoundError, match=r"'tabel'.*'table'"):
        client.read("tabel")
    with pytest.raises(errors.NotFoundError, match="'x'"):
        client.read("table", columns=["x"])
    with pytest.raises(errors.RemoteError, match="'table'") as refused:
        client.drop("table")
    assert refused.value.code == "FAILED_PRECONDITION"
    with pytest.raises(errors.RemoteError, match="table"):
        client.put("table", table)
    with pytest.raises(errors.RemoteError, match="'dance'"):
        client.act("dance")
    for bad in ("", "a\0b"):
        with pytest.raises(errors.UsageError):
            client.info(bad)


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_no_status_passes_unmapped(code: grpc.StatusCode) -> None:
    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return code

        def details(self) -> str:
            return "it was secret-word that did it"

    error = failure(Failed(), "grpc://host:1", subject="a", secret="secret-word")
    assert isinstance(error, errors.SplitArrowError)
    assert "secret-word" not in str(error)
    if isinstance(error, errors.RemoteError):
        assert error.code == code.name


@pytest.mark.parametrize(
    "uri", ["tcp://host:1", "grpc://", "grpc://host/path", "host", "grpc://a?x=1"]
)
def test_bad_addresses(uri: str) -> None:
    with pytest.raises(errors.UriError):
        connect(uri)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        with pytest.raises(errors.ConnectError, match=f"grpc://127.0.0.1:{port}"):
            connect(f"grpc://127.0.0.1:{port}", connect_timeout=0.2)  # it never answers
    with pytest.raises(errors.ConnectError, match="refused"):
        connect(f"grpc://127.0.0.1:{port}")


def test_something_else_is_there(server: Running) -> None:
    with pytest.raises(errors.TransportError):
        connect(server.daemon.uris[0].address.replace("tcp:", "grpc:"), connect_timeout=5)


def test_a_closed_client(server: Running) -> None:
    client = connect(server.uri)
    client.close()
    client.close()
    with pytest.raises(errors.ClosedError):
        client.datasets()


@pytest.fixture
def guarded(tmp_path: Path, folder: Path, table: pa.Table) -> Iterator[Running]:
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    path.chmod(0o600)
    office = TicketOffice()
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with running(
        {"many": folder, "other": table},
        guard=Guard(TokenFile(path)),
        office=office,
        writable=uploads,
    ) as served:
        yield served
    office.close()


def test_tokens(guarded: Running, table: pa.Table, caplog: pytest.LogCaptureFixture) -> None:
    for token in (None, "wrong"):
        with pytest.raises(errors.DeniedError):
            connect(guarded.uri, token)
    with pytest.raises(errors.UsageError) as refused:
        connect(guarded.uri, f"{CANARY}\n")
    assert CANARY not in str(refused.value)
    with connect(guarded.uri, CANARY) as client:
        assert [info.name for info in client.datasets()] == ["many"]
        shown = repr(client) + repr(client.info("many"))
        with pytest.raises(errors.RemoteError) as hidden:
            client.read("other")
        with pytest.raises(errors.DeniedError) as denied:
            client.put("many2", table)
        client.put("mine", table)
        with client.read("many", transport="flight") as stream:
            assert stream.read_all() == table
    for text in (shown, repr(hidden.value), repr(denied.value), caplog.text):
        assert CANARY not in text
        assert "sa1." not in text


def test_tls(tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "host.example")
    ca, cert, own = (tmp_path / name for name in ("ca.pem", "cert.pem", "own.pem"))
    authority.cert_pem.write_to_path(ca)
    certificate.private_key_and_cert_chain_pem.write_to_path(cert)
    authority.issue_cert("anna@example.org").private_key_and_cert_chain_pem.write_to_path(own)
    with running(
        {"table": table}, control="grpc+tls://127.0.0.1:0", tls_cert=cert, tls_client_ca=ca
    ) as served:
        for tls in (TlsOptions(ca, own), TlsOptions(ca, own, server_name="host.example")):
            with connect(served.uri, tls=tls) as client, client.read("table") as stream:
                assert stream.read_all() == table
        monkeypatch.setenv("SPLITARROW_TLS_CA", str(ca))
        monkeypatch.setenv("SPLITARROW_TLS_CERT", str(own))
        with connect(served.uri) as client:
            assert client.datasets()
        monkeypatch.delenv("SPLITARROW_TLS_CA")
        for tls in (None, TlsOptions(ca), TlsOptions(ca, own, server_name="other.example")):
            with pytest.raises(errors.TransportError):
                connect(served.uri, tls=tls, connect_timeout=5)
        with pytest.raises(errors.UsageError, match=r"nothing\.pem"):
            connect(served.uri, tls=TlsOptions(tmp_path / "nothing.pem"))
        with pytest.raises(errors.UsageError, match="server_name"):
            connect(served.uri, tls=TlsOptions(ca, check_name=False))


def test_several_threads(client: Client, table: pa.Table) -> None:
    results: list[Any] = []

    def read() -> None:
        with client.read("many") as stream:
            results.append(stream.read_all() == table)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_status_is_json(client: Client) -> None:
    assert json.loads(json.dumps(client.status()))


def test_tls_for_the_data(tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    ca, cert = tmp_path / "ca.pem", tmp_path / "cert.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(cert)
    monkeypatch.setenv("SPLITARROW_TLS_CERT", str(cert))
    with running(
        {"table": table},
        control="grpc+tls://127.0.0.1:0",
        listen=("tcp+tls://127.0.0.1:0",),
        tls_cert=cert,
    ) as served:
        monkeypatch.delenv("SPLITARROW_TLS_CERT")
        tls = TlsOptions(ca)
        with connect(served.uri, tls=tls) as client, client.read("table") as stream:
            assert stream.transport == "tcp+tls"
            assert stream.read_all() == table
        monkeypatch.setenv("SPLITARROW_TLS_CA", str(ca))
        with connect(served.uri) as client, client.read("table") as stream:
            assert stream.transport == "tcp+tls"
            assert stream.read_all() == table
