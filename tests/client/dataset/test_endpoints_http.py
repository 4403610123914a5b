"""Endpoints over HTTP, the last of the locations of a control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.proxy import proxy
from helpers.scripted_http import chunked, scripted_server
from helpers.streams import ipc_stream
from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import endpoints
from splitarrow.client.dataset.endpoints import open_endpoint
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.info import Endpoint
from splitarrow.errors import ConnectError, SplitArrowError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri

TOKEN = "secret-of-a-reader-0123456789"
TABLE = pa.Table.from_batches(
    pa.table({"n": range(2000), "s": [f"text {n % 97}" for n in range(2000)]}).to_batches(300)
)
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"columns": "s", "filter": "n > 1000 and s <> 'text 3'", "limit": 500},
    {"batches": (1, 3)},
    {"batches": [(0, 1), (3, 4)], "compression": "zstd"},
    {"rows": (123, 1777), "batch_rows": 77},
]


@pytest.fixture(scope="module", params=[False, True], ids=["open", "tokens"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[splitarrow.Server]:
    settings: dict[str, Any] = {}
    if request.param:
        tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
        tokens.write_text(f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"\ndatasets = ["*"]\n')
        settings["token_file"] = tokens
    folder = tmp_path_factory.mktemp("shards")
    for index in range(3):
        with pa.ipc.new_file(str(folder / f"{index}.arrow"), TABLE.schema) as writer:
            writer.write_table(TABLE)
    datasets = {"table": TABLE, "shards": folder, "tensor": pa.Tensor.from_numpy(_array())}
    control, http = "grpc://127.0.0.1:0", "http://127.0.0.1:0"
    with splitarrow.serve(datasets, control=control, http=http, **settings) as started:
        yield started


def _array() -> Any:
    import numpy as np

    return np.zeros((2, 3))


@pytest.fixture
def client(server: splitarrow.Server) -> Iterator[splitarrow.Client]:
    with splitarrow.connect(server.control_uri or "", TOKEN) as connected:
        yield connected


def test_the_url_is_the_last_location(client: splitarrow.Client, server: splitarrow.Server) -> None:
    (endpoint,) = client.info("table").endpoints
    *_, do_get, url = endpoint.locations
    assert do_get.startswith("arrow-flight-reuse-connection:")
    assert url.startswith(f"{server.http_uri}/v1/datasets/table/data")
    assert TOKEN not in url
    assert len({each.locations[-1] for each in client.info("shards").endpoints}) == 3
    assert not any("http:" in each for each in client.info("tensor").endpoints[0].locations)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_http_is_selected_by_its_name(client: splitarrow.Client, selection: dict[str, Any]) -> None:
    expected = client.read("table", transport="flight", **selection).read_all()
    for _ in range(3):  # a kept plan has to be confirmed, which HTTP cannot do
        with client.read("table", transport="http", **selection) as stream:
            assert stream.read_all().equals(expected)
            assert stream.transport == "http"
    with client.read("table") as stream:
        assert stream.transport != "http"


@pytest.mark.parametrize(
    "selection",
    [
        {},
        {"filter": "n > 1990"},
        {"limit": 4500},
        {"shards": [2, 0]},
        {"shards": [1], "rows": (5, 10)},
        {"rows": (1990, 2010)},
    ],
)
def test_parts_are_read_over_http(client: splitarrow.Client, selection: dict[str, Any]) -> None:
    expected = client.read("shards", transport="flight", **selection).read_all()
    with client.read("shards", transport="http", **selection) as stream:
        assert stream.read_all().equals(expected)
        assert stream.transport == "http"


def test_a_fixed_version_is_read_over_http(client: splitarrow.Client) -> None:
    version = client.info("shards").version
    for begin in (0, 1999, 2500, 5999):
        rows = (begin, begin + 1)
        with client.read("shards", rows=rows, version=version, transport="http") as stream:
            assert stream.read_all()["n"].to_pylist() == [begin % 2000]


def test_a_required_transport_holds(client: splitarrow.Client) -> None:
    with client.read("table", require_transport="http", transport="http") as stream:
        assert stream.read_all().equals(TABLE)
    with pytest.raises(SplitArrowError, match="tcp is required"):
        client.read("table", require_transport="tcp", transport="http")
    with pytest.raises(UsageError, match="not available over 'https'"):
        client.read("table", transport="https")


def test_a_read_resumes_with_a_new_url(
    client: splitarrow.Client, server: splitarrow.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "draw_pause", lambda retry: 0.0)
    port = int((server.http_uri or "").rpartition(":")[2])
    listed = endpoints._list_locations  # pyright: ignore[reportPrivateUsage]

    def list_link(endpoint: Endpoint) -> Iterator[Any]:
        for each in listed(endpoint):
            uris = (uri.replace(f":{port}/", f":{link.port}/") for uri in each.uris)
            yield each._replace(uris=tuple(uris))

    with proxy(port) as link:
        link.allow = lambda: 20_000
        monkeypatch.setattr(endpoints, "_list_locations", list_link)
        with client.read("table", transport="http") as stream:
            assert stream.read_all().equals(TABLE)
            assert stream.resumed > 1
    assert link.accepted == stream.resumed + 1


def test_stock_flight_clients_read_beside_the_url(server: splitarrow.Server) -> None:
    token: Any = [(b"authorization", f"Bearer {TOKEN}".encode())]
    options = flight.FlightCallOptions(headers=token)
    with flight.connect(server.control_uri or "") as stock:
        info = stock.get_flight_info(flight.FlightDescriptor.for_path("table"), options)
        (endpoint,) = info.endpoints
        assert endpoint.locations[-1].uri.startswith(b"http://")
        assert stock.do_get(endpoint.ticket, options).read_all().equals(TABLE)


def open_url(
    url: str, ticket: bytes = b"opaque", control: str = "grpc://127.0.0.1:1", **options: Any
) -> Any:
    channel = FlightChannel(DataUri.parse(control), TOKEN, None, 30)
    try:
        plan = ReadPlan(StreamOptions(**options))
        return open_endpoint(channel, Endpoint(ticket, (url,)), plan, "d")
    finally:
        channel.close()


def test_urls_of_other_services_get_no_token() -> None:
    """An endpoint may have the URL of an object store, which signs it."""
    body = chunked(ipc_stream(TABLE.to_batches(), TABLE.schema))
    with scripted_server(lambda _: [body]) as store:
        url = f"{store.uri}/bucket/object.arrows?signature=a%2Fb"
        assert list(open_url(url)) == TABLE.to_batches()
    (request,) = store.received
    assert (request.method, request.target) == ("GET", "/bucket/object.arrows?signature=a%2Fb")
    assert "authorization" not in request.headers


def test_a_token_for_an_encrypted_channel_is_not_sent_in_plain_text() -> None:
    refused = pytest.raises(ConnectError, match="would transmit the token unencrypted")
    with scripted_server(lambda _: []) as server, refused:
        open_url(f"{server.uri}/v1/datasets/d/data", control="grpc+tls://127.0.0.1:1")
    assert server.received == []


def test_an_unsigned_ticket_selects_and_a_signed_one_does_not() -> None:
    body = chunked(ipc_stream(TABLE.to_batches(), TABLE.schema))
    with scripted_server(lambda _: [body]) as server:
        url = f"{server.uri}/v1/datasets/d/data?limit=1"
        list(open_url(url, Request("d", limit=2).ticket()))
        list(open_url(url, b"sa1.signed"))
        for request in (Request("d", version="v", current=True), Request("d", format="file")):
            with pytest.raises(ConnectError, match="cannot deliver this kind of request"):
                open_url(url, request.ticket())
    post, get = server.received
    assert (post.method, post.selection) == ("POST", {"limit": 2})
    assert (get.method, get.target) == ("GET", "/v1/datasets/d/data?limit=1")
    assert post.headers["authorization"] == get.headers["authorization"] == f"Bearer {TOKEN}"


BODY = ipc_stream(TABLE.to_batches(), TABLE.schema)


class Elsewhere(flight.FlightServerBase):
    """A stock server whose data is at URLs of other servers, and perhaps at its own DoGet."""

    def __init__(self, locations: list[Any]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.locations = locations

    def list_actions(self, context: Any) -> list[Any]:
        return []

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        endpoint = flight.FlightEndpoint(b"t", self.locations)
        return flight.FlightInfo(TABLE.schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(TABLE)


def read_elsewhere(locations: list[str]) -> pa.Table:
    """Read what a stock server offers at some locations."""
    with (
        Elsewhere(locations) as server,
        splitarrow.connect(f"grpc://127.0.0.1:{server.port}") as client,
        client.read("t", resume_attempts=0) as stream,
    ):
        return stream.read_all()


def respond(body: bytes, content_type: str | None) -> bytes:
    typed = f"Content-Type: {content_type}\r\n" if content_type is not None else ""
    return f"HTTP/1.1 200 OK\r\n{typed}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "content_type", ["application/vnd.apache.arrow.stream", "application/octet-stream", None]
)
def test_a_location_may_be_the_url_of_any_server(content_type: str | None) -> None:
    with scripted_server(lambda received: [respond(BODY, content_type)]) as server:
        assert read_elsewhere([f"{server.uri}/files/t.arrows?signature=x"]) == TABLE
    (received,) = server.received
    assert (received.method, received.target) == ("GET", "/files/t.arrows?signature=x")
    assert "application/octet-stream" in received.headers["accept"]


@pytest.mark.parametrize(
    ("body", "content_type", "problem"),
    [
        (b"PAR1" + bytes(100), "application/octet-stream", "not an Arrow IPC stream"),
        (b"<html></html>", "text/html", "answers with text/html"),
        (b"<html></html>", None, "not an Arrow IPC stream"),
        (b"", "application/octet-stream", "it ended early"),
        (BODY[:-8], "application/octet-stream", "it ended early"),
        (BODY + b"x", "application/octet-stream", "data follows the end"),
    ],
)
def test_other_data_at_a_location_is_an_error(
    body: bytes, content_type: str | None, problem: str
) -> None:
    with (
        scripted_server(lambda received: [respond(body, content_type)]) as server,
        pytest.raises(SplitArrowError, match=problem),
    ):
        read_elsewhere([f"{server.uri}/t"])


def test_the_next_location_is_tried_after_other_data() -> None:
    parquet = respond(b"PAR1" + bytes(100), "application/octet-stream")
    with scripted_server(lambda received: [parquet]) as server:
        assert read_elsewhere([f"{server.uri}/t", "arrow-flight-reuse-connection://?"]) == TABLE
