"""Raw requests to the HTTP listener: whatever a client sends, the server neither fails nor logs."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import splitarrow

TOKEN = "token-of-an-operator-0123456789"


class Records(logging.Handler):
    """Keeps the events that are at least warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module")
def records() -> Iterator[list[logging.LogRecord]]:
    """What the server and its libraries log."""
    handler = Records()
    logging.getLogger().addHandler(handler)
    yield handler.records
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, int]]]:
    """The HTTP listeners of a server without tokens and of one with tokens."""
    path: Path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    path.touch(0o600)
    path.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["*"]\nwrite = ["*"]\n')
    datasets = {"data": pa.table({"n": [1]})}
    http, listen = "http://127.0.0.1:0", ("tcp://127.0.0.1:0",)
    with (
        splitarrow.serve(datasets, http=http, listen=listen) as open_server,
        splitarrow.serve(datasets, http=http, listen=listen, token_file=path) as server,
    ):
        uris = [urlsplit(str(each.http_uri)) for each in (open_server, server)]
        yield [(str(uri.hostname), uri.port or 0) for uri in uris]


def mix(*texts: str, alphabet: str = "") -> st.SearchStrategy[bytes]:
    """Draw one of the texts, or any bytes that a line can have."""
    noise = st.binary(max_size=40).map(lambda data: re.sub(rb"[\r\n]", b"", data))
    return st.sampled_from([text.encode("latin-1") for text in texts]) | noise


NINES = "9" * 19
NUMBERS = st.integers(-1, 1 << 70).map(str) | st.sampled_from(["9" * 31_500, "\u0661", "1e3", " 1"])
METHODS = mix("GET", "GET", "POST", "HEAD", "OPTIONS", "CONNECT", "PUT", "get", "PRI", "TRACE")
PATHS = (
    mix("/", "/metrics", "/metrics/", "/v1/streams", "/v1/datasets?x=%", "/healthz", "/readyz", "*")
    | mix(
        "//",
        "/%00",
        "/%ff",
        "/../",
        "http://evil.example/",
        "/?refresh=off&notice=%ff",
        "/style.css",
    )
    | NUMBERS.map(lambda number: f"/streams/main/{number}/cancel".encode())
    | mix(
        "/v1/datasets/",
        "/v1/datasets/data",
        "/v1/datasets//data",
        "/v1/datasets/%ff/data",
        "/v1/datasets/data/data?format=csv&columns=n",
        "/v1/datasets/data/data?format=parquet",
        "/v1/datasets/data/data?filter=n%3E0&limit=0",
        "/v1/datasets/data/shards/0/data?format=arrow-file",
        "/datasets/data",
        "/datasets/",
    )
    | NUMBERS.map(lambda number: f"/v1/datasets/data/shards/{number}/data".encode())
    | NUMBERS.map(lambda number: f"/v1/datasets/data/data?limit={number}".encode())
    | st.binary(max_size=30).map(
        lambda data: b"/v1/datasets/data/data?" + re.sub(rb"[\r\n ]", b"", data)
    )
    | st.binary(max_size=12).map(
        lambda data: b"/streams/" + data.hex(" ").replace(" ", "%").encode()
    )
)
VALUES = {
    "Host": mix(
        "127.0.0.1", "localhost:1", "[::1]", "[::1", "evil.example", "a:b:c", "127.0.0.1:99999"
    ),
    "Accept": mix(
        "text/csv;q=0",
        "application/vnd.apache.parquet, */*;q=0.1",
        "text/plain;version=abc",
        "application/openmetrics-text;version=abc",
        "application/openmetrics-text; version=1.0.0; escaping=x",
        "text/plain;version=1.0.0;escaping=",
        ",;=",
    ),
    "Authorization": mix(
        f"Bearer {TOKEN}", "Bearer a.b.c", "Basic =", "Basic Og==", "Basic /////w==", "Bearer"
    ),
    "Content-Length": mix("0", "5", "-1", "0x5", "5, 5", "5, 6", "9" * 30, "+1"),
    "Transfer-Encoding": mix("chunked", "gzip, chunked", "identity", "CHUNKED"),
    "Content-Type": mix(
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/json",
        "application/vnd.apache.arrow.stream",
    ),
    "Content-Encoding": mix("zstd", "identity", "gzip"),
    "Accept-Encoding": mix("zstd", "gzip, zstd;q=0", "*", "identity;q=0"),
    "If-None-Match": mix("*", 'W/"x", "y"', '"'),
    "If-Range": mix('"x"', "*"),
    "Sec-Fetch-Mode": mix("navigate", "cors"),
    "Sec-Fetch-Site": mix("same-origin", "cross-site"),
    "Connection": mix("close", "keep-alive", "upgrade", "Upgrade, keep-alive"),
    "Upgrade": mix("websocket", "h2c"),
    "Expect": mix("100-continue", "x"),
    "Range": mix("bytes=0-", "bytes=9-1", "bytes=-1", "bytes=0-0,1-1", f"bytes={NINES}-", "x"),
    "Cookie": mix("a=b", ";"),
}
HEADERS = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda name: st.tuples(st.just(name.encode()), VALUES[name])
    )
    | st.tuples(mix("X-Forwarded-Host", "Accept ", " Accept", ""), mix("x")),
    max_size=5,
)
BODIES = mix(
    "token=",
    "token=%ff%00",
    "&" * 20,
    "a=1&" * 9,
    "5\r\nhello\r\n0\r\n\r\n",
    "x" * 5000,
    "0",
    '{"limit": 1}',
    '{"limit": 1e400}',
    "[" * 500,
)
VERSIONS = mix("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "")


def send(address: tuple[str, int], data: bytes) -> bytes:
    """Send bytes and the end of the stream, and return the response."""
    with socket.create_connection(address, 30) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65536), b""))
        except OSError:  # the server may close the connection before it has read everything
            return b""


@pytest.mark.slow
@settings(max_examples=200)
@given(METHODS, PATHS, VERSIONS, HEADERS, st.booleans(), BODIES)
@example(b"GET", b"/streams/x/" + b"9" * 31_500 + b"/cancel", b"HTTP/1.1", [], False, b"")
@example(b"GET", b"/metrics", b"HTTP/1.1", [(b"Accept", b"text/plain; version=abc")], True, b"")
@example(
    b"POST", b"/streams/x/1/cancel", b"HTTP/1.1", [(b"Content-Length", b"39")], True, b"a=1&" * 10
)
def test_no_request_makes_the_server_fail(
    addresses: list[tuple[str, int]],
    records: list[logging.LogRecord],
    method: bytes,
    path: bytes,
    version: bytes,
    headers: list[tuple[bytes, bytes]],
    regular: bool,
    body: bytes,
) -> None:
    if regular:  # with a valid host and token
        headers = [
            (b"Host", b"127.0.0.1"),
            (b"Authorization", f"Bearer {TOKEN}".encode()),
            *headers,
        ]
    lines = [b" ".join((method, path, version)), *(b": ".join(header) for header in headers)]
    for address in addresses:
        answer = send(address, b"\r\n".join([*lines, b"", body]))
        statuses = re.findall(rb"^HTTP/1\.1 (\d{3})", answer, re.M)
        assert all(status < b"500" for status in statuses), answer
    assert not records, records[0].getMessage()
