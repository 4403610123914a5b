"""Listeners behind a proxy: limits, logs and lists have the address of the reader."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.control_plane import running
from helpers.files import write_file
from helpers.http_requests import request, request_json, scrape
from helpers.pki import Pki
from helpers.proxy import binary_header, proxy, text_header
from helpers.waiting import wait_until
from splitarrow.errors import ExhaustedError, SplitArrowError
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon
from splitarrow.transport.tls_options import TlsOptions

TABLE = pa.table({"n": [1, 2, 3]})
LARGE = pa.table({"n": pa.array(np.zeros(8 << 20))})
BOTH = ["tcp://127.0.0.1:0", "tcp+tls://127.0.0.1:0"]
TRUSTED, STRANGER = "127.0.0.0/8", "10.0.0.0/8"
READER, OTHER = "192.0.2.1", "192.0.2.2"


def through(made: Any, uri: str) -> str:
    return str(DataUri.parse(uri).replace(port=made.port))


def list_peers(server: splitarrow.Server | Daemon) -> list[str]:
    """Return the addresses of the readers of running streams."""
    streams = request_json(server.http_uri or "", "/v1/streams")["streams"]
    return [stream["peer"] for stream in streams]


def port_of(uri: str | None) -> int:
    port = DataUri.parse(uri or "").port
    assert port is not None
    return port


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.mark.parametrize("scheme", ["tcp", "tcp+tls"])
@pytest.mark.parametrize("header", [binary_header(READER), text_header(READER)])
def test_a_reader_behind_a_proxy_has_its_own_address(scheme: str, header: bytes, pki: Pki) -> None:
    options: dict[str, Any] = {"proxy_protocol": TRUSTED, "max_connections_per_address": 1}
    ca = TlsOptions(ca_file=pki.path("ca"))
    with splitarrow.serve(
        {"a": TABLE, "large": LARGE},
        listen=BOTH,
        http="http://127.0.0.1:0",
        tls_cert=pki.path("server"),
        **options,
    ) as server:
        uri = server.uri("a", scheme)
        with (
            proxy(port_of(uri), header=header) as one,
            proxy(port_of(uri), header=binary_header(OTHER)) as two,
            splitarrow.open(through(one, server.uri("large", scheme)), tls=ca),
        ):
            wait_until(lambda: list_peers(server) == [f"{READER}:4000"])
            with pytest.raises(ExhaustedError, match="limit of connections"):
                splitarrow.open(through(one, uri), tls=ca)
            for place in (through(two, uri), uri):  # another reader, and one without a proxy
                with splitarrow.open(place, tls=ca) as stream:
                    assert stream.read_all() == TABLE


@pytest.mark.parametrize("scheme", ["tcp", "tcp+tls"])
@pytest.mark.parametrize(
    ("networks", "header"),
    [
        (None, binary_header(READER)),
        (STRANGER, text_header(READER)),
        (TRUSTED, binary_header(READER)[:-1].replace(b"\x21\x11", b"\x33\x11")),
    ],
    ids=["unset", "stranger", "malformed"],
)
def test_the_header_of_a_stranger_is_refused_and_counted(
    scheme: str, networks: str | None, header: bytes, pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {} if networks is None else {"proxy_protocol": networks}
    with splitarrow.serve(
        {"a": TABLE},
        listen=BOTH,
        http="http://127.0.0.1:0",
        tls_cert=pki.path("server"),
        **options,
    ) as server:
        uri = server.uri("a", scheme)
        with (
            proxy(port_of(uri), header=header) as made,
            pytest.raises(SplitArrowError),
        ):
            splitarrow.open(through(made, uri), tls=TlsOptions(ca_file=pki.path("ca")))
        wait_until(lambda: count_refusals(server, "data") == 1)
        assert server.stats()["streams_total"] == 0
    assert "connection refused" in [record.msg for record in caplog.records]


def count_refusals(server: splitarrow.Server, plane: str) -> float:
    key = ("refused_requests_total", plane, "permission_denied")
    return scrape(server.http_uri or "").get(key, 0)


def test_the_http_listener_believes_trusted_proxies_only() -> None:
    for networks, works in ((TRUSTED, True), (STRANGER, False)):
        with splitarrow.serve(
            {"a": TABLE}, http="http://127.0.0.1:0", proxy_protocol=networks
        ) as server:
            with proxy(port_of(server.http_uri), header=binary_header(READER)) as made:
                address = f"http://127.0.0.1:{made.port}"
                if works:
                    assert request(address, "/healthz").text == "ok\n"
                else:
                    with pytest.raises((ConnectionError, http.client.HTTPException)):
                        request(address, "/healthz")
            assert request(server.http_uri or "", "/healthz").text == "ok\n"
            assert count_refusals(server, "http") == (not works)


def test_data_over_http_belongs_to_the_reader_behind_a_proxy() -> None:
    with (
        splitarrow.serve(
            {"large": LARGE}, http="http://127.0.0.1:0", proxy_protocol=TRUSTED
        ) as server,
        proxy(port_of(server.http_uri), header=binary_header(READER)) as made,
    ):
        for port, headers, peer in (
            (made.port, {}, f"{READER}:4000"),
            (made.port, {"X-Forwarded-For": OTHER}, f"{READER}:4000"),  # the reader is no proxy
            (port_of(server.http_uri), {"X-Forwarded-For": f"{READER}, {OTHER}"}, f"{OTHER}:0"),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/v1/datasets/large/data", headers=headers)
            response = connection.getresponse()
            wait_until(lambda peer=peer: list_peers(server) == [peer])
            response.close()
            connection.close()
            wait_until(lambda: not list_peers(server))


def test_the_header_precedes_the_handshake_of_https(pki: Pki) -> None:
    context = ssl.create_default_context(cafile=str(pki.path("ca")))
    with (
        splitarrow.serve(
            {"a": TABLE},
            http="https://127.0.0.1:0",
            tls_cert=pki.path("server"),
            proxy_protocol=TRUSTED,
        ) as server,
        proxy(port_of(server.http_uri), header=text_header(READER)) as made,
    ):
        for port in (made.port, urlsplit(server.http_uri or "").port):
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            connection.close()


@pytest.mark.parametrize(("networks", "believed"), [(TRUSTED, True), (STRANGER, False)])
def test_the_control_plane_believes_the_last_address_that_a_trusted_proxy_has_seen(
    table: pa.Table, networks: str, believed: bool
) -> None:
    action = b"\x0a\x04hold\x12\x01a"  # type and body of an Action

    with (
        running({"a": table}, max_calls_per_address=1, proxy_protocol=networks) as server,
        server.client() as client,
        server.channel() as channel,
    ):

        def find_problem(forwarded: str) -> str:
            headers: Any = [(b"x-forwarded-for", forwarded.encode())]
            try:
                list(client.list_actions(flight.FlightCallOptions(headers=headers)))
            except (flight.FlightError, pa.ArrowException) as error:
                return str(error)
            return ""

        def hold() -> Any:
            method = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")
            return method(action, metadata=(("x-forwarded-for", f"{OTHER}, {READER}"),))

        held = [hold()]
        address = READER if believed else "127.0.0.1"
        problem = f"the address {address} has reached its limit"

        def is_refused() -> bool:
            if held[-1].done():  # a probe came before it
                held.append(hold())
            return problem in find_problem(f"spoofed, {READER}") and not held[-1].done()

        wait_until(is_refused)
        assert (problem in find_problem(OTHER)) is not believed
        held[-1].cancel()


def test_a_reader_behind_a_proxy_gets_the_address_for_its_network() -> None:
    options: dict[str, Any] = {
        "proxy_protocol": TRUSTED,
        "advertise": "outside.example",
        "advertise_for": {"10.9.0.0/16": {"tcp": "inside.example:7"}},
    }
    listen = ("tcp://127.0.0.1:0",)
    with running({"a": TABLE}, listen=listen, **options) as server, server.client() as client:
        for header, host in (("10.9.0.1", "inside.example:7"), (READER, "outside.example:")):
            headers: Any = [(b"x-forwarded-for", header.encode())]
            call = flight.FlightCallOptions(headers=headers)
            found = client.get_flight_info(flight.FlightDescriptor.for_path("a"), call)
            assert host in found.endpoints[0].locations[0].uri.decode()


@pytest.mark.slow
def test_worker_processes_know_the_address_of_a_reader(tmp_path: Path) -> None:
    path = write_file(tmp_path / "large.arrow", LARGE)
    with Daemon(
        {"a": path}, workers=2, proxy_protocol=TRUSTED, http="http://127.0.0.1:0"
    ) as server:
        uri = server.uri("a", "tcp")
        with (
            proxy(port_of(uri), header=binary_header(READER)) as made,
            splitarrow.open(through(made, uri)) as stream,
        ):
            wait_until(lambda: list_peers(server) == [f"{READER}:4000"])
            assert stream.read_all() == LARGE


@pytest.mark.parametrize("header", [binary_header(READER), text_header(READER)])
def test_connections_of_the_control_plane_count_for_the_reader(header: bytes) -> None:
    path = flight.FlightDescriptor.for_path("d")
    with (
        running({"d": TABLE}, proxy_protocol=TRUSTED, max_connections_per_address=1) as server,
        proxy(server.port, header=header) as one,
        proxy(server.port, header=binary_header(OTHER)) as two,
        flight.connect(through(one, server.uri)) as first,
        flight.connect(through(one, server.uri)) as second,
        flight.connect(through(two, server.uri)) as other,
    ):
        assert first.get_flight_info(path).total_records == 3
        with pytest.raises(flight.FlightUnavailableError):
            second.get_flight_info(path)
        assert other.get_flight_info(path).total_records == 3
