"""The asynchronous client, on asyncio and trio."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pyarrow as pa
import pytest

from helpers.control_plane import Running, running
from splitarrow import errors
from splitarrow.client.cluster.client import AsyncClusterClient
from splitarrow.client.connect import connect as connect_blocking
from splitarrow.client.connect import connect_async
from splitarrow.client.dataset.aio import AsyncClient

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_the_async_client_lists_reads_and_uploads(server: Running, table: pa.Table) -> None:
    async with connect_async(server.uri) as client:
        assert {info.name for info in await client.datasets()} >= {"table", "many"}
        info = await client.info("many")
        assert info.schema == await client.schema("many") == table.schema
        async with client.read("many") as stream:
            assert stream.schema == table.schema
            assert await stream.read_all() == table
            assert stream.transport == "tcp"
            assert stream.rows_received == table.num_rows
            assert stream.bytes_received
            assert stream.resumed == 0
        async with client.read("table", transport="flight", limit=10) as stream:
            assert [batch.num_rows async for batch in stream] == [10]
        stored = await client.put("async", table)
        assert stored.rows == table.num_rows
        await client.drop("async")
        assert not (await client.status())["draining"]
        with pytest.raises(errors.NotFoundError, match="'async'"):
            async with client.read("async"):
                pass
    with pytest.raises(errors.ClosedError):
        await client.datasets()


async def test_the_async_client_states_its_address(server: Running) -> None:
    client = connect_async(server.uri)
    with pytest.raises(errors.ClosedError):
        _ = client.uri
    async with client:
        assert client.uri == server.uri


async def test_a_client_or_stream_that_was_not_entered_is_closed(server: Running) -> None:
    client = connect_async(server.uri)
    with pytest.raises(errors.ClosedError):
        await client.datasets()
    async with client:
        with pytest.raises(errors.ClosedError):
            _ = client.read("table").schema


async def test_a_cancelled_read_loses_no_rows(server: Running, table: pa.Table) -> None:
    async with connect_async(server.uri) as client, client.read("many") as stream:
        batches: list[pa.RecordBatch] = []
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                batches.append(await anext(stream))
        batches += [batch async for batch in stream]
        assert pa.Table.from_batches(batches) == table


async def test_reading_after_cancel_is_an_error(server: Running) -> None:
    async with connect_async(server.uri) as client, client.read("many") as stream:
        await anext(stream)
        stream.cancel()
        with pytest.raises(errors.ClosedError):
            await stream.read_all()


async def test_a_cancelled_connection_attempt_ends_at_once(server: Running) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with connect_async(server.uri):
            pass
    assert scope.cancelled_caught


async def test_the_async_client_publishes_shards(server: Running, table: pa.Table) -> None:
    async with connect_async(server.uri) as client:
        shard = await client.put_shard("published", table, job="one", ordinal=0)
        assert (shard.ordinal, shard.rows) == (0, table.num_rows)
        result = await client.publish("published", job="one", ordinals=[0])
        assert (result.shards, result.snapshot) == (1, "one")
        async with client.read("published") as stream:
            assert await stream.read_all() == table
        await client.put_shard("published", table, job="two", ordinal=0)
        await client.discard("published", "two")
        with pytest.raises(errors.RemoteError):
            await client.publish("published", job="two", ordinals=[0])
        await client.act("drop", b"published", dataset="published")
        assert "published" not in {info.name for info in await client.datasets()}


async def test_the_async_client_of_a_cluster_reads_and_reaches_each_daemon(
    server: Running, table: pa.Table
) -> None:
    with running({"other": table}) as second:
        async with connect_async([server.uri, second.uri]) as cluster:
            assert isinstance(cluster, AsyncClusterClient)
            assert cluster.uris == [server.uri, second.uri]
            assert cluster.absent == {}
            assert {info.name for info in await cluster.datasets()} >= {"many", "other"}
            async with cluster.read("other") as stream:
                assert await stream.read_all() == table
            daemon = await cluster.at(second.uri)
            assert [info.name for info in await daemon.datasets()] == ["other"]
            with pytest.raises(errors.UsageError, match="not a daemon of this cluster"):
                await cluster.at("grpc://elsewhere:1")
        with pytest.raises(errors.ClosedError):
            await daemon.datasets()


def test_a_malformed_uri_is_refused_before_the_client_is_entered() -> None:
    with pytest.raises(errors.UriError):
        connect_async("tcp://host:1")


async def test_a_client_names_its_servers(server: Running) -> None:
    client = connect_async(server.uri)
    assert repr(client) == "<splitarrow.AsyncClient not connected>"
    async with client:
        assert repr(client) == f"<splitarrow.AsyncClient of {server.uri}>"


async def test_the_asynchronous_form_of_a_client_may_be_entered(server: Running) -> None:
    client = AsyncClient.of(await anyio.to_thread.run_sync(connect_blocking, server.uri))
    names = {info.name for info in await client.datasets()}
    async with client:
        assert {info.name for info in await client.datasets()} == names
    with pytest.raises(errors.ClosedError):
        await client.datasets()
