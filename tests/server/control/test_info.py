"""Locations: their order, their hosts, and pairs of listeners."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import running
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri
from splitarrow.server.config.advertised import parse_advertised
from splitarrow.server.control import info as info_module
from splitarrow.server.control.info import (
    HOST_HEADER,
    HostResolver,
    Plan,
    list_locations,
    list_stream_pair,
    make_url,
    prefers_do_get,
)
from splitarrow.server.http.parameters import DataQuery, parse_query

PATH = flight.FlightDescriptor.for_path
LOOPBACK = "ipv4:127.0.0.1:50000"


def name(
    advertised: str | None = None,
    headers: Mapping[str, str] | None = None,
    peer: str = LOOPBACK,
    networks: tuple[str, ...] = (),
) -> HostResolver:
    addresses = () if advertised is None else tuple(advertised.split(","))
    return HostResolver(parse_advertised(addresses, networks), headers or {}, peer)


def dialled(uri: str, host: HostResolver) -> str:
    return str(host.resolve(DataUri.parse(uri)))


def test_the_fastest_transport_is_first_and_doget_is_last() -> None:
    listeners = [
        "tcp://127.0.0.1:1?want_data=1",
        "tcp+tls://127.0.0.1:2?want_data=1",
        "inproc:///here?want_data=1",
        "ucx://127.0.0.1:3?want_data=1",
        "shm:///run/s.sock?want_data=1",
        "tcp://127.0.0.1:4?want_data=1&stream=body",
    ]
    found = list_locations(map(DataUri.parse, listeners), name())
    assert [uri.partition("://")[0] for uri in found] == [
        "shm",
        "tcp+tls",
        "tcp",
        "ucx",
        "arrow-flight-reuse-connection",
    ]
    assert found[0] == "shm:///run/s.sock?want_data=0x1"


@pytest.mark.parametrize(
    "request_",
    [
        Request("d"),
        Request("a/ü?&", columns=("x", "y,z", 'q"', " s ")),
        Request("d", columns=("a=b&c",), limit=0, offset=5, shard=3, version="v 1", batch_rows=7),
        Request("d", batches=(3, 7), filter="c3Vi=="),
        Request("d", batches=((0, 2), (7, 8)), compression="lz4"),
        Request("d", rows=(10, 20)),
    ],
)
def test_a_url_selects_what_the_request_does(request_: Request) -> None:
    url = make_url(DataUri("https", "host", 1), request_)
    assert url is not None
    path, _, query = url.removeprefix("https://host:1/v1/datasets/").partition("?")
    parsed = DataQuery.of(unquote(path.removesuffix("/data")), parse_query(query))
    batches = None if parsed.request.batches is None else parsed.request.batch_ranges
    assert replace(parsed.request, batches=batches) == replace(
        request_, batches=request_.batch_ranges
    )


@pytest.mark.parametrize(
    "request_",
    [
        Request("d", format="file"),
        Request("d", version="v", current=True),
        Request("d", filter="c" * 9000),
    ],
)
def test_what_a_url_cannot_select(request_: Request) -> None:
    assert make_url(DataUri("http", "host", 1), request_) is None


def test_locations_contain_no_ticket() -> None:
    uri = DataUri.parse("tcp://127.0.0.1:1?want_data=1&free_data=2&ticket=secret")
    assert list_locations([uri], name())[0] == "tcp://127.0.0.1:1?want_data=0x1&free_data=0x2"


@pytest.mark.parametrize(
    ("uri", "host", "expected"),
    [
        ("tcp://10.0.0.1:1", name(), "tcp://10.0.0.1:1"),
        ("tcp://10.0.0.1:1", name("node.example"), "tcp://node.example:1"),
        ("tcp://0.0.0.0:1", name("fd00::1"), "tcp://[fd00::1]:1"),
        ("tcp://10.0.0.1:1", name("tcp=node.example:30016"), "tcp://node.example:30016"),
        ("tcp://0.0.0.0:1", name("tcp+tls=a,ucx=b:2"), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name("a", networks=("127.0.0.0/8=b",)), "tcp://b:1"),
        ("tcp://0.0.0.0:1", name("a", networks=("10.0.0.0/8=b",)), "tcp://a:1"),
        ("tcp://0.0.0.0:1", name(), "tcp://127.0.0.1:1"),
        ("tcp://[::]:1", name(), "tcp://[::1]:1"),
        ("tcp://0.0.0.0:1", name(peer="ipv6:%5B::1%5D:5"), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name(peer="ipv6:[::ffff:127.0.0.1]:5"), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name(peer="unix:"), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name(peer="ipv4:nonsense:5"), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name(peer="ipv6:[2001:db8::1]:5"), f"tcp://{socket.gethostname()}:1"),
        ("tcp://0.0.0.0:1", name(None, {HOST_HEADER: "node-1.x"}), "tcp://node-1.x:1"),
        ("tcp://0.0.0.0:1", name(None, {HOST_HEADER: "[fd00::1]"}), "tcp://[fd00::1]:1"),
        ("tcp://0.0.0.0:1", name(None, {HOST_HEADER: "a b"}), "tcp://127.0.0.1:1"),
        ("tcp://0.0.0.0:1", name(None, {HOST_HEADER: "x@evil?y"}), "tcp://127.0.0.1:1"),
        ("tcp://10.0.0.1:1", name(None, {HOST_HEADER: "node"}), "tcp://10.0.0.1:1"),
        ("shm:///run/s", name("node.example"), "shm:///run/s"),
    ],
)
def test_the_client_can_dial_the_host(uri: str, host: HostResolver, expected: str) -> None:
    assert dialled(uri, host) == expected


def test_a_remote_client_gets_the_address_on_its_route() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route")
        ours = probe.getsockname()[0]
    assert dialled("tcp://0.0.0.0:1", name(peer="ipv4:192.0.2.1:5")) == f"tcp://{ours}:1"


def test_a_stream_pair_needs_two_listeners() -> None:
    body = DataUri.parse("tcp://0.0.0.0:1?want_data=1&stream=body")
    metadata = DataUri.parse("tcp://0.0.0.0:2?want_data=1&stream=metadata")
    assert list_stream_pair([body], name()) == {}
    assert list_stream_pair([body, metadata], name()) == {
        "metadata": "tcp://127.0.0.1:2?want_data=0x1&stream=metadata",
        "body": "tcp://127.0.0.1:1?want_data=0x1&stream=body",
    }


def test_a_stock_client_gets_the_stream_pair_and_the_advertised_host(table: pa.Table) -> None:
    listen = ("tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body")
    advertised = running({"a": table}, listen=listen, advertise="node.example")
    with advertised as server, server.client() as client:
        (endpoint,) = client.get_flight_info(PATH("a")).endpoints
    assert [place.uri for place in endpoint.locations] == [b"arrow-flight-reuse-connection://?"]
    pair = json.loads(endpoint.app_metadata)
    assert set(pair) == {"metadata", "body"}
    assert all(uri.startswith("tcp://node.example:") for uri in pair.values())


def test_a_ticket_can_be_redeemed_at_its_location(table: pa.Table) -> None:
    import splitarrow

    with running({"a": table}) as server, server.client() as client:
        (endpoint,) = client.get_flight_info(PATH("a")).endpoints
        uri = endpoint.locations[0].uri.decode()
        with splitarrow.open(uri, ticket=endpoint.ticket.ticket) as stream:
            assert stream.read_all() == table


@pytest.mark.parametrize(
    ("peer", "nbytes", "listener", "control", "expected"),
    [
        ("ipv4:192.0.2.7:1", 1 << 16, "tcp", "grpc", True),
        ("ipv6:[2001:db8::7]:1", 0, "tcp", "grpc", True),
        ("ipv4:192.0.2.7:1", (1 << 16) + 1, "tcp", "grpc", False),
        ("ipv4:192.0.2.7:1", -1, "tcp", "grpc", False),
        (LOOPBACK, 100, "tcp", "grpc", False),
        ("unix:/run/a", 100, "tcp", "grpc", False),
        ("ipv4:192.0.2.7:1", 100, "tcp+tls", "grpc", False),
        ("ipv4:192.0.2.7:1", 100, "tcp+tls", "grpc+tls", True),
    ],
)
def test_small_data_goes_with_its_plan_to_other_hosts_and_never_less_encrypted(
    peer: str, nbytes: int, listener: str, control: str, expected: bool
) -> None:
    uris, settings = [DataUri(listener, "h", 1)], SimpleNamespace(control=f"{control}://h")
    call: Any = SimpleNamespace(peer=peer, server=SimpleNamespace(uris=uris, settings=settings))
    info: Any = None
    assert prefers_do_get(call, Plan(info, nbytes)) is expected


def test_this_host_is_near_under_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info_module, "_find_facing_host", lambda peer, bound: "192.0.2.1")
    server = SimpleNamespace(uris=[], settings=SimpleNamespace(control="grpc://h"))
    plan: Any = SimpleNamespace(nbytes=1)
    for host, expected in (("192.0.2.1", False), ("192.0.2.2", True)):
        call: Any = SimpleNamespace(peer=f"ipv4:{host}:1", server=server)
        assert prefers_do_get(call, plan) is expected
