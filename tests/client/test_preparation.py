"""The reads that precede a read, for its schema or its format, keep the options of the user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.waiting import wait_until
from splitarrow import Server, TlsOptions, aio
from splitarrow.client.arguments import Read, ReadArguments, StreamOptions
from splitarrow.client.dataset.endpoints import RETRY_SECONDS
from splitarrow.client.stream import format_choice, reader
from splitarrow.errors import ConnectError, SplitArrowError
from splitarrow.protocol.limits import Limits

TABLE = pa.table({"n": range(300_000)})
GUARDED: ReadArguments = {
    "limits": Limits(nesting=7),
    "connect_timeout": 7.5,
    "stall_timeout": 8.5,
    "tls": TlsOptions(server_name="somebody"),
    "max_decoded_bytes": 1 << 29,
    "validate": "full",
}

Entry = Callable[[Server, Any], Any]


def open_uri(server: Server, arguments: Any) -> pa.Table:
    with splitarrow.open(server.uri("t"), **arguments) as stream:
        return stream.read_all()


def open_address(server: Server, arguments: Any) -> pa.Table:
    with splitarrow.open(f"{server.control_uri}/t", **arguments) as stream:
        return stream.read_all()


def read_client(server: Server, arguments: Any) -> pa.Table:
    with (
        splitarrow.connect(server.control_uri or "") as client,
        client.read("t", **arguments) as stream,
    ):
        return stream.read_all()


def read_cluster(server: Server, arguments: Any) -> pa.Table:
    uris = [server.control_uri or ""] * 2
    with splitarrow.connect(uris) as client, client["t"].read(**arguments) as stream:
        return stream.read_all()


def asynchronous(read: Callable[[Server, Any], Awaitable[pa.Table]]) -> Entry:
    return lambda server, arguments: anyio.run(read, server, arguments)


async def open_uri_async(server: Server, arguments: Any) -> pa.Table:
    async with aio.open(server.uri("t"), **arguments) as stream:
        return await stream.read_all()


async def open_address_async(server: Server, arguments: Any) -> pa.Table:
    async with aio.open(f"{server.control_uri}/t", **arguments) as stream:
        return await stream.read_all()


async def read_client_async(server: Server, arguments: Any) -> pa.Table:
    async with (
        aio.connect(server.control_uri or "") as client,
        client.read("t", **arguments) as stream,
    ):
        return await stream.read_all()


ENTRIES: dict[str, Entry] = {
    "open": open_uri,
    "open grpc": open_address,
    "Client.read": read_client,
    "ClusterClient": read_cluster,
    "aio.open": asynchronous(open_uri_async),
    "aio.open grpc": asynchronous(open_address_async),
    "AsyncClient.read": asynchronous(read_client_async),
}
PREPARED: dict[str, Any] = {"filter": {"filter": "n >= 0"}, "format": {"format": "auto"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with splitarrow.serve(
        {"t": TABLE}, listen=["tcp://127.0.0.1:0"], control="grpc://127.0.0.1:0"
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test measure its link anew."""
    monkeypatch.setattr(format_choice.CHOOSER, "_link_rates", {})


@pytest.mark.parametrize("prepared", PREPARED)
@pytest.mark.parametrize("entry", ENTRIES)
def test_no_preparation_uses_a_transport_that_is_not_allowed(
    server: Server, entry: str, prepared: str
) -> None:
    sent = server.stats()["bytes_sent"]
    with pytest.raises(ConnectError, match=r"tcp\+tls"):
        ENTRIES[entry](server, PREPARED[prepared] | {"require_transport": "tcp+tls"})
    assert server.stats()["bytes_sent"] == sent


@pytest.mark.parametrize("prepared", PREPARED)
@pytest.mark.parametrize("entry", ENTRIES)
def test_each_preparation_has_the_options_of_the_read(
    server: Server, entry: str, prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StreamOptions] = []
    original = reader.Reader.__init__

    def record(self: reader.Reader, uris: Any, options: StreamOptions) -> None:
        seen.append(options)
        original(self, uris, options)

    monkeypatch.setattr(reader.Reader, "__init__", record)
    result = ENTRIES[entry](server, GUARDED | PREPARED[prepared] | {"location_timeout": 60.0})
    assert result.equals(TABLE)
    expected = Read.of(GUARDED).options
    assert seen
    for options in seen:
        for name in GUARDED:
            found = getattr(options, name)
            if name == "connect_timeout":  # A read with a kept plan waits for less.
                assert found in (expected.connect_timeout, RETRY_SECONDS)
            else:
                assert found == getattr(expected, name), name


@pytest.mark.parametrize("entry", ENTRIES)
def test_preparation_ends_with_the_read_that_it_precedes(server: Server, entry: str) -> None:
    """No connection of a preparation stays open as a stream of the server."""
    assert ENTRIES[entry](server, {"filter": "n < 3"}).num_rows == 3
    wait_until(lambda: server.stats()["streams"] == 0)


def test_an_option_of_a_control_plane_is_refused_for_a_data_stream(server: Server) -> None:
    for name, value in (("sql", "SELECT 1"), ("shards", [0]), ("transport", "tcp")):
        arguments: Any = {name: value}
        with pytest.raises(SplitArrowError, match=name):
            splitarrow.open(server.uri("t"), **arguments)


def test_a_query_reads_the_datasets_of_an_address(server: Server) -> None:
    with splitarrow.open(server.control_uri or "", sql="SELECT max(n) AS m FROM t") as stream:
        assert stream.read_all().to_pydict() == {"m": [299_999]}
