"""Data over HTTP: every format and selection, the end, ranges, rights, limits and abnormal ends."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import splitarrow
from helpers.files import write_file, write_parquet, write_shards
from helpers.http_downloads import Download, Downloader, IncompleteDownloadError, download
from helpers.http_requests import scrape
from helpers.publication import numbers, publish
from helpers.waiting import wait_until
from splitarrow.publication.version_store import VersionStore
from splitarrow.server import session
from splitarrow.server.http import listener

ROWS = 1000
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int64()),
        "x": pa.array([None if i % 7 == 0 else i / 8 for i in range(ROWS)]),
        "text": pa.array([f"row, {i} é" for i in range(ROWS)]),
    }
)
BIG = pa.table({"n": pa.array(np.arange(4_000_000))})
TOKEN = "canary-of-a-token-0123456789"
ARROW = "application/vnd.apache.arrow.stream"


def serve(datasets: dict[str, Any], **settings: Any) -> splitarrow.Server:
    return splitarrow.serve(datasets, http="http://127.0.0.1:0", **settings)


def uri_of(server: splitarrow.Server) -> str:
    assert server.http_uri is not None
    return server.http_uri


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("http")
    write_file(folder / "file.arrow", TABLE, batch_rows=300)
    write_parquet(folder / "rows.parquet", TABLE, row_group_size=300)
    write_shards(folder / "shards", [TABLE.slice(0, 400), TABLE.slice(400)])
    store = VersionStore(str(folder / "published"))
    publish(store, "one", numbers(0), numbers(10))
    publish(store, "two", numbers(20), append=True)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[splitarrow.Server]:
    datasets = {
        "table": TABLE,
        "file": str(folder / "file.arrow"),
        "rows": str(folder / "rows.parquet"),
        "shards": str(folder / "shards"),
        "a/b c": TABLE,
        "published": str(folder / "published"),
        "big": BIG,
    }
    with serve(datasets, batch_rows=100_000) as server:
        yield server


def get(server: splitarrow.Server, name: str, query: str = "", **headers: str) -> Download:
    found = download(uri_of(server), f"/v1/datasets/{quote(name, safe='')}/data{query}", **headers)
    assert found.status == 200, found.body
    return found


def read_body(name: str, body: bytes) -> pa.Table:
    """Return the rows of a response, as other software reads them."""
    match name:
        case "arrow-stream":
            return pa.ipc.open_stream(body).read_all()
        case "arrow-file":
            return pa.ipc.open_file(body).read_all()
        case "parquet":
            return pq.read_table(io.BytesIO(body))
        case "csv":
            return polars.read_csv(io.BytesIO(body)).to_arrow()
        case _:
            return polars.read_ndjson(io.BytesIO(body)).to_arrow()


FORMATS = ("arrow-stream", "arrow-file", "parquet", "csv", "ndjson")


@pytest.mark.parametrize("name", ["table", "file", "rows", "shards", "a/b c"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_has_the_rows_of_the_dataset(
    server: splitarrow.Server, name: str, format: str
) -> None:
    found = get(server, name, f"?format={format}")
    table = read_body(format, found.body)
    assert table.cast(TABLE.schema).equals(TABLE)
    if "content-length" not in found.headers:
        assert found.trailers == {"splitarrow-rows": str(ROWS)}


@pytest.mark.parametrize("format", FORMATS)
def test_a_selection_has_the_rows_that_pyarrow_selects(
    server: splitarrow.Server, format: str
) -> None:
    condition = quote("x > 20 and text like '%5%' or n = 3")
    found = get(server, "rows", f"?format={format}&columns=text,n&filter={condition}&limit=40")
    keep = ((pc.field("x") > 20) & pc.match_like(pc.field("text"), "%5%")) | (pc.field("n") == 3)
    expected = TABLE.filter(keep).select(["text", "n"]).slice(0, 40)
    assert read_body(format, found.body).cast(expected.schema).equals(expected)
    assert found.trailers == {"splitarrow-rows": "40"}
    assert found.headers["accept-ranges"] == "none"


@pytest.mark.parametrize(
    ("query", "first", "end"),
    [
        ("?offset=900", 900, ROWS),
        ("?rows=10:20", 10, 20),
        ("?batches=1:2", 300, 600),
        ("?batches=0:1,3:4&limit=350", None, None),
        ("?limit=0", 0, 0),
    ],
)
def test_parts_are_selected_by_their_numbers(
    server: splitarrow.Server, query: str, first: int | None, end: int
) -> None:
    table = read_body("arrow-stream", get(server, "file", query).body)
    expected = (
        TABLE.slice(first, end - first)
        if first is not None
        else pa.concat_tables([TABLE.slice(0, 300), TABLE.slice(900, 50)])
    )
    assert table.equals(expected)


def test_a_shard_is_read_by_its_path(server: splitarrow.Server) -> None:
    found = download(uri_of(server), "/v1/datasets/shards/shards/1/data")
    assert read_body("arrow-stream", found.body).equals(TABLE.slice(400))


def test_a_long_request_is_sent_as_json(server: splitarrow.Server) -> None:
    wanted = [1, *range(500, 900)]
    body = {"columns": ["n"], "filter": f"n in ({', '.join(map(str, wanted))})", "format": "csv"}
    with Downloader(uri_of(server)) as client:
        data = json.dumps(body).encode()
        client.send(
            "/v1/datasets/table/data", "POST", data, Content_Type="application/json; charset=utf-8"
        )
        found = client.read()
    assert read_body("csv", found.body)["n"].to_pylist() == wanted


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_bodies_of_arrow_are_compressed_by_request(server: splitarrow.Server, codec: str) -> None:
    plain = get(server, "table").body
    found = get(server, "table", f"?compression={codec}").body
    assert len(found) < len(plain)
    assert read_body("arrow-stream", found).equals(TABLE)


@pytest.mark.parametrize(
    ("accept", "encoding", "compresses"),
    [
        ("text/csv", "gzip, zstd", True),
        ("text/csv", "gzip", False),
        ("text/csv", "zstd;q=0", False),
        (ARROW, "zstd", True),
        (ARROW, "gzip, deflate, br, zstd", False),
        ("application/vnd.apache.parquet", "zstd", False),
    ],
)
def test_the_content_is_compressed_if_the_client_accepts_it(
    server: splitarrow.Server, accept: str, encoding: str, compresses: bool
) -> None:
    found = get(server, "table", Accept=accept, Accept_Encoding=encoding)
    assert found.headers["content-type"] == accept
    assert found.headers.get("content-encoding") == ("zstd" if compresses else None)
    body = found.body
    if compresses:
        body = pa.input_stream(io.BytesIO(body), compression="zstd").read()
    name = {"text/csv": "csv", ARROW: "arrow-stream"}.get(accept, "parquet")
    assert read_body(name, body).cast(TABLE.schema).equals(TABLE)


def test_dictionaries_and_nested_columns_arrive(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("l", pa.list_(pa.struct([("a", pa.int8())]))),
        ]
    )
    first = pa.table({"d": pa.array(["a", "b"]).dictionary_encode(), "l": [[{"a": 1}], None]})
    second = pa.table({"d": pa.array(["c", "b"]).dictionary_encode(), "l": [[], [{"a": None}]]})
    parts = [each.cast(schema) for each in (first, second)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for part in parts:
            writer.write_table(part)
    (tmp_path / "replaced.arrows").write_bytes(sink.getvalue())
    with serve({"replaced": str(tmp_path / "replaced.arrows")}) as server:
        expected = [value for part in parts for value in part.to_pylist()]
        for format in ("arrow-stream", "parquet", "ndjson"):
            body = get(server, "replaced", f"?format={format}").body
            assert read_body(format, body).to_pylist() == expected
        refused = download(uri_of(server), "/v1/datasets/replaced/data?format=arrow-file")
        assert refused.status == 400
        assert b"replaces one; request the format arrow-stream" in refused.body
        refused = download(uri_of(server), "/v1/datasets/replaced/data?format=csv")
        assert refused.status == 400
        assert b"a CSV file cannot store the column 'l'" in refused.body


def test_what_a_format_cannot_store_is_a_bad_request() -> None:
    datasets = {
        "rows": pa.record_batch({"a": [1, 2, 3]}).select([]),
        "cut": pa.table({"a\0b": [1]}),
    }
    with serve(datasets) as server:
        for name, format, reason in (
            ("rows", "parquet", "a Parquet file cannot store rows without columns; request"),
            ("cut", "vortex", "Vortex has no names with a NUL"),
        ):
            refused = download(uri_of(server), f"/v1/datasets/{name}/data?format={format}")
            assert refused.status == 400
            assert reason.encode() in refused.body


def test_columns_with_one_name_have_no_form_in_json(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with serve({"twice": twice}) as server:
        refused = download(uri_of(server), "/v1/datasets/twice/data?format=ndjson")
        assert refused.status == 400
        assert b"several columns are named 'a'; request another" in refused.body


# --- the end --------------------------------------------------------------------------------------


def write_damaged(path: Path, batch: int) -> Path:
    """Write a file with 40 compressed batches, of which one cannot be decoded."""
    write_file(path, BIG, batch_rows=100_000, compression="zstd")
    with pa.memory_map(str(path)) as source:
        data = bytearray(source.read())
    frames = [found.start() for found in re.finditer(rb"\x28\xb5\x2f\xfd", data)]
    assert len(frames) == 40
    data[frames[batch] + 12 : frames[batch] + 200] = bytes(188)
    path.write_bytes(data)
    return path


def test_an_error_in_the_middle_ends_the_connection_without_a_last_chunk(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = write_damaged(tmp_path / "damaged.arrow", 12)
    with serve({"damaged": str(damaged)}) as server:
        for format in ("csv", "parquet"):
            with Downloader(uri_of(server)) as client:
                client.send(f"/v1/datasets/damaged/data?format={format}")
                head = client.read_head()
                assert head[0] == 200
                with pytest.raises(IncompleteDownloadError):
                    client.read_body(*head)
        wait_until(lambda: server.stats()["streams"] == 0)
        assert scrape(uri_of(server))["streams_ended_total", "damaged", "failed", "http"] == 2


def test_an_error_before_the_data_is_a_status(tmp_path: Path) -> None:
    damaged = write_damaged(tmp_path / "damaged.arrow", 0)
    with serve({"damaged": str(damaged)}) as server:
        found = download(uri_of(server), "/v1/datasets/damaged/data?format=csv")
        assert found.status == 500
        assert b"damaged" in found.body
        assert str(tmp_path).encode() not in found.body


def test_a_cancelled_stream_is_incomplete(server: splitarrow.Server) -> None:
    with Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/big/data?format=ndjson")
        head = client.read_head()
        (running,) = json.loads(download(uri_of(server), "/v1/streams").body)["streams"]
        assert (running["dataset"], running["transport"]) == ("big", "http")
        assert server._daemon.cancel_number(running["stream"], None)
        with pytest.raises(IncompleteDownloadError):
            client.read_body(*head)
    key = ("streams_ended_total", "big", "cancelled", "http")
    wait_until(lambda: scrape(uri_of(server)).get(key) == 1)


def test_a_client_that_leaves_ends_its_stream(server: splitarrow.Server) -> None:
    def count_left() -> float:
        key = ("streams_ended_total", "big", "disconnected", "http")
        return scrape(uri_of(server)).get(key, 0)

    before = count_left()
    with Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/big/data?format=ndjson")
        client.read_head()
    wait_until(lambda: count_left() == before + 1)
    assert server.stats()["streams"] == 0


def test_a_client_that_takes_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MAX_CHECK_SECONDS", 0.05)
    with serve({"big": BIG}, stall_seconds=0.2) as server, Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/big/data")
        head = client.read_head()
        wait_until(lambda: server.stats()["streams"] == 0)
        with pytest.raises(IncompleteDownloadError):
            client.read_body(*head)


def test_slow_clients_leave_room_for_health_checks(server: splitarrow.Server) -> None:
    clients = [Downloader(uri_of(server)) for _ in range(80)]
    try:
        for client in clients:
            client.send("/v1/datasets/big/data")
            client.read_head()
        assert download(uri_of(server), "/healthz").body == b"ok\n"
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: server.stats()["streams"] == 0)


def test_connections_are_idle_again_after_a_response(
    server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    with Downloader(uri_of(server)) as first, Downloader(uri_of(server)) as second:
        for client in (first, second):
            assert client.get("/v1/datasets/table/data").status == 200
        with pytest.raises(IncompleteDownloadError):
            download(uri_of(server), "/healthz")


def test_a_connection_carries_several_responses(server: splitarrow.Server) -> None:
    with Downloader(uri_of(server)) as client:
        for query in ("?limit=5", "?format=csv&limit=2", "?limit=nothing", "?format=arrow-file"):
            found = client.get(f"/v1/datasets/file/data{query}")
            assert found.status == (400 if "nothing" in query else 200)
        client.send("/v1/datasets/file/data", "HEAD")
        assert client.read(has_body=False).status == 200
        assert client.get("/healthz").body == b"ok\n"


def test_http_1_0_is_refused_as_it_cannot_prove_the_end(server: splitarrow.Server) -> None:
    with Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/table/data", version="1.0")
        assert client.read_head()[0] == 426


# --- stored files ---------------------------------------------------------------------------------


def test_a_stored_file_is_sent_unchanged_and_in_ranges(
    server: splitarrow.Server, folder: Path
) -> None:
    stored = (folder / "file.arrow").read_bytes()
    path = "/v1/datasets/file/data?format=arrow-file"
    with Downloader(uri_of(server)) as client:
        whole = client.get(path)
        assert whole.body == stored
        assert whole.headers["accept-ranges"] == "bytes"
        tag = whole.headers["etag"]
        part = client.get(path, Range="bytes=100-299", If_Range=tag)
        assert (part.status, part.body) == (206, stored[100:300])
        assert part.headers["content-range"] == f"bytes 100-299/{len(stored)}"
        assert client.get(path, Range="bytes=-50").body == stored[-50:]
        assert client.get(path, Range="bytes=0-1,5-6").body == stored
        assert client.get(path, Range="bytes=5-9", If_Range='"other"').body == stored
        beyond = client.get(path, Range=f"bytes={len(stored)}-")
        assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(stored)}")
        assert client.get(path, If_None_Match=f'"x", {tag}').status == 304
        assert client.get(path, If_Match='"x"').status == 412
        client.send(path, "HEAD", Range="bytes=0-9")
        head = client.read(has_body=False)
        assert (head.status, head.headers["content-length"]) == (206, "10")


@pytest.mark.parametrize(
    ("name", "format", "file"),
    [
        ("rows", "parquet", "rows.parquet"),
        ("published/shards/1", "arrow-file", None),
        ("shards/shards/0", "arrow-file", "shards/part-00000.arrow"),
    ],
)
def test_files_of_shards_and_other_formats_have_ranges(
    server: splitarrow.Server, folder: Path, name: str, format: str, file: str | None
) -> None:
    found = download(uri_of(server), f"/v1/datasets/{name}/data?format={format}", Range="bytes=8-")
    assert found.status == 206
    if file is not None:
        assert found.body == (folder / file).read_bytes()[8:]


def test_a_version_is_immutable_and_others_are_revalidated(server: splitarrow.Server) -> None:
    path = "/v1/datasets/published/data"
    old = download(uri_of(server), f"{path}?version=1")
    assert read_body("arrow-stream", old.body)["n"].to_pylist() == list(range(20))
    assert old.headers["cache-control"] == "public, no-cache"  # of a number
    exact = download(uri_of(server), f"{path}?version={old.headers['splitarrow-version']}")
    assert "immutable" in exact.headers["cache-control"]
    assert (exact.body, exact.headers["etag"]) == (old.body, old.headers["etag"])
    new = download(uri_of(server), path)
    assert read_body("arrow-stream", new.body)["n"].to_pylist() == list(range(30))
    assert new.headers["cache-control"] == "public, no-cache"
    assert new.headers["splitarrow-version"].startswith("2-")
    again = download(uri_of(server), path, If_None_Match=new.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    missing = download(uri_of(server), f"{path}?version=9")
    assert missing.status == 409
    assert b"ticket" not in missing.body


def test_the_number_of_a_version_is_revalidated_since_it_can_get_other_data(tmp_path: Path) -> None:
    settings = {"control": "grpc://127.0.0.1:0", "writable": tmp_path / "uploads"}
    path = "/v1/datasets/d/data"
    with serve({}, **settings) as server, splitarrow.connect(server.control_uri or "") as client:

        def publish(number: int) -> dict[str, str]:
            client.put_shard("d", pa.table({"n": [number]}), job=f"job-{number}", ordinal=0)
            client.publish("d", job=f"job-{number}", ordinals=[0])
            found = download(uri_of(server), f"{path}?version=1&format=arrow-file")
            assert read_body("arrow-file", found.body)["n"].to_pylist() == [number]
            assert found.headers["cache-control"] == "public, no-cache"
            return dict(found.headers)

        before = publish(1)
        client.drop("d")
        after = publish(2)
        assert before["etag"] != after["etag"]
        for headers, status in ((before, 409), (after, 200)):
            found = download(uri_of(server), f"{path}?version={headers['splitarrow-version']}")
            assert found.status == status
            assert ("immutable" in found.headers["cache-control"]) == (status == 200)


def test_a_file_that_changes_meanwhile_never_arrives_whole(tmp_path: Path) -> None:
    path = write_file(tmp_path / "big.arrow", BIG, batch_rows=1000)
    with serve({"big": str(path)}) as server, Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/big/data?format=arrow-file")
        _, headers = client.read_head()

        def overwrite() -> None:  # opening waits until the server has given its lease up
            with path.open("r+b") as file:
                file.seek(int(headers["content-length"]) - 100)
                file.write(b"?" * 50)

        writer = threading.Thread(target=overwrite)
        writer.start()
        with pytest.raises(IncompleteDownloadError):
            client._exactly(int(headers["content-length"]))
        writer.join(20)
        assert not writer.is_alive()


def test_a_file_without_a_lease_that_changes_never_arrives_whole(tmp_path: Path) -> None:
    path = write_file(tmp_path / "big.arrow", BIG, batch_rows=1000)
    with (
        serve({"big": str(path)}, allow_writers=True) as server,
        Downloader(uri_of(server)) as client,
    ):
        client.send("/v1/datasets/big/data?format=arrow-file")
        head = client.read_head()
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"?" * 50)
        with pytest.raises(IncompleteDownloadError):
            client.read_body(*head)


def test_the_next_request_returns_the_files_of_the_last_response(tmp_path: Path) -> None:
    path = write_file(tmp_path / "big.arrow", BIG, batch_rows=1000)
    with serve({"big": str(path)}) as server, Downloader(uri_of(server)) as client:
        client.get("/v1/datasets/big/data?format=arrow-file")
        client.get("/healthz")
        with path.open("r+b") as file:  # a lease would let this wait
            file.write(b"new")


def test_a_writer_does_not_wait_for_an_idle_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_CHECK_SECONDS", 0.05)
    path = write_file(tmp_path / "big.arrow", BIG, batch_rows=1000)
    with serve({"big": str(path)}) as server, Downloader(uri_of(server)) as client:
        assert client.get("/v1/datasets/big/data?format=arrow-file").body == path.read_bytes()
        with path.open("r+b") as file:
            file.write(b"new")


# --- rights and limits ----------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[splitarrow.Server]:
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[tokens]]\nname = "reader"\ntoken = "{TOKEN}"\ndatasets = ["table"]\n')
    path.chmod(0o600)
    with serve(
        {"table": TABLE, "big": BIG}, token_file=path, max_streams_per_principal=1
    ) as server:
        yield server


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
def test_data_needs_a_token(guarded: splitarrow.Server, method: str) -> None:
    with Downloader(uri_of(guarded)) as client:
        client.send("/v1/datasets/table/data", method, b"" if method[0] == "P" else None)
        status, headers = client.read_head()
    assert status == 401
    assert "www-authenticate" in headers


def test_a_reader_sees_only_its_datasets(guarded: splitarrow.Server) -> None:
    authorization = f"Bearer {TOKEN}"
    for path in ("big", "big/data", "missing/data", "big/shards/0", "big/shards/0/data"):
        found = download(uri_of(guarded), f"/v1/datasets/{path}", Authorization=authorization)
        assert found.status == 403, path
    found = download(uri_of(guarded), "/v1/datasets/table/data", Authorization=authorization)
    assert read_body("arrow-stream", found.body).equals(TABLE)
    assert found.headers["cache-control"] == "private, no-cache"


def test_a_token_in_the_url_is_refused_and_never_logged(
    guarded: splitarrow.Server, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("token", "access_token"):
        found = download(
            uri_of(guarded),
            f"/v1/datasets/table/data?{name}={TOKEN}",
            Authorization=f"Bearer {TOKEN}",
        )
        assert found.status == 400
        assert TOKEN not in found.body.decode() + caplog.text


def test_the_streams_of_a_principal_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[tokens]]\nname = "reader"\ntoken = "{TOKEN}"\ndatasets = ["*"]\n')
    path.chmod(0o600)
    authorization = f"Bearer {TOKEN}"
    with (
        serve({"big": BIG}, token_file=path, max_streams_per_principal=1) as server,
        Downloader(uri_of(server)) as client,
    ):
        client.send("/v1/datasets/big/data", Authorization=authorization)
        client.read_head()
        found = download(uri_of(server), "/v1/datasets/big/data", Authorization=authorization)
        assert (found.status, found.headers["retry-after"]) == (429, "1")
        assert b"limit of 1 concurrent streams" in found.body
        client.close()
        wait_until(lambda: server.stats()["streams"] == 0)
        limited = download(
            uri_of(server), "/v1/datasets/big/data?limit=1", Authorization=authorization
        )
        assert limited.status == 200


def test_the_connections_of_an_address_are_limited() -> None:
    with (
        serve({"big": BIG}, max_connections_per_address=1) as server,
        Downloader(uri_of(server)) as client,
    ):
        client.send("/v1/datasets/big/data")
        client.read_head()
        assert download(uri_of(server), "/v1/datasets/big/data").status == 429
        assert download(uri_of(server), "/healthz").status == 200
        client.close()
        wait_until(lambda: server.stats()["streams"] == 0)
        for _ in range(3):  # each gives its connection back
            assert download(uri_of(server), "/v1/datasets/big/data?limit=1").status == 200


def test_the_responses_of_a_server_are_limited() -> None:
    with serve({"big": BIG}, max_connections=2, max_connections_per_address=9) as server:
        clients = [Downloader(uri_of(server)) for _ in range(2)]
        for client in clients:
            client.send("/v1/datasets/big/data")
            client.read_head()
        assert download(uri_of(server), "/v1/datasets/big/data").status == 429
        for client in clients:
            client.close()
        wait_until(lambda: server.stats()["streams"] == 0)
        for _ in range(3):
            assert download(uri_of(server), "/v1/datasets/big/data?limit=1").status == 200


def test_an_expensive_filter_is_refused() -> None:
    texts = pa.table({"text": pa.array(["a" * 1000]).take(pa.array([0] * 20_000))})
    expensive = quote(" or ".join(f"text like '%a%b%{i}'" for i in range(30)))
    with serve({"texts": texts}, filter_seconds=0.01) as server:
        found = download(uri_of(server), f"/v1/datasets/texts/data?filter={expensive}")
        assert found.status == 429
        assert b"processor time" in found.body


def test_a_draining_daemon_finishes_responses_and_refuses_new_ones() -> None:
    with serve({"big": BIG, "table": TABLE}) as server, Downloader(uri_of(server)) as client:
        client.send("/v1/datasets/big/data?format=csv")
        status, headers = client.read_head()
        server._daemon.loop.call_soon_threadsafe(server._daemon.drain)
        wait_until(lambda: server._daemon.draining)
        refused = download(uri_of(server), "/v1/datasets/table/data")
        assert refused.status == 503
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        rows = -1  # the line with the names
        while size := int(client._line(), 16):
            rows += client._exactly(size).count(b"\n")
            client._exactly(2)
        assert client._fields() == {"splitarrow-rows": str(rows)} == {"splitarrow-rows": "4000000"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 200),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_pages_of_other_sites_cannot_read(
    server: splitarrow.Server, headers: dict[str, str], status: int
) -> None:
    found = download(uri_of(server), "/v1/datasets/table/data?limit=1", **headers)
    assert found.status == status
    assert "access-control-allow-origin" not in found.headers


def test_origins_that_are_allowed_can_read() -> None:
    origin = "https://notebook.example"
    with serve({"table": TABLE}, http_origins=[origin]) as server:
        path = "/v1/datasets/table/data"
        cross = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
        found = download(uri_of(server), path, Origin=origin, **cross)
        assert found.headers["access-control-allow-origin"] == origin
        assert download(uri_of(server), path, Origin="https://evil.example", **cross).status == 403
        with Downloader(uri_of(server)) as client:
            client.send(
                path,
                "OPTIONS",
                Origin=origin,
                Access_Control_Request_Method="POST",
                Access_Control_Request_Headers="authorization, content-type",
            )
            assert client.read().status == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/datasets/table/data", {"Accept": "text/html"}, 406),
        ("GET", "/v1/datasets/table?limit=1", {}, 400),
        ("GET", "/v1/datasets/table/shards/x", {}, 404),
        ("GET", "/v1/datasets/table/shards/99999999999", {}, 404),
        ("GET", "/v1/datasets/table/shards/7", {}, 400),
        ("GET", "/v1/datasets/table/shards/0/data?shard=0", {}, 400),
        ("GET", "/v1/datasets/table/data?columns=nothing", {}, 400),
        ("GET", "/v1/datasets/tabel/data", {}, 404),
        ("GET", "/v1/datasets/%FF/data", {}, 400),
        ("GET", "/v1/datasets/%00/data", {}, 404),
        ("POST", "/v1/datasets/table", {}, 405),
        ("POST", "/v1/datasets/table/data", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/datasets/table/data?limit=1", {"Content-Type": "application/json"}, 400),
        ("PUT", "/v1/datasets/table", {}, 405),
        ("DELETE", "/v1/datasets/table/data", {}, 405),
    ],
)
def test_wrong_requests_have_a_status_that_says_so(
    server: splitarrow.Server, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with Downloader(uri_of(server)) as client:
        client.send(path, method, b"{}" if method[0] == "P" else None, **headers)
        found = client.read()
    assert found.status == status, found.body
    assert found.body.endswith(b"\n") or status == 405


def test_a_flood_of_headers_ends_the_connection(server: splitarrow.Server) -> None:
    flood = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 50) for number in range(2000))
    with Downloader(uri_of(server)) as client:
        with suppress(ConnectionError):
            client.socket.sendall(b"GET /v1/datasets/table/data HTTP/1.1\r\n" + flood)
        answer = b""
        with suppress(ConnectionError):
            while received := client.socket.recv(1 << 16):
                answer += received
    assert not answer or answer.startswith(b"HTTP/1.1 400")


def test_two_requests_in_one_are_refused(server: splitarrow.Server) -> None:
    smuggled = (
        b"POST /v1/datasets/table/data HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /v1/datasets/table/data HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with Downloader(uri_of(server)) as client:
        client.socket.sendall(smuggled)
        assert client.read().status == 400
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(1) == b""
