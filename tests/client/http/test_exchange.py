"""Exchanges: the status of a response and the state of its connection become errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from helpers.scripted_http import (
    ARROW,
    Received,
    ScriptedServer,
    chunked,
    head,
    scripted_server,
    text,
)
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.http.exchange import Exchange
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    NotAPeerError,
    NotFoundError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    StallError,
    UnavailableError,
    UriError,
)

SECRET = "s3cret-token"


def exchange(server: ScriptedServer, **options: Any) -> Exchange:
    token = options.pop("token", SECRET)
    return Exchange(f"{server.uri}/v1/datasets/d/data", "d", StreamOptions(**options), token=token)


def refusal(parts: Iterable[bytes], **options: Any) -> SplitArrowError:
    """Return the error for a response."""
    with scripted_server(lambda _: parts) as server, pytest.raises(SplitArrowError) as caught:
        exchange(server, **options).close()
    assert caught.value.stream == "d"
    assert SECRET not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        ("400 Bad Request", InvalidRequestError, "INVALID_ARGUMENT"),
        ("401 Unauthorized", DeniedError, "UNAUTHENTICATED"),
        ("403 Forbidden", DeniedError, "PERMISSION_DENIED"),
        ("404 Not Found", NotFoundError, "NOT_FOUND"),
        ("409 Conflict", RemoteError, "FAILED_PRECONDITION"),
        ("421 Misdirected Request", InvalidRequestError, "INVALID_ARGUMENT"),
        ("429 Too Many Requests", ExhaustedError, "RESOURCE_EXHAUSTED"),
        ("406 Not Acceptable", InvalidRequestError, "INVALID_ARGUMENT"),
        ("500 Internal Server Error", RemoteError, "INTERNAL"),
        ("501 Not Implemented", RemoteError, "UNIMPLEMENTED"),
        ("503 Service Unavailable", UnavailableError, "UNAVAILABLE"),
    ],
)
def test_a_status_is_an_error_with_the_sentence_of_the_server(
    status: str, kind: type[RemoteError], code: str
) -> None:
    error = refusal(text(status, f"no {SECRET} here"))
    assert type(error) is kind
    assert isinstance(error, RemoteError)
    assert error.code == code
    assert error.message.startswith("no … here")


def test_a_missing_token_is_named() -> None:
    parts = text("401 Unauthorized", "a token is required", WWW_Authenticate="Bearer")
    assert "a token is required; pass a token: token=" in str(refusal(parts, token=None))
    assert "a token is required; check the token: token=" in str(refusal(parts))


@pytest.mark.parametrize(
    ("status", "content_type"),
    [
        ("200 OK", "text/html; charset=utf-8"),  # the page of a captive portal
        ("404 Not Found", "application/xml"),  # an S3 server
        ("206 Partial Content", ARROW),
        ("204 No Content", None),
        ("400 Bad Request", "text/html"),
    ],
)
def test_other_content_is_named(status: str, content_type: str | None) -> None:
    error = refusal([head(status, content_type, Content_Length="0")])
    assert type(error) is NotAPeerError
    kind = "no content type" if content_type is None else content_type.partition(";")[0]
    assert f"answers with {kind} (status {status})" in error.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("403 Forbidden", DeniedError),
        ("429 Slow Down", ExhaustedError),
        ("502 Bad Gateway", UnavailableError),
        ("504 Gateway Timeout", UnavailableError),
    ],
)
def test_pages_of_a_gateway_are_errors_too(status: str, kind: type[Exception]) -> None:
    error = refusal([head(status, "text/html", Content_Length="0")])
    assert type(error) is kind
    assert status in error.message


def test_a_redirect_is_not_followed() -> None:
    parts = [head("302 Found", None, Location="https://evil.example/a?key=1", Content_Length="0")]
    error = refusal(parts)
    assert type(error) is UriError
    assert "redirects to https://evil.example/a (status 302)" in error.message


def test_a_proxy_that_requires_a_password_is_named() -> None:
    error = refusal([head("407 Proxy Authentication Required", "text/html", Content_Length="0")])
    assert type(error) is ConnectError
    assert "the proxy requires a user name and a password" in error.message


def test_a_content_encoding_is_refused() -> None:
    error = refusal([head(Content_Encoding="gzip", Content_Length="0")])
    assert "sends the content encoding 'gzip'" in error.message


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([], ConnectionLostError),
        ([b"\x15\x03\x03\x00\x02\x02\x46"], NotAPeerError),
        ([b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200], NotAPeerError),
        ([b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000], NotAPeerError),
        ([b"splitarrow preface"], NotAPeerError),
    ],
)
def test_what_is_no_response_is_refused(parts: list[bytes], kind: type[Exception]) -> None:
    assert type(refusal(parts)) is kind


def test_silence_is_an_error() -> None:
    stalled = pytest.raises(StallError, match=r"nothing arrived for 0\.1 s")
    with scripted_server(lambda _: server.wait_for_end()) as server, stalled:
        exchange(server, stall_timeout=0.1)


def test_nothing_listens() -> None:
    with scripted_server(lambda _: []) as server:
        pass
    with pytest.raises(ConnectError, match="refused"):
        exchange(server)


def test_the_request_names_what_it_accepts() -> None:
    with scripted_server(lambda _: [chunked(b"")]) as server:
        exchange(server).close()
        url = f"{server.uri}/v1/datasets/d/data?limit=3"
        Exchange(url, "d", StreamOptions(), content=b"{}").close()
    get, post = server.received
    assert (get.method, get.target) == ("GET", "/v1/datasets/d/data")
    assert get.headers["accept"] == ARROW
    assert get.headers["accept-encoding"] == "identity"
    assert get.headers["authorization"] == f"Bearer {SECRET}"
    assert get.headers["host"] == f"127.0.0.1:{server.port}"
    assert (post.method, post.target) == ("POST", "/v1/datasets/d/data?limit=3")
    assert (post.headers["content-type"], post.content) == ("application/json", b"{}")
    assert "authorization" not in post.headers


def read_body(parts: Iterable[bytes], nbytes: int) -> tuple[bytes, int | None, int]:
    body = bytearray(nbytes)
    with scripted_server(lambda _: parts) as server:
        opened = exchange(server)
        try:
            opened.read_into(memoryview(body))
            return bytes(body), opened.finish(), opened.bytes_received
        finally:
            opened.close()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_are_joined_and_the_trailer_is_read(size: int) -> None:
    assert read_body([chunked(b"0123456789", size, rows=7)], 10) == (b"0123456789", 7, 10)
    assert read_body([chunked(b"0123456789", size)], 10) == (b"0123456789", None, 10)


def test_a_declared_size_and_the_end_of_the_connection_delimit_as_well() -> None:
    """A proxy may buffer the response, or forward it in HTTP/1.0."""
    assert read_body([head(Content_Length="3"), b"abc"], 3) == (b"abc", None, 3)
    assert read_body([head().replace(b"1.1", b"1.0"), b"abc"], 3) == (b"abc", None, 3)


@pytest.mark.parametrize(
    "parts",
    [
        [head(Content_Length="4"), b"abc"],
        [head(Content_Length="2"), b"ab"],
        [head().replace(b"1.1", b"1.0"), b"ab"],
        [chunked(b"ab")],
        [chunked(b"abc")[: -len(b"0\r\n\r\n")]],
        [chunked(b"abc")[: -len(b"\r\n")]],
        [chunked(b"abc", rows=7).replace(b": 7", b": 7\r\na: " * 200)],
        [chunked(b"abc", rows=7).replace(b": 7", b": " + b"7" * 5000)],
        [head(Transfer_Encoding="chunked"), b"x\r\nabc\r\n0\r\n\r\n"],
    ],
)
def test_a_body_that_ends_early_is_an_error(parts: list[bytes]) -> None:
    with pytest.raises(ConnectionLostError, match="was lost: it ended early"):
        read_body(parts, 3)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([chunked(b"abcd")], "data follows the end"),
        ([head(Content_Length="4"), b"abcd"], "data follows the end"),
        ([chunked(b"abc").replace(b"3\r\n", b"4\r\n")], "data follows the end"),
        ([chunked(b"abc", rows=7).replace(b": 7", b": -7")], "number of rows .* is invalid"),
        ([chunked(b"abc", rows=7).replace(b": 7", b": 1e3")], "number of rows .* is invalid"),
        ([head(Transfer_Encoding="chunked"), b"3" * 70_000], "malformed"),
    ],
)
def test_a_malformed_end_is_an_error(parts: list[bytes], problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        read_body(parts, 3)


def test_another_thread_interrupts_a_wait() -> None:
    def script(_: Received) -> Iterable[bytes]:
        yield head(Transfer_Encoding="chunked") + b"4\r\nab"
        waits.set()
        yield from server.wait_for_end()

    waits = threading.Event()
    with scripted_server(script) as server:
        opened = exchange(server)
        thread = threading.Thread(target=lambda: waits.wait(60) and opened.interrupt())
        thread.start()
        with pytest.raises(ClosedError, match="cancelled"):
            opened.read_into(memoryview(bytearray(4)))
        thread.join()
        with pytest.raises(ClosedError, match="cancelled"):
            opened.read_into(memoryview(bytearray(4)))
        opened.close()
        opened.interrupt()
