"""Which location of an endpoint is opened, and the error if none can be."""

from __future__ import annotations

import json
import socket
from typing import Any, cast

import pyarrow as pa
import pytest

import splitarrow
from helpers.proxy import proxy
from splitarrow.client.arguments import ReadPlan, StreamOptions
from splitarrow.client.dataset import endpoints
from splitarrow.client.dataset.endpoints import open_endpoint
from splitarrow.client.failures import FailureMemory
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.info import Endpoint
from splitarrow.client.stream.opening import Opening
from splitarrow.errors import ConnectError, NotFoundError, UsageError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.tickets import TicketSigner


class Channel:
    address = "grpc://a:1"
    tls = None

    def __init__(self) -> None:
        self.failed_locations = FailureMemory()


def refused_uris(count: int) -> list[str]:
    """Return addresses at which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    uris = [f"tcp://127.0.0.1:{sock.getsockname()[1]}?want_data=1" for sock in sockets]
    for sock in sockets:
        sock.close()
    return uris


def open_locations(*uris: str, ticket: bytes = b"d") -> Any:
    plan = ReadPlan(StreamOptions(), location_timeout=5)
    return open_endpoint(cast(FlightChannel, Channel()), Endpoint(ticket, uris), plan, "named")


def test_the_error_of_a_single_location_is_its_own() -> None:
    (uri,) = refused_uris(1)
    with pytest.raises(ConnectError, match="Connection refused") as caught:
        open_locations(uri)
    assert "none of the locations" not in str(caught.value)


def test_the_error_of_several_locations_lists_all() -> None:
    uris = refused_uris(2)
    uris[1] = uris[1].replace("tcp:", "ucx:")
    with pytest.raises(ConnectError, match=r"none of the locations.* tcp: .*; ucx: ") as caught:
        open_locations(*uris)
    assert caught.value.stream == "named"


@pytest.mark.parametrize("ticket", [b"unknown", json.dumps({"dataset": "unknown"}).encode()])
def test_the_error_of_a_readable_ticket_names_its_dataset(ticket: bytes) -> None:
    with (
        splitarrow.serve({}, listen=["tcp://127.0.0.1:0"]) as server,
        pytest.raises(NotFoundError) as caught,
    ):
        open_locations(str(server._daemon.uris[0]), ticket=ticket)
    assert caught.value.stream == "unknown"


def test_the_error_of_a_signed_ticket_names_the_dataset_of_the_read() -> None:
    with (
        splitarrow.serve({}, listen=["tcp://127.0.0.1:0"]) as server,
        pytest.raises(splitarrow.errors.SplitArrowError) as caught,
    ):
        open_locations(
            str(server._daemon.uris[0]), ticket=TicketSigner().sign(Request("data"), "x")
        )
    assert caught.value.stream == "named"


@pytest.mark.parametrize(
    ("host", "sent"),
    [("node.example", ["node.example"]), ("127.0.0.1", ["127.0.0.1"]), ("n\xf6", [])],
)
def test_a_call_names_the_host_that_the_client_has_connected_to(host: str, sent: list[str]) -> None:
    """The server returns addresses at this host. Metadata of gRPC is ASCII."""
    channel = FlightChannel(DataUri("grpc", host, 1), None, None, 1)
    assert [value for key, value in channel._metadata if key == "splitarrow-host"] == sent
    channel.close()


class Opened:
    """What `open_endpoint` opens, without a connection; each of `failures` fails once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> None:
        self.failures: list[Any] = list(failures)
        self.uris: list[list[str]] = []
        self.options: list[StreamOptions] = []
        self.do_gets: list[tuple[Any, ...]] = []
        monkeypatch.setattr(endpoints, "Stream", self.open_stream)
        monkeypatch.setattr(endpoints, "FlightStream", self.open_do_get)

    def open_stream(self, opening: Opening) -> str:
        self.uris.append([str(uri) for uri in opening.reader.uris])
        self.options.append(opening.options)
        if self.failures:
            raise self.failures.pop(0)
        return "stream"

    def open_do_get(self, *arguments: Any) -> str:
        self.do_gets.append(arguments)
        return "DoGet"


DO_GET = "arrow-flight-reuse-connection://?"
TAG = "want_data=0x1"


def open_parts(
    *uris: str, pair: tuple[str, str] | None = None, transport: str = "auto", **options: Any
) -> Any:
    plan = ReadPlan(StreamOptions(**options), transport, location_timeout=2.5)
    endpoint = Endpoint(b"d", uris, pair)
    return open_endpoint(cast(FlightChannel, Channel()), endpoint, plan, "named")


def test_locations_are_tried_in_the_order_of_the_server_and_do_get_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = (f"tcp://m?{TAG}&stream=metadata", f"tcp://b?{TAG}&stream=body")
    uris = (DO_GET, "grpc://c:1", f"SHM:///sock?{TAG}", f"tcp://a?{TAG}&ticket=old")
    opened = Opened(monkeypatch, *[ConnectError("away")] * 3)
    assert open_parts(*uris, pair=pair) == "DoGet"
    assert opened.uris == [
        [f"shm:///sock?{TAG}&ticket=d"],
        [f"tcp://a?{TAG}&ticket=d"],
        [f"tcp://m?{TAG}&stream=metadata&ticket=d", f"tcp://b?{TAG}&stream=body&ticket=d"],
    ]
    ((channel, ticket, name, options),) = opened.do_gets
    assert (channel.address, ticket, name) == ("grpc://a:1", b"d", "named")
    assert options == StreamOptions()
    assert open_parts(*uris, pair=pair) == "stream"
    assert len(opened.uris) == 4


def test_a_pair_has_the_scheme_of_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    pair = (f"TCP://m?{TAG}&stream=metadata", f"ucx://b?{TAG}&stream=body")
    assert open_parts(pair=pair, transport="tcp") == "stream"
    assert len(opened.uris[0]) == 2
    with pytest.raises(UsageError, match="offers tcp"):
        open_parts(pair=pair, transport="ucx")


@pytest.mark.parametrize(
    ("transport", "first"), [("shm", "shm:///sock"), ("tcp", "tcp://a"), ("ucx", "ucx://p")]
)
def test_a_transport_selects_its_locations(
    monkeypatch: pytest.MonkeyPatch, transport: str, first: str
) -> None:
    opened = Opened(monkeypatch)
    pair = (f"ucx://p?{TAG}&stream=metadata", f"ucx://p?{TAG}&stream=body")
    uris = (f"shm:///sock?{TAG}", f"tcp://a?{TAG}", DO_GET)
    assert open_parts(*uris, pair=pair, transport=transport) == "stream"
    assert opened.uris[0][0].startswith(first)
    assert open_parts(*uris, pair=pair, transport="flight") == "DoGet"
    with pytest.raises(UsageError, match=r"over 'tls'; the server offers shm, tcp, flight$"):
        open_parts(*uris, uris[0], transport="tls")
    with pytest.raises(UsageError, match=r"over 'auto'; the server offers nothing$"):
        open_parts()


def test_one_of_several_locations_gets_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    one, other = f"tcp://a?{TAG}", f"tcp://b?{TAG}"
    open_parts(one, connect_timeout=9.0, prefetch_bytes=100)
    open_parts(one, other, connect_timeout=9.0)
    open_parts(one, other, connect_timeout=0.5)
    assert [options.connect_timeout for options in opened.options] == [9.0, 2.5, 0.5]
    assert opened.options[0].prefetch_bytes == 0  # The consumer of the endpoint prefetches.
    assert opened.options[0].tls is Channel.tls


@pytest.mark.parametrize(
    ("first", "opens"), [("shm:///sock", "stream"), ("tcp://a", None), ("novel://a", None)]
)
def test_only_a_location_on_this_host_may_refuse(
    monkeypatch: pytest.MonkeyPatch, first: str, opens: str | None
) -> None:
    """The daemon of another host may listen at a socket of the same path."""
    refusal = NotFoundError("no d")
    opened = Opened(monkeypatch, refusal)
    uris = (f"{first}?{TAG}", f"tcp://b?{TAG}")
    if first.startswith("novel"):  # It is not reached, so nothing has refused.
        monkeypatch.setattr(endpoints, "resolve_uris", lambda uris, ticket: uris)
    if opens is None:
        with pytest.raises(NotFoundError, match="no d"):
            open_parts(*uris)
        assert len(opened.uris) == 1
    else:
        assert open_parts(*uris) == opens
        assert len(opened.uris) == 2
    opened.failures = [ConnectError("away"), refusal]
    with pytest.raises(NotFoundError, match="no d"):
        open_parts(f"tcp://b?{TAG}", f"shm:///sock?{TAG}")
    opened.failures = [refusal, ConnectError("away")]
    with pytest.raises(ConnectError, match=r"can be reached: shm: no d; tcp: away") as caught:
        open_parts(f"shm:///sock?{TAG}", f"tcp://b?{TAG}")
    assert caught.value.stream == "named"


@pytest.mark.parametrize(("stream", "named"), [(None, "named"), ("?", "named"), ("other", "other")])
def test_an_error_without_a_dataset_names_that_of_the_read(
    monkeypatch: pytest.MonkeyPatch, stream: str | None, named: str
) -> None:
    Opened(monkeypatch, NotFoundError("no", stream=stream))
    with pytest.raises(NotFoundError) as caught:
        open_parts(f"tcp://a?{TAG}")
    assert caught.value.stream == named


@pytest.mark.parametrize("required", [None, "flight", "cma"])
def test_do_get_is_not_opened_where_another_transport_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str | None
) -> None:
    opened = Opened(monkeypatch)
    if required == "cma":
        with pytest.raises(ConnectError, match="'named' is available over DoGet only; cma is req"):
            open_parts(DO_GET, require_transport=required)
        assert opened.do_gets == []
    else:
        assert open_parts(DO_GET, require_transport=required) == "DoGet"


def test_a_location_that_failed_is_tried_last() -> None:
    channel = cast(FlightChannel, Channel())
    with (
        splitarrow.serve({"n": pa.table({"n": [1, 2, 3]})}) as server,
        proxy(DataUri.parse(server.uri("n", scheme="tcp")).port or 0) as link,
    ):
        link.inspect = lambda number, data: True  # cuts each connection
        location = f"tcp://127.0.0.1:{link.port}?want_data=1"
        endpoint = Endpoint(b"n", (location, server.uri("n", scheme="tcp")))
        for _ in range(3):
            open_endpoint(channel, endpoint, ReadPlan(StreamOptions()), "n").close()
        assert link.accepted == 1
        assert location in channel.failed_locations
