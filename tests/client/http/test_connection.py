"""Connections: URLs, the proxies of the environment, and TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.http_proxy import http_proxy
from helpers.pki import Pki
from helpers.scripted_http import Received, chunked, scripted_server
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.http.connection import Url, connect, find_proxy
from splitarrow.client.http.exchange import Exchange
from splitarrow.errors import ConnectError, NotAPeerError, SplitArrowError, UriError, UsageError
from splitarrow.transport.tls_options import TlsOptions, build_server_context

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def serve(_: Received) -> Iterable[bytes]:
    return [chunked(b"body")]


def fetch(url: str, tls: TlsOptions | None = None) -> bytes:
    """Return the body of the response."""
    body = bytearray(4)
    exchange = Exchange(url, "d", StreamOptions(tls=tls, connect_timeout=5), token="token")
    try:
        exchange.read_into(memoryview(body))
        exchange.finish()
    finally:
        exchange.close()
    return bytes(body)


@pytest.mark.parametrize(
    ("text", "host", "port", "target"),
    [
        ("http://host", "host", 80, "/"),
        ("https://HOST/a%2Fb?c=%20d", "host", 443, "/a%2Fb?c=%20d"),
        ("http://host:9816/a", "host:9816", 9816, "/a"),
        ("http://[::1]:80/a", "[::1]", 80, "/a"),
        ("https://[fe80::1%25eth0]/", "[fe80::1]", 443, "/"),
        ("https://bücher.example/".replace("ü", "%C3%BC"), None, 443, "/"),
    ],
)
def test_urls(text: str, host: str | None, port: int, target: str) -> None:
    url = Url.parse(text)
    assert (url.server.port, url.target) == (port, target)
    if host is not None:
        assert url.host == host


@pytest.mark.parametrize("text", ["tcp://host/a", "http:///a", "http://host/ü", "http://host/a b"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UriError):
        Url.parse(text)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "http://a/", None),
        ({"http_proxy": "http://p:3128"}, "http://a/", "http://p:3128"),
        ({"HTTP_PROXY": "p:3128"}, "http://a/", "http://p:3128"),
        ({"HTTP_PROXY": "http://p"}, "http://a/", "http://p:80"),
        ({"HTTP_PROXY": "http://p:3128"}, "https://a/", None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://a/", "http://p:3128"),
        ({"ALL_PROXY": "http://p:3128"}, "https://a/", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, "http://a/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "b, a"}, "http://a/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": ".example"}, "http://a.example/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a:81"}, "http://a:81/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a:81"}, "http://a/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "::1"}, "http://[::1]:9816/", None),
        # A request to a CGI script could set this variable.
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://a/", None),
    ],
)
def test_the_environment_names_proxies(
    variables: Mapping[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = find_proxy(Url.parse(url))
    assert (None if found is None else found.uri.address) == proxy


@pytest.mark.parametrize(
    "text", ["socks5://user:pa55@p:1080", "https://p", "http://p:x", "http://"]
)
def test_other_proxies_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", text)
    with pytest.raises(UsageError, match="not of the form http://host:port") as caught:
        fetch("http://a/")
    assert "pa55" not in str(caught.value)


def test_a_proxy_forwards_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server(serve) as server, http_proxy("us%40er:p%3A") as proxy:
        proxy.credentials = "us@er:p:"
        monkeypatch.setenv("HTTP_PROXY", f"http://us%40er:p%3A@127.0.0.1:{proxy.port}")
        assert fetch(f"{server.uri}/a?b=c") == b"body"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert fetch(f"{server.uri}/a?b=c") == b"body"
    (forwarded,) = proxy.received
    assert (forwarded.method, forwarded.target) == ("GET", f"{server.uri}/a?b=c")
    assert forwarded.headers["host"] == f"127.0.0.1:{server.port}"
    first, second = server.received
    assert first.target == second.target == "/a?b=c"
    assert "proxy-authorization" not in second.headers


def test_a_proxy_opens_a_tunnel(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    context = build_server_context(pki.make_server_options())
    tls = pki.make_client_options()
    with scripted_server(serve, context) as server, http_proxy("user:secret") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.uri)
        assert fetch(f"{server.uri}/a", tls) == b"body"
    (tunnel,) = proxy.received
    assert (tunnel.method, tunnel.target) == ("CONNECT", f"127.0.0.1:{server.port}")
    assert "authorization" not in tunnel.headers
    (received,) = server.received
    assert received.headers["authorization"] == "Bearer token"
    assert "proxy-authorization" not in received.headers


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_proxy("user:secret") as proxy:
        port = proxy.port
        monkeypatch.setenv("ALL_PROXY", f"http://user:wr0ng@127.0.0.1:{port}")
        with pytest.raises(ConnectError, match=r"407|user name and a password") as caught:
            fetch(f"{scheme}://a.example/a")
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(ConnectError) as caught:
        fetch(f"{scheme}://a.example/a")
    assert f"{scheme}://a.example" in caught.value.message
    assert f"through the proxy http://127.0.0.1:{port}: " in caught.value.message
    assert "refused; NO_PROXY=a.example bypasses it" in caught.value.message
    assert "wr0ng" not in str(caught.value)


def test_tls_checks_the_server(pki: Pki) -> None:
    context = build_server_context(pki.make_server_options("elsewhere"))
    with scripted_server(serve, context) as server:
        with pytest.raises(ConnectError, match="not trusted"):
            fetch(server.uri, pki.make_client_options())
        assert fetch(server.uri, pki.make_client_options(server_name="elsewhere.example"))
        assert fetch(server.uri, pki.make_client_options(check_name=False))
        with pytest.raises(ConnectError, match="not trusted"):
            fetch(server.uri, pki.make_client_options("foreign-ca"))


def test_tls_options_come_from_the_environment(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    context = build_server_context(pki.make_server_options(client_ca="ca"))
    monkeypatch.setenv("SPLITARROW_TLS_CA", str(pki.path("ca")))
    with scripted_server(serve, context) as server:
        with pytest.raises(ConnectError, match="it requires a client certificate"):
            fetch(server.uri)
        monkeypatch.setenv("SPLITARROW_TLS_CERT", str(pki.path("client")))
        assert fetch(server.uri) == b"body"


def test_a_server_without_tls_is_named(pki: Pki) -> None:
    def answer() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            sock.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotAPeerError, match="does not use TLS"):
            fetch(f"https://127.0.0.1:{listener.getsockname()[1]}", pki.make_client_options())
        thread.join()


def test_a_server_with_tls_is_named(pki: Pki) -> None:
    context = build_server_context(pki.make_server_options())
    refused = pytest.raises(SplitArrowError, match="; it may require https://")
    with scripted_server(serve, context) as server, refused:
        fetch(server.uri.replace("https:", "http:"))


@pytest.mark.parametrize("through_proxy", [False, True])
def test_a_handshake_ends_in_time(through_proxy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if through_proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectError, match=r"within 0\.1 s"):
            connect(Url.parse(f"https://127.0.0.1:{port}/"), None, 0.1)


def test_an_invalid_certificate_file_is_named(tmp_path: Path) -> None:
    options: Any = TlsOptions(ca_file=tmp_path / "absent.pem")
    refused = pytest.raises(UsageError, match=r"absent\.pem")
    with scripted_server(serve, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as server, refused:
        fetch(server.uri, options)
