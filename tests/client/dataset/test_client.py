"""The client of one control plane: listings, uploads, errors, tokens and TLS."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest
import trustme

from helpers.client_server import SHARDS
from helpers.control_plane import Running, running
from splitarrow import errors
from splitarrow.client.connect import connect
from splitarrow.client.dataset.client import Client
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.errors import convert_grpc_error
from splitarrow.client.rpc.upload import upload_dataset
from splitarrow.client.uris import parse_control_uri
from splitarrow.server.auth.access_control import AccessControl, Authenticator
from splitarrow.server.auth.tickets import TicketSigner
from splitarrow.server.auth.token_file import TokenFile
from splitarrow.transport.tls_options import TlsOptions

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


def test_datasets_lists_names_that_match(client: Client, table: pa.Table) -> None:
    found = {info.name: info for info in client.datasets()}
    assert found.keys() == {"table", "many"}
    assert (found["table"].rows, found["table"].kind) == (table.num_rows, "table")
    assert found["many"].schema == table.schema
    assert [info.name for info in client.datasets("ma*")] == ["many"]


def test_info_describes_a_dataset(client: Client, table: pa.Table) -> None:
    info = client.info("many")
    assert (info.name, info.rows, len(info.endpoints)) == ("many", table.num_rows, SHARDS)
    assert info.bytes
    assert info.version
    assert info.endpoints[0].locations[0].startswith("tcp://127.0.0.1:")
    assert client.schema("many") == table.schema


def test_status_returns_figures(client: Client) -> None:
    status = client.status()
    assert status["draining"] is False
    assert "streams_total" in status["stats"]


def test_an_upload_can_be_read_and_dropped(client: Client, table: pa.Table) -> None:
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


def test_an_upload_replaces_another_only_on_request(client: Client) -> None:
    first, second = pa.table({"n": [1]}), pa.table({"n": [2]})
    client.put("twice", first)
    try:
        with pytest.raises(errors.RemoteError, match='if_exists="replace", or --replace') as raised:
            client.put("twice", second)
        assert raised.value.code == "ALREADY_EXISTS"
        assert client.read("twice").read_all() == first
        assert client.put("twice", second, if_exists="replace").rows == 1
        assert client.read("twice").read_all() == second
    finally:
        client.drop("twice")
    client.put("twice", first)
    client.drop("twice")


def test_an_upload_whose_response_was_lost_can_be_repeated(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_response(*args: Any) -> None:
        upload_dataset(*args)
        raise errors.ConnectionLostError("the connection was lost")

    table, other = pa.table({"n": [1]}), pa.table({"n": [2]})
    for replaced in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr("splitarrow.client.dataset.client.upload_dataset", lose_response)
            with pytest.raises(errors.ConnectionLostError):
                client.put("lost", table)
        if replaced:
            with connect(client.uri) as another:
                another.put("lost", other, if_exists="replace")
        else:
            assert client.put("lost", table).rows == 1
        with pytest.raises(errors.RemoteError, match="the dataset exists"):
            client.put("lost", table)
        assert client.read("lost").read_all() == (other if replaced else table)
        client.drop("lost")


def test_of_uploads_of_a_new_name_at_the_same_time_exactly_one_succeeds(client: Client) -> None:
    others, together = pa.table({"n": [0]}), threading.Barrier(4)

    def upload(number: int) -> str:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from others.to_batches()
            together.wait(20)  # all have begun
            yield pa.record_batch({"n": [number]})

        try:
            client.put("contested", batches())
        except errors.RemoteError as error:
            return error.code
        return "stored"

    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(upload, range(1, 5)))
    assert sorted(stored) == [*["ALREADY_EXISTS"] * 3, "stored"]
    found = client.read("contested").read_all()["n"].to_pylist()
    client.drop("contested")
    assert found == [0, 1 + stored.index("stored")]


@pytest.mark.parametrize("kind", ["reader", "batches", "batch", "capsule", "empty", "none"])
def test_put_accepts_any_arrow_data(client: Client, table: pa.Table, kind: str) -> None:
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


def test_an_upload_keeps_changing_dictionaries(client: Client) -> None:
    words: Any = pa.chunked_array(
        [pa.array(["a", "b"]), pa.array(["c", "a", "d"])]
    ).dictionary_encode()
    client.put("words", pa.table({"word": words}))
    with client.read("words") as stream:
        assert stream.read_all()["word"].to_pylist() == ["a", "b", "c", "a", "d"]
    client.drop("words")


def test_an_upload_reads_no_batch_after_it_has_returned(server: Running, table: pa.Table) -> None:
    """The caller may close the file behind the batches: reading it then would crash."""
    client = connect(server.uri)
    returned = threading.Event()
    states: list[bool] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield table.to_batches()[0]
        client.close()  # ends the call
        states.append(returned.wait(0.2))

    with pytest.raises(errors.SplitArrowError):
        client.put("broken", batches())
    returned.set()
    assert states == [False]


def test_an_upload_that_fails_at_the_client_leaves_nothing(client: Client, table: pa.Table) -> None:
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


def test_refusals_are_splitarrow_errors_that_name_the_dataset(
    client: Client, table: pa.Table
) -> None:
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


@pytest.mark.parametrize(
    ("seconds", "interval"), [(10.0, "10000"), (0.5, "500"), (0.0, "1"), (None, None)]
)
def test_do_get_requests_keep_alives_in_milliseconds(
    seconds: float | None, interval: str | None
) -> None:
    seen: dict[str, str] = {}

    def unary_stream(method: str) -> Any:
        return lambda message, metadata: seen.update(metadata)

    with closing(
        FlightChannel(parse_control_uri("grpc://127.0.0.1:1"), "a-token", None, 1)
    ) as flight:
        flight._channel.close()
        flight._channel = SimpleNamespace(unary_stream=unary_stream, close=lambda: None)
        flight.do_get(b"ticket", seconds)
    assert seen.get("splitarrow-keep-alive") == interval
    assert seen["authorization"] == "Bearer a-token"


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: code.name)
def test_every_grpc_status_is_converted(code: grpc.StatusCode) -> None:
    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return code

        def details(self) -> str:
            return "it was secret-word that did it"

    error = convert_grpc_error(Failed(), "grpc://host:1", dataset="a", secrets=("secret-word",))
    assert isinstance(error, errors.SplitArrowError)
    assert "secret-word" not in str(error)
    if isinstance(error, errors.RemoteError):
        assert error.code == code.name


@pytest.mark.parametrize(
    ("code", "details", "expected"),
    [
        ("DEADLINE_EXCEEDED", "", errors.StallError),
        ("UNKNOWN", "failed to connect to all addresses; last error: UNKNOWN: no route", None),
        ("NOT_FOUND", "no dataset", errors.NotFoundError),
        ("CANCELLED", "", errors.ConnectionLostError),
    ],
)
def test_an_error_after_a_close_is_a_closed_error(
    code: str, details: str, expected: type[Exception] | None
) -> None:
    class Failed(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode[code]

        def details(self) -> str:
            return details

    error = convert_grpc_error(Failed(), "grpc://host:1", dataset="a")
    assert type(error) is (expected or errors.ConnectError)
    assert error.stream == "a"
    closed = convert_grpc_error(Failed(), "grpc://host:1", dataset="a", closed=True)
    assert type(closed) is errors.ClosedError


@pytest.mark.parametrize(
    "uri", ["tcp://host:1", "grpc://", "grpc://host/path", "host", "grpc://a?x=1"]
)
def test_an_invalid_control_uri_is_refused(uri: str) -> None:
    with pytest.raises(errors.UriError):
        connect(uri)


def test_connecting_to_no_server_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        with pytest.raises(errors.ConnectError, match=f"grpc://127.0.0.1:{port}"):
            connect(f"grpc://127.0.0.1:{port}", connect_timeout=0.2)  # it never responds
    with pytest.raises(errors.ConnectError, match="refused"):
        connect(f"grpc://127.0.0.1:{port}")


def test_connecting_to_another_protocol_is_an_error(server: Running) -> None:
    with pytest.raises(errors.TransportError):
        connect(server.daemon.uris[0].address.replace("tcp:", "grpc:"), connect_timeout=5)


def test_a_closed_client_refuses_calls(server: Running) -> None:
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
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    with running(
        {"many": folder, "other": table},
        access=AccessControl(Authenticator(TokenFile(path)), TicketSigner()),
        writable=uploads,
    ) as served:
        yield served


def test_a_token_authenticates_and_is_never_shown(
    guarded: Running, table: pa.Table, caplog: pytest.LogCaptureFixture
) -> None:
    for token in (None, "wrong"):
        with pytest.raises(errors.DeniedError):
            connect(guarded.uri, token)
    with pytest.raises(errors.UsageError) as refused:
        connect(guarded.uri, f"{CANARY}\n{CANARY}")
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


def test_control_planes_with_tls(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_threads_share_a_client(client: Client, table: pa.Table) -> None:
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


def test_status_can_be_serialized_as_json(client: Client) -> None:
    assert json.loads(json.dumps(client.status()))


def test_tls_options_apply_to_data_connections(
    tmp_path: Path, table: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("name", ["connect_timeout", "timeout"])
@pytest.mark.parametrize("seconds", [0, -1])
def test_a_time_limit_must_be_more_than_0(name: str, seconds: int) -> None:
    limits: Any = {name: seconds}
    with pytest.raises(errors.UsageError, match=f"{name} is {seconds}; expected more than 0"):
        connect("grpc://127.0.0.1:1", **limits)
