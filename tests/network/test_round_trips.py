"""The round trips of a read of 10 KB, counted at 100 ms."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from helpers.files import write_file
from helpers.pki import Pki
from network.link import SERVER, Link, MakeLink
from splitarrow.testing import Daemon

DELAY_MS = 100

FLIGHT = """
from pyarrow import flight
if 'client' not in globals():
    client = flight.connect('{uri}')
info = client.get_flight_info(flight.FlightDescriptor.for_path('small'))
client.do_get(info.endpoints[0].ticket).read_all().num_rows
"""
CONNECT = """
if 'client' not in globals():
    client = splitarrow.connect('{uri}')
client.read('small', transport='{transport}').read_all().num_rows
"""
OPEN = "splitarrow.open('{uri}', transport='{transport}').read_all().num_rows"


def count_round_trips(link: Link, code: str, reads: int = 3, **environment: str) -> list[int]:
    """Count the round trips of each of some reads in a new process.

    A pause of the machine can add one, so that the lower count of two processes is true.
    """
    link.set(delay_ms=DELAY_MS)
    counts: list[list[int]] = []
    for _ in range(2):
        python = link.python(environment=environment)
        with link.capture() as capture:
            outcomes = [python(code) for _ in range(reads)]
        assert [(each.value, each.message) for each in outcomes] == [(1250, "")] * reads
        counts.append([capture.round_trips(each.begin, each.end) for each in outcomes])
    return [min(each) for each in zip(*counts, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to read, and certificates for the server's address."""
    folder = tmp_path_factory.mktemp("server")
    pki = Pki(folder)
    pki.write("here", pki.authority.issue_cert(SERVER))
    write_file(folder / "small.arrow", pa.table({"n": range(1250)}))
    return folder


@contextmanager
def serving(link: Link, folder: Path, *schemes: str) -> Generator[Daemon]:
    certificate: dict[str, Any] = (
        {"tls_cert": folder / "here-cert.pem", "tls_key": folder / "here-key.pem"}
        if "tcp+tls" in schemes
        else {}
    )
    with ExitStack() as stack:
        with link.inside("server"):
            daemon = stack.enter_context(
                Daemon(
                    {"small": folder / "small.arrow"},
                    listen=[f"{scheme}://{SERVER}:0" for scheme in schemes],
                    control=f"grpc://{SERVER}:0",
                    insecure=True,
                    **certificate,
                )
            )
        yield daemon


@pytest.fixture(scope="module")
def link(make_link: MakeLink) -> Link:
    return make_link()


@pytest.fixture(scope="module")
def server(link: Link, folder: Path) -> Iterator[Daemon]:
    link.set(delay_ms=0)
    with serving(link, folder, "tcp") as daemon:
        yield daemon


@pytest.mark.network_short
def test_pyarrow_flight_takes_four_and_two(link: Link, server: Daemon) -> None:
    """The count agrees with what is known of gRPC: two to connect, one for each call."""
    uri = server.control_uri.replace("grpc://", "grpc+tcp://")
    assert count_round_trips(link, FLIGHT.format(uri=uri)) == [4, 2, 2]


@pytest.mark.parametrize(("transport", "cold"), [("auto", 4), ("flight", 4), ("tcp", 6)])
def test_a_planned_read_takes_one_round_trip_after_the_first(
    link: Link, server: Daemon, transport: str, cold: int
) -> None:
    """The first takes two to connect, and one each to check the token and to plan."""
    code = CONNECT.format(uri=server.control_uri, transport=transport)
    assert count_round_trips(link, code) == [cold, 1, 1]


def test_a_filter_adds_one_for_the_schema_at_first(link: Link, server: Daemon) -> None:
    code = CONNECT.format(uri=server.control_uri, transport="auto")
    code = code.replace("transport=", "filter='n >= 0', transport=")
    assert count_round_trips(link, code) == [5, 1, 1]


@pytest.mark.parametrize(("transport", "cold"), [("auto", 3), ("tcp", 5)])
def test_opening_the_uri_of_a_control_plane_keeps_the_client(
    link: Link, server: Daemon, transport: str, cold: int
) -> None:
    """The token is checked while the read is planned."""
    code = OPEN.format(uri=f"{server.control_uri}/small", transport=transport)
    assert count_round_trips(link, code) == [cold, 1, 1]


@pytest.mark.parametrize(("scheme", "cold"), [("tcp", 2), ("tcp+tls", 3)])
def test_opening_a_data_uri_connects_once(link: Link, folder: Path, scheme: str, cold: int) -> None:
    link.set(delay_ms=0)
    with serving(link, folder, scheme) as server:
        code = OPEN.format(uri=server.uri("small", scheme), transport="auto")
        trips = count_round_trips(link, code, SPLITARROW_TLS_CA=str(folder / "ca.pem"))
    assert trips == [cold, 1, 1]


def test_a_location_that_failed_is_not_tried_in_each_read(link: Link, folder: Path) -> None:
    """The client does not trust the certificate of the first location."""
    link.set(delay_ms=0)
    with serving(link, folder, "tcp+tls", "tcp") as daemon, link.capture() as capture:
        python = link.python(environment={"SPLITARROW_TLS_CA": str(folder / "foreign-ca.pem")})
        code = CONNECT.format(uri=daemon.control_uri, transport="auto")
        first, *later = (python(code) for _ in range(3))
    assert [each.message for each in (first, *later)] == ["", "", ""]
    assert later[-1].value == 1250
    port = urlsplit(daemon.uri("small", "tcp+tls")).port
    tries = [p.sent for p in capture.packets if p.opens and p.target == port]
    assert [sent for sent in tries if sent > first.end] == []
