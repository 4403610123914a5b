"""The HTTP listener: health, JSON, tokens, host names, and clients that are slow or many."""

from __future__ import annotations

import http.client
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.http_requests import basic, request, request_json, request_over
from helpers.waiting import wait_until
from splitarrow.errors import ConfigError, DeniedError, MissingExtraError, RemoteError
from splitarrow.server import report
from splitarrow.server.config import load_settings
from splitarrow.server.daemon import open_http_listener
from splitarrow.server.http import listener as connections
from splitarrow.server.report import ProcessReport

BIG = pa.table({"n": pa.array(np.arange(4_000_000))})
TOKEN = "canary-of-a-token-0123456789"
OPERATOR = "operator-of-a-token-0123456789"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(
        f'[[tokens]]\nname = "reader"\ntoken = "{TOKEN}"\ndatasets = ["big"]\n'
        f'[[tokens]]\nname = "operator"\ntoken = "{OPERATOR}"\ndatasets = ["*"]\nwrite = ["*"]\n'
    )
    path.chmod(0o600)
    return path


def serve(**settings: Any) -> splitarrow.Server:
    settings = {"http": "http://127.0.0.1:0", "batch_rows": 50_000, **settings}
    return splitarrow.serve({"big": BIG, "private": BIG}, **settings)


def uri_of(server: splitarrow.Server) -> str:
    assert server.http_uri is not None
    return server.http_uri


@pytest.fixture
def server() -> Iterator[splitarrow.Server]:
    with serve() as server:
        yield server


@pytest.fixture
def stream(server: splitarrow.Server) -> Iterator[Any]:
    """A stream that is running, because its reader takes no more."""
    with splitarrow.open(server.uri("big")) as stream:
        next(iter(stream))
        yield stream


def test_a_daemon_that_serves_is_healthy_and_ready(server: splitarrow.Server) -> None:
    for path in ("/healthz", "/readyz"):
        assert request(uri_of(server), path)[::2] == (200, "ok\n")
    assert request(uri_of(server), "/nothing").status == 404
    assert request(uri_of(server), "/metrics", method="DELETE").status == 405


def test_a_daemon_whose_event_loop_hangs_is_not_healthy(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_RESPONSE_SECONDS", 0.2)
    released = threading.Event()

    server._daemon.loop.call_soon_threadsafe(released.wait, 30)
    try:
        answer = request(uri_of(server), "/healthz")
        assert answer[::2] == (503, "the event loop does not respond\n")
    finally:
        released.set()
    assert request(uri_of(server), "/healthz").status == 200


def test_a_response_that_takes_too_long_ends_the_connection(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "RESPONSE_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_CHECK_SECONDS", 0.05)
    released = threading.Event()
    server._daemon.loop.call_soon_threadsafe(released.wait, 30)
    try:
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            request(uri_of(server), "/healthz")
    finally:
        released.set()


def test_datasets_and_streams_are_listed_as_json(server: splitarrow.Server, stream: Any) -> None:
    datasets = request_json(uri_of(server), "/v1/datasets")["datasets"]
    assert datasets[0] == {
        "name": "big",
        "kind": "table",
        "rows": 4_000_000,
        "bytes": BIG.nbytes,
        "columns": 1,
        "version": None,
        "streams": 1,
    }
    (running,) = request_json(uri_of(server), "/v1/streams")["streams"]
    assert (running["dataset"], running["transport"], running["process"]) == ("big", "tcp", "main")
    assert running["rows"] >= 50_000
    assert running["bytes"] >= 400_000


def test_the_page_shows_the_oldest_stream_first(server: splitarrow.Server, stream: Any) -> None:
    with splitarrow.open(server.uri("big")) as second:
        next(iter(second))
        text = request(uri_of(server), "/").text
        older, newer = sorted(each.number for each in server._daemon.streams)
    assert 0 < text.index(f"<small>stream {older}<") < text.index(f"<small>stream {newer}<")


def test_a_daemon_is_loading_until_it_is_attached() -> None:
    settings = load_settings(listen=("tcp://127.0.0.1:0",), http="http://127.0.0.1:0")
    listener = open_http_listener(settings)
    assert listener is not None
    with listener:
        uri = listener.uri.address
        assert request(uri, "/healthz").status == 200
        for path in ("/readyz", "/metrics", "/", "/v1/streams"):
            assert request(uri, path)[::2] == (503, "the daemon is loading its datasets\n")


def test_a_daemon_that_drains_is_healthy_but_not_ready(
    server: splitarrow.Server, stream: Any
) -> None:
    closing = threading.Thread(target=server.close)
    closing.start()
    wait_until(lambda: request(uri_of(server), "/readyz").status == 503)
    assert request(uri_of(server), "/readyz").text == "the daemon is draining\n"
    assert request(uri_of(server), "/healthz").status == 200
    page = request(uri_of(server), "/").text
    assert "<title>splitarrow · draining</title>" in page
    assert "Not ready: the daemon is draining." in page
    stream.read_all()
    closing.join()


def test_only_processes_that_serve_count(server: splitarrow.Server) -> None:
    service = server._http.application.service if server._http is not None else None
    assert service is not None
    supervisor = ProcessReport("main", [], False, True)
    assert service.find_problem([supervisor]) == "no process responds"
    samples = service._list_daemon_samples([supervisor, ProcessReport("worker-1", [], True, True)])
    assert {sample.metric.name: sample.value for sample in samples}["workers"] == 1


def test_a_dataset_that_was_damaged_is_listed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "data" / "0.arrow", pa.table({"n": [1, 2]}), batch_rows=1)
    with splitarrow.serve({"data": path.parent}, http="http://127.0.0.1:0") as server:
        path.write_bytes(b"ARROW1 not really")
        (found,) = request_json(uri_of(server), "/v1/datasets")["datasets"]
        assert (found["name"], found["rows"], found["columns"]) == ("data", None, None)
        assert "<i>unknown</i>" in request(uri_of(server), "/").text


def test_a_daemon_without_room_for_a_connection_is_not_ready() -> None:
    with serve(max_connections=1) as server:
        assert request(uri_of(server), "/readyz").status == 200
        with splitarrow.open(server.uri("big")) as stream:
            next(iter(stream))
            answer = request(uri_of(server), "/readyz")
            assert (answer.status, answer.text) == (
                503,
                "the daemon is out of descriptors or connections\n",
            )
        wait_until(lambda: request(uri_of(server), "/readyz").status == 200)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_of_another_server_is_refused(server: splitarrow.Server, host: str) -> None:
    for path in ("/", "/metrics", "/v1/datasets"):
        assert request(uri_of(server), path, Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost:9816", "[::1]:9816", "10.0.0.7", "data.example"])
def test_addresses_and_own_names_are_accepted(host: str) -> None:
    with serve(http_hosts=["data.example"]) as server:
        assert request(uri_of(server), "/metrics", Host=host).status == 200


def test_other_machines_need_a_token() -> None:
    problem = r"everyone on the network could read from http://0\.0\.0\.0:0: give --token-file"
    with pytest.raises(ConfigError, match=problem):
        serve(http="http://0.0.0.0:0")
    serve(http="http://0.0.0.0:0", insecure=True).close()


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("127.0.0.1:9816", "http: '127.0.0.1:9816' is not a URI; expected http://host:port"),
        ("tcp://127.0.0.1:0", "has the scheme 'tcp'; expected http://host:port"),
        ("https://127.0.0.1:0", "https:// needs tls_cert"),
        ("http://127.0.0.1:0/metrics", "must have a host and a port only"),
    ],
    ids=["no scheme", "scheme", "certificate", "path"],
)
def test_an_unusable_address_is_refused(uri: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        serve(http=uri)


def test_a_port_in_use_is_refused(server: splitarrow.Server) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^http: cannot listen on .*: Address already in use by another program; ",
    ):
        serve(http=uri_of(server))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "splitarrow.server.http.listener", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'splitarrow\[http\]'"):
        serve()


def test_a_server_with_tokens_answers_health_checks_only_without_one(tokens: Path) -> None:
    with serve(token_file=tokens) as server:
        uri = uri_of(server)
        for path in ("/", "/metrics", "/v1/datasets", "/v1/streams", "/streams/main/1/cancel"):
            for headers in ({}, {"Authorization": "Bearer wrong-token-0123456789"}):
                answer = request(uri, path, **headers)
                assert answer.status == 401
                assert answer.headers["www-authenticate"].startswith("Basic ")
        for path in ("/healthz", "/readyz", "/style.css", "/icon.svg"):
            assert request(uri, path).status == 200
        assert request(uri, "/metrics", token=TOKEN).status == 200
        for header in (basic("reader", TOKEN), basic("", TOKEN)):
            assert request(uri, "/", Authorization=header).status == 200
        assert request(uri, "/", Authorization=basic("operator", TOKEN)).status == 401
        # A name that is not the server's is harmless: a page of another origin has no token.
        assert request(uri, "/metrics", token=TOKEN, Host="data.example").status == 200


def test_only_datasets_that_the_token_may_read_are_shown(tokens: Path) -> None:
    with (
        serve(token_file=tokens, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(str(server.control_uri), TOKEN) as client,
        splitarrow.open(server.uri("big")) as stream,
        splitarrow.open(server.uri("private")) as hidden,
    ):
        next(iter(stream))
        next(iter(hidden))
        uri = uri_of(server)
        request(uri, "/metrics", token="wrong-token-0123456789")
        with pytest.raises(DeniedError):
            client.info("private")
        names = [each["name"] for each in request_json(uri, "/v1/datasets", TOKEN)["datasets"]]
        assert names == ["big"]
        assert "private" not in request(uri, "/", token=TOKEN).text
        assert "private" in request(uri, "/", token=OPERATOR).text
        for part in ("Leased memory", "Refused", "Configuration", "connected", "pyarrow"):
            assert part not in request(uri, "/", token=TOKEN).text
            assert part in request(uri, "/", token=OPERATOR).text
        (own,) = request_json(uri, "/v1/streams", TOKEN)["streams"]
        every, _ = request_json(uri, "/v1/streams", OPERATOR)["streams"]
        assert "peer" not in own
        assert every["peer"].startswith("127.0.0.1:")
        assert every["peer"] not in request(uri, "/", token=TOKEN).text
        page = request(uri, "/", token=OPERATOR).text
        assert every["peer"] in page
        _, refusals = page.split("<h2>Recent refusals</h2>")
        assert 0 < refusals.index("<small>private</small>") < refusals.index("unauthenticated")
        assert "unauthenticated" not in request(uri, "/", token=TOKEN).text
        assert "/cancel" not in request(uri, "/", token=TOKEN).text
        assert "/cancel" in request(uri, "/", token=OPERATOR).text


def cancel_form(server: splitarrow.Server, **headers: str) -> tuple[str, str]:
    """Return the path of the form that cancels the only stream, and the token in it."""
    (stream,) = server._daemon.streams
    path = f"/streams/main/{stream.number}/cancel"
    return path, find_form_token(request(uri_of(server), path, **headers).text)


def find_form_token(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found.group(1)


def test_a_stream_is_cancelled_by_the_form_of_the_page(
    server: splitarrow.Server, stream: Any
) -> None:
    path, token = cancel_form(server)
    answer = request(
        uri_of(server), path, method="POST", body=f"token={token}", Sec_Fetch_Site="same-origin"
    )
    assert (answer.status, answer.headers["location"]) == (303, "/?notice=cancelled")
    with pytest.raises(RemoteError, match="cancelled"):
        stream.read_all()
    assert "The stream was cancelled." in request(uri_of(server), "/?notice=cancelled").text
    answer = request(uri_of(server), path, method="POST", body=f"token={token}")
    assert answer.headers["location"] == "/?notice=ended"


@pytest.mark.parametrize(
    ("body", "site"),
    [
        ("", "same-origin"),
        ("token=", "same-origin"),
        (f"token={'0' * 64}", "same-origin"),
        ("token={token}", "cross-site"),
        ("token={token}", "same-site"),
    ],
    ids=["nothing", "empty", "wrong", "cross-site", "same-site"],
)
def test_a_form_of_another_site_cancels_nothing(
    server: splitarrow.Server, stream: Any, body: str, site: str
) -> None:
    path, token = cancel_form(server)
    body = body.replace("{token}", token)
    answer = request(uri_of(server), path, method="POST", body=body, Sec_Fetch_Site=site)
    assert answer.status == 403
    assert stream.read_all().num_rows > 0


def test_the_token_of_a_form_is_good_for_one_principal_only(tokens: Path) -> None:
    with serve(token_file=tokens) as server, splitarrow.open(server.uri("big")) as stream:
        next(iter(stream))
        path, token = cancel_form(server, Authorization=basic("", OPERATOR))
        body = f"token={token}"
        assert request(uri_of(server), path, method="POST", token=TOKEN, body=body).status == 403
        assert request(uri_of(server), path, method="POST", body=body).status == 401
        page = request(uri_of(server), path, token=TOKEN)
        assert (page.status, page.headers["location"]) == (303, "/?notice=ended")
        assert stream.read_all().num_rows > 0


def test_a_reader_cancels_its_own_streams_only(tokens: Path) -> None:
    with (
        serve(token_file=tokens, control="grpc://127.0.0.1:0") as server,
        splitarrow.open(server.uri("big")) as other,
        splitarrow.connect(str(server.control_uri), TOKEN) as client,
        client.read("big", transport="tcp") as own,
    ):
        next(iter(other))
        next(iter(own))
        uri = uri_of(server)
        streams = request_json(uri, "/v1/streams", OPERATOR)["streams"]
        numbers = {each["principal"]: each["stream"] for each in streams}
        path = f"/streams/main/{numbers.pop('reader')}/cancel"
        body = f"token={find_form_token(request(uri, path, token=TOKEN).text)}"
        ((_, number),) = numbers.items()
        answer = request(
            uri, f"/streams/main/{number}/cancel", method="POST", token=TOKEN, body=body
        )
        assert answer.headers["location"] == "/?notice=ended"
        assert other.read_all().num_rows > 0
        answer = request(uri, path, method="POST", token=TOKEN, body=body)
        assert answer.headers["location"] == "/?notice=cancelled"


@pytest.mark.parametrize(("nbytes", "status"), [(4096, 403), (4097, 413)])
def test_a_large_form_is_refused(server: splitarrow.Server, nbytes: int, status: int) -> None:
    path = "/streams/main/1/cancel"
    assert request(uri_of(server), path, method="POST", body="x" * nbytes).status == status


def test_a_header_has_room_for_a_long_token(server: splitarrow.Server) -> None:
    address = urlsplit(uri_of(server))
    with socket.create_connection((address.hostname, address.port), 30) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20_000)
        assert request(uri_of(server), "/healthz").status == 200  # the server has read the above
        client.sendall(b"\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    too_long = b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 200_000
    assert exchange(uri_of(server), too_long).startswith(b"HTTP/1.1 400")


def test_a_warning_states_that_tokens_cross_the_network(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for host, count in (("127.0.0.1", 0), ("0.0.0.0", 1)):
        with serve(token_file=tokens, http=f"http://{host}:0"):
            messages = [record.msg for record in caplog.records]
            assert messages.count("tokens cross the network unencrypted") == count


def test_an_internal_error_is_logged_and_not_shown(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert server._http is not None
    monkeypatch.delattr(server._http.application.service, "reporter")
    answer = request(uri_of(server), "/v1/streams")
    assert answer[::2] == (500, "internal error; see the server's log\n")
    (record,) = (record for record in caplog.records if record.msg == "request failed")
    assert record.exc_info is not None


def test_every_answer_forbids_scripts_frames_and_other_sites(server: splitarrow.Server) -> None:
    for path in ("/", "/metrics", "/healthz", "/nothing"):
        headers = request(uri_of(server), path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    for path, content_type in (("/style.css", "text/css"), ("/icon.svg", "image/svg+xml")):
        assert request(uri_of(server), path).headers["content-type"].startswith(content_type)


def test_a_request_that_does_not_arrive_is_not_awaited(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(connections, "_CHECK_SECONDS", 0.05)
    address = urlsplit(uri_of(server))
    form = b"POST /streams/main/1/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
    for start in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", form):
        with socket.create_connection((address.hostname, address.port), 30) as client:
            client.sendall(start)
            began = time.monotonic()
            with suppress(ConnectionResetError):
                assert client.recv(4096) == b""
            assert time.monotonic() - began > 0.2


def test_a_connection_is_kept_between_requests(server: splitarrow.Server) -> None:
    address = urlsplit(uri_of(server))
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    for _ in range(3):
        assert request_over(connection, "/readyz").status == 200
        assert connection.sock is not None
    connection.close()


def test_the_client_closes_its_connection_first(server: splitarrow.Server) -> None:
    # Where streams use all the memory of the kernel for TCP, a connection that the server closes
    # first is reset, and a health check fails.
    assert server._http is not None
    held = server._http._server.server_state.connections
    address = urlsplit(uri_of(server))
    with socket.create_connection((address.hostname, address.port), 30) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.endswith(b"ok\n")
        assert len(held) == 1
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")  # ignored
    wait_until(lambda: not held)


def test_connections_beyond_the_limit_are_closed(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    address = urlsplit(uri_of(server))
    held = [
        http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        for _ in range(2)
    ]
    for connection in held:
        assert request_over(connection, "/healthz").status == 200
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        request(uri_of(server), "/healthz")
    for connection in held:
        connection.close()
    wait_until(lambda: _is_answered(uri_of(server)))


def _is_answered(uri: str) -> bool:
    try:
        return request(uri, "/healthz").status == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def exchange(uri: str, data: bytes) -> bytes:
    """Send bytes, and return what the server sends until it closes the connection."""
    address = urlsplit(uri)
    with socket.create_connection((address.hostname, address.port), 30) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_request_with_two_lengths_is_refused_and_ends_the_connection(
    server: splitarrow.Server,
) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = exchange(
        uri_of(server),
        b"POST /streams/main/1/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"send only one" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_no_redirect_before_authentication_uses_the_host_of_the_client(tokens: Path) -> None:
    with serve(token_file=tokens) as server:
        for path in ("/metrics/", "/v1/datasets/", "/healthz/", "//evil.example"):
            answer = request(uri_of(server), path, Host="evil.example")
            assert answer.status in (401, 404)
            assert answer.headers.get("location") is None


def test_the_number_of_a_stream_is_parsed_after_authentication(tokens: Path) -> None:
    path = f"/streams/main/{'9' * 31_500}/cancel"
    with serve(token_file=tokens) as server:
        for method in ("GET", "POST"):
            assert request(uri_of(server), path, method=method).status == 401
        assert request(uri_of(server), path, token=OPERATOR).status == 404


def test_a_form_with_many_fields_is_refused(server: splitarrow.Server, stream: Any) -> None:
    path, token = cancel_form(server)
    body = f"token={token}" + "&a=1" * 8
    answer = request(uri_of(server), path, method="POST", body=body)
    assert (answer.status, answer.text) == (400, "the form has more than 8 fields\n")


def test_a_client_that_leaves_during_its_form_is_not_an_error(
    server: splitarrow.Server, caplog: pytest.LogCaptureFixture
) -> None:
    form = b"POST /streams/main/1/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n"
    address = urlsplit(uri_of(server))
    assert server._http is not None
    tasks = server._http._server.server_state.tasks
    client = socket.create_connection((address.hostname, address.port), 30)
    client.sendall(form)
    wait_until(lambda: tasks)
    client.close()
    wait_until(lambda: not tasks)
    assert not caplog.records


def test_a_malformed_body_of_a_request_is_refused_once(
    server: splitarrow.Server, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"GET /v1/datasets HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert server._http is not None
    tasks = server._http._server.server_state.tasks
    for _ in range(10):
        answer = exchange(uri_of(server), head + b"XYZ\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1 ") == 1
    wait_until(lambda: not tasks)
    assert not caplog.records


def test_a_malformed_request_does_no_harm(server: splitarrow.Server) -> None:
    address = urlsplit(uri_of(server))
    with socket.create_connection((address.hostname, address.port), 30) as client:
        client.sendall(b"\x16\x03\x01\x00\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400")
    client = socket.create_connection((address.hostname, address.port), 30)
    with client, suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000)
        assert client.recv(4096)[:12] in (b"HTTP/1.1 400", b"")
    assert request(uri_of(server), "/healthz").status == 200
