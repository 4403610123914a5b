"""`open` and `connect` accept every form of an address, and lead to the right one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import splitarrow
from splitarrow import Server, aio
from splitarrow.client.uris import resolve_uris
from splitarrow.errors import ClosedError, NotFoundError, UriError, UsageError

TABLE = pa.table({"n": range(10), "name": [f"name {n}" for n in range(10)]})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    datasets = {"numbers": TABLE, "a/b c": TABLE}
    with splitarrow.serve(datasets, control="grpc://127.0.0.1:0") as server:
        yield server


def addresses(server: Server, name: str) -> list[str]:
    control = server.control_uri or ""
    return [
        f"{server.listen[0].partition('?')[0]}/{name}",
        f"{control}/{name}",
        f"{control[7:]}/{name}",
    ]


@pytest.mark.parametrize("form", range(3), ids=["tcp://", "grpc://", "host:port"])
@pytest.mark.parametrize("name", ["numbers", "a/b%20c"])
def test_a_dataset_has_short_addresses(server: Server, form: int, name: str) -> None:
    uri = addresses(server, name)[form]
    with splitarrow.open(uri, columns="n", limit=3) as stream:
        assert stream.read_all().to_pydict() == {"n": [0, 1, 2]}
    with splitarrow.open(uri, filter="n >= 8") as stream:
        assert stream.read_all() == TABLE.slice(8)


@pytest.mark.parametrize("form", range(3), ids=["tcp://", "grpc://", "host:port"])
async def test_a_dataset_has_short_addresses_in_the_async_api(server: Server, form: int) -> None:
    async with aio.open(addresses(server, "numbers")[form], filter=[("n", ">=", 8)]) as stream:
        assert await stream.read_all() == TABLE.slice(8)


@pytest.mark.parametrize(
    ("uri", "complete"),
    [
        (
            "tcp://host/flights",
            "tcp://host?want_data=0x10000000001&keep_alive=0x10000000003&ticket=flights",
        ),
        ("tcp://h:1/{", "tcp://h:1?want_data=0x10000000001&keep_alive=0x10000000003&ticket=%7B"),
        (
            "tcp+tls://h/a?want_data=7&keep_alive=9",
            "tcp+tls://h?want_data=0x7&keep_alive=0x9&ticket=a",
        ),
    ],
)
def test_a_short_uri_gets_its_tags_and_its_ticket(uri: str, complete: str) -> None:
    if "{" in uri:  # a name that looks like JSON is quoted in a ticket
        complete = complete.replace("%7B", "%7B%22dataset%22%3A%20%22%7B%22%7D")
    assert [str(one) for one in resolve_uris(uri)] == [complete]


def test_the_name_may_be_an_argument(server: Server) -> None:
    assert splitarrow.open(server.control_uri or "", "numbers").read_all() == TABLE


def test_closing_the_stream_closes_its_client(server: Server) -> None:
    with mock.patch("splitarrow.client.dataset.client.Client.close", autospec=True) as close:
        stream = splitarrow.open(f"{server.control_uri}/numbers")
        assert isinstance(stream, splitarrow.DatasetStream)
        assert not close.called
        stream.read_all()
        close.assert_called_once()
        with pytest.raises(NotFoundError, match="nearest is 'numbers'"):
            splitarrow.open(f"{server.control_uri}/number")
        assert close.call_count == 2


def test_an_address_without_a_dataset_leads_to_connect(server: Server) -> None:
    for uri in (server.control_uri, "host:8815", "grpc://host:8815/"):
        with pytest.raises(UriError, match=r"names no dataset; open .*/NAME, .*connect\('grpc://"):
            splitarrow.open(uri or "")


def test_a_name_in_the_address_of_a_control_plane_leads_to_open() -> None:
    with pytest.raises(UriError, match="names a dataset; connect to grpc://host:1, or pass"):
        splitarrow.connect("host:1/flights")


def test_connect_accepts_host_and_port(server: Server) -> None:
    with splitarrow.connect((server.control_uri or "")[7:]) as client:
        assert client.uri == server.control_uri


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("grpc://h/a", {"ticket": "b"}, "already names a dataset"),
        ("grpc://h/a?x=1", {}, "parameters"),
        ("tcp://h/a", {"token": "t"}, "a token is for a control plane"),
    ],
)
def test_arguments_that_do_not_fit(uri: str, options: dict[str, Any], message: str) -> None:
    for open in (splitarrow.open, aio.open):
        with pytest.raises(UsageError, match=message):
            open(uri, **options)


def test_one_listener_may_be_a_string() -> None:
    with splitarrow.serve({"numbers": TABLE}, listen="tcp://127.0.0.1:0") as server:
        assert len(server.listen) == 1


@pytest.mark.parametrize("plane", ["data", "control"])
@pytest.mark.parametrize("prefetch_bytes", [0, 1 << 20])
def test_a_stream_that_was_read_to_its_end(server: Server, plane: str, prefetch_bytes: int) -> None:
    uri = server.uri("numbers") if plane == "data" else f"{server.control_uri}/numbers"
    stream = splitarrow.open(uri, prefetch_bytes=prefetch_bytes)
    assert not stream.is_exhausted
    assert stream.read_all() == TABLE
    assert stream.is_exhausted
    assert "read to its end" in repr(stream)
    assert (stream.rows_received, stream.schema) == (10, TABLE.schema)
    assert next(stream, None) is None
    for method in ("read_all", "to_pandas", "to_polars", "to_numpy", "head", "to_reader"):
        with pytest.raises(ClosedError, match="already read to its end; open it again"):
            getattr(stream, method)()
    stream.close()


@pytest.mark.parametrize("plane", ["data", "control"])
async def test_an_async_stream_that_was_read_to_its_end(server: Server, plane: str) -> None:
    uri = server.uri("numbers") if plane == "data" else f"{server.control_uri}/numbers"
    async with aio.open(uri) as stream:
        assert await stream.read_all() == TABLE
        assert stream.is_exhausted
        with pytest.raises(ClosedError, match="already read to its end; open it again"):
            await stream.read_all()


def test_the_connection_ends_with_the_data(server: Server) -> None:
    stream = splitarrow.open(server.uri("numbers"))
    assert isinstance(stream, splitarrow.Stream)
    stream.read_all()
    (channel,) = stream._reader.channels.values()
    assert channel.fileno() < 0


@pytest.mark.parametrize("plane", ["data", "control"])
async def test_conversions(server: Server, plane: str) -> None:
    uri = server.uri("numbers") if plane == "data" else f"{server.control_uri}/numbers"
    assert splitarrow.open(uri).to_arrow() == TABLE
    assert splitarrow.open(uri).to_pandas().equals(TABLE.to_pandas())
    assert splitarrow.open(uri).to_polars().to_arrow().column("n") == TABLE["n"]
    assert splitarrow.open(uri).to_duckdb().filter("n > 7").fetchall() == [
        (8, "name 8"),
        (9, "name 9"),
    ]
    assert splitarrow.open(uri, batch_rows=3).to_numpy()["n"].tolist() == list(range(10))
    stream = splitarrow.open(uri, batch_rows=2)
    assert stream.head(3) == TABLE.slice(0, 3)
    with pytest.raises(ClosedError):
        next(stream)
    assert [splitarrow.open(uri).head(rows).num_rows for rows in (0, 1, 11)] == [0, 1, 10]
    async with aio.open(uri) as one:
        assert await one.to_arrow() == TABLE
    async with aio.open(uri) as one:
        assert (await one.to_pandas()).equals(TABLE.to_pandas())
    async with aio.open(uri) as one:
        assert (await one.to_polars())["n"].to_list() == list(range(10))
    async with aio.open(uri) as one:
        assert (await one.to_duckdb()).fetchall()[0] == (0, "name 0")
    async with aio.open(uri) as one:
        assert (await one.to_numpy())["name"][9] == "name 9"
    async with aio.open(uri, batch_rows=2) as one:
        assert await one.head(3) == TABLE.slice(0, 3)
