"""Uploads over HTTP follow the rules of DoPut: complete or not at all, within rights and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.http_downloads import Download, Downloader, download
from helpers.uploads import list_uploads
from helpers.waiting import wait_until
from splitarrow.protocol.limits import Limits

TABLE = pa.table({"n": range(1000), "text": pa.array(["a", "b"] * 500).dictionary_encode()})
ARROW = "application/vnd.apache.arrow.stream"


def encode(table: pa.Table, batch_rows: int = 100) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue().to_pybytes()


def serve(folder: Path, **settings: Any) -> splitarrow.Server:
    settings = {"control": "grpc://127.0.0.1:0", "writable": folder, **settings}
    return splitarrow.serve({"other": TABLE}, http="http://127.0.0.1:0", **settings)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[splitarrow.Server]:
    with serve(tmp_path / "uploads") as server:
        yield server


def put(server: splitarrow.Server, name: str, body: bytes, **headers: str) -> Download:
    with Downloader(server.http_uri or "") as client:
        headers = {"Content_Type": ARROW, **headers}
        client.send(f"/v1/datasets/{name}/data", "PUT", body, **headers)
        return client.read()


def has(server: splitarrow.Server, name: str) -> bool:
    return download(server.http_uri or "", f"/v1/datasets/{name}").status == 200


def test_an_upload_is_served(server: splitarrow.Server, tmp_path: Path) -> None:
    found = put(server, "new", encode(TABLE))
    assert found.status == 201
    assert b'"rows":1000' in found.body
    assert splitarrow.open(server.uri("new")).read_all().equals(TABLE)
    with splitarrow.connect(server.control_uri or "") as client:
        assert client.read("new").read_all().equals(TABLE)
        client.drop("new")
    assert not has(server, "new")


def test_an_upload_in_chunks_is_served(server: splitarrow.Server) -> None:
    body = encode(TABLE)
    with Downloader(server.http_uri or "") as client:
        client.send("/v1/datasets/new/data", "PUT", Content_Type=ARROW, Transfer_Encoding="chunked")
        for begin in range(0, len(body), 7777):
            part = body[begin : begin + 7777]
            client.socket.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        client.socket.sendall(b"0\r\n\r\n")
        assert client.read().status == 201
    assert splitarrow.open(server.uri("new")).read_all().equals(TABLE)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (encode(TABLE)[:-8], b"has no end"),
        (encode(TABLE)[:5000], b"has no end"),
        (encode(TABLE) + b"x", b"bytes follow its end marker"),
        (encode(TABLE) * 2, b"bytes follow its end marker"),
        (b"", b"has no end"),
        (b"hello, world", b"not an Arrow IPC stream"),
    ],
)
def test_a_malformed_upload_leaves_nothing(
    server: splitarrow.Server, tmp_path: Path, body: bytes, reason: bytes
) -> None:
    found = put(server, "bad", body)
    assert found.status == 400
    assert reason in found.body
    assert not has(server, "bad")
    assert not list((tmp_path / "uploads").glob("**/*.arrow*"))


def test_a_client_that_dies_leaves_nothing(server: splitarrow.Server, tmp_path: Path) -> None:
    body = encode(TABLE)
    for chunked in (False, True):
        with Downloader(server.http_uri or "") as client:
            if chunked:
                client.send(
                    "/v1/datasets/x/data", "PUT", Content_Type=ARROW, Transfer_Encoding="chunked"
                )
                client.socket.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n")
            else:
                client.send(
                    "/v1/datasets/x/data", "PUT", Content_Type=ARROW, Content_Length="1000000"
                )
                client.socket.sendall(body)
    assert not has(server, "x")
    assert put(server, "x", body).status == 201  # the name and the slot are free


def test_a_slow_client_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path, idle_seconds=0.3) as server, Downloader(server.http_uri or "") as client:
        client.send("/v1/datasets/x/data", "PUT", Content_Type=ARROW, Content_Length="100000")
        client.socket.sendall(encode(TABLE)[:100])
        found = client.read()
        assert found.status == 503
        assert b"the client sent less than 1024 bytes per second" in found.body


def test_a_draining_daemon_takes_no_uploads(server: splitarrow.Server) -> None:
    large = pa.table({"n": pa.array(range(4_000_000))})
    assert put(server, "large", encode(large, 100_000)).status == 201
    with Downloader(server.http_uri or "") as client:
        client.send("/v1/datasets/large/data?format=csv")
        client.read_head()
        server._daemon.loop.call_soon_threadsafe(server._daemon.drain)
        wait_until(lambda: server._daemon.draining)
        assert put(server, "late", encode(TABLE)).status == 503


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Type": "text/csv"}, 415),
        ({"Content_Encoding": "zstd"}, 415),
        ({"Content_Encoding": "gzip, identity"}, 415),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_other_contents_are_refused(
    server: splitarrow.Server, headers: dict[str, str], status: int
) -> None:
    assert put(server, "x", encode(TABLE), **headers).status == status


def test_a_server_without_a_folder_refuses(tmp_path: Path) -> None:
    with splitarrow.serve({"t": TABLE}, http="http://127.0.0.1:0") as server:
        found = put(server, "x", encode(TABLE))
        assert found.status == 405
        assert b"--writable" in found.body


@pytest.mark.parametrize(
    ("table", "format"), [(TABLE, "arrow-stream"), (TABLE.select(["n"]), "arrow-file")]
)
def test_conditions_decide_what_is_replaced(
    server: splitarrow.Server, table: pa.Table, format: str
) -> None:
    def find_tag(format: str) -> str:
        path = f"/v1/datasets/x/data?format={format}"
        return download(server.http_uri or "", path).headers["etag"]

    body, anything = encode(table), '"other", *'
    refused = put(server, "x", body, If_Match="*")
    assert (refused.status, b"requires that the dataset exists" in refused.body) == (412, True)
    assert put(server, "x", body, If_None_Match="*").status == 201
    for headers in ({"If_None_Match": "*"}, {"If_None_Match": anything}):
        refused = put(server, "x", body, **headers)
        assert (refused.status, b"'x': the dataset exists" in refused.body) == (412, True)
    first = find_tag(format)
    assert put(server, "x", body, If_None_Match=find_tag("csv")).status == 412
    assert put(server, "x", body).status == 201  # as PUT does in HTTP
    for tag in (first, find_tag("csv"), '"other"', ""):
        refused = put(server, "x", body, If_Match=tag)
        assert (refused.status, b"format=arrow-file" in refused.body) == (412, True)
    assert put(server, "x", body, If_Match=f'"other", {find_tag(format)}').status == 201
    assert put(server, "x", body, If_Match=anything).status == 201
    assert put(server, "x", body, If_None_Match=first).status == 201
    assert put(server, "other", body).status == 409
    assert put(server, "other", body, If_None_Match="*").status == 412


def test_a_condition_is_checked_again_at_the_end(server: splitarrow.Server, tmp_path: Path) -> None:
    body = encode(TABLE)
    with Downloader(server.http_uri or "") as client:
        length = str(len(body))
        client.send(
            "/v1/datasets/x/data",
            "PUT",
            Content_Type=ARROW,
            Content_Length=length,
            If_None_Match="*",
        )
        client.socket.sendall(body[:5000])
        wait_until(lambda: list_uploads(tmp_path / "uploads"), "the file of the upload")
        assert put(server, "x", encode(TABLE.slice(0, 7))).status == 201
        client.socket.sendall(body[5000:])
        assert client.read().status == 412
    assert splitarrow.open(server.uri("x")).read_all().num_rows == 7


def test_rights_and_quotas_hold(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[tokens]]\nname = "w"\ntoken = "writer-of-a-token-0123456789"\ndatasets = ["*"]\n'
        'write = ["mine"]\n[[tokens]]\nname = "r"\ntoken = "reader-of-a-token-0123456789"\n'
        'datasets = ["*"]\n'
    )
    tokens.chmod(0o600)
    writer, reader = (f"Bearer {name}-of-a-token-0123456789" for name in ("writer", "reader"))
    with serve(tmp_path / "u", token_file=tokens, upload_bytes="64KiB") as server:
        assert put(server, "mine", encode(TABLE), Authorization=reader).status == 403
        assert put(server, "other", encode(TABLE), Authorization=writer).status == 403
        assert put(server, "mine", encode(TABLE), Authorization=writer).status == 201
        large = pa.table({"n": range(50_000)})
        found = put(server, "mine", encode(large), Authorization=writer)
        assert found.status == 429
        authorization = {"Authorization": reader}
        stored = download(server.http_uri or "", "/v1/datasets/mine/data", **authorization)
        assert pa.ipc.open_stream(stored.body).read_all().equals(TABLE)


def test_a_large_message_is_refused_before_it_arrives(tmp_path: Path) -> None:
    with splitarrow.serve(
        {"t": TABLE},
        http="http://127.0.0.1:0",
        control="grpc://127.0.0.1:0",
        writable=tmp_path,
        limits=Limits(upload_message_bytes=1 << 20),
    ) as server:
        body = encode(pa.table({"n": range(200_000)}), 200_000)
        with Downloader(server.http_uri or "") as client:
            client.send(
                "/v1/datasets/x/data", "PUT", Content_Type=ARROW, Content_Length=str(1 << 40)
            )
            client.socket.sendall(body[:100_000])
            assert client.read().status == 413
