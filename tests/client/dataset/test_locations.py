"""Which location of an endpoint is opened, and the error if none can be."""

from __future__ import annotations

import json
import socket
from typing import Any, cast

import pytest

import splitarrow
from splitarrow.client.dataset.locations import open_endpoint
from splitarrow.client.dataset.read_plan import ReadPlan
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.info import Endpoint
from splitarrow.client.stream.options import ReadOptions
from splitarrow.errors import ConnectError, NotFoundError
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.auth.tickets import TicketSigner


class Channel:
    address = "grpc://a:1"
    tls = None


def refused_uris(count: int) -> list[str]:
    """Return addresses at which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    uris = [f"tcp://127.0.0.1:{sock.getsockname()[1]}?want_data=1" for sock in sockets]
    for sock in sockets:
        sock.close()
    return uris


def open_locations(*uris: str, ticket: bytes = b"d") -> Any:
    plan = ReadPlan(ReadOptions(), location_timeout=5)
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
